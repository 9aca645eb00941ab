//! How long to look before sleeping.
//!
//! Waking a halted core costs far more than a message (33 µs of 37 on the machine measured), so a reader that
//! finds nothing looks again for about as long as a wake-up costs before it parks: at most it doubles the price.
//! A budget below that is bistable. A fixed one is a waste where the peer shares the core or is silent (52 µs a
//! hop), so a spin in vain is followed by parks without one, 4 at first and twice as many each time up to 256; a
//! spin that finds something starts over.
//!
//! **What comes at intervals** is worth waiting for longer where cores are plenty: a neighbour that works for 100 µs on
//! each item would have to wake this process for each, at its own cost of 5 to 8 µs. A reader that may be
//! [patient](Spin::set_patient) expects the next spell to be as long as the longest of the last ones was, and looks for half
//! as long again, if that is at most [`PATIENCE`].
//!
//! Plenty means twice as many cores as processes that this one knows of. The price is a core that looks, for up to 300
//! us at a time, and only while things come that often.

use std::time::{Duration, Instant};

/// Time to look for: about one wake-up.
pub const BUDGET: Duration = Duration::from_micros(50);

/// The longest that a patient reader looks for. A core is then busy with that alone.
pub const PATIENCE: Duration = Duration::from_micros(300);

/// Polls between two yields to the runtime, so that what the reader waits for can run on the same thread.
pub const POLLS_PER_YIELD: u32 = 16;

/// Polls between two looks at the clock, which costs more than a poll.
const POLLS_PER_CLOCK: u32 = 8;
const MIN_SKIP: u32 = 4;
const MAX_SKIP: u32 = 256;

/// What to do after the sources were found empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again at once ([`std::hint::spin_loop`] in between).
    Poll,
    /// Let the runtime run its other tasks, then look again.
    Yield,
    /// Sleep: [`Sleeper::prepare`](super::doorbell::Sleeper::prepare), one more look, wait for the bell.
    Park,
}

/// The adaptive policy. The reader calls [`idle`](Self::idle) each time it found nothing and
/// [`found`](Self::found) each time it found something.
#[derive(Clone, Debug)]
pub struct Spin<C = fn() -> Instant> {
    clock: C,
    budget: Duration,
    /// Whether cores are plenty.
    patient: bool,
    /// How long nothing came, between work and work, lately.
    expected: Duration,
    /// When the spell in progress began: nothing came since.
    spell: Option<Instant>,
    /// When the spin in progress began, its polls so far, and how long it lasts.
    since: Option<(Instant, u32, Duration)>,
    /// Parks still to come without a spin.
    skip: u32,
    /// Parks that the last miss cost; 0 after a hit.
    penalty: u32,
}

impl Spin {
    /// The policy with [`BUDGET`] and the real clock.
    pub fn new() -> Self {
        Self::with(BUDGET, Instant::now)
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: FnMut() -> Instant> Spin<C> {
    /// The policy with another budget (zero: always park) or another clock.
    pub fn with(budget: Duration, clock: C) -> Self {
        let expected = PATIENCE;
        Spin { clock, budget, patient: false, expected, spell: None, since: None, skip: 0, penalty: 0 }
    }

    /// Whether there are cores that nobody else needs.
    pub fn set_patient(&mut self, patient: bool) {
        self.patient = patient;
        if !patient {
            (self.spell, self.expected) = (None, PATIENCE);
        }
    }

    /// Nothing was there: what to do next.
    #[inline]
    pub fn idle(&mut self) -> Step {
        let Some((since, polls, budget)) = self.since else {
            return self.begin();
        };
        let polls = polls + 1;
        if polls.is_multiple_of(POLLS_PER_CLOCK) && (self.clock)().saturating_duration_since(since) >= budget
        {
            return self.miss();
        }
        self.since = Some((since, polls, budget));
        if polls.is_multiple_of(POLLS_PER_YIELD) { Step::Yield } else { Step::Poll }
    }

    /// Something was there. During a spin this is a hit; after a park it says nothing about spinning.
    #[inline]
    pub fn found(&mut self) {
        let spin = self.since.take();
        if spin.is_some() {
            self.penalty = 0;
        }
        if let Some(began) = self.spell.take() {
            // Within the budget: no need to know it better, and a look at the clock costs as much as a few polls.
            let soon = spin.is_some_and(|(_, _, budget)| budget <= self.budget);
            let spell = if soon { self.budget / 2 } else { (self.clock)().saturating_duration_since(began) };
            // Short ones come in between, with credits and acknowledgements: the longest counts, and is forgotten slowly.
            let spell = spell.min(PATIENCE * 2);
            self.expected = if spell > self.expected { spell } else { (self.expected * 7 + spell) / 8 };
        }
    }

    #[inline]
    fn begin(&mut self) -> Step {
        if self.budget.is_zero() {
            return Step::Park;
        }
        let mut budget = self.budget;
        if self.patient {
            let now = (self.clock)();
            // A park that nothing came of is part of its spell.
            self.spell.get_or_insert(now);
            let enough = self.expected + self.expected / 2;
            if enough <= PATIENCE {
                budget = budget.max(enough);
            }
        }
        if self.skip > 0 {
            self.skip -= 1;
            return Step::Park;
        }
        self.since = Some(((self.clock)(), 0, budget));
        Step::Poll
    }

    #[cold]
    fn miss(&mut self) -> Step {
        self.since = None;
        self.penalty = (self.penalty * 2).clamp(MIN_SKIP, MAX_SKIP);
        self.skip = self.penalty;
        Step::Park
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Steps of one idle spell, up to and with the park, on a clock that moves on by `per_look` at each look.
    fn spell<C: FnMut() -> Instant>(spin: &mut Spin<C>) -> Vec<Step> {
        let mut steps = Vec::new();
        while steps.last() != Some(&Step::Park) {
            steps.push(spin.idle());
            assert!(steps.len() < 10_000, "it never parks");
        }
        steps
    }

    fn ticking(now: &Cell<Instant>, per_look: Duration) -> impl FnMut() -> Instant {
        move || now.replace(now.get() + per_look)
    }

    #[test]
    fn it_spins_for_the_budget_and_yields_every_sixteenth_poll() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(10)));
        let steps = spell(&mut spin);
        // Five looks at the clock after the first one.
        assert_eq!(steps.len(), 1 + 5 * POLLS_PER_CLOCK as usize);
        for (i, step) in steps[..steps.len() - 1].iter().enumerate() {
            assert_eq!(*step == Step::Yield, i > 0 && i % 16 == 0, "step {i} is {step:?}");
        }
    }

