//! Names for actors. A name belongs to at most one actor, and is free again when that actor ends.

use std::collections::HashMap;
#[cfg(feature = "hosts")]
use std::collections::HashSet;
use std::collections::hash_map::Entry;

use crate::ids::{ActorId, ProcessId};
#[cfg(feature = "hosts")]
use crate::node::limits::MAX_NAMES_OF_HOST;
use crate::node::limits::{MAX_NAME, MAX_NAMES, MAX_NAMES_EACH};
#[cfg(feature = "hosts")]
use crate::transport::gateway_messages::NameRefused;

/// Why a name was not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Another actor has it.
    #[error("the name `{name}` belongs to {holder}; choose another, or stop that actor first")]
    Taken {
        /// The name.
        name: String,
        /// The actor that has it.
        holder: ActorId,
    },
    /// An actor of another host of the node has it.
    #[error("the name `{name}` belongs to an actor on host {host}; choose another, or stop that actor first")]
    Elsewhere {
        /// The name.
        name: String,
        /// The number of the host.
        host: u16,
    },
    /// Too many claims of names are under way, on a host that must ask the head for each name.
    #[error("too many names are being given at a time; try again in a moment")]
    Busy,
    /// A name has 1 to 255 bytes.
    #[error("a name has 1 to {MAX_NAME} bytes, and this one has {0}; choose another")]
    Length(usize),
    /// A process has registered as many names as it may.
    #[error(
        "this process has registered {MAX_NAMES_EACH} names, as many as one may; stop actors whose names nobody looks up, or send \
         addresses in messages"
    )]
    TooMany,
    /// There are as many names as there may be.
    #[error(
        "the registry holds {MAX_NAMES} names, as many as it may; stop actors whose names nobody looks up, or send addresses in \
         messages"
    )]
    Full,
}

/// Checks the length of a name, of an actor or a worker.
pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    if (1..=MAX_NAME).contains(&name.len()) { Ok(()) } else { Err(NameError::Length(name.len())) }
}

/// The registry of one node.
#[derive(Default)]
pub(crate) struct Registry {
    /// Each name with the process that asked for it: one process leaves room for the names of others (MBX-2).
    names: HashMap<String, (ActorId, ProcessId)>,
    by_process: HashMap<ProcessId, usize>,
    /// On the head of several hosts: the names of the other hosts' actors, with the hosts.
    #[cfg(feature = "hosts")]
    on_other_hosts: HashMap<String, u16>,
    #[cfg(feature = "hosts")]
    by_host: HashMap<u16, usize>,
    /// On another host than the head: names that are free again, of which the head was not told yet.
    #[cfg(feature = "hosts")]
    freed: Option<Vec<String>>,
}

impl Registry {
    /// Gives `name` to `actor`. An actor may have several names, and may be given one it has.
    pub(crate) fn register(&mut self, name: String, actor: ActorId) -> Result<(), NameError> {
        self.register_by(ProcessId::NODE, name, actor)
    }

    /// As [`register`](Self::register), for a process that may register a bounded number of names.
    pub(crate) fn register_by(
        &mut self,
        by: ProcessId,
        name: String,
        actor: ActorId,
    ) -> Result<(), NameError> {
        check_name(&name)?;
        #[cfg(feature = "hosts")]
        if let Some(host) = self.on_other_hosts.get(&name) {
            return Err(NameError::Elsewhere { host: *host, name });
        }
        let full = self.names.len() >= MAX_NAMES;
        match self.names.entry(name) {
            Entry::Occupied(entry) if entry.get().0 == actor => Ok(()),
            Entry::Occupied(entry) => {
                Err(NameError::Taken { name: entry.key().clone(), holder: entry.get().0 })
            }
            Entry::Vacant(_) if full => Err(NameError::Full),
            Entry::Vacant(entry) => {
                let count = self.by_process.entry(by).or_default();
                if *count >= MAX_NAMES_EACH && by != ProcessId::NODE {
                    return Err(NameError::TooMany);
                }
                *count += 1;
                entry.insert((actor, by));
                Ok(())
            }
        }
    }

