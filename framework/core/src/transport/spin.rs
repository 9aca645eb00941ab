//! The policy of how long a reader polls before it sleeps.
//!
//! Waking a halted core costs far more than a message (33 µs of 37 on the machine measured). So a reader that
//! finds nothing keeps polling for about as long as a wake-up costs before it parks, which at most doubles
//! the price. A budget below that is bistable. A fixed one is a waste if the peer shares the core or is
//! silent (52 µs a hop). So after a spin in vain the reader parks several times without one, 4 times at first
//! and twice as often each time, up to 256. A spin that finds something starts over.
//!
//! **Messages at intervals** are worth a longer wait. A neighbour that works for 100 µs on each item would
//! have to wake this process for each one, at its own cost of 5 to 8 µs. If a message goes round many
//! processes that all sleep, each of them waits for the wake-ups of all. A reader that may be
//! [patient](Spin::set_patient) expects the next idle spell to be as long as the longest recent one, and
//! polls for twice as long, if that is at most about [`LONGEST_POLL`].
//!
//! **It gives way** ([`SpinStep::GiveWay`]) once it polls for longer than a wake-up takes, and from the first
//! poll on if there are more processes than cores: any other thread that wants its core gets it. If that
//! takes [long](AWAY), the other thread works there, and a new message would wait for the end of that
//! thread's turn. So the reader sleeps, and polls the less often the longer that took.
//!
//! The price is a core that polls while no other thread wants it, for up to 1 ms at a time, and only while
//! messages arrive that often.

use std::time::{Duration, Instant};

/// Time to poll for: about one wake-up.
pub const BUDGET: Duration = Duration::from_micros(50);

/// The longest time that a patient reader polls for. A message that goes round 16 sleeping processes comes
/// back after 0.4 to 0.6 ms (16 cores with an H100), and after 50 us if they poll.
pub const LONGEST_POLL: Duration = Duration::from_millis(1);

/// A reader that gets its core back later than this after it gave way shares the core with a thread that
/// works, and then a wake-up costs less than polling. On crowded cores the limit is twice as long, because
/// several polling readers, which have work now and then, take turns there.
pub const AWAY: Duration = BUDGET;

/// The number of parks without polling for each [`AWAY`] during which another thread had the core, up to
/// [`MAX_SKIP`]. A turn of 3 ms that a message had to wait for then happens in a hundredth of the spells. A
/// turn of 50 us, which a polling neighbour takes now and then, costs a few parks.
const PARKS_PER_AWAY: u32 = 4;

/// Polls between two yields to the runtime, so that tasks that the reader waits for can run on the same
/// thread.
pub const POLLS_PER_YIELD: u32 = 16;

/// Polls between two reads of the clock, which cost more than a poll.
const POLLS_PER_CLOCK: u32 = 8;
const MIN_SKIP: u32 = 4;
const MAX_SKIP: u32 = 256;

/// The next step after the sources were found empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinStep {
    /// Poll again at once ([`std::hint::spin_loop`] in between).
    Poll,
    /// Let the runtime run its other tasks, then poll again.
    Yield,
    /// Let the runtime run its other tasks, and other processes run on this core ([`Spin::give_way`]), then
    /// poll again.
    GiveWay,
    /// Sleep: [`Sleeper::prepare`](super::doorbell::Sleeper::prepare), one more poll, wait for the bell.
    Park,
}

/// The adaptive policy. The reader calls [`idle`](Self::idle) each time it found nothing and
/// [`found`](Self::found) each time it found something.
#[derive(Clone, Debug)]
pub struct Spin<C = fn() -> Instant> {
    clock: C,
    budget: Duration,
    /// Whether it may poll for longer than the budget.
    patient: bool,
    /// Whether there are more processes than cores.
    crowded: bool,
    /// The recent length of idle spells, between work and work.
    expected: Duration,
    /// When the idle spell in progress began.
    spell: Option<Instant>,
    /// The spin in progress.
    run: Option<SpinRun>,
    /// Parks still to come without a spin.
    skip: u32,
    /// Parks that the last miss cost; 0 after a hit.
    penalty: u32,
    /// The same after another thread worked on the core, where patience does not help.
    away: u32,
}

#[derive(Clone, Copy, Debug)]
struct SpinRun {
    since: Instant,
    polls: u32,
    /// How long it may last.
    budget: Duration,
    /// Whether it gives way.
    gives_way: bool,
}

impl Spin {
    /// Makes the policy with [`BUDGET`] and the real clock.
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
    /// Makes the policy with another budget (zero: always park) or another clock.
    pub fn with(budget: Duration, clock: C) -> Self {
        Spin {
            clock,
            budget,
            patient: false,
            crowded: false,
            expected: LONGEST_POLL,
            spell: None,
            run: None,
            skip: 0,
            penalty: 0,
            away: 0,
        }
    }

