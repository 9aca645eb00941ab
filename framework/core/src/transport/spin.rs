//! How long to look before sleeping.
//!
//! Waking a halted core costs far more than a message (33 µs of 37 on the machine measured), so a reader that
//! finds nothing looks again for about as long as a wake-up costs before it parks: at most it doubles the
//! price. A budget below that is bistable. A fixed one is a waste where the peer shares the core or is silent
//! (52 µs a hop), so a spin in vain is followed by parks without one, 4 at first and twice as many each time
//! up to 256; a spin that finds something starts over.
//!
//! **What comes at intervals** is worth waiting for longer: a neighbour that works for 100 µs on each item
//! would have to wake this process for each, at its own cost of 5 to 8 µs, and where a message goes round
//! many processes, all of which sleep, each of them waits for the wake-ups of all. A reader that may be
//! [patient](Spin::set_patient) expects the next spell to be as long as the longest of the last ones was, and
//! looks for twice as long, if that is at most about [`PATIENCE`].
//!
//! **It gives way** ([`Step::GiveWay`]) while it looks for longer than a wake-up takes, and from the first
//! look on where there are more processes than cores: whoever else wants its core has it. Where that takes
//! [long](AWAY), somebody works there, and the reader would wait for the end of its turn with what has come:
//! it sleeps, and looks the less often the longer that took.
//!
//! The price is a core that looks where nobody else wants it, for up to 1 ms at a time, and only while things
//! come that often.

use std::time::{Duration, Instant};

/// Time to look for: about one wake-up.
pub const BUDGET: Duration = Duration::from_micros(50);

/// The longest that a patient reader looks for. A message that goes round 16 processes that sleep comes back
/// after 0.4 to 0.6 ms (16 cores with an H100), and after 50 us where they look.
pub const PATIENCE: Duration = Duration::from_millis(1);

/// Whoever gets the core back later than this after it gave way shares it with somebody who works: to be
/// woken costs less. Where it is crowded it takes twice as long: several that look, and have something now
/// and then, take turns there.
pub const AWAY: Duration = BUDGET;

/// So many parks without a look for each [`AWAY`] that the core was somebody else's, up to [`MAX_SKIP`]. A
/// turn of 3 ms that something waited for is then a hundredth of the spells, and one of 50 us, which a
/// neighbour that looks has now and then, a few.
const PARKS_PER_AWAY: u32 = 4;

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
    /// Let the runtime run its other tasks, and other processes run on this core ([`Spin::give_way`]), then
    /// look again.
    GiveWay,
    /// Sleep: [`Sleeper::prepare`](super::doorbell::Sleeper::prepare), one more look, wait for the bell.
    Park,
}

