//! Refusals: counted by kind, and logged with the address that they came from, at most once a second for each
//! kind and address. A flood of one kind hides no refusal of another.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The number of addresses whose last line in the log is remembered, for each kind. It also bounds the lines
/// that a flood of addresses causes in a second.
const REMEMBERED: usize = 4;
/// How long an address that causes the same again is not logged again.
const LOG_AGAIN: Duration = Duration::from_secs(1);

/// Why a connection or a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No key, another key, or no TLS at all.
    Key,
    /// Too many connections that have not shown who they are.
    Flood,
    /// Bytes that are not an introduction, greeting or frame, or nothing in time.
    Garbage,
    /// Another protocol, version, program or argument.
    Build,
    /// A host, or a life of one, that is not of the node, or not any more.
    Stranger,
    /// A connection attempt that was made before, or a lane of a connection that is over.
    Replayed,
    /// A frame that its session forbids.
    Forged,
}

const KINDS: usize = Kind::Forged as usize + 1;

/// The counts of refusals by kind.
#[derive(Debug, Default)]
pub struct Refused {
    counts: [AtomicU64; KINDS],
    /// By kind, the addresses with the times of their last lines.
    logged: Mutex<[HashMap<IpAddr, Instant>; KINDS]>,
}

impl Refused {
    /// Returns the number of refusals of this kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize].load(Relaxed)
    }

    pub(crate) fn note(&self, kind: Kind, from: SocketAddr, why: &dyn Display) {
        self.counts[kind as usize].fetch_add(1, Relaxed);
        if self.is_new(kind, from.ip(), Instant::now()) {
            let count = self.count(kind);
            tracing::warn!(target: "tensorpost::hosts", %from, ?kind, count, "refused: {why}");
        }
    }

    fn is_new(&self, kind: Kind, from: IpAddr, now: Instant) -> bool {
        let mut logged = self.logged.lock();
        let logged = &mut logged[kind as usize];
        if logged.get(&from).is_some_and(|last| now.duration_since(*last) < LOG_AGAIN) {
            return false;
        }
        if logged.len() >= REMEMBERED {
            logged.retain(|_, last| now.duration_since(*last) < LOG_AGAIN);
            if logged.len() >= REMEMBERED {
                return false;
            }
        }
        logged.insert(from, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_for_each_address_and_kind() {
        let refused = Refused::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = Instant::now();
        assert!(refused.is_new(Kind::Key, one, now) && !refused.is_new(Kind::Key, one, now));
        assert!(refused.is_new(Kind::Key, other, now) && refused.is_new(Kind::Build, one, now));
        assert!(refused.is_new(Kind::Key, one, now + LOG_AGAIN));
        for last in 0..=255 {
            for third in 0..4 {
                refused.is_new(Kind::Flood, IpAddr::from([10, 1, third, last]), now);
            }
        }
        assert!(refused.logged.lock()[Kind::Flood as usize].len() <= REMEMBERED);
        assert!(refused.is_new(Kind::Build, other, now), "the flood hides a refusal of another kind");
        refused.note(Kind::Forged, SocketAddr::from((one, 1)), &"a lie");
        assert_eq!((refused.count(Kind::Forged), refused.count(Kind::Key)), (1, 0));
    }
}