    /// Sets whether it may poll for longer than the budget.
    pub fn set_patient(&mut self, patient: bool) {
        self.patient = patient;
        if !patient {
            (self.spell, self.expected) = (None, LONGEST_POLL);
        }
    }

    /// Sets whether there are more processes than cores. If so, it gives way from the first poll on.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// Notes that nothing was found, and returns the next step.
    #[inline]
    pub fn idle(&mut self) -> SpinStep {
        let Some(run) = &mut self.run else {
            return self.begin();
        };
        run.polls += 1;
        if run.polls.is_multiple_of(POLLS_PER_CLOCK) {
            let so_long = (self.clock)().saturating_duration_since(run.since);
            if so_long >= run.budget {
                return self.miss();
            }
            run.gives_way |= so_long >= self.budget;
        }
        match run.polls.is_multiple_of(POLLS_PER_YIELD) {
            true if run.gives_way => SpinStep::GiveWay,
            true => SpinStep::Yield,
            false => SpinStep::Poll,
        }
    }

    /// Lets other processes run on this core, as [`SpinStep::GiveWay`] asks. The time spent here counts as
    /// another thread's, so the caller runs this thread's other tasks outside this call.
    pub fn give_way(&mut self) {
        self.give_way_by(std::thread::yield_now);
    }

    fn give_way_by(&mut self, give_way: impl FnOnce()) {
        let before = (self.clock)();
        give_way();
        let away = (self.clock)().saturating_duration_since(before);
        let most = if self.crowded { AWAY * 2 } else { AWAY };
        if away >= most {
            self.run = None;
            let times = u32::try_from(away.as_nanos() / AWAY.as_nanos()).unwrap_or(u32::MAX);
            self.away = times.saturating_mul(PARKS_PER_AWAY).min(MAX_SKIP);
        }
    }

    /// Notes that something was found. During a spin this is a hit; after a park it says nothing about
    /// spinning.
    #[inline]
    pub fn found(&mut self) {
        let run = self.run.take();
        if run.is_some() {
            self.penalty = 0;
        }
        if let Some(began) = self.spell.take() {
            // A spell within the budget need not be known more exactly, and reading the clock costs as much
            // as a few polls.
            let soon =
                run.is_some_and(|run| run.since == began && (!run.gives_way || run.polls < POLLS_PER_YIELD));
            let spell = if soon { self.budget / 2 } else { (self.clock)().saturating_duration_since(began) };
            // Short spells come in between, with credits and acknowledgements. So the longest counts, and is
            // forgotten slowly.
            let spell = spell.min(LONGEST_POLL * 2);
            self.expected = if spell > self.expected { spell } else { (self.expected * 7 + spell) / 8 };
        }
    }

    /// Returns how long a patient reader polls, if that is worthwhile: twice the expected spell, but at most
    /// [`LONGEST_POLL`].
    fn patience(&self) -> Option<Duration> {
        let is_worth_it = self.patient && self.expected + self.expected / 2 <= LONGEST_POLL;
        is_worth_it.then(|| (self.expected * 2).min(LONGEST_POLL))
    }

    #[inline]
    fn begin(&mut self) -> SpinStep {
        if self.budget.is_zero() {
            return SpinStep::Park;
        }
        let now = (self.clock)();
        if self.patient {
            // A park during which nothing arrived is part of its spell.
            self.spell.get_or_insert(now);
        }
        if self.away > 0 {
            self.away -= 1;
            return SpinStep::Park;
        }
        let patience = self.patience().filter(|patience| *patience > self.budget);
        if patience.is_none() && self.skip > 0 {
            self.skip -= 1;
            return SpinStep::Park;
        }
        let budget = patience.unwrap_or(self.budget);
        let gives_way = self.crowded;
        self.run = Some(SpinRun { since: now, polls: 0, budget, gives_way });
        SpinStep::Poll
    }

