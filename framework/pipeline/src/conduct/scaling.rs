//! Replicas that are added and removed while the pipeline runs.
//!
//! Used by the conductor, which alone decides. A stage whose number of replicas changes has a place for each
//! replica that it may have (`plan/scale.rs`), and each place goes through these states:
//!
//! 1. *Empty*: no process. Senders to the stage know nothing of this place; receivers count its end as said.
//! 2. *Starting*: a worker, then the actor in it, is started on another thread, because that blocks.
//! 3. *Opening*: the replica runs, and its receivers are told that something comes from it after all. No
//!    sender sends to it before they have heard that: they must not end while it works.
//! 4. *Open*: its senders are told, and send to it.
//! 5. *Leaving*: its senders are told. Each sends it an end, behind the last item that it sent there, and
//!    chooses it no more. So the replica ends as any does: it finishes the items that it has, and sends its
//!    end behind its last result. When it has answered the conductor, its place is empty again, and its
//!    process ends.
//!
//! Resending, numbering and acknowledging do not depend on the number of replicas: an order is that of the
//! *senders'* numbers, and a replica that leaves is waited for until all its items were answered. The replica
//! at the first place never leaves: a later life of a sender knows it from its arguments, and is told of the
//! others before it is asked to run. If the first has died for good, the last open replica does not leave
//! either.
//!
//! **On a death** of a replica that opens, is open or leaves, all is as with any replica: with a policy its
//! next life goes on in the same state. Without one its place is gone, and is not used again. Only another
//! open replica can take the items of the dead one: a replica that leaves takes no more items, and one that
//! opens is not known to the senders yet. So if none is open, the run fails. A replica that does not start
//! leaves its place empty; the log says why, and the conductor does not try again before the number is
//! changed.
//!
//! **At the end**, also by Ctrl-C or a death, a replica that opens gets the end from its senders and ends.
//! One that is starting is given up: nobody waits for it, and its worker ends as soon as it has started.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::{FutureExt, LocalBoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use tensorpost_core::api::actor::Address;
use tensorpost_core::api::node::{ActorError, WorkerId};
use tokio::task::JoinError;

use super::Conductor;
use super::autoscale::{Autoscale, StageSample};
use crate::hosts::Home;
use crate::launch::{Further, Member, StartedReplica, Unopened, lanes_from};
use crate::plan::Plan;
use crate::report::Report;
use crate::work::Started;
use crate::worker::args::{Control, Directive, ReplicaPlace};

/// The stages whose number of replicas changes.
pub(super) struct Scaling {
    stages: BTreeMap<usize, Scaled>,
    /// The steps under way to add replicas.
    steps: FuturesUnordered<LocalBoxFuture<'static, ScalingStep>>,
    /// Nothing changes any more: the sources were stopped, or all members have ended.
    over: bool,
    /// When a replica has begun to take items, if nothing had moved since one before it did.
    opened: Option<Instant>,
}

/// One of them.
struct Scaled {
    further: Further,
    places: Vec<PlaceState>,
    /// The wanted number of replicas.
    target: u32,
    /// The most replicas that there were at one time.
    most: u32,
    auto: Option<Autoscale>,
}

/// The state of a place.
#[derive(Clone, Debug)]
enum PlaceState {
    Empty,
    /// With its worker, once that has started.
    Starting(Option<WorkerId>),
    Opening(Address<Control>),
    Open(Address<Control>),
    Leaving(Address<Control>),
    /// A replica died there for good.
    Gone,
}

/// A finished step on the way to another replica.
pub(super) enum ScalingStep {
    Worker(usize, u16, Result<Result<Unopened, ActorError>, JoinError>),
    Replica(usize, u16, Result<Result<StartedReplica, ActorError>, JoinError>),
    /// Its receivers know that something comes from it.
    Announced(usize, u16),
}

impl Scaled {
    /// Returns how many replicas take items, or are about to.
    fn count(&self) -> u32 {
        let counts = |state: &&PlaceState| {
            matches!(state, PlaceState::Starting(_) | PlaceState::Opening(_) | PlaceState::Open(_))
        };
        self.places.iter().filter(counts).count() as u32
    }

    fn open(&self) -> u32 {
        self.places.iter().filter(|state| matches!(state, PlaceState::Open(_))).count() as u32
    }

    fn starts(&self) -> bool {
        self.places.iter().any(|state| matches!(state, PlaceState::Starting(_)))
    }

