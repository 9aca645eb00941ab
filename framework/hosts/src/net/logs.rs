//! An agent's log on its way to the head. It may be lost, and delays nothing else.
//!
//! A peer has one of these for each direction, under its lock. The sending one, [`Sending`], keeps a few
//! frames until there is nothing else to send, or none was sent for a while. The head's view of an agent's
//! log is [`Hearing`]. A connection that breaks may lose some frames; none is sent again.
//!
//! **Invariants.** HOST-9: both ends bound the bytes that they keep. An agent that sends more than its
//! allowance for the elapsed time violates the protocol, and its connection is cut (WIRE-1), so no other host
//! pays for it. Records that did not arrive are counted by the numbers of the others.

use std::collections::VecDeque;

use crate::frame::Log;
use crate::limits::{LOG_BASE, LOG_BURST_HEARD, LOG_PAUSE, LOG_RATE_HEARD, MAX_QUEUED_LOG};
use crate::verdict::Moment;

/// An allowance of bytes that fills at a rate, up to a burst.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    rate: u64,
    burst: u64,
    left: u64,
    at: Option<Moment>,
}

impl Allowance {
    /// Makes an allowance with the whole burst available.
    pub fn new(rate: u64, burst: u64) -> Self {
        Allowance { rate, burst, left: burst, at: None }
    }

    /// Takes `bytes` from the allowance, if they are there.
    pub fn take(&mut self, bytes: u64, now: Moment) -> bool {
        let since = self.at.map_or(0, |at| now.since(at).as_nanos());
        let more = since.saturating_mul(self.rate.into()) / 1_000_000_000;
        // A fraction of a byte counts next time.
        if more > 0 || self.at.is_none() {
            self.at = Some(now);
            self.left = self.burst.min(self.left.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)));
        }
        let is_there = bytes <= self.left;
        if is_there {
            self.left -= bytes;
        }
        is_there
    }
}

/// The log frames that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Sending {
    frames: VecDeque<Log>,
    bytes: usize,
    last: Option<Moment>,
    /// The number after the last dropped record, if the waiting frames may not show that it was dropped: then
    /// the other side is told with an empty frame.
    dropped: Option<u64>,
}

impl Sending {
    /// Keeps a frame, or drops it if too much waits.
    pub(super) fn put(&mut self, log: Log) {
        if self.bytes + log.records.len() <= MAX_QUEUED_LOG {
            self.bytes += log.records.len();
            self.frames.push_back(log);
            self.dropped = None;
        } else {
            self.dropped = Some(log.first + u64::from(log.count));
        }
    }

    /// Returns the next frame if one is due before everything else, because only other frames were sent for a
    /// while.
    pub(super) fn due(&mut self, now: Moment) -> Option<Log> {
        let waits = self.last.is_some_and(|last| now.since(last) < LOG_PAUSE);
        if waits { None } else { self.next(now) }
    }

    /// Returns the next frame, if nothing else is to be sent.
    pub(super) fn next(&mut self, now: Moment) -> Option<Log> {
        let none = |first| Log { first, ..Log::default() };
        let log = self.frames.pop_front().or_else(|| self.dropped.take().map(none))?;
        self.bytes -= log.records.len();
        self.last = Some(now);
        Some(log)
    }
}

/// The log of an agent as it has come.
#[derive(Debug)]
pub(super) struct Hearing {
    allowance: Allowance,
    /// The number that comes next; `None` if it is not known, because an earlier gateway received the frames
    /// before.
    next: Option<u64>,
    frames: VecDeque<Log>,
    bytes: usize,
    /// Records that did not arrive or found no room, and were not reported yet.
    lost: u64,
}

impl Default for Hearing {
    fn default() -> Self {
        let allowance = Allowance::new(LOG_RATE_HEARD, LOG_BURST_HEARD);
        Hearing { allowance, next: Some(1), frames: VecDeque::new(), bytes: 0, lost: 0 }
    }
}

impl Hearing {
    /// Makes one for a host whose log an earlier gateway has received before.
    pub(super) fn resuming() -> Self {
        Hearing { next: None, ..Hearing::default() }
    }

    /// # Errors
    /// An honest agent does not send such a frame.
    pub(super) fn take(&mut self, log: Log, now: Moment) -> Result<(), String> {
        let bytes = log.records.len();
        if !self.allowance.take(LOG_BASE + bytes as u64, now) {
            return Err("it has told more of its log than an agent may in that time".to_owned());
        }
        let next = self.next.unwrap_or(log.first);
        if log.first < next {
            return Err(format!("it tells record {} of its log where {next} comes next", log.first));
        }
        self.lost += log.first - next;
        self.next = Some(log.first + u64::from(log.count));
        if self.bytes + bytes > MAX_QUEUED_LOG {
            self.lost += u64::from(log.count);
        } else if log.count > 0 {
            self.bytes += bytes;
            self.frames.push_back(log);
        }
        Ok(())
    }

