//! Names for actors. A name belongs to at most one actor, and is free again when that actor ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::ids::{ActorId, ProcessId};
use crate::node::limits::{MAX_NAME, MAX_NAMES, MAX_NAMES_EACH};

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
    /// Names that are free again and that a neighbour has to hear of; `None` if none has to.
    freed: Option<Vec<String>>,
}

impl Registry {
    #[cfg(test)]
    pub(crate) fn register(&mut self, name: String, actor: ActorId) -> Result<(), NameError> {
        self.register_by(ProcessId::NODE, name, actor)
    }

    /// Gives `name` to `actor`. An actor may have several names, and may be given one it has. A process other
    /// than the node's own may register a bounded number of names.
    pub(crate) fn register_by(
        &mut self,
        by: ProcessId,
        name: String,
        actor: ActorId,
    ) -> Result<(), NameError> {
        check_name(&name)?;
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

    /// Returns how many names there are, plus how many processes have registered some.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.names.len() + self.by_process.len()
    }

    /// Frees the names of all actors for which `dead` is true.
    pub(crate) fn forget(&mut self, dead: impl Fn(ActorId) -> bool) {
        let by_process = &mut self.by_process;
        let freed = &mut self.freed;
        self.names.retain(|name, (actor, by)| {
            let stays = !dead(*actor);
            if !stays && let Some(freed) = freed {
                freed.push(name.clone());
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

/// Names as neighbours see them.
#[cfg(feature = "hosts")]
impl Registry {
    /// Whether `actor` has a name.
    pub(crate) fn has(&self, actor: ActorId) -> bool {
        self.named().any(|named| named == actor)
    }

    /// Returns the actors that have names.
    pub(crate) fn named(&self) -> impl Iterator<Item = ActorId> {
        self.names.values().map(|(actor, _)| *actor)
    }

    /// Returns all names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// Notes from now on which names become free, for a neighbour that has granted them.
    pub(crate) fn note_freed(&mut self) {
        self.freed = Some(Vec::new());
    }

    /// Takes the names that have become free since the last call.
    pub(crate) fn take_freed(&mut self) -> Vec<String> {
        self.freed.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
