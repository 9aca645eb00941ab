//! Builds a pipeline from a spec. There is only one item type, so every operator turns a flow of it into
//! flows of it.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tensorpost::pipeline::{AfterSource, AfterStage, Batch, Many, Pair, Progress};
use tensorpost::prelude::*;

use super::history::{Place, Step};
use super::parts::{Hand, Holder, Maker, Obedient, OrderedFault, Orders, Taker};
use super::plan::{Plan, again, dead_name, helper_name, join_key, stage_name, width};
use super::spec::{Drops, Fault, FlowId, Fork, Form, Op, Pick, Settings, Stage as StageSpec, Then, What};
use super::thing::{Thing, Things};

/// The flows that no operator has taken yet.
type Open = HashMap<FlowId, Flow<Thing>>;

struct Builder<'b> {
    plan: &'b Plan,
    folder: &'b Path,
    device: &'b str,
}

/// The restart policy of dying workers: soon, and this many times.
fn policy(times: u32) -> Restart {
    Restart::on_failure(times).backoff(Duration::from_millis(1), Duration::from_millis(20))
}

/// Builds the pipeline of a spec. Its parts write into `folder`, and its tensors are on `device`.
pub fn build(plan: &Plan, folder: &Path, device: &str) -> Pipeline {
    let spec = &plan.spec;
    let mut pipeline = Pipeline::new("random").shutdown_deadline(Duration::from_secs(20));
    if let Some(most) = spec.at_least_once {
        pipeline = pipeline.at_least_once(most);
    }
    if let Some(every) = spec.progress {
        pipeline = pipeline.progress(Progress::to(|_| {})).progress_every(Duration::from_millis(every));
    }
    if spec.complete {
        pipeline = pipeline.require_complete();
    }
    if spec.trace {
        pipeline = pipeline.trace(folder.join("trace.json"));
    }
    let builder = Builder { plan, folder, device };
    let mut open = Open::new();
    for (at, op) in spec.ops.iter().enumerate() {
        let takes: Vec<_> = op.takes.iter().filter_map(|flow| open.remove(flow)).collect();
        for (output, flow) in builder.op(&pipeline, op, plan.numbers[at], takes).into_iter().enumerate() {
            open.insert((at, output as u8), flow);
        }
    }
    pipeline
}

/// A flow whose stage needs no more tuning.
fn plain<T: Item, At>(flow: Flow<T, At>) -> Flow<T> {
    let [flow] = flow.broadcast::<1>();
    flow
}

/// The number by which an item's way is decided.
trait ByNumber {
    fn number(&self) -> u64;
}

impl ByNumber for Thing {
    fn number(&self) -> u64 {
        self.past.number
    }
}

impl ByNumber for Many<Thing> {
    fn number(&self) -> u64 {
        self.items.first().map_or(0, Thing::number)
    }
}

impl ByNumber for Things {
    fn number(&self) -> u64 {
        self.things.first().map_or(0, Thing::number)
    }
}

impl ByNumber for Pair<Thing, Thing> {
    fn number(&self) -> u64 {
        self.left.number()
    }
}

