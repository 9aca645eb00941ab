//! The side of the supervising head.

use std::collections::BTreeMap;

use super::Moment;
use super::steps::{Step, Steps};
use crate::ids::HostId;
use crate::limits::{AGENT_GRACE, HEAD_GRACE};

/// The head's record of the hosts' beats.
#[derive(Debug, Default)]
pub struct Head {
    steps: Steps,
    /// When each host was last heard; `None` after the verdict.
    hosts: BTreeMap<HostId, Option<Moment>>,
}

/// The verdict on this host was given, or the host was never there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is lost to this node: it was not heard for {} s. It can join again, as another", HEAD_GRACE.as_secs())]
pub struct Lost {
    /// The host.
    pub host: HostId,
}

impl Head {
    #[cfg(test)]
    pub(super) fn with_steps(steps: Steps) -> Self {
        Head { steps, hosts: BTreeMap::new() }
    }

    /// Admits a host. No other host ever had its number.
    pub fn joined(&mut self, host: HostId, now: Moment) {
        self.hosts.insert(host, Some(now));
    }

    /// Removes a host that has ended its workers, without a verdict.
    pub fn left(&mut self, host: HostId) {
        self.hosts.insert(host, None);
    }

    /// Records that a host was heard. Only then may its beat be answered.
    ///
    /// # Errors
    /// The verdict on it was given.
    pub fn heard(&mut self, host: HostId, now: Moment) -> Result<(), Lost> {
        let last = self.hosts.get_mut(&host).ok_or(Lost { host })?;
        if last.is_none() && self.steps.does(Step::Final) {
            return Err(Lost { host });
        }
        *last = Some(now);
        Ok(())
    }

    /// Returns the hosts on which the verdict falls now.
    pub fn verdicts(&mut self, now: Moment) -> Vec<HostId> {
        let grace = if self.steps.does(Step::Margin) { HEAD_GRACE } else { AGENT_GRACE };
        let silent = |last: &Option<Moment>| last.is_some_and(|last| now.since(last) > grace);
        let lost = self.hosts.iter_mut().filter(|(_, last)| silent(last));
        lost.map(|(host, last)| {
            *last = None;
            *host
        })
        .collect()
    }

    /// Returns when to look again: the earliest moment of a verdict.
    pub fn next_look(&self) -> Option<Moment> {
        self.hosts.values().flatten().min().map(|last| last.after(HEAD_GRACE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn silence_ends_in_one_verdict_which_is_final() {
        let (mut head, quiet, other) = (Head::default(), HostId(1), HostId(2));
        head.joined(quiet, at(0));
        head.joined(other, at(0));
        head.heard(other, at(10)).expect("it is there");
        assert_eq!(head.next_look(), Some(at(15)));
        assert_eq!((head.verdicts(at(15)), head.verdicts(at(16))), (vec![], vec![quiet]));
        assert_eq!((head.verdicts(at(17)), head.heard(quiet, at(17))), (vec![], Err(Lost { host: quiet })));
        assert_eq!(head.next_look(), Some(at(25)));
        assert_eq!(head.heard(HostId(7), at(17)), Err(Lost { host: HostId(7) }), "nobody");
    }

    #[test]
    fn who_leaves_gets_no_verdict() {
        let mut head = Head::default();
        head.joined(HostId(1), at(0));
        head.left(HostId(1));
        assert_eq!((head.verdicts(at(100)), head.next_look()), (vec![], None));
        assert!(head.heard(HostId(1), at(1)).is_err());
    }
}