/// The adaptive policy. The reader calls [`idle`](Self::idle) each time it found nothing and
/// [`found`](Self::found) each time it found something.
#[derive(Clone, Debug)]
pub struct Spin<C = fn() -> Instant> {
    clock: C,
    budget: Duration,
    /// Whether it may look for longer than the budget.
    patient: bool,
    /// Whether there are more processes than cores.
    crowded: bool,
    /// How long nothing came, between work and work, lately.
    expected: Duration,
    /// When the spell in progress began: nothing came since.
    spell: Option<Instant>,
    /// The look in progress.
    look: Option<Look>,
    /// Parks still to come without a spin.
    skip: u32,
    /// Parks that the last miss cost; 0 after a hit.
    penalty: u32,
    /// The same where somebody else works on the core: patience does not help there.
    away: u32,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    since: Instant,
    polls: u32,
    /// How long it lasts.
    budget: Duration,
    /// Whether it gives way.
    gives_way: bool,
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
        Spin {
            clock,
            budget,
            patient: false,
            crowded: false,
            expected: PATIENCE,
            spell: None,
            look: None,
            skip: 0,
            penalty: 0,
            away: 0,
        }
    }

    /// Returns whether it may look for longer than the budget.
    pub fn set_patient(&mut self, patient: bool) {
        self.patient = patient;
        if !patient {
            (self.spell, self.expected) = (None, PATIENCE);
        }
    }

    /// Returns whether there are more processes than cores: it then gives way from the first look on.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// Nothing was there: what to do next.
    #[inline]
    pub fn idle(&mut self) -> Step {
        let Some(look) = &mut self.look else {
            return self.begin();
        };
        look.polls += 1;
        if look.polls.is_multiple_of(POLLS_PER_CLOCK) {
            let so_long = (self.clock)().saturating_duration_since(look.since);
            if so_long >= look.budget {
                return self.miss();
            }
            look.gives_way |= so_long >= self.budget;
        }
        match look.polls.is_multiple_of(POLLS_PER_YIELD) {
            true if look.gives_way => Step::GiveWay,
            true => Step::Yield,
            false => Step::Poll,
        }
    }

    /// Lets other processes run on this core, as [`Step::GiveWay`] wants it. What else this thread does is
    /// not somebody else's, so it is not done in here.
    pub fn give_way(&mut self) {
        self.give_way_by(std::thread::yield_now);
    }

    fn give_way_by(&mut self, give_way: impl FnOnce()) {
        let before = (self.clock)();
        give_way();
        let away = (self.clock)().saturating_duration_since(before);
        let most = if self.crowded { AWAY * 2 } else { AWAY };
        if away >= most {
            self.look = None;
            let times = u32::try_from(away.as_nanos() / AWAY.as_nanos()).unwrap_or(u32::MAX);
            self.away = times.saturating_mul(PARKS_PER_AWAY).min(MAX_SKIP);
        }
    }

    /// Something was there. During a spin this is a hit; after a park it says nothing about spinning.
    #[inline]
    pub fn found(&mut self) {
        let look = self.look.take();
        if look.is_some() {
            self.penalty = 0;
        }
        if let Some(began) = self.spell.take() {
            // Within the budget: no need to know it better, and a look at the clock costs as much as a few
            // polls.
            let soon = look
                .is_some_and(|look| look.since == began && (!look.gives_way || look.polls < POLLS_PER_YIELD));
            let spell = if soon { self.budget / 2 } else { (self.clock)().saturating_duration_since(began) };
            // Short ones come in between, with credits and acknowledgements: the longest counts, and is
            // forgotten slowly.
            let spell = spell.min(PATIENCE * 2);
            self.expected = if spell > self.expected { spell } else { (self.expected * 7 + spell) / 8 };
        }
    }

    /// Returns how long a patient reader looks, where that is worth it: twice as long as is expected, and
    /// where that is too long somewhat less.
    fn patience(&self) -> Option<Duration> {
        let is_worth_it = self.patient && self.expected + self.expected / 2 <= PATIENCE;
        is_worth_it.then(|| (self.expected * 2).min(PATIENCE))
    }

    #[inline]
    fn begin(&mut self) -> Step {
        if self.budget.is_zero() {
            return Step::Park;
        }
        let now = (self.clock)();
        if self.patient {
            // A park that nothing came of is part of its spell.
            self.spell.get_or_insert(now);
        }
        if self.away > 0 {
            self.away -= 1;
            return Step::Park;
        }
        let patience = self.patience().filter(|patience| *patience > self.budget);
        if patience.is_none() && self.skip > 0 {
            self.skip -= 1;
            return Step::Park;
        }
        let budget = patience.unwrap_or(self.budget);
        let gives_way = self.crowded;
        self.look = Some(Look { since: now, polls: 0, budget, gives_way });
        Step::Poll
    }

    #[cold]
    fn miss(&mut self) -> Step {
        self.look = None;
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

    /// As a reader that has its core back at once: a step takes `per_look`.
    fn ways(spin: &mut Spin<impl FnMut() -> Instant>) -> (usize, usize) {
        let steps = spell(spin);
        let count = |step| steps.iter().filter(|known| **known == step).count();
        (count(Step::Yield), count(Step::GiveWay))
    }

    #[test]
    fn it_gives_way_where_it_looks_for_longer_and_from_the_first_look_on_where_it_is_crowded() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(10)));
        let (yields, ways_given) = ways(&mut spin);
        assert!(yields > 0 && ways_given == 0, "for a wake-up's time it keeps the core");
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(10)));
        spin.set_crowded(true);
        let (yields, ways_given) = ways(&mut spin);
        assert!(yields == 0 && ways_given > 0);
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(10)));
        spin.set_patient(true);
        let interval = Duration::from_micros(200);
        for _ in 0..50 {
            wait_for(&mut spin, &now, interval);
        }
        let (yields, ways_given) = ways(&mut spin);
        assert!(yields > 0 && ways_given > yields, "{yields} {ways_given}");
    }

    /// The longer somebody else had the core, the longer it sleeps without a look, whatever it expects.
    #[test]
    fn who_gets_the_core_back_late_sleeps_and_looks_less_often() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_nanos(100)));
        spin.set_patient(true);
        spin.set_crowded(true);
        for _ in 0..50 {
            wait_for(&mut spin, &now, BUDGET * 2);
        }
        let mut look = |away: Duration| {
            let mut looks = 0;
            loop {
                match spin.idle() {
                    Step::GiveWay => spin.give_way_by(|| now.set(now.get() + away)),
                    Step::Park => return looks,
                    _ => {}
                }
                looks += 1;
            }
        };
        for (turns, parks) in [(2, 8), (3, 12), (60, 240), (1000, 256)] {
            assert_eq!(look(AWAY * turns), POLLS_PER_YIELD as usize + 1, "the first time is the last");
            for _ in 1..parks {
                assert_eq!(look(AWAY), 0);
            }
        }
        assert!(look(Duration::ZERO) > POLLS_PER_YIELD as usize + 1, "and then it looks");
        assert!(look(AWAY) > POLLS_PER_YIELD as usize + 1, "a turn of one that looks, too");
    }

    /// As where a message goes round many that sleep: each sees it after the time of all wake-ups, and none
    /// of them may be the one that does not look because it has looked in vain before.
    #[test]
    fn who_is_patient_looks_again_as_soon_as_it_is_worth_it() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(1)));
        spin.set_patient(true);
        // Too long to look through: it parks up to 256 times without.
        for _ in 0..500 {
            wait_for(&mut spin, &now, PATIENCE * 3);
        }
        let interval = PATIENCE / 2;
        let looked: Vec<_> = (0..40).map(|_| wait_for(&mut spin, &now, interval)).collect();
        assert!(looked[20..].iter().all(|looked| *looked), "{looked:?}");
    }

    /// Looks until it parks or has looked for `spell`, and then finds something; whether it was still
    /// looking.
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