    /// Whether a change is under way.
    fn changes(&self) -> bool {
        let on_its_way = |state: &PlaceState| {
            matches!(state, PlaceState::Starting(_) | PlaceState::Opening(_) | PlaceState::Leaving(_))
        };
        self.places.iter().any(on_its_way)
    }

    /// Returns the places as the senders to the stage are told.
    fn told(&self) -> Vec<ReplicaPlace> {
        let place = |state: &PlaceState| match state {
            PlaceState::Open(address) => ReplicaPlace::Open(address.clone()),
            PlaceState::Leaving(address) => ReplicaPlace::Leaving(address.clone()),
            PlaceState::Empty | PlaceState::Starting(_) | PlaceState::Opening(_) | PlaceState::Gone => {
                ReplicaPlace::Empty
            }
        };
        self.places.iter().map(place).collect()
    }
}

impl Scaling {
    pub(super) fn new(plan: &Plan, members: &[Member], further: HashMap<usize, Further>) -> Self {
        let stages = further.into_iter().map(|(stage, further)| {
            let here = &plan.stages[stage];
            let mut places = vec![PlaceState::Empty; here.replicas as usize];
            for member in members.iter().filter(|member| member.stage == stage) {
                if let Some(inlet) = &member.inlet {
                    places[usize::from(member.replica)] = PlaceState::Open(inlet.clone());
                }
            }
            let auto = here.scale.filter(|scale| scale.auto).map(Autoscale::new);
            let begins_with = here.begins_with;
            (stage, Scaled { further, places, target: begins_with, most: begins_with, auto })
        });
        Scaling { stages: stages.collect(), steps: FuturesUnordered::new(), over: false, opened: None }
    }

    /// Returns the next step that is done; `None` if no step is under way.
    pub(super) async fn next(&mut self) -> Option<ScalingStep> {
        self.steps.next().await
    }

    /// Whether a member leaves because its stage has too many replicas.
    pub(super) fn leaves(&self, member: &Member) -> bool {
        matches!(self.state(member.stage, member.replica), Some(PlaceState::Leaving(_)))
    }

    /// Whether a member is a replica of which its receivers have not heard yet.
    pub(super) fn is_opening(&self, member: &Member) -> bool {
        matches!(self.state(member.stage, member.replica), Some(PlaceState::Opening(_)))
    }

    /// Whether a replica starts that may set things in motion again. Since the last movement at `moved` only
    /// one is waited for: a stage that scales up and down in a pipeline that stands still would hide that.
    pub(super) fn may_move(&self, moved: Instant) -> bool {
        self.starts() && self.opened.is_none_or(|at| at < moved)
    }

    /// Whether a replica is at a place, or was when it ended with the others.
    pub(super) fn is_there(&self, stage: usize, place: u16) -> bool {
        let empty = |state: &PlaceState| {
            matches!(state, PlaceState::Empty | PlaceState::Starting(_) | PlaceState::Gone)
        };
        self.state(stage, place).is_none_or(|state| !empty(state))
    }

    /// Whether a replica at a place takes items, or took them until it ended with the others.
    pub(super) fn takes_items(&self, stage: usize, place: u16) -> bool {
        self.state(stage, place).is_none_or(|state| matches!(state, PlaceState::Open(_)))
    }

    /// Whether another replica may come to a place of a stage.
    #[cfg(feature = "hosts")]
    pub(super) fn scales(&self, stage: usize) -> bool {
        self.stages.contains_key(&stage)
    }

    /// Notes that a replica died for good.
    pub(super) fn gone(&mut self, stage: usize, place: u16) {
        if let Some(scaled) = self.stages.get_mut(&stage) {
            scaled.places[usize::from(place)] = PlaceState::Gone;
        }
    }

    /// Whether a replica is being started.
    pub(super) fn starts(&self) -> bool {
        self.stages.values().any(Scaled::starts)
    }

    fn starts_at(&self, stage: usize, place: u16) -> bool {
        matches!(self.state(stage, place), Some(PlaceState::Starting(_)))
    }

    /// Drops the steps under way, when all is over.
    pub(super) fn forget_steps(&mut self) {
        self.steps.clear();
    }

    /// Returns how many replicas each stage has.
    pub(super) fn replicas(&self, plan: &Plan) -> Vec<u32> {
        let stages = plan.stages.iter().enumerate();
        stages.map(|(index, stage)| self.stages.get(&index).map_or(stage.replicas, Scaled::open)).collect()
    }