impl Builder<'_> {
    /// Adds an operator to the pipeline; returns its output flows.
    fn op(&self, pipeline: &Pipeline, op: &Op, number: u16, mut takes: Vec<Flow<Thing>>) -> Vec<Flow<Thing>> {
        if let What::Source(_) = op.what {
            return vec![self.source(pipeline, op, number)];
        }
        let Some(first) = (!takes.is_empty()).then(|| takes.remove(0)) else { return Vec::new() };
        let second = (!takes.is_empty()).then(|| takes.remove(0));
        match (&op.what, second) {
            (What::Merge, second) => {
                vec![second.into_iter().chain(takes).fold(first, |merged, other| merged.merge(other))]
            }
            (What::Zip { restart }, Some(second)) => vec![self.zip(first, second, op, number, *restart)],
            (What::Join { modulus, restart }, Some(second)) => {
                vec![self.join(first, second, op, number, (*modulus, *restart))]
            }
            // One side was taken out.
            (What::Zip { .. } | What::Join { .. }, None) => vec![first],
            (What::Stage(stage), _) => self.stage(first, op, number, stage),
            (What::Fork(fork, ways), _) => self.fork(first, *fork, *ways),
            (What::Sink { closure, slow }, _) => {
                self.sink(first, op, number, *closure, *slow);
                Vec::new()
            }
            _ => vec![self.in_line(first, op, number, None)],
        }
    }

    /// Adds an operator with one input and one output, which may be in the loop of `turn`.
    fn in_line(&self, flow: Flow<Thing>, op: &Op, number: u16, turn: Option<u16>) -> Flow<Thing> {
        match &op.what {
            What::Stage(stage) => self.stage(flow, op, number, stage).remove(0),
            What::Batch { of, within, then, restart } => {
                let batch = Batch::of(*of);
                let batch = within.map_or(batch, |millis| batch.within(Duration::from_millis(millis)));
                self.batch(flow, op, number, (batch, *then, *restart))
            }
            What::Window { of, restart } => {
                let windows = flow.window(*of);
                let windows = restarted(windows.named(helper_name(number)), *restart);
                let windows = windows.with((self.hand(op, number), number));
                let pack = windows.apply(&stage_name(number, &op.what), |(hand, number), many, out, env| {
                    let mut items = many.items;
                    let last = items.pop().ok_or_else(|| anyhow::anyhow!("an empty window"))?;
                    out.emit(among(hand, last, items, *number, &env.stream())?);
                    Ok(())
                });
                // A window goes on as its newest item.
                let newest = |many: &Many<Thing>| many.items.last().map_or(0, Thing::number);
                plain(self.tune_by(pack, &op.settings, newest))
            }
            What::Loop { bound, rounds, body } => {
                let (rounds, inner) = (*rounds, number + 1);
                let body = |flow: Flow<Thing>| {
                    let mut next = inner;
                    body.iter().fold(flow, |flow, op| {
                        let number = next;
                        next += width(op);
                        self.in_line(flow, op, number, Some(inner))
                    })
                };
                let flow = flow.with((rounds, inner, turn));
                flow.iterate(*bound, body, |(rounds, inner, turn), thing| {
                    again(&thing.past, *rounds, *inner, *turn)
                })
            }
            _ => flow,
        }
    }

    fn source(&self, pipeline: &Pipeline, op: &Op, number: u16) -> Flow<Thing> {
        let What::Source(source) = &op.what else {
            return plain(pipeline.items("none", |_| Vec::<Thing>::new()));
        };
        let orders = self.orders(number, StageSpec::default(), &op.settings);
        let (name, args) = (stage_name(number, &op.what), (orders, source.clone()));
        let flow: Flow<Thing, AfterSource> = if source.closure {
            pipeline.with(args).items(&name, Maker::new)
        } else {
            pipeline.source::<Maker>(args).named(name)
        };
        let settings = &op.settings;
        let flow = flow.replicas(settings.replicas).on_error(settings.on_error).on(self.device);
        let flow = if settings.own_thread { flow.own_thread() } else { flow };
        let flow = if source.every > 0 { flow.every(Duration::from_micros(source.every)) } else { flow };
        plain(match settings.restart {
            Some(times) => flow.restart(policy(times)),
            None => flow,
        })
    }

    fn stage<At>(&self, flow: Flow<Thing, At>, op: &Op, number: u16, stage: &StageSpec) -> Vec<Flow<Thing>> {
        let orders = self.orders(number, *stage, &op.settings);
        let name = stage_name(number, &op.what);
        let hand = Hand::new(orders.clone());
        let flow: Flow<Thing, AfterStage<Thing>> = match stage.form {
            Form::Typed => flow.stage::<Obedient>(orders.clone()).named(name),
            Form::Hold(_) => flow.stage::<Holder>(orders.clone()).named(name),
            Form::Map => flow.with(hand).map(&name, |hand, thing| {
                hand.begin(&thing.past, thing.life, None)?;
                Ok(hand.work(thing, None)?.then(hand.step(0)))
            }),
            Form::Filter(k) => flow.with((hand, k)).filter(&name, |(hand, k), thing| {
                // A filter cannot fail; an item that it could not write down shows as lost.
                hand.begin(&thing.past, thing.life, None).is_ok() && !thing.number().is_multiple_of(*k)
            }),
            Form::FlatMap(k) => flow.with((hand, k)).flat_map(&name, |(hand, k), thing| {
                hand.begin(&thing.past, thing.life, None)?;
                let copies = 0..(thing.number() % *k) as u16;
                let thing = hand.work(thing, None)?;
                Ok(copies.map(|copy| thing.clone().then(hand.step(copy))).collect::<Vec<_>>())
            }),
            Form::Apply => flow.with(hand).apply(&name, |hand, thing, out, env| {
                let stream = env.stream();
                hand.begin(&thing.past, thing.life, Some(&stream))?;
                out.emit(hand.work(thing, Some(&stream))?.then(hand.step(0)));
                Ok(())
            }),
        };
        let flow = self.tune_all(flow, &op.settings);
        if !op.settings.dead {
            return vec![plain(flow)];
        }
        let (flow, dead) = flow.dead_letters();
        let orders = Orders { place: Place { op: number, dead: true }, faults: Vec::new(), ..orders };
        let hand = Hand::new(Orders { stage: StageSpec::default(), ..orders });
        let dead = dead.with((hand, number)).map(&dead_name(number), |(hand, number), dead| {
            hand.begin(&dead.item.past, dead.item.life, None)?;
            Ok(dead.item.then(Step::Dead(*number)))
        });
        vec![plain(flow), plain(dead)]
    }

    fn batch(
        &self,
        flow: Flow<Thing>,
        op: &Op,
        number: u16,
        (batch, then, restart): (Batch, Then, Option<u32>),
    ) -> Flow<Thing> {
        let (hand, name) = ((self.hand(op, number), number), stage_name(number, &op.what));
        let pack = |(hand, number): &mut (Hand, u16), mut things: Vec<Thing>, stream: &DeviceStream| {
            anyhow::ensure!(!things.is_empty(), "an empty batch");
            let first = things.remove(0);
            among(hand, first, things, *number, stream)
        };
        if then == Then::Gather {
            let flow = restarted(flow.gather(batch).named(helper_name(number)), restart).on(self.device);
            let flow = flow.with(hand).apply(&name, move |hand, things, out, env| {
                out.emit(pack(hand, things.apart()?, &env.stream())?);
                Ok(())
            });
            return self.tune(flow, &op.settings);
        }
        let flow = restarted(flow.batch(batch).named(helper_name(number)), restart);
        if then == Then::Unbatch {
            return plain(restarted(flow.unbatch().named(format!("unbatch-{number}")), restart));
        }
        let flow = flow.with(hand).apply(&name, move |hand, many, out, env| {
            out.emit(pack(hand, many.items, &env.stream())?);
            Ok(())
        });
        self.tune(flow, &op.settings)
    }

    fn zip(
        &self,
        left: Flow<Thing>,
        right: Flow<Thing>,
        op: &Op,
        number: u16,
        restart: Option<u32>,
    ) -> Flow<Thing> {
        self.paired(left.zip(right), op, number, restart)
    }

    fn join(
        &self,
        left: Flow<Thing>,
        right: Flow<Thing>,
        op: &Op,
        number: u16,
        (modulus, restart): (u64, Option<u32>),
    ) -> Flow<Thing> {
        let key = |modulus: &u64, thing: &Thing| join_key(&thing.past, *modulus);
        self.paired(left.with(modulus).join(right, key, key), op, number, restart)
    }

    fn paired<I: Item>(
        &self,
        flow: Flow<Pair<Thing, Thing>, AfterStage<I>>,
        op: &Op,
        number: u16,
        restart: Option<u32>,
    ) -> Flow<Thing> {
        let flow = restarted(flow.named(helper_name(number)), restart).with((self.hand(op, number), number));
        let flow = flow.apply(&stage_name(number, &op.what), |(hand, number), pair, out, env| {
            let stream = env.stream();
            let right = pair.right.past.clone();
            let life = pair.left.life;
            let left_past = pair.left.past.clone();
            let past = left_past.then(Step::With(*number, Box::new(right)));
            hand.begin(&past, life, Some(&stream))?;
            hand.check(&pair.left, &stream)?;
            hand.check(&pair.right, &stream)?;
            out.emit(Thing { past, ..pair.left });
            Ok(())
        });
        self.tune(flow, &op.settings)
    }

    fn fork(&self, flow: Flow<Thing>, fork: Fork, ways: u8) -> Vec<Flow<Thing>> {
        match (fork, ways) {
            (Fork::Split(k), _) => {
                let (first, second) = flow.with(k).split(|k, thing| thing.number().is_multiple_of(*k));
                vec![first, second]
            }
            (fork, 2) => fork_into::<2>(flow, fork),
            (fork, 3) => fork_into::<3>(flow, fork),
            (fork, _) => fork_into::<1>(flow, fork),
        }
    }

    fn sink(&self, flow: Flow<Thing>, op: &Op, number: u16, closure: bool, slow: u64) {
        let stage = StageSpec { slow, ..StageSpec::default() };
        let orders = self.orders(number, stage, &op.settings);
        let name = stage_name(number, &op.what);
        let ending = if closure {
            flow.with(Hand::new(orders))
                .for_each(&name, |hand, thing| hand.begin(&thing.past, thing.life, None))
        } else {
            flow.sink::<Taker>(orders).named(name)
        };
        self.tune_all(ending, &op.settings);
    }

    fn hand(&self, op: &Op, number: u16) -> Hand {
        Hand::new(self.orders(number, StageSpec::default(), &op.settings))
    }

    fn orders(&self, number: u16, stage: StageSpec, settings: &Settings) -> Orders {
        let faults = self.plan.spec.faults.iter().enumerate().filter_map(|(fault, what)| match what {
            Fault::Inside { op, at, how, times } if *op == number => {
                Some(OrderedFault { fault, at: *at, how: *how, times: *times })
            }
            _ => None,
        });
        Orders {
            place: Place::of(number),
            folder: self.folder.to_owned(),
            stage,
            retries: settings.on_error.retries(),
            faults: faults.collect(),
        }
    }

    fn tune<I: Item + ByNumber>(&self, flow: Flow<Thing, AfterStage<I>>, settings: &Settings) -> Flow<Thing> {
        plain(self.tune_all(flow, settings))
    }

    fn tune_all<T, I: Item + ByNumber>(
        &self,
        flow: Flow<T, AfterStage<I>>,
        settings: &Settings,
    ) -> Flow<T, AfterStage<I>> {
        self.tune_by(flow, settings, I::number)
    }

    /// `number` gives the number that decides about an item.
    fn tune_by<T, I: Item>(
        &self,
        flow: Flow<T, AfterStage<I>>,
        settings: &Settings,
        number: impl Fn(&I) -> u64 + Copy + Send + Sync + 'static,
    ) -> Flow<T, AfterStage<I>> {
        let mut flow = flow.replicas(settings.replicas).on_error(settings.on_error).on(self.device);
        if settings.scales {
            flow = flow.replicas_up_to(settings.replicas + 1);
        }
        match settings.pick {
            Pick::Turns => {}
            Pick::Least => flow = flow.to_least_loaded(),
            Pick::Key(k) => flow = flow.with(k).by_key(move |k, item| number(item) % *k),
            Pick::All => flow = flow.to_all(),
        }
        if settings.ordered {
            flow = flow.ordered();
        }
        if settings.beside {
            flow = flow.beside();
        }
        if settings.own_thread {
            flow = flow.own_thread();
        }
        if let Some(items) = settings.mailbox {
            flow = flow.mailbox(items);
        }
        match settings.drops {
            Some(Drops::Oldest) => flow = flow.drop_oldest(),
            Some(Drops::Newest) => flow = flow.drop_newest(),
            None => {}
        }
        if let Some(bytes) = settings.max_bytes {
            flow = flow.max_bytes_in_flight(bytes);
        }
        restarted(flow, settings.restart)
    }
}

