//! A pipeline as it was written down: its stages, and the edges between them. No types, no processes.

use std::collections::HashSet;
use std::time::Duration;

use tensorpost_core::api::actor::{MAX_MAILBOX, Python};
use tensorpost_core::api::device::{Device, DeviceId};
use tensorpost_core::api::node::Restart;

use super::limits::{DEFAULT_MAILBOX, MOST_EARLY, ORDER_WINDOW};
use super::location::StageLocation;
use super::on_error::OnError;
use super::pairs::Pairs;
use super::worker::args::{Drops, Select};
pub(super) use scale::Scale;

mod check;
mod scale;

/// A pipeline.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) stages: Vec<StagePlan>,
    pub(super) edges: Vec<Edge>,
    /// Outputs that no stage takes yet.
    pub(super) open: Vec<Tap>,
    /// Items of each source that may be unacknowledged, under at-least-once delivery.
    pub(super) at_least_once: Option<u32>,
    /// The number of loops around a stage that is written down now.
    pub(super) loops: usize,
    /// The interpreter that workers without a stage of Python run, if the program is an interpreter itself.
    pub(super) interpreter: Option<Python>,
}

/// The kind of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Source,
    Stage,
    Sink,
}

/// A stage.
#[derive(Clone)]
pub(super) struct StagePlan {
    pub(super) name: String,
    /// Its type, for people.
    pub(super) label: String,
    pub(super) kind: Kind,
    /// The most replicas that it can have, once the plan is complete.
    pub(super) replicas: u32,
    /// The replicas that it begins with, once the plan is complete.
    pub(super) begins_with: u32,
    /// How their number may change while the pipeline runs.
    pub(super) scale: Option<Scale>,
    pub(super) on: StageLocation,
    /// The stage in whose worker it runs.
    pub(super) beside: Option<usize>,
    pub(super) own_thread: bool,
    /// The number of streams of the device that it has for itself.
    pub(super) streams: usize,
    /// Spare processes that wait for the end of each of its workers.
    pub(super) spares: u32,
    pub(super) mailbox: Option<u32>,
    /// Whether it drops the oldest or the newest items when it has no room.
    pub(super) drops: Option<Drops>,
    /// For a source: the least time between two items.
    pub(super) pace: Option<Duration>,
    /// How the replica that takes an item is chosen.
    pub(super) select: Select,
    pub(super) ordered: bool,
    pub(super) max_bytes: Option<u64>,
    /// Items of one sender that may be on the way to it, or unfinished there.
    pub(super) window: Option<u32>,
    pub(super) restart: Option<Restart>,
    /// Items that it keeps before it makes one of them.
    pub(super) keeps: Option<u32>,
    /// Whether it makes one of fewer items when it has waited long enough.
    pub(super) times_out: bool,
    /// Whether all items that it keeps go into the one that it makes (`packs`), and whether it takes such an
    /// item apart (`takes_apart`).
    pub(super) packs: bool,
    pub(super) takes_apart: bool,
    /// Whether it makes one result of each item, unless it returns an error.
    pub(super) one_of_each: bool,
    /// Whether it can keep nothing beyond a call.
    pub(super) holds_nothing: bool,
    /// Whether it is a source that the program feeds.
    pub(super) is_fed: bool,
    pub(super) on_error: OnError,
    /// Whether the pipeline added it for its own needs.
    pub(super) helper: bool,
    /// The number of loops around it.
    pub(super) depth: usize,
    pub(super) outputs: [Output; 2],
    /// For a stage that pairs: its two sides.
    pub(super) pairs: Option<Pairs>,
    /// For a stage that [`Plan::complete`] added: the stage whose results it passes on.
    pub(super) relays: Option<usize>,
    /// For a stage that is written in Python: the interpreter and the object that its workers run.
    pub(super) python: Option<Python>,
}

/// One of the two outputs of a stage: results, and dead letters.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) select: Select,
    /// How many stages take it; 0 for dead letters that no stage takes.
    pub(super) branches: u16,
}

/// A branch of a stage's output, which another stage takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    pub(super) stage: usize,
    pub(super) output: u8,
    pub(super) branch: u16,
}

/// A connection from a stage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: Tap,
    pub(super) to: usize,
    /// Whether it leads back into a loop.
    pub(super) feedback: bool,
}

pub(super) const RESULTS: u8 = 0;
pub(super) const DEAD: u8 = 1;