    /// Returns the actor that has `name`.
    pub(crate) fn find(&self, name: &str) -> Option<ActorId> {
        self.names.get(name).map(|(actor, _)| *actor)
    }

    /// Whether `actor` has a name.
    #[cfg(feature = "hosts")]
    pub(crate) fn has(&self, actor: ActorId) -> bool {
        self.names.values().any(|(named, _)| *named == actor)
    }

    /// Returns the actors that have names.
    #[cfg(feature = "hosts")]
    pub(crate) fn named(&self) -> impl Iterator<Item = ActorId> {
        self.names.values().map(|(actor, _)| *actor)
    }

    /// Returns all names.
    #[cfg(feature = "hosts")]
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Returns how many names there are, plus how many processes have registered some.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.names.len() + self.by_process.len()
    }

    /// Frees the names of all actors for which `dead` is true.
    pub(crate) fn forget(&mut self, dead: impl Fn(ActorId) -> bool) {
        let by_process = &mut self.by_process;
        #[cfg(feature = "hosts")]
        let freed = &mut self.freed;
        self.names.retain(|_name, (actor, by)| {
            let stays = !dead(*actor);
            #[cfg(feature = "hosts")]
            if !stays && let Some(freed) = freed {
                freed.push(_name.clone());
            }
            if !stays && let std::collections::hash_map::Entry::Occupied(mut count) = by_process.entry(*by) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            stays
        });
    }
}

/// Names that are unique among several hosts.
#[cfg(feature = "hosts")]
impl Registry {
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

    /// On the head: takes this name back from a host.
    pub(crate) fn release(&mut self, host: u16, name: &str) {
        if self.on_other_hosts.get(name) == Some(&host) {
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

    #[cfg(feature = "hosts")]
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

    #[test]
    fn a_name_has_one_actor_until_that_actor_ends() {
        let mut registry = Registry::default();
        registry.register("sink".into(), ActorId(1)).unwrap();
        registry.register("sink".into(), ActorId(1)).unwrap();
        let error = registry.register("sink".into(), ActorId(2)).unwrap_err();
        assert_eq!(error, NameError::Taken { name: "sink".into(), holder: ActorId(1) });
        registry.forget(|actor| actor == ActorId(1));
        assert_eq!(registry.find("sink"), None);
        registry.register("sink".into(), ActorId(2)).unwrap();
        assert_eq!(registry.find("sink"), Some(ActorId(2)));
    }

    // MBX-2.
    #[test]
    fn one_process_does_not_take_the_names_of_all() {
        let (one, other) = (ProcessId::new(1, 0).unwrap(), ProcessId::new(2, 0).unwrap());
        let mut registry = Registry::default();
        for i in 0..MAX_NAMES_EACH {
            registry.register_by(one, i.to_string(), ActorId(1)).unwrap();
        }
        assert_eq!(registry.register_by(one, "one more".into(), ActorId(1)), Err(NameError::TooMany));
        registry.register_by(other, "another's".into(), ActorId(2)).unwrap();
        registry.forget(|actor| actor == ActorId(1));
        registry.register_by(one, "one more".into(), ActorId(1)).unwrap();
        registry.forget(|_| true);
        assert!(registry.by_process.is_empty(), "nothing is counted of names that are gone");
    }

    #[test]
    fn names_have_bounds() {
        let mut registry = Registry::default();
        assert_eq!(registry.register(String::new(), ActorId(1)), Err(NameError::Length(0)));
        assert_eq!(registry.register("x".repeat(300), ActorId(1)), Err(NameError::Length(300)));
        for i in 0..MAX_NAMES {
            registry.register(i.to_string(), ActorId(1)).unwrap();
        }
        assert_eq!(registry.register("one more".into(), ActorId(1)), Err(NameError::Full));
    }
}
