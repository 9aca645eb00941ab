//! Groups of actors: how the end of one affects the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::restart::Restart;

/// How the failure of one actor affects the others in its [`Group`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Not at all. Each restarts by its own policy.
    #[default]
    OneForOne,
    /// When one fails and its policy would restart it, all end. Those with a policy for failures begin their
    /// next lives together. When its restarts are used up, all are given up.
    OneForAll,
}

/// Actors with a common [`Strategy`]; made by [`Node::group`](super::Node::group). Cheap to clone.
///
/// A group restarts by processes: if it fails, each worker with one of its actors ends, with all other actors
/// in that worker. Its actors may be on several hosts (`Spawn::on`). Then the host of the program that made
/// the group decides when all have ended and the next lives begin.
#[derive(Clone)]
pub struct Group {
    /// Its number among the groups of the program that made it.
    id: u64,
    /// The host of that program, if it is another one.
    home: Option<u16>,
    name: Arc<str>,
    strategy: Strategy,
}

impl Group {
    pub(crate) fn new(name: &str, strategy: Strategy) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Group { id: NEXT.fetch_add(1, Ordering::Relaxed), home: None, name: name.into(), strategy }
    }

    /// Returns its name, for logs and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its strategy.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Whether all restart together.
    pub(crate) fn is_one(&self) -> bool {
        self.strategy == Strategy::OneForAll
    }
}

/// Groups with actors on several hosts.
#[cfg(feature = "hosts")]
impl Group {
    /// Makes the group of another host, one that restarts as one.
    pub(crate) fn of_host(home: u16, id: u64, name: &str) -> Self {
        Group { id, home: Some(home), name: name.into(), strategy: Strategy::OneForAll }
    }

    /// Returns its number on the host where it was made.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the host where it was made, if that is another one.
    pub(crate) fn home(&self) -> Option<u16> {
        self.home
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        (self.home, self.id) == (other.home, other.id)
    }
}

impl Eq for Group {}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?}, {:?})", self.name, self.strategy)
    }
}

/// How an actor is supervised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supervision {
    /// When it is started anew.
    pub restart: Restart,
    /// The group that it restarts with.
    pub group: Option<Group>,
}

impl From<Restart> for Supervision {
    fn from(restart: Restart) -> Self {
        Supervision { restart, group: None }
    }
}