impl StagePlan {
    pub(super) fn new(kind: Kind, label: &str) -> Self {
        let results = Output { select: Select::All, branches: u16::from(kind != Kind::Sink) };
        StagePlan {
            name: label.to_owned(),
            label: label.to_owned(),
            kind,
            replicas: 1,
            begins_with: 1,
            scale: None,
            on: StageLocation::default(),
            beside: None,
            own_thread: false,
            streams: 1,
            spares: 0,
            mailbox: None,
            drops: None,
            pace: None,
            select: Select::RoundRobin,
            ordered: false,
            max_bytes: None,
            window: None,
            restart: None,
            keeps: None,
            times_out: false,
            packs: false,
            takes_apart: false,
            one_of_each: false,
            holds_nothing: false,
            is_fed: false,
            on_error: OnError::Fail,
            helper: false,
            depth: 0,
            outputs: [results, Output { select: Select::All, branches: 0 }],
            pairs: None,
            relays: None,
            python: None,
        }
    }
}

impl Plan {
    pub(super) fn new(name: String) -> Self {
        Plan {
            name,
            stages: Vec::new(),
            edges: Vec::new(),
            open: Vec::new(),
            at_least_once: None,
            loops: 0,
            interpreter: None,
        }
    }

    /// Adds a stage that takes the items of `taps`. Its name gets a number if it is not the first of that
    /// name.
    pub(super) fn add(&mut self, mut stage: StagePlan, taps: &[Tap]) -> usize {
        let index = self.stages.len();
        let taken: HashSet<&str> = self.stages.iter().map(|stage| stage.name.as_str()).collect();
        if let Some(name) =
            (1..).map(|count| numbered(&stage.name, count)).find(|name| !taken.contains(&**name))
        {
            stage.name = name;
        }
        stage.depth = self.loops;
        if stage.outputs[0].branches > 0 {
            self.open.push(Tap { stage: index, output: RESULTS, branch: 0 });
        }
        self.stages.push(stage);
        for tap in taps {
            self.connect(*tap, index, false);
        }
        index
    }

    pub(super) fn connect(&mut self, from: Tap, to: usize, feedback: bool) {
        self.open.retain(|tap| *tap != from);
        self.edges.push(Edge { from, to, feedback });
    }

    /// Splits an output among `count` receivers.
    pub(super) fn fork(&mut self, tap: Tap, count: u16, select: Select) -> Vec<Tap> {
        self.open.retain(|open| *open != tap);
        self.stages[tap.stage].outputs[usize::from(tap.output)] = Output { select, branches: count };
        let taps: Vec<_> = (0..count).map(|branch| Tap { branch, ..tap }).collect();
        self.open.extend(&taps);
        taps
    }

    /// Returns the edges out of one output, by branch.
    pub(super) fn edges_from(&self, stage: usize, output: u8) -> Vec<(usize, Edge)> {
        let edges = self.edges.iter().copied().enumerate();
        let mut edges: Vec<_> =
            edges.filter(|(_, edge)| edge.from.stage == stage && edge.from.output == output).collect();
        edges.sort_by_key(|(_, edge)| edge.from.branch);
        edges
    }

