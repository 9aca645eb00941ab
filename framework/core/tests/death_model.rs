//! A model of a death in every order of events (DEATH-1, DEATH-3). It runs the node's real rounds, the real
//! table and the real log of a stream.
//!
//! The model has processes in a row, each with one host thread, one control thread and one stream. The first
//! process makes a tensor. Every other process makes a new tensor from the one that it receives, and adds the
//! received one to a tensor of its own in place. It then sends on the new tensor and, where the scenario says
//! so, the received one too. Any process may be killed at any moment, and the node may decide at any moment
//! that the processes that have not answered are late. The model visits all states, and in each of them these
//! two must hold:
//!
//! * data that a process believes to be ready is what it should be (never garbage), and
//! * where nothing can happen any more, no stream waits, and data that was made before the deaths can be
//!   read.
//!
//! Then each step of the protocol is left out in turn, and the model must find a state that breaks one of the
//! two.

#![cfg(feature = "testing")]

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::Instant;

use tensorpost_core::clock::Ticket;
use tensorpost_core::clock::taint::{Log, Table, TaintRange, TaintUpdate};
use tensorpost_core::ids::ProcessId;
use tensorpost_core::testing::deaths::{Act, Rounds, WAIT_FOR_MARKS};
use tensorpost_core::testing::thorough;

/// The step of the protocol that the model gets wrong.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// The node releases the clocks of the dead as soon as it has told everybody, and does not wait for
    /// answers.
    ReleaseBeforeAnswers,
    /// A value is believed as soon as its clock has passed it.
    NoLookAfterTheWait,
    /// A process does not mark its own values as tainted.
    NoOwnRanges,
    /// A wait is noted after it was submitted.
    NotedAfterSubmit,
    /// A process does not check on the epoch page whether it is behind.
    NoEpochPage,
    /// Work that a late process had done by its death counts as good.
    LateIsBelieved,
    /// A stream leaves its tainted range at once, not at the next handler.
    RangeLeftAtOnce,
    /// The node never releases anybody.
    NoRelease,
    /// While a round is on, the node tells a new certificate only in the next round.
    CertificateInNextRound,
}

/// The processes of a run, and the events that may happen to it.
#[derive(Clone, Copy)]
struct Scenario {
    processes: usize,
    /// The processes that may be killed.
    mortal: &'static [usize],
    /// Processes also get the original tensor.
    forwards: bool,
    /// How often the node may run out of patience.
    late: u8,
}

const MARGIN: u64 = 100;

fn name(process: usize) -> ProcessId {
    ProcessId::new(process as u16, 0).expect("a small slot")
}

fn ticket(process: usize, value: u64) -> Ticket {
    Ticket { process: name(process), slot: 0, value }
}

/// The contents of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Data {
    Nothing,
    Good,
    Garbage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tensor {
    memory: usize,
    ready: Ticket,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Wait(Ticket),
    /// Reads the memory of the first field and writes that of the last; also adds the first to the middle
    /// one.
    Kernel(Option<usize>, Option<usize>, usize),
    Advance(u64),
}

/// Where a host thread is in the handler of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Noted(Tensor),
    Submitted(Tensor),
    Enqueued(Tensor),
    Made(Tensor, Tensor),
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Process {
    alive: bool,
    noticed: bool,
    released: bool,
    /// State of the stream.
    clock: u64,
    queue: VecDeque<Op>,
    written: u64,
    floor: u64,
    log: Log,
    /// State of the control thread: the updates that it was told, and its progress with the first of them.
    told: VecDeque<TaintUpdate>,
    learning: u8,
    found: Vec<TaintRange>,
    answers: VecDeque<(u64, Vec<TaintRange>)>,
    table: Table,
    round: u64,
    /// State of the host thread.
    at: At,
    mail: VecDeque<Tensor>,
    handled: u8,
    /// The ticket of the last write to the sum.
    sum_written: Option<Ticket>,
    held: Vec<Tensor>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    node: Rounds,
    epoch: u64,
    late: u8,
    processes: Vec<Process>,
    memory: Vec<Data>,
}

enum TicketStatus {
    Ready,
    Pending,
    Tainted,
}

struct Model {
    scenario: Scenario,
    flaw: Flaw,
    now: Instant,
}