    /// Returns the next frame to report, with the number of records that were lost before it.
    pub(super) fn next(&mut self) -> Option<(u64, Log)> {
        let log = self.frames.pop_front();
        if log.is_none() && self.lost == 0 {
            return None;
        }
        let log = log.unwrap_or_default();
        self.bytes -= log.records.len();
        Some((std::mem::take(&mut self.lost), log))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::limits::{HEAD_GRACE, LOG_BURST, LOG_RATE, MAX_LOG};

    fn at(millis: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(millis))
    }

    fn log(first: u64, count: u16, bytes: usize) -> Log {
        Log { first, count, records: Bytes::from(vec![0; bytes]) }
    }

    #[test]
    fn an_allowance_fills_with_time_and_not_beyond_its_burst() {
        let mut allowance = Allowance::new(1000, 100);
        assert!(allowance.take(100, at(0)) && !allowance.take(1, at(0)));
        // A thousand calls in a second get exactly the second's bytes.
        let taken = (1..=1000).filter(|millis| allowance.take(1, at(*millis))).count();
        assert_eq!(taken, 1000);
        assert!(!allowance.take(101, at(9000)) && allowance.take(100, at(9000)));
        // A clock that does not advance gives nothing.
        assert!(!allowance.take(1, at(8000)));
    }

    // MBX-2.
    #[test]
    fn what_waits_is_bounded_and_goes_when_nothing_else_does_or_after_a_pause() {
        let mut sending = Sending::default();
        (0..100).for_each(|number| sending.put(log(number + 1, 1, MAX_LOG)));
        assert!(sending.bytes <= MAX_QUEUED_LOG && sending.frames.len() == MAX_QUEUED_LOG / MAX_LOG);
        assert_eq!(sending.due(at(0)).expect("none went for long").first, 1);
        assert_eq!(sending.due(at(99)), None);
        assert_eq!(sending.next(at(99)).expect("there is room").first, 2);
        assert_eq!(sending.due(at(198)), None);
        assert_eq!(sending.due(at(199)).expect("it has waited").first, 3);
        // No frame follows the last of them, so their number is sent alone.
        assert_eq!(sending.next(at(200)), Some(log(101, 0, 0)));
        assert_eq!((sending.next(at(200)), sending.bytes), (None, 0));
    }

    #[test]
    fn what_did_not_come_is_counted_with_what_found_no_room() {
        let mut hearing = Hearing::default();
        hearing.take(log(1, 2, 10), at(0)).expect("the first");
        hearing.take(log(8, 1, 10), at(0)).expect("some were lost");
        assert_eq!(hearing.next(), Some((5, log(1, 2, 10))), "said at once");
        assert_eq!(hearing.next(), Some((0, log(8, 1, 10))));
        assert_eq!(hearing.next(), None);
        // An empty frame reports the loss of the last records.
        hearing.take(log(12, 0, 0), at(0)).expect("a number");
        assert_eq!(hearing.next(), Some((3, Log::default())));
        // The gateway takes none of them.
        (0..8).for_each(|number| hearing.take(log(12 + number, 1, MAX_LOG), at(0)).expect("in time"));
        assert_eq!(hearing.next(), Some((5, log(12, 1, MAX_LOG))));
        assert!(hearing.take(log(19, 1, 10), at(0)).is_err_and(|lie| lie.contains("20 comes next")));
    }

    // WIRE-1.
    #[test]
    fn a_flood_is_a_lie_and_what_an_honest_agent_said_in_one_piece_is_none() {
        let mut honest = Hearing::default();
        // The whole allowance for the time that the head stood still, with half as much again for its
        // encoding.
        let all = LOG_BURST + HEAD_GRACE.as_secs() * LOG_RATE;
        let (each, mut first) = (32 << 10, 1);
        for _ in 0..all / each {
            honest.take(log(first, 1, (each * 3 / 2) as usize), at(0)).expect("it was allowed");
            first += 1;
        }
        for second in 1..100 {
            for _ in 0..LOG_RATE / each {
                honest.take(log(first, 1, (each * 3 / 2) as usize), at(second * 1000)).expect("allowed");
                first += 1;
            }
        }
        let mut flood = Hearing::default();
        let heard = (1..).find(|number| flood.take(log(*number, 1, MAX_LOG), at(0)).is_err());
        assert!(heard.expect("it ends") as usize * MAX_LOG <= LOG_BURST_HEARD as usize + MAX_LOG);
        // Empty frames do not get around the bound.
        let mut empty = Hearing::default();
        let heard = (0..1 << 20).find(|_| empty.take(log(1, 0, 0), at(0)).is_err());
        assert!(heard.is_some());
    }
}