    pub(super) fn edges_to(&self, stage: usize) -> impl Iterator<Item = (usize, Edge)> + '_ {
        self.edges.iter().copied().enumerate().filter(move |(_, edge)| edge.to == stage)
    }

    /// Whether the stage's replicas lose the order of the items that they take, and it must be restored
    /// behind them.
    pub(super) fn loses_order(&self, stage: usize) -> bool {
        let plan = &self.stages[stage];
        plan.ordered && plan.replicas > 1 && plan.kind != Kind::Sink
    }

    /// Whether the stage restores the order of the items that it takes.
    pub(super) fn restores_order(&self, stage: usize) -> bool {
        self.edges_to(stage).any(|(_, edge)| edge.from.output == RESULTS && self.loses_order(edge.from.stage))
    }

    /// Returns the stages whose replicas lose an order that this stage restores, with the number of actors
    /// that send to each.
    fn numberers(&self, stage: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let from = self.edges_to(stage).filter(|(_, edge)| edge.from.output == RESULTS);
        let from = from.map(|(_, edge)| edge.from.stage).filter(|from| self.loses_order(*from));
        from.map(|from| {
            (from, self.edges_to(from).map(|(_, edge)| self.stages[edge.from.stage].replicas).sum())
        })
    }

    /// Whether the stage may hold items beyond a call, which then keep their places in an order. A batch or a
    /// pair has the place of the item that completes it.
    pub(super) fn may_hold(&self, stage: usize) -> bool {
        let here = &self.stages[stage];
        here.kind == Kind::Stage
            && !here.helper
            && !here.holds_nothing
            && here.keeps.is_none()
            && here.pairs.is_none()
    }

    /// Returns how many items of a stage with `senders` senders may come too early to the restorer of its
    /// order. Held items keep others waiting there, although the senders of the held items have their
    /// answers.
    fn early(&self, stage: usize, senders: u32) -> u32 {
        let ahead = self.ahead(stage).saturating_mul(senders);
        if self.may_hold(stage) {
            ahead.max(ORDER_WINDOW.saturating_mul(senders).min(MOST_EARLY))
        } else {
            ahead
        }
    }

    /// Returns how far ahead of its oldest unanswered item a sender to an ordered stage may be: enough to
    /// keep all replicas at work. With at-least-once delivery it is the number of unanswered items: enough
    /// for all that batches and windows may keep.
    pub(super) fn ahead(&self, stage: usize) -> u32 {
        let busy = (self.mailbox(stage).saturating_add(2)).saturating_mul(self.stages[stage].replicas);
        busy.min(ORDER_WINDOW.max(self.at_least_once.unwrap_or(0)))
    }

    /// Whether the stage must not restore an order because the number or the bytes of its items in flight are
    /// bounded. Suppose that two senders number the items. One replica may have sent a later item of the
    /// first numbering and then have an earlier item of the second, and another replica the other way round.
    /// With no room for one more item, neither order goes on. With one numbering each replica sends its
    /// oldest item first, unless it holds that item.
    fn orders_what_is_bounded(&self, stage: usize) -> bool {
        let here = &self.stages[stage];
        (here.max_bytes.is_some() || here.drops.is_some())
            && self.numberers(stage).any(|(of, senders)| senders > 1 || self.may_hold(of))
    }

    /// Whether a single stage can restore the order that the replicas of this stage lose.
    fn order_is_restored(&self, stage: usize) -> bool {
        match self.edges_from(stage, RESULTS)[..] {
            [(_, edge)] => self.stages[edge.to].replicas == 1 && !self.orders_what_is_bounded(edge.to),
            _ => false,
        }
    }

    /// Completes the plan with helper stages. It puts a stage that restores the order behind replicas,
    /// wherever no single stage can. It puts a stage that chooses by closures behind a stage whose program
    /// has no closures. Called once, before the plan is used.
    pub(super) fn complete(mut self) -> Self {
        self.stages.iter_mut().for_each(StagePlan::complete);
        for stage in 0..self.stages.len() {
            let what = if self.loses_order(stage) && !self.order_is_restored(stage) {
                "order"
            } else if self.chooses_in_python(stage, RESULTS) {
                "relay"
            } else {
                continue;
            };
            let edges = self.edges_from(stage, RESULTS);
            let name = format!("{} {what}", self.stages[stage].name);
            let mut relay = StagePlan::new(Kind::Stage, &name);
            relay.relays = Some(stage);
            relay.helper = true;
            relay.depth = self.stages[stage].depth;
            let index = self.stages.len();
            let output = Output { select: Select::All, branches: 1 };
            // The helper takes over the branches of the stage, which sends everything to the helper.
            let branches = std::mem::replace(&mut self.stages[stage].outputs[0], output);
            relay.outputs[0] = branches;
            for (at, _) in edges {
                self.edges[at].from.stage = index;
            }
            for open in self.open.iter_mut().filter(|open| open.stage == stage && open.output == RESULTS) {
                open.stage = index;
            }
            self.stages.push(relay);
            self.connect(Tap { stage, output: RESULTS, branch: 0 }, index, false);
        }
        self
    }

    /// Returns the stage in whose workers a stage runs.
    pub(super) fn home(&self, stage: usize) -> usize {
        let mut home = stage;
        // A stage is beside an earlier one or, at a loop, beside the next; the bound makes sure that this
        // ends.
        for _ in 0..self.stages.len() {
            match self.stages[home].beside {
                Some(beside) => home = beside,
                None => break,
            }
        }
        home
    }

    /// Whether several workers are on one GPU. A device that cannot be found is on no GPU; the start reports
    /// it.
    pub(super) fn shares_a_gpu(&self) -> bool {
        let mut on = Vec::new();
        for (number, stage) in self.stages.iter().enumerate() {
            let device = stage.on.find().ok().filter(|device| *device != Device::host());
            let place = device.map(|device| (device, self.home(number)));
            on.extend(place.filter(|place| !on.contains(place)));
        }
        on.iter().any(|(device, home)| {
            self.stages[*home].replicas > 1 || on.iter().any(|(also, other)| also == device && other != home)
        })
    }

    /// Returns the restart policy of a stage: stages in one worker come back together. A source begins anew
    /// then, so it comes back only if it has a policy itself.
    pub(super) fn restart(&self, stage: usize) -> Restart {
        let home = self.home(stage);
        let mut together = (0..self.stages.len()).filter(|other| self.home(*other) == home);
        let policy = together.find_map(|other| self.stages[other].restart);
        let here = &self.stages[stage];
        policy.filter(|_| here.kind != Kind::Source || here.restart.is_some()).unwrap_or_default()
    }

    /// Returns how many spare processes wait for the end of a worker that this stage shares with others, and
    /// the device that they open.
    pub(super) fn spares(&self, home: usize) -> (u32, DeviceId) {
        let inside = || self.stages.iter().enumerate().filter(|(stage, _)| self.home(*stage) == home);
        let count = inside().map(|(_, stage)| stage.spares).max().unwrap_or(0);
        // A device that cannot be found has already kept the pipeline from starting.
        let devices = inside().filter_map(|(_, stage)| stage.on.find().ok());
        let device = devices.map(|device| device.id()).find(|device| *device != DeviceId::HOST);
        (count, device.unwrap_or(DeviceId::HOST))
    }

    /// Whether an item that the stage keeps is answered only when the stage has released it, so that its
    /// sender can name it if it is lost. An item that waits for its partner is answered at once: halves
    /// without a partner would fill the mailbox.
    pub(super) fn holds(&self, stage: usize) -> bool {
        self.keeps(stage) > 0 && self.stages[stage].pairs.is_none()
    }

    /// Returns the most actors in one process that send to the stage. The end of each keeps its place in the
    /// stage's mailbox until the stage has all ends.
    fn lanes_of_a_process(&self, stage: usize) -> u32 {
        let homes = (0..self.stages.len()).filter(|home| self.home(*home) == *home);
        let lanes = homes.map(|home| {
            let edges = self.edges_to(stage).filter(|(_, edge)| self.home(edge.from.stage) == home);
            let actors = edges.map(|(_, edge)| match self.stages[edge.from.stage].beside {
                Some(_) => self.stages[edge.from.stage].replicas,
                None => 1,
            });
            actors.sum()
        });
        lanes.max().unwrap_or(0)
    }

    /// Returns how many items the stage may keep, with those that stages behind it in the same worker keep:
    /// the stage answers for these too.
    pub(super) fn keeps(&self, stage: usize) -> u32 {
        let here = self.stages[stage].keeps.unwrap_or(0);
        let from = self.edges.iter().filter(|edge| edge.from.stage == stage && self.restarts_together(edge));
        // Each batch that is kept behind this stage holds as many items as the batch has.
        let each = if self.stages[stage].packs { here.max(1) } else { 1 };
        from.fold(here, |sum, edge| {
            let inside = self.stages[edge.to].window.unwrap_or(0);
            sum.saturating_add(self.keeps(edge.to).saturating_mul(each)).saturating_add(inside)
        })
    }

    /// Whether both ends of an edge are in one worker. The first stage then answers an item only when the
    /// second has passed it on: when the worker ends, only the sender to the first stage can name the lost
    /// items.
    pub(super) fn restarts_together(&self, edge: &Edge) -> bool {
        !edge.feedback && self.home(edge.from.stage) == self.home(edge.to)
    }

    /// Whether the end goes along an edge after all answers. It cannot if the receiver answers only after the
    /// end, and it must if the answers mean that nothing is left in a loop.
    pub(super) fn settles_first(&self, stage: usize, edge: &Edge) -> bool {
        let into_loop = self.stages[edge.to].window.is_some() && !edge.feedback;
        let in_loop = self.stages[stage].depth > 0 && self.stages[edge.to].depth > 0;
        let chain = in_loop || self.at_least_once.is_some();
        into_loop || !(chain || self.keeps(edge.to) > 0)
    }

    /// Returns how many items of all sources may be unacknowledged on the way to the stage, under
    /// at-least-once delivery.
    fn unacknowledged(&self, stage: usize) -> u32 {
        let most = self.at_least_once.unwrap_or(0);
        let sources = self.sources().filter(|source| *source == stage || self.reaches(*source, stage));
        sources.fold(0_u32, |sum, source| {
            let here = &self.stages[source];
            // A fork at a source has this bound for each branch.
            let forks = here.outputs[0].select != Select::All;
            let branches = if forks { u32::from(here.outputs[0].branches.max(1)) } else { 1 };
            sum.saturating_add(most.saturating_mul(here.replicas).saturating_mul(branches))
        })
    }

    /// Returns how many processes send to the stage.
    pub(super) fn processes_before(&self, stage: usize) -> u32 {
        let homes = (0..self.stages.len()).filter(|home| self.home(*home) == *home);
        let homes =
            homes.filter(|home| self.edges_to(stage).any(|(_, edge)| self.home(edge.from.stage) == *home));
        homes.map(|home| self.stages[home].replicas).sum()
    }

    /// Returns how many items of one sending process may wait for a stage.
    pub(super) fn mailbox(&self, stage: usize) -> u32 {
        self.places_needed(stage).min(MAX_MAILBOX)
    }

    /// Returns how many items of one sender wait in front of a stage that drops items.
    pub(super) fn waits_for(&self, stage: usize) -> u32 {
        self.stages[stage].mailbox.unwrap_or(DEFAULT_MAILBOX)
    }

    /// Returns how many items of one sender a stage that drops items has at a time: one for each replica, and
    /// those that it keeps.
    pub(super) fn under_way(&self, stage: usize) -> u32 {
        self.keeps(stage).saturating_add(1).saturating_mul(self.stages[stage].replicas)
    }

    /// Returns how many places a mailbox in front of the stage needs for one sending process, so that no
    /// message waits for a place that only a later message could free. A plan that needs more than a mailbox
    /// can have is refused.
    fn places_needed(&self, stage: usize) -> u32 {
        let plan = &self.stages[stage];
        let mut mailbox = plan.mailbox.unwrap_or(DEFAULT_MAILBOX);
        // One for the `Run` that is answered at the end, and one for other messages of the program.
        mailbox = mailbox.max(self.lanes_of_a_process(stage)).max(2);
        // Items that the stage keeps occupy their places.
        mailbox = mailbox.saturating_add(self.keeps(stage));
        // So do items that wait here for a stage that drops items when it has no room.
        let waiting = self.edges.iter().filter(|edge| edge.from.stage == stage);
        for edge in waiting.filter(|edge| self.stages[edge.to].drops.is_some()) {
            let at_once = if self.restarts_together(edge) { self.under_way(edge.to) } else { 1 };
            mailbox = mailbox.saturating_add(self.waits_for(edge.to)).saturating_add(at_once);
        }
        if self.at_least_once.is_some() {
            // An item keeps its place until it is acknowledged, so there has to be one for each.
            let unanswered = self.unacknowledged(stage);
            mailbox = mailbox.max(unanswered.saturating_add(2));
            if plan.pairs.is_some() {
                // Both sides may come from one process, and news of partners must not wait for their items.
                mailbox = mailbox.max(unanswered.saturating_mul(2).saturating_add(8));
            }
        }
        if plan.depth > 0 || self.at_least_once.is_some() {
            let windows = self.stages.iter().filter_map(|stage| stage.window);
            mailbox = mailbox.max(windows.max().unwrap_or(0).saturating_mul(2).saturating_add(2));
        }
        // An item that comes too early keeps its place until its turn has come; a late item must never wait
        // for such a place.
        let early: u32 = self.numberers(stage).map(|(stage, lanes)| self.early(stage, lanes)).sum();
        mailbox = mailbox.max(early.saturating_add(u32::from(early > 0) * 2));
        if self.hears_other_hosts(stage) {
            // Messages from another host come from one process, the gateway. It sends for all processes
            // there, and for the pipeline's own program.
            mailbox = mailbox.saturating_mul(self.processes_before(stage).saturating_add(1));
        }
        mailbox
    }

    /// Returns the stages in an order in which each comes after its receivers, except those that it sends
    /// back into a loop.
    pub(super) fn sinks_first(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.stages.len()).collect();
        let mut sorted = Vec::new();
        while !left.is_empty() {
            let free = |stage: &usize| {
                let mut edges = self.edges.iter().filter(|edge| edge.from.stage == *stage && !edge.feedback);
                edges.all(|edge| sorted.contains(&edge.to))
            };
            // Without feedback edges a plan is written down from its sources on, so some stage is always
            // free.
            let (now, later): (Vec<_>, Vec<_>) = left.iter().partition(|stage| free(stage));
            if now.is_empty() {
                sorted.extend(later);
                break;
            }
            sorted.extend(now.into_iter().rev());
            left = later;
        }
        sorted
    }
}

fn numbered(name: &str, count: u32) -> String {
    if count == 1 { name.to_owned() } else { format!("{name} {count}") }
}
