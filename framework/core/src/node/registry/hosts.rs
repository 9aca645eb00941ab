//! Names that are unique among several hosts: those that the head has given to others, and those of an agent
//! that are free again.

use std::collections::HashSet;

use super::{Registry, check_name};
use crate::ids::ActorId;
use crate::node::limits::MAX_NAMES_OF_HOST;
use crate::transport::gateway_messages::NameRefused;

impl Registry {
    /// Whether `actor` has a name.
    pub(crate) fn has(&self, actor: ActorId) -> bool {
        self.names.values().any(|(named, _)| *named == actor)
    }

    /// Returns the actors that have names.
    pub(crate) fn named(&self) -> impl Iterator<Item = ActorId> {
        self.names.values().map(|(actor, _)| *actor)
    }

    /// Returns all names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Notes from now on which names become free, on a host that claims names from the head.
    pub(crate) fn note_freed(&mut self) {
        self.freed = Some(Vec::new());
    }

    pub(crate) fn take_freed(&mut self) -> Vec<String> {
        self.freed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// On the head: gives this name to another host.
    pub(crate) fn claim(&mut self, host: u16, name: &str) -> Result<(), NameRefused> {
        if let Some(holder) = self.find(name) {
            return Err(NameRefused::By(holder));
        }
        match self.on_other_hosts.get(name) {
            Some(holder) if *holder == host => return Ok(()),
            Some(holder) => return Err(NameRefused::By(ActorId::numbered(*holder, 0))),
            None => {}
        }
        let count = self.by_host.entry(host).or_default();
        // An honest host has checked the length itself.
        if *count >= MAX_NAMES_OF_HOST || check_name(name).is_err() {
            return Err(NameRefused::Full);
        }
        *count += 1;
        self.on_other_hosts.insert(name.to_owned(), host);
        Ok(())
    }

    /// On the head: whether it has given this name to that host.
    pub(crate) fn is_of(&self, host: u16, name: &str) -> bool {
        self.on_other_hosts.get(name) == Some(&host)
    }

    /// On the head: takes this name back from a host.
    pub(crate) fn release(&mut self, host: u16, name: &str) {
        if self.is_of(host, name) {
            self.on_other_hosts.remove(name);
            self.by_host.entry(host).and_modify(|count| *count -= 1);
        }
    }

    /// On the head: takes back all names of a host but these. The host may have given others back, and the
    /// message was lost.
    pub(crate) fn release_but(&mut self, host: u16, names: &HashSet<String>) {
        let released =
            self.on_other_hosts.extract_if(|name, holder| *holder == host && !names.contains(name));
        let released = released.count();
        self.by_host.entry(host).and_modify(|count| *count -= released);
    }

    /// On the head: takes back all names of a host that has left the node.
    pub(crate) fn release_all(&mut self, host: u16) {
        self.on_other_hosts.retain(|_, holder| *holder != host);
        self.by_host.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_host() {
        let mut registry = Registry::default();
        registry.register("here".into(), ActorId(1)).unwrap();
        assert_eq!(registry.claim(1, "here"), Err(NameRefused::By(ActorId(1))));
        assert_eq!(registry.claim(1, "there"), Ok(()));
        // The host may claim a name that it already has: an earlier message of it was lost.
        assert_eq!(registry.claim(1, "there"), Ok(()));
        assert_eq!(registry.claim(2, "there"), Err(NameRefused::By(ActorId::numbered(1, 0))));
        let error = registry.register("there".into(), ActorId(1)).unwrap_err();
        assert!(error.to_string().contains("`there` belongs to an actor on host 1"), "{error}");
        // Another host cannot release it.
        registry.release(2, "there");
        assert!(registry.claim(2, "there").is_err());
        registry.release(1, "there");
        assert_eq!(registry.claim(2, "there"), Ok(()));
        registry.release_all(2);
        registry.register("there".into(), ActorId(1)).unwrap();
        assert!(registry.on_other_hosts.is_empty() && registry.claim(1, "").is_err());

        // MBX-2.
        (0..MAX_NAMES_OF_HOST).for_each(|i| assert_eq!(registry.claim(3, &i.to_string()), Ok(())));
        assert_eq!(registry.claim(3, "one more"), Err(NameRefused::Full));
        assert_eq!(registry.claim(4, "another's"), Ok(()));
        registry.release(3, "7");
        assert_eq!(registry.claim(3, "one more"), Ok(()));
        // Names that it gave back without the head's knowledge become free, and no other host's names do.
        registry.release_but(3, &HashSet::from(["9".to_owned(), "never claimed".to_owned()]));
        assert_eq!((registry.on_other_hosts.len(), registry.by_host[&3]), (2, 1));
        assert_eq!((registry.claim(4, "7"), registry.claim(4, "9").is_err()), (Ok(()), true));

        // A host that is not the head collects its freed names for the head.
        assert!(registry.take_freed().is_empty());
        registry.note_freed();
        registry.forget(|actor| actor == ActorId(1));
        let mut freed = registry.take_freed();
        freed.sort();
        assert_eq!(freed, ["here", "there"]);
        assert!(registry.take_freed().is_empty());
    }
}
