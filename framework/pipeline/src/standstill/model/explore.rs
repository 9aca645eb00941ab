//! Visits all states of a tiny pipeline, and asks the detector about those in which nothing happens.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault};
use std::time::{Duration, Instant};

use crate::ItemId;
use crate::limits::STANDSTILL;
use crate::standstill::StandstillDetector;
use crate::worker::meter::Counts;
use crate::worker::waits::Wait;

use super::Flaw;
use super::steps::{Model, Pace, Step};
use super::world::{At, Content, World};

const LIMIT: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_secs(1);

/// The sizes of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    /// States in which all have ended, and in which the pipeline stands still.
    pub(super) ended: usize,
    pub(super) stood: usize,
}

/// The steps that can follow a state, or its judgement.
enum Next {
    Steps(Vec<Step>),
    End,
    Standstill,
}

/// The states that were reached, by number. Only their hashes are kept: two of a million states share a hash
/// once in 30 million runs.
#[derive(Default)]
struct Graph {
    numbers: HashMap<u64, usize>,
    /// By state: the step that first led to it, with the state before.
    first: Vec<Option<(usize, &'static str, usize)>>,
    /// By state: all states before it.
    before: Vec<Vec<usize>>,
}

impl Graph {
    /// Returns the number of a state, and whether it is new.
    fn reach(&mut self, world: &World, by: Option<(usize, &'static str, usize)>) -> (usize, bool) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(world);
        let (number, is_new) = match self.numbers.entry(hash) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(new) => (*new.insert(self.first.len()), true),
        };
        if is_new {
            self.first.push(by);
            self.before.push(Vec::new());
        }
        self.before[number].extend(by.map(|(before, ..)| before));
        (number, is_new)
    }

    /// Returns a state from which none of `ends` can be reached.
    fn without_end(&self, ends: Vec<usize>) -> Option<usize> {
        let mut leads = vec![false; self.before.len()];
        let mut next = ends;
        while let Some(number) = next.pop() {
            if !std::mem::replace(&mut leads[number], true) {
                next.extend(&self.before[number]);
            }
        }
        leads.iter().position(|leads| !leads)
    }
}

impl Model {
    /// Visits every state. Returns the error of the first bad one, with the steps that lead there.
    pub(super) fn explore(&self) -> Result<Explored, String> {
        if self.flaw != Flaw::NotRefused {
            self.shape.plan.check().map_err(|refused| refused.to_string())?;
        }
        let (mut graph, begin) = (Graph::default(), self.begin());
        let mut open = VecDeque::from([(graph.reach(&begin, None).0, begin)]);
        let (mut ended, mut stood) = (Vec::new(), Vec::new());
        while let Some((number, world)) = open.pop_front() {
            match self.look(&world).map_err(|why| format!("{why}, after {}", self.way(&graph, number)))? {
                Next::End => ended.push(number),
                Next::Standstill => stood.push(number),
                Next::Steps(steps) => {
                    for Step { does, actor, world, .. } in steps {
                        let (to, is_new) = graph.reach(&world, Some((number, does, actor)));
                        if is_new {
                            open.push_back((to, world));
                        }
                    }
                }
            }
        }
        let found = Explored { states: graph.first.len(), ended: ended.len(), stood: stood.len() };
        match graph.without_end([ended, stood].concat()) {
            Some(number) => Err(format!("no end can be reached after {}", self.way(&graph, number))),
            None => Ok(found),
        }
    }

    /// Returns the steps to a state.
    fn way(&self, graph: &Graph, mut number: usize) -> String {
        let mut steps = Vec::new();
        while let Some((before, does, actor)) = graph.first[number] {
            let (stage, replica) = self.actors[actor];
            steps.push(format!("`{}`.{replica} {does}", self.shape.plan.stages[stage].name));
            number = before;
        }
        steps.reverse();
        steps.join(", ")
    }

    /// Returns what follows a state.
    fn look(&self, world: &World) -> Result<Next, String> {
        if world.actors.iter().all(|actor| matches!(actor.at, At::Done | At::Gone)) {
            return self.check_promises(world).map(|()| Next::End);
        }
        let mut steps = self.steps(world);
        let any = |pace| steps.iter().any(|step| step.pace == pace);
        match (any(Pace::Prompt), any(Pace::Slow)) {
            (true, _) => {}
            (false, true) => self.check_that_it_goes_on(world)?,
            (false, false) => match self.remind(world) {
                Some(world) => {
                    if !world.died {
                        return Err("only the reminder helps".to_owned());
                    }
                    steps.push(Step { does: "is reminded", actor: 0, pace: Pace::Slow, world });
                }
                None => {
                    self.check_that_it_is_found(world)?;
                    return Ok(Next::Standstill);
                }
            },
        }
        Ok(Next::Steps(steps))
    }

