//! On the head: the names that it has given to actors of other hosts. A name belongs to one host, and the
//! registry of that host says to which actor.
//!
//! **Invariants.** A name is here or in the head's own registry, and never in both: a claim looks into the
//! registry, and the broker asks its neighbours before it gives a name. MBX-2: a host has a bounded number.

use std::collections::{HashMap, HashSet};

use super::HostActors;
use crate::ids::ActorId;
use crate::node::limits::MAX_NAMES_OF_HOST;
use crate::node::registry::{Registry, check_name};
use crate::transport::gateway_messages::NameRefused;

/// See the module.
#[derive(Default)]
pub(crate) struct NamesOfHosts {
    given: HashMap<String, u16>,
    by_host: HashMap<u16, usize>,
}

impl NamesOfHosts {
    /// Gives this name to another host.
    pub(crate) fn claim(&mut self, registry: &Registry, host: u16, name: &str) -> Result<(), NameRefused> {
        if let Some(holder) = registry.find(name) {
            return Err(NameRefused::By(holder));
        }
        match self.holder(name) {
            Some(holder) if holder == host => return Ok(()),
            Some(holder) => return Err(NameRefused::By(ActorId::numbered(holder, 0))),
            None => {}
        }
        let count = self.by_host.entry(host).or_default();
        // An honest host has checked the length itself.
        if *count >= MAX_NAMES_OF_HOST || check_name(name).is_err() {
            return Err(NameRefused::Full);
        }
        *count += 1;
        self.given.insert(name.to_owned(), host);
        Ok(())
    }

    /// Returns the host that has this name.
    pub(super) fn holder(&self, name: &str) -> Option<u16> {
        self.given.get(name).copied()
    }

    /// Whether that host has this name.
    pub(crate) fn is_of(&self, host: u16, name: &str) -> bool {
        self.holder(name) == Some(host)
    }

    /// Takes this name back from a host.
    pub(crate) fn release(&mut self, host: u16, name: &str) {
        if self.is_of(host, name) {
            self.given.remove(name);
            self.by_host.entry(host).and_modify(|count| *count -= 1);
        }
    }

    /// Takes back all names of a host but these. The host may have given others back, and the message was
    /// lost.
    pub(crate) fn release_but(&mut self, host: u16, names: &HashSet<String>) {
        let released = self.given.extract_if(|name, holder| *holder == host && !names.contains(name));
        let released = released.count();
        self.by_host.entry(host).and_modify(|count| *count -= released);
    }

    /// Takes back all names of a host that has left the node.
    pub(crate) fn release_all(&mut self, host: u16) {
        self.given.retain(|_, holder| *holder != host);
        self.by_host.remove(&host);
    }
}

impl<'a> HostActors<'a> {
    /// On the head: gives this name to another host.
    pub(crate) fn claim(&mut self, host: u16, name: &str) -> Result<(), NameRefused> {
        self.other_hosts.names.claim(self.tables.registry, host, name)
    }

    /// Returns the names that the head has given to other hosts.
    pub(crate) fn names(self) -> &'a mut NamesOfHosts {
        &mut self.other_hosts.names
    }
}

#[cfg(test)]
mod tests {
    use super::super::OtherHosts;
    use super::*;
    use crate::ids::ProcessId;
    use crate::node::broker::Broker;

    #[test]
    fn a_name_has_one_host() {
        let mut broker = Broker::default().with_neighbours(Box::<OtherHosts>::default());
        let register =
            |broker: &mut Broker, name: &str| broker.give_name(ProcessId::NODE, name.to_owned(), ActorId(1));
        let claim = |broker: &mut Broker, host, name: &str| HostActors::of(broker).claim(host, name);
        register(&mut broker, "here").unwrap();
        assert_eq!(claim(&mut broker, 1, "here"), Err(NameRefused::By(ActorId(1))));
        assert_eq!(claim(&mut broker, 1, "there"), Ok(()));
        // The host may claim a name that it already has: an earlier message of it was lost.
        assert_eq!(claim(&mut broker, 1, "there"), Ok(()));
        assert_eq!(claim(&mut broker, 2, "there"), Err(NameRefused::By(ActorId::numbered(1, 0))));
        let error = register(&mut broker, "there").unwrap_err();
        assert!(error.to_string().contains("`there` belongs to an actor on host 1"), "{error}");
        // Another host cannot release it.
        HostActors::of(&mut broker).names().release(2, "there");
        assert!(claim(&mut broker, 2, "there").is_err());
        HostActors::of(&mut broker).names().release(1, "there");
        assert_eq!(claim(&mut broker, 2, "there"), Ok(()));
        HostActors::of(&mut broker).names().release_all(2);
        register(&mut broker, "there").unwrap();
        let names = HostActors::of(&mut broker).names();
        assert!(names.given.is_empty() && names.claim(&Registry::default(), 1, "").is_err());
    }

    // MBX-2.
    #[test]
    fn a_host_has_a_bounded_number_of_names() {
        let (registry, mut names) = (Registry::default(), NamesOfHosts::default());
        (0..MAX_NAMES_OF_HOST)
            .for_each(|number| assert_eq!(names.claim(&registry, 3, &number.to_string()), Ok(())));
        assert_eq!(names.claim(&registry, 3, "one more"), Err(NameRefused::Full));
        assert_eq!(names.claim(&registry, 4, "another's"), Ok(()));
        names.release(3, "7");
        assert_eq!(names.claim(&registry, 3, "one more"), Ok(()));
        // Names that it gave back without the head's knowledge become free, and no other host's names do.
        names.release_but(3, &HashSet::from(["9".to_owned(), "never claimed".to_owned()]));
        assert_eq!((names.given.len(), names.by_host[&3]), (2, 1));
        assert_eq!((names.claim(&registry, 4, "7"), names.claim(&registry, 4, "9").is_err()), (Ok(()), true));
    }

    #[test]
    fn an_agent_collects_its_freed_names_for_the_head() {
        let mut registry = Registry::default();
        ["a", "b"].into_iter().for_each(|name| registry.register(name.into(), ActorId(1)).unwrap());
        registry.register("c".into(), ActorId(2)).unwrap();
        assert!(registry.take_freed().is_empty());
        registry.note_freed();
        registry.forget(|actor| actor == ActorId(1));
        let mut freed = registry.take_freed();
        freed.sort();
        assert_eq!(freed, ["a", "b"]);
        assert!(registry.take_freed().is_empty());
    }
}