impl Model {
    fn begin(&self) -> World {
        let mut node = Rounds::default();
        let processes = (0..self.scenario.processes).map(|process| {
            node.joined(name(process));
            node.ready(name(process));
            Process {
                alive: true,
                noticed: false,
                released: false,
                clock: 0,
                queue: VecDeque::new(),
                written: 0,
                floor: 0,
                log: Log::default(),
                told: VecDeque::new(),
                learning: 0,
                found: Vec::new(),
                answers: VecDeque::new(),
                table: Table::default(),
                round: 0,
                at: At::Idle,
                mail: VecDeque::new(),
                handled: 0,
                sum_written: None,
                held: Vec::new(),
            }
        });
        let processes: Vec<_> = processes.collect();
        // The sums come first, one for each process. They start as zeros, which are good.
        let memory = vec![Data::Good; processes.len()];
        World { node, epoch: 0, late: 0, processes, memory }
    }

    fn passed(&self, world: &World, ticket: &Ticket) -> bool {
        let process = &world.processes[ticket.process.slot()];
        process.released || process.clock >= ticket.value
    }

    /// Models `ClockDomain::status`.
    fn status(&self, world: &World, by: usize, ticket: &Ticket) -> TicketStatus {
        let process = &world.processes[by];
        let passed = self.passed(world, ticket);
        let current = process.round >= world.epoch || self.flaw == Flaw::NoEpochPage;
        let believes = self.flaw == Flaw::NoLookAfterTheWait && passed;
        match process.table.of(ticket) {
            Some(_) if !believes => TicketStatus::Tainted,
            _ if believes || (passed && current) => TicketStatus::Ready,
            _ => TicketStatus::Pending,
        }
    }