    /// Returns what the actor reports that it waits for, as the actors of `worker` do.
    fn waits(&self, world: &World, actor: usize) -> Vec<Wait> {
        let (stage, here) = (self.actors[actor].0, &world.actors[actor]);
        let mut waits = Vec::new();
        for edge in &self.edges[stage] {
            let to = self.shape.plan.edges[*edge].to as u16;
            let held_up =
                here.pending.front().filter(|piece| piece.edge == *edge && piece.content == Content::Item);
            let id = held_up.map(|piece| ItemId { source: 0, number: piece.ids[0].into() });
            waits.extend(id.map(|id| Wait::Room { stage: to, id }));
            let again = here.beside.iter().filter(|piece| piece.edge == *edge);
            let count = world.unanswered(actor, *edge).chain(again).count() as u32;
            waits.extend((count > 0).then_some(Wait::Answers { stage: to, count }));
        }
        let kept = here.kept.len();
        waits.extend((kept > 0).then_some(Wait::Retained(kept)));
        let tells_time = self.flaw != Flaw::UntoldTime && self.may_wake(world, actor);
        waits.extend(tells_time.then_some(Wait::Time));
        if here.at == At::Running && !self.is_source(actor) {
            let missing = self.lanes[actor].iter().filter(|lane| !here.over.contains(*lane));
            let lane =
                |(edge, sender): &(usize, usize)| (*edge as u32) << 16 | u32::from(self.actors[*sender].1);
            waits.push(Wait::Senders(missing.map(lane).collect()));
        }
        waits
    }

    /// Returns a detector that has heard the reports of all members, long after the last step, with the
    /// members and the time. A member between two lives reports nothing.
    fn detector(&self, world: &World) -> (StandstillDetector, Vec<(u16, u16)>, Instant) {
        let mut detector = StandstillDetector::new(LIMIT, EVERY);
        let (begin, now) = (detector.moved(), detector.moved() + 2 * STANDSTILL);
        let mut members = Vec::new();
        for (actor, (stage, replica)) in self.actors.iter().enumerate() {
            let at = match world.actors[actor].at {
                At::Done | At::Gone => continue,
                At::Down => begin,
                At::Running | At::Ending | At::Ended => now,
            };
            let counts = Counts { stage: *stage as u16, replica: *replica, ..Counts::default() };
            detector.told_at(&counts, self.waits(world, actor), at);
            members.push((counts.stage, counts.replica));
        }
        (detector, members, now)
    }

    /// Something still happens by itself, after some time.
    fn check_that_it_goes_on(&self, world: &World) -> Result<(), String> {
        let (detector, members, now) = self.detector(world);
        let plan = &self.shape.plan;
        let culprits = detector.culprits(plan, &members, false, now);
        let named = culprits.into_iter().filter(|line| line.contains("nothing has moved"));
        match detector.standstill(plan, &members, now).into_iter().chain(named).next() {
            Some(why) => Err(format!("it goes on, and is said to stand still: {why}")),
            None => Ok(()),
        }
    }

    /// Nothing happens any more.
    fn check_that_it_is_found(&self, world: &World) -> Result<(), String> {
        let (detector, members, now) = self.detector(world);
        let plan = &self.shape.plan;
        let why = detector.standstill(plan, &members, now);
        if !self.shape.stands {
            return Err(format!("it stands still: {why:?}"));
        }
        let why = why.ok_or("it stands still, and nobody finds that")?;
        let culprits = detector.culprits(plan, &members, false, now).concat();
        let causes = self.causes(world);
        for text in [why, culprits] {
            let names =
                (0..plan.stages.len()).filter(|at| text.contains(&format!("`{}`", plan.stages[*at].name)));
            let names: BTreeSet<usize> = names.collect();
            if names.is_empty() || !names.is_subset(&causes) {
                return Err(format!("{causes:?} hold up the others, and it says: {text}"));
            }
        }
        Ok(())
    }

    /// Returns the stages that are more than victims: they keep items, or wait for themselves.
    fn causes(&self, world: &World) -> BTreeSet<usize> {
        let stage = |actor: usize| self.actors[actor].0;
        let mut causes = BTreeSet::new();
        // Each waits for room, or for an answer, at the other.
        let mut waits = BTreeSet::new();
        for (actor, here) in world.actors.iter().enumerate() {
            causes.extend((!here.kept.is_empty()).then_some(stage(actor)));
            let held_up = here.pending.front();
            waits.extend(held_up.map(|piece| (stage(actor), self.shape.plan.edges[piece.edge].to)));
        }
        waits.extend(world.messages.iter().map(|(key, message)| (stage(key.1), stage(message.to))));
        for begin in 0..self.edges.len() {
            let (mut seen, mut next) = (BTreeSet::new(), vec![begin]);
            while let Some(at) = next.pop() {
                let others = waits.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to);
                next.extend(others.filter(|to| seen.insert(*to)));
            }
            causes.extend(seen.contains(&begin).then_some(begin));
        }
        causes
    }

    /// All have ended.
    fn check_promises(&self, world: &World) -> Result<(), String> {
        let made = world.actors.iter().map(|actor| actor.made).max().unwrap_or(0);
        let faults = world.died || world.failed;
        for id in 0..made {
            let came = world.sunk.iter().filter(|sunk| **sunk == id).count();
            let wanted = (self.shape.often)(id);
            let is_named = world.named.contains(&id) || world.left_over.contains(&id);
            let too_few = came < wanted && !(faults && is_named);
            // At least once, items come again after a death.
            let too_often = came > wanted && !(world.died && self.resends());
            if too_few || too_often {
                return Err(format!("item {id} came {came} times and not {wanted}"));
            }
        }
        if !faults && !world.named.is_empty() {
            return Err(format!("{:?} are named without a fault", world.named));
        }
        if self.shape.in_order && !world.died && !world.sunk.is_sorted() {
            return Err(format!("they came in the order {:?}", world.sunk));
        }
        Ok(())
    }
}
