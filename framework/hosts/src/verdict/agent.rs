//! The side of a supervised host.

use std::collections::VecDeque;
use std::fmt;

use super::Moment;
use super::steps::{Step, Steps};
use crate::limits::{AGENT_GRACE, BEAT, MAX_BEATS};

/// An agent's record of the head's answers.
#[derive(Debug)]
pub struct Agent {
    steps: Steps,
    next: u64,
    /// The beats that were not answered, with the moment in which each was sent; the latest last.
    sent: VecDeque<(u64, Moment)>,
    last_beat: Option<Moment>,
    works_until: Moment,
    tell: Tell,
    over: bool,
}

/// The function that is told until when workers may work.
#[derive(Default)]
struct Tell(Option<Box<dyn Fn(Moment) + Send>>);

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "told" } else { "nobody" })
    }
}

/// An answer to a beat that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head answers beat {number}, which was not sent or had its answer")]
pub struct NeverSent {
    /// The number of the beat.
    pub number: u64,
}

impl Agent {
    /// Makes an agent that has joined. `asked` is a moment before it sent the request that the head answered
    /// by admitting it.
    pub fn new(asked: Moment) -> Self {
        Self::with_steps(asked, Steps::default())
    }

    /// Makes an agent for a gateway that replaces another. Beats of the old gateway are not answered any
    /// more, so it begins with the time that the old one had left.
    pub fn resuming(works_until: Moment) -> Self {
        Agent { works_until, ..Self::new(works_until) }
    }

    pub(super) fn with_steps(asked: Moment, steps: Steps) -> Self {
        let works_until = asked.after(AGENT_GRACE);
        let (sent, tell) = (VecDeque::new(), Tell::default());
        Agent { steps, next: 1, sent, last_beat: None, works_until, tell, over: false }
    }

    /// Has `tell` publish [the moment until which](Self::works_until) workers may work: now, and each time
    /// that it rises. It is called under the agent's lock, so it must not block.
    #[must_use]
    pub fn telling(mut self, tell: impl Fn(Moment) + Send + 'static) -> Self {
        tell(self.works_until);
        self.tell = Tell(Some(Box::new(tell)));
        self
    }

    /// Returns the number of the beat to send now, if one is due.
    pub fn beat(&mut self, now: Moment) -> Option<u64> {
        if self.is_over(now) && self.steps.does(Step::StopBeating) {
            return None;
        }
        if self.last_beat.is_some_and(|last| now.since(last) < BEAT) {
            return None;
        }
        // The oldest is too old to count, and a late answer to it does no harm.
        if self.sent.len() == MAX_BEATS {
            self.sent.pop_front();
        }
        let number = self.next;
        self.next += 1;
        self.sent.push_back((number, now));
        self.last_beat = Some(now);
        Some(number)
    }

    /// Handles the head's answer to a beat, which also answers all before it.
    ///
    /// # Errors
    /// The beat was never sent.
    pub fn answered(&mut self, number: u64, now: Moment) -> Result<(), NeverSent> {
        if number == 0 || number >= self.next {
            return Err(NeverSent { number });
        }
        let Some(at) = self.sent.iter().position(|(sent, _)| *sent == number) else {
            // The beat was dropped for newer ones, or an answer over a newer connection overtook this one.
            return Ok(());
        };
        let Some((_, sent)) = self.sent.drain(..=at).next_back() else { return Ok(()) };
        let from = if self.steps.does(Step::CountFromSending) { sent } else { now };
        let until = from.after(AGENT_GRACE);
        if until > self.works_until {
            self.works_until = until;
            // If the agent's time is over, workers that have not looked yet must end all the same.
            if let Some(tell) = self.tell.0.as_ref().filter(|_| !self.over) {
                tell(until);
            }
        }
        Ok(())
    }

    /// Returns the moment until which workers may work, for the page that they read.
    pub fn works_until(&self) -> Moment {
        self.works_until
    }

    /// Returns when to call [`beat`](Self::beat) and [`is_over`](Self::is_over) again.
    pub fn next_look(&self) -> Moment {
        self.last_beat.map_or(self.works_until, |last| last.after(BEAT).min(self.works_until))
    }

    /// Returns whether the agent's time is over. Then its workers have to end, and the time never comes back.
    pub fn is_over(&mut self, now: Moment) -> bool {
        self.over |= now > self.works_until;
        self.over
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
    fn an_answer_counts_from_its_beat() {
        let mut agent = Agent::new(at(100));
        assert_eq!(agent.works_until(), at(110));
        assert_eq!((agent.beat(at(101)), agent.beat(at(101))), (Some(1), None));
        assert_eq!(agent.next_look(), at(102));
        assert_eq!((agent.beat(at(102)), agent.beat(at(103))), (Some(2), Some(3)));
        agent.answered(2, at(108)).expect("it was sent");
        assert_eq!(agent.works_until(), at(112));
        // The answer to the first beat came late, over a connection that broke.
        agent.answered(1, at(109)).expect("it was sent");
        assert_eq!(agent.works_until(), at(112));
    }

    #[test]
    fn it_is_over_for_good() {
        let mut agent = Agent::new(at(100));
        assert_eq!(agent.beat(at(105)), Some(1));
        assert!(!agent.is_over(at(110)) && agent.is_over(at(111)));
        agent.answered(1, at(111)).expect("it was sent");
        assert!(agent.is_over(at(112)), "late");
        assert_eq!(agent.beat(at(112)), None);
    }

    /// HOST-10: a gateway that replaces another has no more time than the old one had.
    #[test]
    fn another_gateway_gains_no_time_by_itself() {
        let (told, all) = std::sync::mpsc::channel();
        let next = Agent::resuming(at(105)).telling(move |until| told.send(until).expect("it is heard"));
        let mut next = next;
        assert_eq!((next.works_until(), next.beat(at(104))), (at(105), Some(1)));
        assert!(next.is_over(at(106)));
        let mut next = Agent::resuming(at(105));
        assert_eq!(next.beat(at(104)), Some(1));
        next.answered(1, at(105)).expect("it was sent");
        assert!(next.works_until() == at(114) && !next.is_over(at(113)));
        assert_eq!(all.try_iter().collect::<Vec<_>>(), [at(105)]);
    }

    #[test]
    fn each_rise_is_told_until_it_is_over() {
        let (told, all) = std::sync::mpsc::channel();
        let mut agent = Agent::new(at(100)).telling(move |until| told.send(until).expect("it is heard"));
        assert_eq!((agent.beat(at(101)), agent.beat(at(102))), (Some(1), Some(2)));
        agent.answered(2, at(103)).expect("it was sent");
        agent.answered(1, at(104)).expect("it was sent");
        assert_eq!(agent.beat(at(110)), Some(3));
        assert!(agent.is_over(at(113)));
        agent.answered(3, at(114)).expect("it was sent");
        assert_eq!(all.try_iter().collect::<Vec<_>>(), [at(110), at(112)]);
    }

    #[test]
    fn answers_to_nothing_are_refused() {
        let mut agent = Agent::new(at(100));
        assert_eq!(agent.answered(1, at(100)), Err(NeverSent { number: 1 }));
        assert_eq!(agent.answered(0, at(100)), Err(NeverSent { number: 0 }));
        assert_eq!(agent.beat(at(100)), Some(1));
        assert_eq!(agent.answered(2, at(100)), Err(NeverSent { number: 2 }));
        assert_eq!(agent.works_until(), at(110));
    }
}