    pub(super) fn report(&self, report: &mut Report) {
        for (index, scaled) in &self.stages {
            if let Some(stage) = report.stages.get_mut(*index) {
                (stage.replicas, stage.most_replicas) = (scaled.open(), scaled.most);
            }
        }
    }

    fn state(&self, stage: usize, place: u16) -> Option<&PlaceState> {
        self.stages.get(&stage).and_then(|scaled| scaled.places.get(usize::from(place)))
    }

    fn set(&mut self, stage: usize, place: u16, state: PlaceState) {
        if let Some(scaled) = self.stages.get_mut(&stage) {
            scaled.places[usize::from(place)] = state;
            scaled.most = scaled.most.max(scaled.open());
        }
    }
}

impl Conductor {
    /// Sets the wanted number of a stage's replicas.
    pub(super) fn scale(&mut self, stage: usize, count: u32) {
        if let Some(scaled) = self.scaling.stages.get_mut(&stage) {
            scaled.target = count.clamp(1, scaled.places.len() as u32);
            scaled.auto.iter_mut().for_each(Autoscale::begin_anew);
            self.reach_target(stage);
        }
    }

    /// Adds or removes replicas until there are as many as wanted. Replicas that are starting already count.
    fn reach_target(&mut self, stage: usize) {
        // While the pipeline stops, the existing replicas finish the items under way.
        if self.stop.killed || self.scaling.over {
            return;
        }
        let Some(scaled) = self.scaling.stages.get_mut(&stage) else { return };
        while scaled.count() < scaled.target {
            let Some(place) = scaled.places.iter().position(|state| matches!(state, PlaceState::Empty))
            else {
                break; // no place is empty; perhaps a replica has to leave first
            };
            scaled.places[place] = PlaceState::Starting(None);
            let place = place as u16;
            let start = scaled.further.worker(&self.supervisor, &self.plan, (stage, place));
            let start = tokio::task::spawn_blocking(start);
            self.scaling
                .steps
                .push(async move { ScalingStep::Worker(stage, place, start.await) }.boxed_local());
        }
        let mut leaves = false;
        while scaled.count() > scaled.target {
            // The first replica never leaves. If it has died for good, the last open one does not leave
            // either: no sender could send to replicas that are still starting. When one of these has opened,
            // this is called again.
            let last = scaled.places.iter().rposition(|state| matches!(state, PlaceState::Open(_)));
            let Some(last) = last.filter(|last| *last > 0 && scaled.open() > 1) else { break };
            if let PlaceState::Open(address) = &scaled.places[last] {
                scaled.places[last] = PlaceState::Leaving(address.clone());
                leaves = true;
            }
        }
        if leaves {
            self.tell_places(stage);
        }
    }

    /// Tells all senders to a stage which replicas it has.
    fn tell_places(&self, stage: usize) {
        let Some(scaled) = self.scaling.stages.get(&stage) else { return };
        let sends_there =
            |from: usize| self.plan.edges.iter().any(|edge| edge.from.stage == from && edge.to == stage);
        for (index, member) in self.members.iter().enumerate() {
            // A sender that has ended may have to send its end to a new replica; a sender that has left has
            // ended for good.
            // One that opens is told by its brief, when its receivers have heard of it. A leaving receiver
            // would forget an end of it that comes before `Opens`.
            let is_there =
                self.scaling.is_there(member.stage, member.replica) && !self.scaling.is_opening(member);
            if sends_there(member.stage) && is_there && !self.exited.contains_key(&index) {
                let places = Directive::Places { stage: stage as u16, places: scaled.told() };
                self.send(member.send(places));
            }
        }
    }