    #[cold]
    fn miss(&mut self) -> SpinStep {
        self.run = None;
        self.penalty = (self.penalty * 2).clamp(MIN_SKIP, MAX_SKIP);
        self.skip = self.penalty;
        SpinStep::Park
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns the steps of one idle spell, up to and including the park.
    fn spell<C: FnMut() -> Instant>(spin: &mut Spin<C>) -> Vec<SpinStep> {
        let mut steps = Vec::new();
        while steps.last() != Some(&SpinStep::Park) {
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
        // Five reads of the clock after the first one.
        assert_eq!(steps.len(), 1 + 5 * POLLS_PER_CLOCK as usize);
        for (i, step) in steps[..steps.len() - 1].iter().enumerate() {
            assert_eq!(*step == SpinStep::Yield, i > 0 && i % 16 == 0, "step {i} is {step:?}");
        }
    }

    #[test]
    fn each_miss_doubles_the_parks_without_a_spin_from_4_to_256() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, BUDGET));
        for skipped in [4, 8, 16, 32, 64, 128, 256, 256] {
            assert!(spell(&mut spin).len() > 1, "a spin is due");
            for _ in 0..skipped {
                assert_eq!(spell(&mut spin), [SpinStep::Park]);
                spin.found();
            }
        }
    }

    #[test]
    fn a_hit_starts_over_and_work_after_a_park_does_not() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, BUDGET));
        let parks =
            |spin: &mut Spin<_>, count| (0..count).for_each(|_| assert_eq!(spell(spin), [SpinStep::Park]));
        spell(&mut spin);
        parks(&mut spin, 4);
        spin.found();
        spell(&mut spin);
        parks(&mut spin, 8);
        assert_eq!(spin.idle(), SpinStep::Poll);
        spin.found();
        assert!(spell(&mut spin).len() > 1, "a hit is followed by a spin");
        parks(&mut spin, 4);
        assert!(spell(&mut spin).len() > 1);
    }

    #[test]
    fn no_budget_always_parks() {
        let mut spin = Spin::with(Duration::ZERO, Instant::now);
        for _ in 0..100 {
            assert_eq!(spin.idle(), SpinStep::Park);
            spin.found();
        }
    }

    /// Returns how often a reader that gets its core back at once yields, and how often it gives way, in one
    /// spell.
    fn ways(spin: &mut Spin<impl FnMut() -> Instant>) -> (usize, usize) {
        let steps = spell(spin);
        let count = |step| steps.iter().filter(|known| **known == step).count();
        (count(SpinStep::Yield), count(SpinStep::GiveWay))
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

    /// The longer another thread had the core, the longer the reader sleeps without polling, whatever it
    /// expects.
    #[test]
    fn who_gets_the_core_back_late_sleeps_and_looks_less_often() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_nanos(100)));
        spin.set_patient(true);
        spin.set_crowded(true);
        for _ in 0..50 {
            wait_for(&mut spin, &now, BUDGET * 2);
        }
        let mut run = |away: Duration| {
            let mut looks = 0;
            loop {
                match spin.idle() {
                    SpinStep::GiveWay => spin.give_way_by(|| now.set(now.get() + away)),
                    SpinStep::Park => return looks,
                    _ => {}
                }
                looks += 1;
            }
        };
        for (turns, parks) in [(2, 8), (3, 12), (60, 240), (1000, 256)] {
            assert_eq!(run(AWAY * turns), POLLS_PER_YIELD as usize + 1, "the first time is the last");
            for _ in 1..parks {
                assert_eq!(run(AWAY), 0);
            }
        }
        assert!(run(Duration::ZERO) > POLLS_PER_YIELD as usize + 1, "and then it looks");
        assert!(run(AWAY) > POLLS_PER_YIELD as usize + 1, "a turn of one that looks, too");
    }

    /// Models a message that goes round many sleeping processes: each sees it after the time of all wake-ups.
    /// None of them may stop polling because it has polled in vain before.
    #[test]
    fn who_is_patient_looks_again_as_soon_as_it_is_worth_it() {
        let now = Cell::new(Instant::now());
        let mut spin = Spin::with(BUDGET, ticking(&now, Duration::from_micros(1)));
        spin.set_patient(true);
        // Too long to poll through: it parks up to 256 times without a spin.
        for _ in 0..500 {
            wait_for(&mut spin, &now, LONGEST_POLL * 3);
        }
        let interval = LONGEST_POLL / 2;
        let looked: Vec<_> = (0..40).map(|_| wait_for(&mut spin, &now, interval)).collect();
        assert!(looked[20..].iter().all(|looked| *looked), "{looked:?}");
    }

    /// Polls until it parks or has polled for `spell`, and then finds something. Returns whether it was still
    /// polling.
    fn wait_for(spin: &mut Spin<impl FnMut() -> Instant>, now: &Cell<Instant>, spell: Duration) -> bool {
        let until = now.get() + spell;
        let mut parked = false;
        while !parked && now.get() < until {
            parked = spin.idle() == SpinStep::Park;
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
        // Too long to poll through.
        let looked = (0..50).filter(|_| wait_for(&mut spin, &now, LONGEST_POLL * 3)).count();
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
        assert_eq!(spin.idle(), SpinStep::Poll);
        now.set(now.get() - Duration::from_millis(500));
        for _ in 0..1000 {
            assert_ne!(spin.idle(), SpinStep::Park);
        }
        now.set(now.get() + Duration::from_secs(1));
        assert_eq!(spell(&mut spin).last(), Some(&SpinStep::Park));
    }
}
