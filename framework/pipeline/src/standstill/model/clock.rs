//! Reports in time: one member hands items to another, whose calls take long.
//!
//! Members report every so often, and not during a call. So the conductor learns late that a member is in a
//! call. Each of the three, both members and the conductor, begins its rounds at any time. These must hold:
//!
//! * During a call the detector neither lets the conductor remind anybody, nor finds a standstill. A `zip`
//!   would let go the half whose partner is in that call.
//! * After the last call it finds the standstill, three reports after the time that this takes at least.
//! * It finds none before each member has had time to report what a reminder has set in motion.

use std::time::{Duration, Instant};

use crate::limits::STANDSTILL;
use crate::plan::Plan;
use crate::standstill::tests::{counts, plan};
use crate::standstill::{REMIND, StandstillDetector};
use crate::worker::meter::Counts;
use crate::worker::waits::Wait;

/// The time between two steps of the model, in milliseconds, as all times here.
const STEP: u64 = 25;
/// The members: `blur` hands over, `save` works.
const MEMBERS: [(u16, u16); 2] = [(1, 0), (2, 0)];

struct Clock<'c> {
    plan: &'c Plan,
    /// The time between two reports, and between two looks of the conductor.
    every: u64,
    /// When `blur`, `save` and the conductor begin.
    begin: [u64; 3],
    /// How long the calls of `save` take. The first begins at 0, each other when the one before it returns.
    calls: &'c [u64],
}

impl Clock<'_> {
    fn least(&self) -> u64 {
        (STANDSTILL.as_millis() as u64).max(4 * self.every)
    }

    /// Lets everything happen. Returns the error of the first wrong judgement.
    fn run(&self) -> Result<(), String> {
        let Clock { every, begin: [blur, save, conductor], calls, .. } = *self;
        let (limit, millis) = (Duration::from_secs(30), Duration::from_millis);
        let mut detector = StandstillDetector::new(limit, millis(every));
        // All that was before is long ago. `blur` was in a call of its own; `save` had nothing to do.
        let zero = detector.moved() + millis(1_000_000);
        let handed_over = Counts { items_out: calls.len() as u64, ..counts(1, 0, 0) };
        let answers = || vec![Wait::Answers { stage: 2, count: calls.len() as u32 }];
        let senders = || vec![Wait::Senders(vec![1 << 16])];
        detector.told_at(&counts(1, 0, 0), Vec::new(), zero - millis(900_000));
        detector.told_at(&counts(2, 0, 0), senders(), zero + millis(save) - millis(every));
        let over: u64 = calls.iter().sum();
        let mut returns = calls.iter().scan(0_u64, |at, call| {
            *at += *call;
            Some(*at)
        });
        let (mut next_return, mut done, mut report_at) = (returns.next(), 0, save);
        let mut reminded: Option<u64> = None;
        for at in (0..=over + self.least() + 3 * every).step_by(STEP as usize) {
            let now = zero + millis(at);
            if at % every == blur {
                detector.told_at(&handed_over, answers(), now);
            }
            let returned = next_return == Some(at);
            if returned {
                (next_return, done) = (returns.next(), done + 1);
            }
            // A report that was due during a call is sent when that returns, before the next begins.
            if at >= report_at && (returned || next_return.is_none()) {
                detector.told_at(&Counts { items_out: done, ..counts(2, 0, done) }, senders(), now);
                report_at = at + every;
            }
            if at % every == conductor {
                let (reminds, found) = self.look(&detector, now, at < over)?;
                reminded = reminded.or(reminds.then_some(at));
                // One look later is too early: the next report may come at the same time.
                if found && reminded.is_none_or(|first| at - first <= every) {
                    return Err("the reminder had no time to help".to_owned());
                }
                if found {
                    return Ok(());
                }
            }
        }
        Err("it stands still, and that is not found in time".to_owned())
    }

    /// Returns whether the conductor reminds the members, and whether it finds that they stand still.
    fn look(
        &self,
        detector: &StandstillDetector,
        now: Instant,
        in_call: bool,
    ) -> Result<(bool, bool), String> {
        let reminds = detector.still_for(&MEMBERS, now) >= REMIND;
        let found = detector.standstill(self.plan, &MEMBERS, now).is_some();
        let culprits = detector.culprits(self.plan, &MEMBERS, false, now);
        let is_named = culprits.iter().any(|line| line.contains("nothing has moved"));
        if in_call && (reminds || found || is_named) {
            return Err(format!("`save` is in a call: {reminds} {found} {culprits:?}"));
        }
        Ok((reminds, found))
    }
}

#[test]
fn a_call_of_any_length_is_no_standstill() {
    let plan = plan();
    let calls: [&[u64]; 4] = [&[2400], &[3000], &[1500, 1500], &[100, 9000]];
    for every in [200, 500, 1000, 3000] {
        for begins in 0..64 {
            let begin = [begins % 4, begins / 4 % 4, begins / 16].map(|quarters| quarters * every / 4);
            for calls in calls {
                let run = Clock { plan: &plan, every, begin, calls }.run();
                run.unwrap_or_else(|wrong| panic!("{wrong}, with {every}, {begin:?} and {calls:?}"));
            }
        }
    }
}
