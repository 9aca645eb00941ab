//! Names for actors: at most one actor per name, and a name is free again when its actor ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::ids::ActorId;
use crate::node::limits::{MAX_NAME, MAX_NAMES};

/// Why a name was not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Another actor has it.
    #[error("the name `{name}` belongs to {holder}; choose another, or stop that actor first")]
    Taken {
        /// The name.
        name: String,
        /// The actor that has it.
        holder: ActorId,
    },
    /// A name has 1 to [`MAX_NAME`] bytes.
    #[error("a name has 1 to {MAX_NAME} bytes, and this one has {0}")]
    Length(usize),
    /// There are [`MAX_NAMES`] names already.
    #[error("the registry holds {MAX_NAMES} names already")]
    Full,
}

/// Checks the length of a name, of an actor or a worker.
pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    if (1..=MAX_NAME).contains(&name.len()) { Ok(()) } else { Err(NameError::Length(name.len())) }
}

/// The registry of one node.
#[derive(Default)]
pub(crate) struct Registry {
    names: HashMap<String, ActorId>,
}

impl Registry {
    /// Gives `name` to `actor`. An actor may have several names, and may be given one it has.
    pub(crate) fn register(&mut self, name: String, actor: ActorId) -> Result<(), NameError> {
        check_name(&name)?;
        let full = self.names.len() >= MAX_NAMES;
        match self.names.entry(name) {
            Entry::Occupied(entry) if *entry.get() == actor => Ok(()),
            Entry::Occupied(entry) => {
                Err(NameError::Taken { name: entry.key().clone(), holder: *entry.get() })
            }
            Entry::Vacant(_) if full => Err(NameError::Full),
            Entry::Vacant(entry) => {
                entry.insert(actor);
                Ok(())
            }
        }
    }

    /// The actor that has `name`.
    pub(crate) fn find(&self, name: &str) -> Option<ActorId> {
        self.names.get(name).copied()
    }

    /// Frees the names of all actors of which `dead` is true.
    pub(crate) fn forget(&mut self, dead: impl Fn(ActorId) -> bool) {
        self.names.retain(|_, actor| !dead(*actor));
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