    /// Returns every state that can follow.
    fn steps(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut World) -> bool| {
            let mut world = world.clone();
            if change(&mut world) {
                next.push(world);
            }
        };
        for p in 0..world.processes.len() {
            if world.processes[p].alive {
                step(&|world| self.host(world, p));
                step(&|world| {
                    if self.scenario.late == 0 {
                        return self.control(world, p);
                    }
                    // With late processes there are more states to visit, so a control thread takes all its
                    // steps at once and the node hears the answer at once.
                    let all = (0..3).all(|_| self.control(world, p));
                    all && self.hear(world, p)
                });
                step(&|world| self.stream(world, p));
                // Where processes can be late, the second one dies only after that; `TWO_DEATHS` covers the
                // deaths before.
                let may_die = p == 0 || world.late == self.scenario.late;
                if may_die && self.scenario.mortal.contains(&p) {
                    step(&|world| {
                        world.processes[p].alive = false;
                        true
                    });
                }
            } else if !world.processes[p].noticed {
                step(&|world| self.notice(world, p));
            }
            step(&|world| self.hear(world, p));
        }
        if world.late < self.scenario.late {
            step(&|world| self.overdue(world));
        }
        next
    }

    /// Models `Stream::ticket`, flushed.
    fn mark_end(world: &mut World, p: usize) -> Ticket {
        let process = &mut world.processes[p];
        process.written += 1;
        process.queue.push_back(Op::Advance(process.written));
        ticket(p, process.written)
    }

    fn leave_range(process: &mut Process) {
        process.written = process.written.max(process.floor.saturating_sub(1));
        process.floor = 0;
    }

    /// Takes the next step of a host thread.
    fn host(&self, world: &mut World, p: usize) -> bool {
        let at = world.processes[p].at;
        match at {
            At::Done => return false,
            At::Idle if p == 0 => {
                // The first makes a tensor of nothing.
                let memory = world.memory.len();
                world.memory.push(Data::Nothing);
                world.processes[p].queue.push_back(Op::Kernel(None, None, memory));
                let ready = Self::mark_end(world, p);
                let tensor = Tensor { memory, ready };
                world.processes[p].at = At::Made(tensor, tensor);
            }
            At::Idle => {
                let Some(got) = world.processes[p].mail.pop_front() else { return false };
                // As `Stream::begin` does.
                Self::leave_range(&mut world.processes[p]);
                world.processes[p].held.push(got);
                let status = self.status(world, p, &got.ready);
                let process = &mut world.processes[p];
                process.at = match status {
                    TicketStatus::Tainted => self.after(p, process),
                    TicketStatus::Ready => At::Submitted(got),
                    TicketStatus::Pending => {
                        if self.flaw != Flaw::NotedAfterSubmit {
                            process.log.push(process.written + 1, &got.ready, |_| false);
                        }
                        At::Noted(got)
                    }
                };
            }
            At::Noted(got) => {
                let passed = self.passed(world, &got.ready);
                let process = &mut world.processes[p];
                if !passed {
                    process.queue.push_back(Op::Wait(got.ready));
                }
                process.at = At::Submitted(got);
            }
            At::Submitted(got) => {
                let memory = world.memory.len();
                // As in `Lease::taint`: a lost sum is left alone.
                let process = &mut world.processes[p];
                let lost = process.sum_written.is_some_and(|written| process.table.of(&written).is_some());
                if !lost {
                    process.sum_written = Some(ticket(p, process.written + 1));
                }
                if self.flaw == Flaw::NotedAfterSubmit && process.table.of(&got.ready).is_none() {
                    process.log.push(process.written + 1, &got.ready, |_| false);
                }
                process.queue.push_back(Op::Kernel(Some(got.memory), (!lost).then_some(p), memory));
                process.at = At::Enqueued(Tensor { memory, ..got });
                world.memory.push(Data::Nothing);
                // The process forwards the very tensor that it got.
                if self.scenario.forwards {
                    self.send(world, p, got);
                }
            }
            At::Enqueued(tensor) => {
                let ready = Self::mark_end(world, p);
                let made = Tensor { ready, ..tensor };
                world.processes[p].held.push(made);
                world.processes[p].at = At::Made(made, made);
            }
            At::Made(made, _) => {
                self.send(world, p, made);
                let process = &mut world.processes[p];
                process.at = self.after(p, process);
                if process.at == At::Done {
                    self.freeze_sum(world, p);
                }
            }
        }
        true
    }

    /// Returns where a process stands after a message.
    fn after(&self, p: usize, process: &mut Process) -> At {
        process.handled += 1;
        // Where tensors are forwarded, the third process gets two: the first one's as well.
        let all = if self.scenario.forwards && p >= 2 { 2 } else { 1 };
        if process.handled >= all { At::Done } else { At::Idle }
    }

    /// Models `TensorMut::freeze` of the sum, in a handler of its own.
    fn freeze_sum(&self, world: &mut World, p: usize) {
        let process = &mut world.processes[p];
        Self::leave_range(process);
        let Some(written) = process.sum_written else { return };
        let lost = process.table.of(&written).is_some();
        let ready = if lost { written } else { Self::mark_end(world, p) };
        world.processes[p].held.push(Tensor { memory: p, ready });
    }

    fn send(&self, world: &mut World, from: usize, tensor: Tensor) {
        // The sender looks into its table, too.
        if world.processes[from].table.of(&tensor.ready).is_some() {
            return;
        }
        if let Some(to) = world.processes.get_mut(from + 1).filter(|to| to.alive) {
            to.mail.push_back(tensor);
        }
    }

    /// Takes the next step of a control thread: `ClockDomain::learn`, step by step.
    fn control(&self, world: &mut World, p: usize) -> bool {
        let process = &mut world.processes[p];
        let Some(update) = process.told.front() else { return false };
        match process.learning {
            0 => {
                let mut update = update.clone();
                update.suspects.retain(|(suspect, _)| suspect.process != name(p));
                process.table.learn(&update);
            }
            1 => {
                let table = &process.table;
                let marked = process.log.mark(|of, slot, from, to| table.any_of(of, slot, from, to));
                if let Some(marked) = marked.filter(|_| self.flaw != Flaw::NoOwnRanges) {
                    let to = (process.written + MARGIN).max(process.floor.saturating_sub(1));
                    process.floor = to + 1;
                    let range =
                        TaintRange { process: name(p), slot: 0, from: marked.from, to, by: marked.by };
                    process.table.add(&range);
                    process.found.push(range);
                }
                if self.flaw == Flaw::RangeLeftAtOnce {
                    Self::leave_range(process);
                }
            }
            _ => {
                process.round = process.round.max(update.round);
                let found = std::mem::take(&mut process.found);
                process.answers.push_back((update.round, found));
                process.told.pop_front();
                process.learning = 0;
                return true;
            }
        }
        process.learning += 1;
        true
    }

    /// Runs the next operations of a stream, up to one that others can see.
    fn stream(&self, world: &mut World, p: usize) -> bool {
        let mut any = false;
        loop {
            let advances = matches!(world.processes[p].queue.front(), Some(Op::Advance(_)));
            if !self.operation(world, p) {
                return any;
            }
            if advances {
                return true;
            }
            any = true;
        }
    }

    fn operation(&self, world: &mut World, p: usize) -> bool {
        match world.processes[p].queue.front().copied() {
            None => return false,
            Some(Op::Wait(on)) if !self.passed(world, &on) => return false,
            Some(Op::Wait(_)) => {}
            Some(Op::Kernel(from, sum, to)) => {
                let good = from.is_none_or(|from| world.memory[from] == Data::Good);
                world.memory[to] = if good { Data::Good } else { Data::Garbage };
                if let Some(sum) = sum.filter(|_| !good) {
                    world.memory[sum] = Data::Garbage;
                }
            }
            Some(Op::Advance(value)) => world.processes[p].clock = value,
        }
        world.processes[p].queue.pop_front();
        true
    }

    /// Lets the node hear an answer.
    fn hear(&self, world: &mut World, p: usize) -> bool {
        let Some((round, found)) = world.processes[p].answers.pop_front() else { return false };
        let mut acts = Vec::new();
        world.node.answered(name(p), round, &found, self.now, &mut acts);
        self.act(world, acts);
        true
    }

    /// Lets the node notice a death, after it has heard the last answers of the dead process.
    fn notice(&self, world: &mut World, p: usize) -> bool {
        while self.hear(world, p) {}
        world.processes[p].noticed = true;
        let mut acts = Vec::new();
        let values = [world.processes[p].clock];
        let told = |process: &Process| process.told.iter().map(|update| update.round).max().unwrap_or(0);
        let round = world.processes.iter().map(|process| process.round.max(told(process))).max().unwrap_or(0);
        world.node.died(name(p), &values, self.now, &mut acts);
        if self.flaw == Flaw::CertificateInNextRound {
            acts.retain(|act| !matches!(act, Act::Tell(_, update) if update.round == round));
        }
        if self.flaw == Flaw::LateIsBelieved {
            for act in &mut acts {
                if let Act::Tell(_, update) = act {
                    for death in update.deaths.iter_mut().filter(|death| death.process == name(p)) {
                        death.last = values.to_vec();
                    }
                }
            }
        }
        if self.flaw == Flaw::ReleaseBeforeAnswers {
            let round = acts.iter().find_map(|act| match act {
                Act::Tell(_, update) => Some(update.round),
                Act::Release { .. } => None,
            });
            acts.push(Act::Release { round: round.unwrap_or(world.epoch), dead: vec![name(p)] });
        }
        self.act(world, acts);
        true
    }

    /// Lets the node stop waiting.
    fn overdue(&self, world: &mut World) -> bool {
        let mut acts = Vec::new();
        let clocks: Vec<u64> = world.processes.iter().map(|process| process.clock).collect();
        let values = |process: ProcessId| vec![clocks[process.slot()]];
        world.late += 1;
        let late = world.node.overdue(self.now + WAIT_FOR_MARKS, values, &mut acts);
        self.act(world, acts);
        !late.is_empty()
    }

    fn act(&self, world: &mut World, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Tell(to, update) => world.processes[to.slot()].told.push_back(update),
                Act::Release { .. } if self.flaw == Flaw::NoRelease => {}
                Act::Release { round, dead } => {
                    world.epoch = world.epoch.max(round);
                    for dead in dead {
                        world.processes[dead.slot()].released = true;
                    }
                }
            }
        }
    }

    /// Checks the properties that must hold in every state.
    fn check(&self, world: &World) -> Result<(), String> {
        // A process that is told of a death knows by then how far the clocks of the dead had come, or has
        // that update in its queue.
        for (dead, _) in world.processes.iter().enumerate().filter(|(_, process)| process.noticed) {
            for (p, process) in world.processes.iter().enumerate().filter(|(_, process)| process.alive) {
                let told = process.told.iter().flat_map(|update| &update.deaths);
                let knows = process.table.last_of(name(dead), 0).is_some();
                if !knows && !told.into_iter().any(|death| death.process == name(dead)) {
                    return Err(format!("process {p} hears that {dead} has ended before its certificate"));
                }
            }
        }
        for (p, process) in world.processes.iter().enumerate().filter(|(_, process)| process.alive) {
            for tensor in &process.held {
                let ready = matches!(self.status(world, p, &tensor.ready), TicketStatus::Ready);
                if ready && world.memory[tensor.memory] != Data::Good {
                    return Err(format!("process {p} believes in garbage: {tensor:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks the properties that must hold once nothing can happen any more.
    fn check_end(&self, world: &World) -> Result<(), String> {
        let living = || world.processes.iter().enumerate().filter(|(_, process)| process.alive);
        if let Some((p, _)) = living().find(|(_, process)| !process.queue.is_empty()) {
            return Err(format!("the stream of process {p} waits for ever"));
        }
        let [Some(first), second] = [world.processes.first(), world.processes.get(1)] else { return Ok(()) };
        // If only the first process died, after all its work was done, nothing is lost.
        let lost = first.clock == 0 || second.is_some_and(|second| !second.alive) || self.scenario.late > 0;
        for (p, process) in living().filter(|_| !lost) {
            for tensor in &process.held {
                if !matches!(self.status(world, p, &tensor.ready), TicketStatus::Ready) {
                    return Err(format!("process {p} lost what was done: {tensor:?}"));
                }
            }
        }
        Ok(())
    }

    /// Visits every state and returns their number, or the error of the first bad one.
    fn explore(&self, most: usize) -> Result<usize, String> {
        let begin = self.begin();
        // Only hashes of the visited states are kept. In a run over a million states, two of them share a
        // hash once in 30 million runs.
        let hash = |world: &World| BuildHasherDefault::<DefaultHasher>::default().hash_one(world);
        let mut seen = HashSet::from([hash(&begin)]);
        let mut open = vec![begin];
        while let Some(world) = open.pop() {
            self.check(&world)?;
            let next = self.steps(&world);
            if next.iter().all(|next| *next == world) {
                self.check_end(&world)?;
            }
            open.extend(next.into_iter().filter(|world| seen.insert(hash(world))));
            if seen.len() > most {
                break;
            }
        }
        Ok(seen.len())
    }
}

fn explore(scenario: Scenario, flaw: Flaw, most: usize) -> Result<usize, String> {
    Model { scenario, flaw, now: Instant::now() }.explore(most)
}

/// Returns how many states to visit of a model that holds. All of them take minutes in an unoptimised build.
fn most() -> usize {
    if thorough() { usize::MAX } else { 15_000 }
}

/// Three processes, of which the first may die. The second uses the tensor that it was sent, and the third
/// uses the second's result.
const CHAIN: Scenario = Scenario { processes: 3, mortal: &[0], forwards: false, late: 0 };
/// The same, and the tensor itself is forwarded, too.
const FORWARDS: Scenario = Scenario { forwards: true, ..CHAIN };
/// Two may die.
const TWO_DEATHS: Scenario = Scenario { mortal: &[0, 1], ..CHAIN };
/// The node may declare the processes that have not answered late.
const LATE: Scenario = Scenario { late: 1, ..CHAIN };
/// As above, and a late process may die.
const LATE_AND_TWO_DEATHS: Scenario = Scenario { late: 1, ..TWO_DEATHS };

#[track_caller]
fn holds(scenario: Scenario) {
    let states = explore(scenario, Flaw::None, most()).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{states} states");
    assert!(states > 1000, "a model of nothing");
}

#[track_caller]
fn breaks(scenario: Scenario, flaw: Flaw, how: &str) {
    let wrong = explore(scenario, flaw, usize::MAX).expect_err("the model does not notice what is left out");
    assert!(wrong.contains(how), "another failure: {wrong}");
}

#[test]
fn a_death_taints_what_follows_from_it_and_releases_everybody() {
    holds(CHAIN);
}

#[test]
fn a_tensor_that_is_passed_on_is_no_different() {
    holds(FORWARDS);
}

#[test]
fn two_may_die_at_any_moment() {
    holds(TWO_DEATHS);
}

#[test]
fn who_does_not_answer_keeps_nobody_waiting() {
    holds(LATE);
    holds(LATE_AND_TWO_DEATHS);
}

#[test]
fn the_node_has_to_wait_for_the_answers() {
    breaks(CHAIN, Flaw::ReleaseBeforeAnswers, "garbage");
}

#[test]
fn a_clock_that_has_passed_is_not_to_be_believed() {
    breaks(CHAIN, Flaw::NoLookAfterTheWait, "garbage");
}

#[test]
fn a_process_has_to_mark_its_own_values() {
    breaks(CHAIN, Flaw::NoOwnRanges, "garbage");
}

#[test]
fn a_wait_has_to_be_noted_before_it_is_submitted() {
    breaks(CHAIN, Flaw::NotedAfterSubmit, "garbage");
}

#[test]
fn a_stream_must_not_leave_its_range_in_the_middle_of_a_handler() {
    breaks(CHAIN, Flaw::RangeLeftAtOnce, "garbage");
}

#[test]
fn the_dead_have_to_be_released() {
    breaks(CHAIN, Flaw::NoRelease, "waits for ever");
}

#[test]
fn a_certificate_has_to_be_told_before_the_end() {
    breaks(TWO_DEATHS, Flaw::CertificateInNextRound, "before its certificate");
}

#[test]
fn who_is_late_has_to_see_that_it_is_behind() {
    breaks(LATE, Flaw::NoEpochPage, "garbage");
}

#[test]
fn what_a_late_process_did_after_it_was_suspected_is_not_to_be_believed() {
    breaks(LATE_AND_TWO_DEATHS, Flaw::LateIsBelieved, "garbage");
}
