//! Simulates a head, an agent and its workers in time: beats that are late or lost, partitions in one or both
//! directions, suspended machines, stopped processes, clocks that drift.
//!
//! Each seed draws the faults of 90 seconds. The invariants are these. After the head has given its verdict,
//! next lives of actors may begin, so no worker of the agent works and nothing that workers had sent leaves
//! the host. A verdict is final. Without a fault nobody ends. When an agent's workers have ended, the verdict
//! comes within the head's grace and a second. Then each step is left out in turn, and some seed must break
//! an invariant.

use std::collections::VecDeque;
use std::time::Duration;

use super::steps::{Step, Steps};
use super::*;
use crate::ids::HostId;
use crate::limits::HEAD_GRACE;
use crate::testing::Random;

const HOST: HostId = HostId(1);
const SEEDS: u64 = 1500;
/// Milliseconds of a step, and of a run.
const TICK: u64 = 50;
const RUN: u64 = 90_000;
/// How long a worker that is to end may be in a driver call.
const END_TAKES: u64 = 3_000;

/// An interval, in milliseconds.
#[derive(Clone, Copy, Default)]
struct Span(u64, u64);

impl Span {
    fn draw(random: &mut Random, often: u64) -> Self {
        if random.below(often) != 0 {
            return Span::default();
        }
        let from = random.below(RUN * 2 / 3);
        Span(from, from + [3_000, 12_000, 20_000, 60_000][random.below(4) as usize] + random.below(4_000))
    }

    fn has(self, at: u64) -> bool {
        (self.0..self.1).contains(&at)
    }

    /// Returns how much of the interval has passed.
    fn passed(self, at: u64) -> u64 {
        at.min(self.1).saturating_sub(self.0.min(at))
    }
}

struct Faults {
    to_head: Span,
    to_agent: Span,
    /// Messages sent in this interval take seconds.
    slow: Span,
    agent_suspended: Span,
    agent_stopped: Span,
    head_suspended: Span,
    head_stopped: Span,
    /// The rate of the agent's clock in thousandths, around 1000.
    agent_rate: u64,
}

impl Faults {
    fn draw(random: &mut Random) -> Self {
        Faults {
            to_head: Span::draw(random, 3),
            to_agent: Span::draw(random, 3),
            slow: Span::draw(random, 3),
            agent_suspended: Span::draw(random, 3),
            agent_stopped: Span::draw(random, 3),
            head_suspended: Span::draw(random, 6),
            head_stopped: Span::draw(random, 6),
            agent_rate: 995 + random.below(11),
        }
    }

    /// Draws a partition in one direction, or in both, for about as long as the two sides wait: 5 to 20 s.
    fn around_the_graces(random: &mut Random) -> Self {
        let from = random.below(RUN * 2 / 3);
        let mut span = |differs: u64| {
            let from = from + random.below(differs + 1);
            Span(from, from + 5_000 + random.below(15_000))
        };
        let (to_head, to_agent) = (span(0), span(2_000));
        let none = Span::default();
        let (to_head, to_agent) = match random.below(3) {
            0 => (to_head, none),
            1 => (none, to_agent),
            _ => (to_head, to_agent),
        };
        let (slow, agent_rate) = (Span::draw(random, 4), 995 + random.below(11));
        Faults { to_head, to_agent, slow, agent_rate, ..Faults::none() }
    }

    fn none() -> Self {
        let none = Span::default();
        Faults {
            to_head: none,
            to_agent: none,
            slow: none,
            agent_suspended: none,
            agent_stopped: none,
            head_suspended: none,
            head_stopped: none,
            agent_rate: 1000,
        }
    }
}

/// One direction of the connection, in order: the number of each beat, and when it arrives.
#[derive(Default)]
struct Way(VecDeque<(u64, u64)>);

impl Way {
    fn send(&mut self, random: &mut Random, now: u64, number: u64, broken: Span, slow: Span) {
        // A partition delays it: what TCP sends again arrives when the partition ends.
        let delay = if slow.has(now) { random.below(9_000) } else { 1 + random.below(100) };
        let arrives = if broken.has(now) { broken.1 } else { now } + delay;
        let after = self.0.back().map_or(0, |(_, before)| *before);
        self.0.push_back((number, arrives.max(after)));
    }

    fn hear(&mut self, now: u64, broken: Span) -> Option<u64> {
        let (number, arrives) = *self.0.front()?;
        (arrives <= now && !broken.has(now)).then(|| {
            self.0.pop_front();
            number
        })
    }
}

struct Outcome {
    verdict: Option<u64>,
    over: Option<u64>,
}

fn moment(milliseconds: u64) -> Moment {
    Moment::since_boot(Duration::from_millis(milliseconds))
}