fn restarted<T, I: Item>(flow: Flow<T, AfterStage<I>>, restart: Option<u32>) -> Flow<T, AfterStage<I>> {
    match restart {
        Some(times) => flow.restart(policy(times)),
        None => flow,
    }
}

/// Merges several items into one, which goes on as `leading`.
fn among(
    hand: &mut Hand,
    leading: Thing,
    others: Vec<Thing>,
    number: u16,
    stream: &DeviceStream,
) -> anyhow::Result<Thing> {
    let pasts = others.iter().map(|thing| thing.past.clone()).collect();
    let past = leading.past.then(Step::Among(number, pasts));
    hand.begin(&past, leading.life, Some(stream))?;
    for thing in others.iter().chain([&leading]) {
        hand.check(thing, stream)?;
    }
    Ok(Thing { past, ..leading })
}

fn fork_into<const N: usize>(flow: Flow<Thing>, fork: Fork) -> Vec<Flow<Thing>> {
    let flows: [Flow<Thing>; N] = match fork {
        Fork::All | Fork::Split(_) => flow.broadcast(),
        Fork::Turns => flow.round_robin(),
        Fork::Least => flow.least_loaded(),
        Fork::Key(k) => flow.with(k).spread_by_key(|k, thing| thing.number() % *k),
    };
    flows.into()
}