    /// Returns the orders that tell a new life which replicas the stages behind it have.
    pub(super) fn places_behind(&self, index: usize) -> impl Iterator<Item = Directive> + '_ {
        let from = self.members[index].stage;
        let behind = self.scaling.stages.iter().filter(move |(stage, _)| {
            self.plan.edges.iter().any(|edge| edge.from.stage == from && edge.to == **stage)
        });
        behind.map(|(stage, scaled)| Directive::Places { stage: *stage as u16, places: scaled.told() })
    }

    /// Returns the orders that tell a member that nothing comes from empty places before it.
    pub(super) fn empty_before(&self, index: usize) -> impl Iterator<Item = Directive> + '_ {
        let to = self.members[index].stage;
        let before = self.scaling.stages.iter().filter(move |(stage, _)| {
            self.plan.edges.iter().any(|edge| edge.from.stage == **stage && edge.to == to)
        });
        before.map(|(stage, scaled)| {
            let empty = |state: &PlaceState| matches!(state, PlaceState::Empty | PlaceState::Starting(_));
            let places = (0_u16..).zip(&scaled.places).filter(|(_, state)| empty(state));
            let lanes = places.flat_map(|(place, _)| lanes_from(&self.plan, *stage, place)).collect();
            Directive::Exited { lanes, orphans: false, with: None }
        })
    }

    /// Handles a finished step on the way to another replica. If the step was its start, returns the member,
    /// which must be asked to run.
    pub(super) fn scaled(&mut self, step: ScalingStep) -> Option<usize> {
        match step {
            // If it was given up, its worker ends with `unopened`.
            ScalingStep::Worker(stage, place, Ok(Ok(unopened))) => {
                let starts = self.scaling.starts_at(stage, place);
                let scaled = self.scaling.stages.get_mut(&stage).filter(|_| starts)?;
                scaled.places[usize::from(place)] = PlaceState::Starting(Some(unopened.worker()));
                let start = tokio::task::spawn_blocking(scaled.further.replica(place, unopened));
                let step = async move { ScalingStep::Replica(stage, place, start.await) };
                self.scaling.steps.push(step.boxed_local());
                None
            }
            ScalingStep::Worker(stage, place, Ok(Err(error))) => self.not_started(stage, place, &error),
            ScalingStep::Worker(stage, place, Err(error)) => self.not_started(stage, place, &error),
            ScalingStep::Replica(stage, place, Ok(Ok(begun))) => {
                if self.scaling.starts_at(stage, place) {
                    let (started, unopened) = *begun;
                    self.opens(stage, place, unopened.open(), &started);
                }
                None
            }
            ScalingStep::Replica(stage, place, Ok(Err(error))) => self.not_started(stage, place, &error),
            ScalingStep::Replica(stage, place, Err(error)) => self.not_started(stage, place, &error),
            ScalingStep::Announced(stage, place) => {
                let of = |member: &Member| (member.stage, member.replica) == (stage, place);
                self.members.iter().position(of)
            }
        }
    }

    /// Lets a new replica take items: its receivers have heard of it, and its brief is under way.
    pub(super) fn opened(&mut self, index: usize) {
        let (stage, place) = (self.members[index].stage, self.members[index].replica);
        // The replica may have died meanwhile.
        if let Some(PlaceState::Opening(address)) = self.scaling.state(stage, place).cloned() {
            self.scaling.set(stage, place, PlaceState::Open(address));
            self.tell_places(stage);
            self.reach_target(stage);
        }
    }

    /// Notes that no replica could be started at a place. The conductor does not try again before the number
    /// is changed.
    fn not_started(&mut self, stage: usize, place: u16, error: &dyn std::fmt::Display) -> Option<usize> {
        if !self.scaling.starts_at(stage, place) {
            return None; // it was given up
        }
        self.scaling.set(stage, place, PlaceState::Empty);
        if let Some(scaled) = self.scaling.stages.get_mut(&stage) {
            scaled.target = scaled.count();
            scaled.auto.iter_mut().for_each(Autoscale::begin_anew);
        }
        let stage = &self.plan.stages[stage].name;
        tracing::warn!(
            target: "tensorpost::pipeline", stage, replica = place, why = %error,
            "a further replica could not be started; the others go on"
        );
        None
    }

    /// Adds a replica that runs, and tells its receivers that something comes from it.
    fn opens(&mut self, stage: usize, place: u16, home: Home, started: &Started) -> usize {
        let member = Member::new(&self.plan, (stage, place), home.worker, started);
        let (count, device) = self.plan.spares(stage);
        if count > 0 {
            self.supervisor.keep_spares(home.worker, count, home.device.unwrap_or(device));
        }
        let inlet = member.inlet.clone().unwrap_or_else(|| member.control.clone());
        self.scaling.set(stage, place, PlaceState::Opening(inlet));
        if self.scaling.opened.is_none_or(|at| at < self.detector.moved()) {
            // It may be what the others wait for.
            self.detector.move_on();
            self.scaling.opened = Some(self.detector.moved());
        }
        let lanes = member.lanes.clone();
        self.detector.forget((stage as u16, place));
        let before = self.members.iter().position(|other| (other.stage, other.replica) == (stage, place));
        let index = match before {
            Some(index) => {
                if let Some(counts) = self.counts[index].take() {
                    self.told.left(counts);
                }
                self.members[index] = member;
                index
            }
            None => {
                self.members.push(member);
                self.counts.push(None);
                self.members.len() - 1
            }
        };
        let behind = (0..self.members.len()).filter(|other| {
            self.sends_to(index, *other) && self.counts[*other].is_none() && !self.exited.contains_key(other)
        });
        let told = behind.map(|other| self.members[other].ask(Directive::Opens { lanes: lanes.clone() }));
        let told: Vec<_> = told.collect();
        // A receiver that dies is told when it begins anew.
        let step = join_all(told).map(move |_| ScalingStep::Announced(stage, place));
        self.scaling.steps.push(step.boxed_local());
        index
    }

    /// Empties the place of a member that is done, if it was leaving. Its receivers need not wait for it.
    pub(super) fn may_have_left(&mut self, index: usize) {
        let member = &self.members[index];
        let (stage, place) = (member.stage, member.replica);
        if !matches!(self.scaling.state(stage, place), Some(PlaceState::Leaving(_))) {
            return;
        }
        let worker = member.worker;
        for (other, member) in self.members.iter().enumerate() {
            if self.sends_to(index, other)
                && self.counts[other].is_none()
                && !self.exited.contains_key(&other)
            {
                self.send(member.send(self.exited(index, other)));
            }
        }
        // Before the order to close, so that the worker is not restarted.
        self.supervisor.let_go(worker);
        self.sends.push(self.members[index].close());
        self.scaling.set(stage, place, PlaceState::Empty);
        self.tell_places(stage);
        self.reach_target(stage);
    }

    /// Looks at the backlogs of the stages with automatic scaling, and changes their number of replicas.
    pub(super) fn scale_by_backlog(&mut self) {
        let now = Instant::now();
        let samples = self.scaling.stages.iter().filter(|(_, scaled)| {
            // While the number changes, a look tells nothing.
            scaled.auto.is_some() && !scaled.changes()
        });
        let samples: Vec<_> =
            samples.map(|(stage, scaled)| (*stage, self.sample(*stage, scaled, now))).collect();
        for (stage, sample) in samples {
            let auto = self.scaling.stages.get_mut(&stage).and_then(|scaled| scaled.auto.as_mut());
            if let Some(count) = auto.and_then(|auto| auto.sample(sample)) {
                let name = &self.plan.stages[stage].name;
                tracing::debug!(target: "tensorpost::pipeline", stage = name, replicas = sample.replicas, count, "scales");
                self.scale(stage, count);
            }
        }
    }

    fn sample(&self, stage: usize, scaled: &Scaled, now: Instant) -> StageSample {
        let (mut accepted, mut waiting, mut taken, mut busy) =
            (0_u64, 0_u64, 0_u64, std::time::Duration::ZERO);
        for counts in self.known_counts() {
            if usize::from(counts.stage) == stage {
                taken = taken.saturating_add(counts.items_in);
                busy += counts.busy;
            }
            for toward in counts.toward.iter().filter(|toward| usize::from(toward.stage) == stage) {
                accepted = accepted.saturating_add(toward.accepted);
                waiting += u64::from(toward.waiting);
            }
        }
        let (mut in_calls, mut held_up) = (0, 0);
        for (place, state) in (0_u16..).zip(&scaled.places) {
            if let PlaceState::Open(_) = state {
                let (in_call, waits) = self.detector.is_at_work((stage as u16, place), now);
                in_calls += u32::from(in_call);
                held_up += u32::from(waits);
            }
        }
        // Items that were lost in a mailbox were accepted and never taken, so a backlog alone does not count:
        // the stage's replicas must be at work too.
        let backlog = waiting.saturating_add(accepted.saturating_sub(taken));
        StageSample { at: now, replicas: scaled.open(), backlog, busy, in_calls, held_up }
    }

    /// Gives up the replicas that are starting: there is nothing left for them to do. Waits for none, because
    /// the start of a process may take until its deadline.
    pub(super) fn scale_no_more(&mut self) {
        self.scaling.over = true;
        for scaled in self.scaling.stages.values_mut() {
            for state in &mut scaled.places {
                if let PlaceState::Starting(worker) = *state {
                    // The start of the replica in it ends with it.
                    worker.into_iter().for_each(|worker| self.supervisor.retire(worker));
                    *state = PlaceState::Empty;
                }
            }
            scaled.target = scaled.count();
        }
    }
}