fn run(random: &mut Random, faults: &Faults, steps: Steps) -> Result<Outcome, String> {
    let agent_clock = |now: u64| {
        let slept = if steps.does(Step::BootClock) { 0 } else { faults.agent_suspended.passed(now) };
        moment((now - slept) * faults.agent_rate / 1000)
    };
    let mut head = Head::with_steps(steps);
    let mut agent = Agent::with_steps(agent_clock(0), steps);
    head.joined(HOST, moment(0));
    // The page that workers read.
    let mut works_until = agent.works_until();
    let (mut to_head, mut to_agent) = (Way::default(), Way::default());
    let (mut verdict, mut over) = (None, None);
    let end_takes = random.below(END_TAKES);
    for now in (0..RUN).step_by(TICK as usize) {
        let awake = !faults.agent_suspended.has(now);
        // A worker runs first: a machine that wakes may run it before everything else.
        if awake {
            let clock = agent_clock(now);
            let by_itself =
                steps.does(Step::WorkersLook) && clock > works_until.after(Duration::from_millis(end_takes));
            let ended = by_itself || over.is_some_and(|over| now > over + end_takes);
            if let Some(verdict) = verdict.filter(|_| !ended) {
                return Err(format!("a worker works at {now}, and the verdict was spoken at {verdict}"));
            }
        }
        if awake && !faults.agent_stopped.has(now) {
            let clock = agent_clock(now);
            while let Some(number) = to_agent.hear(now, faults.to_agent) {
                agent.answered(number, clock).map_err(|error| error.to_string())?;
            }
            works_until = agent.works_until();
            let is_over = agent.is_over(clock);
            // Messages of its workers lie in the agent, however long it stood still.
            if let Some(verdict) = verdict.filter(|_| !is_over || !steps.does(Step::HoldBack)) {
                return Err(format!("a message leaves at {now}, and the verdict was spoken at {verdict}"));
            }
            if is_over {
                over = over.or(Some(now));
            }
            if let Some(number) = agent.beat(clock) {
                to_head.send(random, now, number, faults.to_head, faults.slow);
            }
        }
        if !faults.head_suspended.has(now) && !faults.head_stopped.has(now) {
            let clock = moment(now);
            while let Some(number) = to_head.hear(now, faults.to_head) {
                if head.heard(HOST, clock).is_ok() {
                    if let Some(verdict) = verdict {
                        return Err(format!("an answer at {now}, and the verdict was spoken at {verdict}"));
                    }
                    to_agent.send(random, now, number, faults.to_agent, faults.slow);
                }
            }
            if !head.verdicts(clock).is_empty() {
                verdict = verdict.or(Some(now));
            }
        }
    }
    let head_is_there = |at: u64| !faults.head_suspended.has(at) && !faults.head_stopped.has(at);
    if let (Some(over), None) = (over, verdict) {
        // Earlier beats may arrive late; the head's grace counts from then.
        let heard =
            over.max(faults.to_head.1).max(faults.head_suspended.1).max(faults.head_stopped.1) + 9_200;
        let by = heard + HEAD_GRACE.as_millis() as u64 + 1_000;
        if by < RUN && head_is_there(by) {
            return Err(format!("over at {over}, and no verdict"));
        }
    }
    Ok(Outcome { verdict, over })
}

fn seed(seed: u64, steps: Steps) -> Result<Outcome, String> {
    let mut random = Random::new(seed);
    let faults = Faults::draw(&mut random);
    run(&mut random, &faults, steps)
}

#[test]
fn two_lives_never_work_at_once() {
    let (mut verdicts, mut survived) = (0, 0);
    for number in 0..SEEDS {
        let outcome = seed(number, Steps::default()).unwrap_or_else(|found| panic!("seed {number}: {found}"));
        verdicts += u64::from(outcome.verdict.is_some());
        survived += u64::from(outcome.over.is_none());
    }
    assert!(verdicts > SEEDS / 5 && survived > SEEDS / 20, "{verdicts} verdicts, {survived} survived");
}

/// Runs partitions alone.
#[test]
fn partitions_around_the_graces_never_let_two_lives_work() {
    const PARTITIONS: u64 = 1_000;
    let all = |steps: Steps| {
        (0..PARTITIONS).map(move |number| {
            let mut random = Random::new(number);
            let faults = Faults::around_the_graces(&mut random);
            (number, run(&mut random, &faults, steps))
        })
    };
    let (mut verdicts, mut over) = (0, 0);
    for (number, outcome) in all(Steps::default()) {
        let outcome = outcome.unwrap_or_else(|found| panic!("seed {number}: {found}"));
        verdicts += u64::from(outcome.verdict.is_some());
        over += u64::from(outcome.over.is_some());
    }
    println!("{PARTITIONS} partitions: {over} agents ended their workers, {verdicts} verdicts");
    assert!(
        (PARTITIONS / 5..PARTITIONS).contains(&verdicts) && over < PARTITIONS * 9 / 10,
        "{over}, {verdicts}"
    );
    for step in [Step::CountFromSending, Step::Margin, Step::StopBeating] {
        let noticed = all(Steps { left_out: Some(step) }).any(|(_, outcome)| outcome.is_err());
        assert!(noticed, "without {step:?} nothing is wrong in {PARTITIONS} partitions");
    }
}

#[test]
fn without_a_fault_nobody_ends() {
    for number in 0..100 {
        let outcome =
            run(&mut Random::new(number), &Faults::none(), Steps::default()).expect("nothing is wrong");
        assert_eq!((outcome.verdict, outcome.over), (None, None));
    }
}

#[test]
fn a_host_that_is_gone_gets_its_verdict_in_time() {
    let gone = 20_000;
    for number in 0..100 {
        let faults = Faults { agent_suspended: Span(gone, RUN), ..Faults::none() };
        let outcome = run(&mut Random::new(number), &faults, Steps::default()).expect("nothing is wrong");
        let verdict = outcome.verdict.expect("it is gone");
        let grace = HEAD_GRACE.as_millis() as u64;
        assert!((gone + grace - 1_000..gone + grace + 1_000).contains(&verdict), "{verdict}");
    }
}

#[test]
fn each_step_is_needed() {
    use Step::*;
    for step in [CountFromSending, Margin, StopBeating, Final, BootClock, WorkersLook, HoldBack] {
        let steps = Steps { left_out: Some(step) };
        let noticed = (0..SEEDS).any(|number| seed(number, steps).is_err());
        assert!(noticed, "without {step:?} nothing is wrong in {SEEDS} runs");
    }
}