    #[test]
    fn each_miss_doubles_the_parks_without_a_spin_from_4_to_256() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, BUDGET));
        for skipped in [4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(spell(&mut spin).len() > 1, "a spin is due");
            for _ in 0..skipped {
                assert_eq!(spell(&mut spin), [Step::Park]);
                spin.found();
            }
        }
    }

    #[test]
    fn a_hit_starts_over_and_work_after_a_park_does_not() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, BUDGET));
        let parks =
            |spin: &mut Spin<_>, count| (0..count).for_each(|_| assert_eq!(spell(spin), [Step::Park]));
        spell(&mut spin);
        parks(&mut spin, 4);
        spin.found();
        spell(&mut spin);
        parks(&mut spin, 8);
        assert_eq!(spin.idle(), Step::Poll);
        spin.found();
        assert!(spell(&mut spin).len() > 1, "a hit is followed by a spin");
        parks(&mut spin, 4);
        assert!(spell(&mut spin).len() > 1);
    }

    #[test]
    fn no_budget_always_parks() {
        let mut spin = Spin::with(Duration::ZERO, Instant::now);
        for _ in 0..100 {
            assert_eq!(spin.idle(), Step::Park);
            spin.found();
        }
    }

    /// Looks until it parks or has looked for `spell`, and then finds something; whether it was still looking.
    fn wait_for(spin: &mut Spin<impl FnMut() -> Instant>, now: &Cell<Instant>, spell: Duration) -> bool {
        let until = now.get() + spell;
        let mut parked = false;
        while !parked && now.get() < until {
            parked = spin.idle() == Step::Park;
        }
        now.set(until);
        spin.found();
        !parked
    }

    #[test]
    fn who_is_patient_looks_through_the_intervals_of_what_comes() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(1)));
        spin.set_patient(true);
        let interval = Duration::from_micros(100);
        let looked = (0..50).filter(|_| wait_for(&mut spin, &now, interval)).count();
        assert!(looked > 30, "after a few parks it looks through each: {looked} of 50");
        // Too long to look through, from the third on at most.
        let looked = (0..50).filter(|_| wait_for(&mut spin, &now, PATIENCE * 3)).count();
        assert_eq!(looked, 0);
        assert!((0..300).any(|_| wait_for(&mut spin, &now, interval)), "and it learns again");
    }

    #[test]
    fn who_is_not_patient_parks_after_the_budget() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(1)));
        let looked = (0..100).filter(|_| wait_for(&mut spin, &now, BUDGET * 2)).count();
        assert_eq!(looked, 0);
    }

    #[test]
    fn a_clock_that_goes_back_does_no_harm() {
        let now = Cell::new(Instant::now() + Duration::from_secs(1));
        let mut spin = Spin::with(BUDGET, || now.get());
        assert_eq!(spin.idle(), Step::Poll);
        now.set(now.get() - Duration::from_millis(500));
        for _ in 0..1000 {
            assert_ne!(spin.idle(), Step::Park);
        }
        now.set(now.get() + Duration::from_secs(1));
        assert_eq!(spell(&mut spin).last(), Some(&Step::Park));
    }
}
