//! Typed flows over the untyped plan, with which a pipeline is written down.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpost_core::api::actor::{Address, CapturesNothing, Code, Env, captures_nothing};
use tensorpost_core::api::node::Restart;

use super::dead::DeadItem;
use super::item::Item;
use super::on_error::OnError;
use super::plan::{DEAD, Kind, Plan, Scale, StagePlan, Tap};
use super::settings::Settings;
use super::stages::{AsSink, Identity, SendTo};
use super::traits::{Sink, Source, Stage};
use super::with::With;
use super::work::{SourceWork, StageWork, Work};
use super::worker::args::{Drops, Select};

/// The pipeline as far as it is written down. The pipeline and all its flows share it.
pub(super) struct Draft {
    pub(super) plan: Plan,
    /// The typed part of each stage.
    pub(super) works: Vec<Rc<dyn Work>>,
    pub(super) settings: Settings,
}

/// A pipeline: its stages, where they run, and the items that flow between them. Write it down with
/// [`source`](Self::source) and the methods of [`Flow`], then [`run`](Self::run) it. See the [module](super).
#[derive(Clone)]
pub struct Pipeline {
    pub(super) draft: Rc<RefCell<Draft>>,
}

/// Items of type `T`, on their way from the stages that make them to the stage that is written down next.
/// `At` says which stage the tuning methods apply to: [`AfterSource`], [`AfterStage`], or none. A flow that
/// no stage takes is a mistake that keeps the pipeline from running.
pub struct Flow<T, At = PlainFlow> {
    pub(super) draft: Rc<RefCell<Draft>>,
    pub(super) taps: Vec<Tap>,
    /// The stage that the flow comes from.
    pub(super) stage: usize,
    types: PhantomData<fn() -> (T, At)>,
}

/// A flow that comes from several stages, or is one of several flows out of a stage.
pub enum PlainFlow {}
/// A flow behind the source that makes it, which can be tuned.
pub enum AfterSource {}
/// A flow behind the stage that makes it, which takes items of type `I` and can be tuned.
pub struct AfterStage<I>(PhantomData<I>);
/// The output of a sink: nothing.
pub enum NoOutput {}

/// The end of a flow: a sink that takes items of type `I` and can be tuned, or the pipeline, to be run.
pub type Ending<I> = Flow<NoOutput, AfterStage<I>>;

/// A flow behind one stage that can be tuned: [`AfterSource`] and [`AfterStage`].
pub trait Tuned: sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AfterSource {}
    impl<I> Sealed for super::AfterStage<I> {}
}

impl Tuned for AfterSource {}
impl<I> Tuned for AfterStage<I> {}

impl Pipeline {
    /// Makes an empty pipeline.
    pub fn new(name: impl Into<String>) -> Self {
        let draft = Draft { plan: Plan::new(name.into()), works: Vec::new(), settings: Settings::default() };
        Pipeline { draft: Rc::new(RefCell::new(draft)) }
    }

    /// Adds a source, in a worker of its own. There may be several.
    pub fn source<S: Source>(&self, args: S::Args) -> Flow<S::Out, AfterSource> {
        self.begin(short::<S>(), Rc::new(SourceWork::<S>(args)))
    }

    /// Gives the closure of the next [`items`](With::items) arguments, as [`Flow::with`] does.
    pub fn with<A: Serialize + DeserializeOwned + 'static>(&self, args: A) -> With<Self, A> {
        With { to: self.clone(), args }
    }

    /// Adds a source from an iterator, which `make` makes in the source's worker. `make` captures nothing;
    /// [`with`](Self::with) gives it values of this process.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// let pipeline = Pipeline::new("numbers");
    /// let numbers = pipeline.items("count", |_| (0..100).map(Number));
    /// # numbers.for_each("drop", |_| Ok(()));
    /// ```
    pub fn items<T, I, F>(&self, name: &str, make: F) -> Flow<T, AfterSource>
    where
        T: Item,
        I: IntoIterator<Item = T>,
        I::IntoIter: 'static,
        F: FnOnce(&Env) -> I + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).items(name, move |(), env| make(env))
    }

    pub(super) fn begin<T>(&self, name: &str, work: Rc<dyn Work>) -> Flow<T, AfterSource> {
        let stage = self.draft.borrow_mut().add(StagePlan::new(Kind::Source, name), work, &[]);
        Flow::of(&self.draft, stage)
    }

    pub(super) fn tune(self, tune: impl FnOnce(&mut Draft)) -> Self {
        tune(&mut self.draft.borrow_mut());
        self
    }
}

impl Draft {
    fn add(&mut self, stage: StagePlan, work: Rc<dyn Work>, taps: &[Tap]) -> usize {
        self.works.push(work);
        self.plan.add(stage, taps)
    }

    /// Returns the typed part of a stage of the completed plan.
    pub(super) fn work(works: &[Rc<dyn Work>], plan: &Plan, stage: usize) -> Rc<dyn Work> {
        match plan.stages[stage].relays {
            Some(relayed) => works[relayed].relay(),
            None => Rc::clone(&works[stage]),
        }
    }
}

impl<T, At> Flow<T, At> {
    fn of(draft: &Rc<RefCell<Draft>>, stage: usize) -> Self {
        let taps = vec![Tap { stage, output: 0, branch: 0 }];
        Flow { draft: Rc::clone(draft), taps, stage, types: PhantomData }
    }

    pub(super) fn at(&self, taps: Vec<Tap>) -> Flow<T> {
        Flow { draft: Rc::clone(&self.draft), taps, stage: self.stage, types: PhantomData }
    }

    /// Gives the next closure arguments. A closure of a pipeline runs in other processes, so it captures
    /// nothing; if it did, the program would not compile. It gets values of this process here, as its first
    /// parameter. The arguments are serialised once, with the start of the stage, so that every replica and
    /// every restart gets the same. They are also the state of one replica: in `map` and its like a closure
    /// may change them from item to item. A replica whose process is restarted begins again with the
    /// arguments given here.
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # fn main() -> anyhow::Result<()> {
    /// for factor in 1..=3_u64 {
    ///     let pipeline = Pipeline::new("scaled");
    ///     let numbers = pipeline.with(10 * factor).items("count", |most, _| (0..most).map(Number));
    ///     let scaled = numbers.with(factor).map("scale", |factor, Number(n)| Ok(Number(*factor * n)));
    ///     // Each replica has a sum of its own.
    ///     let sums = scaled.with(0_u64).map("sum up", |sum, Number(n)| {
    ///         *sum += n;
    ///         Ok(Number(*sum))
    ///     });
    ///     sums.for_each("print", |Number(sum)| Ok(println!("{sum}"))).run()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0080
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # let numbers = Pipeline::new("scaled").items("count", |_| (0..9).map(Number));
    /// let factor = std::env::args().count() as u64;
    /// numbers.map("scale", move |Number(n)| Ok(Number(factor * n))); // it captures `factor`
    /// ```
    pub fn with<A: Serialize + DeserializeOwned + 'static>(self, args: A) -> With<Self, A> {
        With { to: self, args }
    }

    /// Returns the pipeline that this flow belongs to.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline { draft: Rc::clone(&self.draft) }
    }
}

impl<T: Item, At> Flow<T, At> {
    /// Sends the items to a stage, in a worker of its own.
    pub fn stage<S: Stage<In = T>>(self, args: S::Args) -> Flow<S::Out, AfterStage<T>> {
        self.then(short::<S>(), Rc::new(StageWork::<S>(args)), Kind::Stage)
    }

    /// Ends the flow in a sink, in a worker of its own.
    pub fn sink<S: Sink<In = T>>(self, args: S::Args) -> Ending<T> {
        self.then(short::<S>(), Rc::new(StageWork::<AsSink<S>>(args)), Kind::Sink)
    }

    /// Turns each item into another. The closure captures nothing, like all closures of a pipeline;
    /// [`with`](Self::with) gives it arguments and state.
    pub fn map<O: Item, F>(self, name: &str, mut map: F) -> Flow<O, AfterStage<T>>
    where
        F: FnMut(T) -> anyhow::Result<O> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).map(name, move |(), item| map(item))
    }

    /// Drops the items for which `keep` is false.
    pub fn filter<F>(self, name: &str, mut keep: F) -> Flow<T, AfterStage<T>>
    where
        F: FnMut(&T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).filter(name, move |(), item| keep(item))
    }

    /// Turns each item into any number of others.
    pub fn flat_map<O: Item, I, F>(self, name: &str, mut map: F) -> Flow<O, AfterStage<T>>
    where
        I: IntoIterator<Item = O>,
        F: FnMut(T) -> anyhow::Result<I> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).flat_map(name, move |(), item| map(item))
    }

    /// Runs host code on each item, with the stage's device (`env.stream()`), in a worker of its own.
    pub fn apply<O: Item, F>(self, name: &str, mut apply: F) -> Flow<O, AfterStage<T>>
    where
        F: FnMut(T, &mut super::Out<O>, &Env) -> anyhow::Result<()> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).apply(name, move |(), item, out, env| apply(item, out, env))
    }

    /// Ends the flow in host code, in a worker of its own.
    pub fn for_each<F>(self, name: &str, mut consume: F) -> Ending<T>
    where
        F: FnMut(T) -> anyhow::Result<()> + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).for_each(name, move |(), item| consume(item))
    }

    /// Ends the flow in an actor outside of the pipeline, or in a
    /// [channel](tensorpost_core::api::node::Node::channel) of the program: each item is a message to it. The
    /// pipeline waits for room in its mailbox, and an item is handled when the actor has handled it. While
    /// the actor is restarted, items wait; the items that it had are lost with it, and the report names them.
    /// An actor that does not come back is an error on the next item, and [`on_error`](Self::on_error)
    /// decides what happens then. Reports call the stage `to an actor` unless [`named`](Self::named) says
    /// otherwise.
    ///
    /// ```no_run
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u32);
    /// # fn main() -> anyhow::Result<()> {
    /// let pipeline = Pipeline::new("numbers");
    /// let numbers = pipeline.items("count", |_| (0..100).map(Number));
    /// let node = Node::builder().start()?;
    /// let (address, mut arriving) = node.channel::<Number>()?;
    /// numbers.sink_to(&address);
    /// let running = node.run_pipeline(&pipeline)?;
    /// for count in 0..100 {
    ///     assert_eq!(arriving.blocking_recv()?.0, count);
    /// }
    /// running.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sink_to(self, address: &Address<T>) -> Ending<T> {
        self.then("to an actor", Rc::new(StageWork::<SendTo<T>>(address.clone())), Kind::Sink)
    }

    pub(super) fn then<O, B>(self, name: &str, work: Rc<dyn Work>, kind: Kind) -> Flow<O, B> {
        let stage = self.draft.borrow_mut().add(StagePlan::new(kind, name), work, &self.taps);
        Flow::of(&self.draft, stage)
    }

    /// Adds a stage of the pipeline's own, in the worker of the stage before if that stage has one worker.
    pub(super) fn helper<S: Stage<In = T>>(self, name: &str, args: S::Args) -> Flow<S::Out, AfterStage<T>> {
        let before = self.taps[0].stage;
        let flow: Flow<S::Out, AfterStage<T>> = self.then(name, Rc::new(StageWork::<S>(args)), Kind::Stage);
        {
            let plan = &mut flow.draft.borrow_mut().plan;
            plan.stages[flow.stage].helper = true;
            // Not behind a loop: no stage in a loop may answer for an item that has left it.
            let together = plan.stages[before].most_replicas() == 1
                && plan.stages[before].depth <= plan.loops
                && plan.stages[before].python.is_none();
            plan.stages[flow.stage].beside = together.then_some(before);
        }
        flow
    }

    /// Adds a stage of the pipeline's own, in a worker of its own.
    pub(super) fn own_helper<S: Stage<In = T>>(
        self,
        name: &str,
        args: S::Args,
    ) -> Flow<S::Out, AfterStage<T>> {
        let flow: Flow<S::Out, AfterStage<T>> = self.then(name, Rc::new(StageWork::<S>(args)), Kind::Stage);
        flow.draft.borrow_mut().plan.stages[flow.stage].helper = true;
        flow
    }

    /// Returns the number, in the plan, of the stage that the flow comes from.
    pub(super) fn index(&self) -> usize {
        self.stage
    }

    pub(super) fn draft(&self) -> &RefCell<Draft> {
        &self.draft
    }

    /// Merges two flows into one, with the items of both as they come.
    pub fn merge<B>(self, other: Flow<T, B>) -> Flow<T> {
        let taps = self.taps.iter().chain(&other.taps).copied().collect();
        self.at(taps)
    }

    /// Sends every item to all `N` flows. Each gets a clone; the tensors in it are not copied.
    pub fn broadcast<const N: usize>(self) -> [Flow<T>; N] {
        self.fork(Select::All)
    }

    /// Sends items to the `N` flows in turn.
    pub fn round_robin<const N: usize>(self) -> [Flow<T>; N] {
        self.fork(Select::RoundRobin)
    }

    /// Sends each item to the flow with the fewest unfinished items.
    pub fn least_loaded<const N: usize>(self) -> [Flow<T>; N] {
        self.fork(Select::LeastLoaded)
    }

    /// Sends items with the same key to the same flow.
    pub fn spread_by_key<K: Hash, F, const N: usize>(self, key: F) -> [Flow<T>; N]
    where
        F: Fn(&T) -> K + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).spread_by_key(move |(), item| key(item))
    }

    /// Sends items for which `first` is true to the first flow, the others to the second.
    pub fn split<F>(self, first: F) -> (Flow<T>, Flow<T>)
    where
        F: Fn(&T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).split(move |(), item| first(item))
    }

    pub(super) fn fork<const N: usize>(self, select: Select) -> [Flow<T>; N] {
        let flow = self.single();
        let taps = flow.draft.borrow_mut().plan.fork(flow.taps[0], N as u16, select);
        std::array::from_fn(|index| flow.at(vec![taps[index]]))
    }

    /// Returns the flow as the whole output of one stage.
    pub(super) fn single(self) -> Flow<T> {
        let whole = |tap: &Tap| {
            let plan = &self.draft.borrow().plan;
            plan.stages[tap.stage].outputs[usize::from(tap.output)].branches == 1
        };
        if let [tap] = &self.taps[..]
            && whole(tap)
        {
            let taps = self.taps.clone();
            return self.at(taps);
        }
        let relay = self.helper::<Identity<T>>("relay", PhantomData);
        relay.at(relay.taps.clone())
    }

    /// Adds a loop: items go through the stages that `body` adds, and again for as long as `again` is true
    /// for the result. Items for which `again` is false leave the loop. `body` is called here, and may
    /// capture.
    ///
    /// At most `bound` items are in the loop at a time; others wait in front of it. An item that a stage of
    /// the loop drops has left it.
    pub fn iterate<B, F>(self, bound: u32, body: impl FnOnce(Flow<T>) -> Flow<T, B>, again: F) -> Flow<T>
    where
        F: Fn(&T) -> bool + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).iterate(bound, body, move |(), item| again(item))
    }

    pub(super) fn in_a_loop<B>(
        self,
        bound: u32,
        body: impl FnOnce(Flow<T>) -> Flow<T, B>,
        split: impl FnOnce(Flow<T, B>) -> (Flow<T>, Flow<T>),
    ) -> Flow<T> {
        let admission = self.helper::<Identity<T>>("loop", PhantomData);
        let draft = Rc::clone(&admission.draft);
        let outside = admission.stage;
        draft.borrow_mut().plan.loops += 1;
        let entry = admission.helper::<Identity<T>>("round", PhantomData);
        let inside = entry.stage;
        {
            let plan = &mut draft.borrow_mut().plan;
            plan.stages[inside].window = Some(bound);
            plan.stages[inside].beside = None;
            plan.stages[outside].beside = Some(inside);
        }
        let (back, done) = split(body(entry.at(entry.taps.clone())));
        let plan = &mut draft.borrow_mut().plan;
        for tap in &back.taps {
            plan.connect(*tap, inside, true);
        }
        plan.loops -= 1;
        done
    }
}

pub(super) fn hash(key: &impl Hash) -> u64 {
    // SipHash with fixed keys: the same in every process.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl<T, I> Flow<T, AfterStage<I>> {
    /// Notes that the stage keeps so many items before it makes one; if it `packs`, it makes one of all of
    /// them.
    pub(super) fn batch_bound(self, batch: super::many::Batch, packs: bool) -> Self {
        {
            let stage = &mut self.draft.borrow_mut().plan.stages[self.stage];
            (stage.keeps, stage.times_out) = (Some(batch.count), batch.within.is_some());
            stage.packs = packs;
        }
        self
    }

    /// Notes that the stage takes batches apart.
    pub(super) fn taking_apart(self) -> Self {
        self.draft.borrow_mut().plan.stages[self.stage].takes_apart = true;
        self
    }
}

impl<T, At: Tuned> Flow<T, At> {
    pub(super) fn tune(self, tune: impl FnOnce(&mut StagePlan)) -> Self {
        tune(&mut self.draft.borrow_mut().plan.stages[self.stage]);
        self
    }
}

impl<T> Flow<T, AfterSource> {
    /// Asks the source for an item at fixed times. The first time is at once, and each other is `time` after
    /// the one before it. If the pipeline has not taken the item before by then, the source is asked as soon
    /// as it has. So the rate holds however long a call takes, as long as it takes less than `time`. Late
    /// items are not made up for: each time at which the source could not be asked counts as missed
    /// ([`StageReport::missed`](super::StageReport::missed)). A source that is stopped stops at once.
    pub fn every(self, time: Duration) -> Self {
        self.tune(|stage| stage.pace = Some(time))
    }

    /// Sets what happens when the source's process ends. With a policy the source is made again from its
    /// arguments, and begins anew, with item 0. So its items come again, from the first one; only items that
    /// it had not sent yet are lost, if it does not make them again. Without a policy the pipeline fails. An
    /// order behind replicas is restored for each life by itself, and a window goes on with the items that it
    /// had.
    ///
    /// A source that should go on where it was has to store its position outside its process: in a file, or
    /// in an actor.
    pub fn restart(self, policy: Restart) -> Self {
        self.tune(|stage| stage.restart = Some(policy))
    }
}

impl<T, I: Item> Flow<T, AfterStage<I>> {
    /// Sets how many items wait in front of the stage, per sending process;
    /// [`DEFAULT_MAILBOX`](super::limits::DEFAULT_MAILBOX) unless said otherwise.
    pub fn mailbox(self, items: u32) -> Self {
        self.tune(|stage| stage.mailbox = Some(items))
    }

    /// Drops the item that has waited longest when more than [`mailbox`](Self::mailbox) items wait for the
    /// stage. This is for live sources, whose newest items are wanted, and which nothing may hold up. Every
    /// sender of the stage keeps so many items; no sender waits for the stage. `mailbox(1)` keeps the newest.
    /// How old an item is in the end also depends on the stages behind this one, each of which has a mailbox
    /// of its own.
    ///
    /// Dropped items are not lost items. They are counted apart, in the report
    /// ([`StageReport::dropped`](super::StageReport::dropped)) and the progress, and give their tensors back
    /// at once.
    pub fn drop_oldest(self) -> Self {
        self.tune(|stage| stage.drops = Some(Drops::Oldest))
    }

    /// As [`drop_oldest`](Self::drop_oldest), but drops the item that has just come: items that wait are
    /// kept.
    pub fn drop_newest(self) -> Self {
        self.tune(|stage| stage.drops = Some(Drops::Newest))
    }

    /// Sets how many bytes of tensors and message bodies each sender may have on the way to the stage, or
    /// unfinished there. An item that is larger goes alone.
    pub fn max_bytes_in_flight(self, bytes: u64) -> Self {
        self.tune(|stage| stage.max_bytes = Some(bytes))
    }

    /// Restores, behind the stage's replicas, the order in which items came to them, per sender.
    pub fn ordered(self) -> Self {
        self.tune(|stage| stage.ordered = true)
    }

    /// Sends each item to the replica with the fewest unfinished items. Without this, replicas take turns.
    pub fn to_least_loaded(self) -> Self {
        self.tune(|stage| stage.select = Select::LeastLoaded)
    }

    /// Sends items with the same key to the same replica, so they keep their order.
    pub fn by_key<K: Hash, F>(self, key: F) -> Self
    where
        F: Fn(&I) -> K + CapturesNothing,
    {
        const { captures_nothing::<F>() };
        self.with(()).by_key(move |(), item| key(item))
    }

    pub(super) fn select_by(self, number: Code) -> Self {
        self.tune(|stage| stage.select = Select::By(number))
    }

    /// Sets what happens when a replica's process ends. With a policy it is started again from its arguments,
    /// and goes on with the items that come then. Items that it had are lost, and named in the report, unless
    /// delivery is [at least once](super::Pipeline::at_least_once); the state of the stage is gone. Without a
    /// policy the pipeline fails. Stages in the same worker come back together; a source among them comes
    /// back only if it has a policy itself.
    pub fn restart(self, policy: Restart) -> Self {
        self.tune(|stage| stage.restart = Some(policy))
    }

    /// Sends every item to every replica.
    pub fn to_all(self) -> Self {
        self.tune(|stage| stage.select = Select::All)
    }

    /// Allows up to `most` replicas, so that [`Running::scale`](super::Running::scale) can change their
    /// number while the pipeline runs. The stage begins with the number given to
    /// [`replicas`](Self::replicas), one unless said otherwise.
    ///
    /// Order, where it is [restored](Self::ordered), and delivery are as with a fixed number. A replica that
    /// leaves calls the stage's `finish`, and sends the results. This is not allowed for a stage with
    /// [`by_key`](Self::by_key) or [`to_all`](Self::to_all), in a loop, or in the worker of another stage. A
    /// sender that stands in its own code, such as a source that waits for a camera, hears of a change when
    /// it returns.
    pub fn replicas_up_to(self, most: u32) -> Self {
        self.tune(|stage| stage.scale = Some(Scale { least: 1, most, auto: false }))
    }

    /// Lets the pipeline itself choose the number of replicas, within these bounds. It adds some when all
    /// existing replicas are at work, more items wait for each, and none waits for the next stages. It takes
    /// one away when the others would have been enough for a second. All else is as for
    /// [`replicas_up_to`](Self::replicas_up_to).
    ///
    /// ```
    /// # use tensorpost::prelude::*;
    /// # #[derive(Clone, Serialize, Deserialize, GpuMessage)] struct Number(u64);
    /// # fn main() -> anyhow::Result<()> {
    /// let flow = Pipeline::new("squares").items("count", |_| (0..100).map(Number));
    /// let flow = flow.map("square", |Number(n)| Ok(Number(n * n))).autoscale(1..=4).ordered();
    /// let report = flow.for_each("drop", |_| Ok(())).run()?;
    /// assert!(report.stage("square").is_some_and(|stage| stage.most_replicas <= 4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn autoscale(self, replicas: RangeInclusive<u32>) -> Self {
        let (least, most) = replicas.into_inner();
        self.tune(|stage| stage.scale = Some(Scale { least, most, auto: true }))
    }

    /// Gives the items on which the stage fails as a flow of their own.
    pub fn dead_letters(self) -> (Self, Flow<DeadItem<I>>) {
        let tap = Tap { stage: self.stage, output: DEAD, branch: 0 };
        {
            let plan = &mut self.draft.borrow_mut().plan;
            let stage = &mut plan.stages[self.stage];
            stage.outputs[1].branches = 1;
            if !stage.on_error.keeps() {
                stage.on_error = match stage.on_error.retries() {
                    0 => OnError::DeadLetter,
                    times => OnError::RetryThenDeadLetter(times),
                };
            }
            plan.open.push(tap);
        }
        let dead =
            Flow { draft: Rc::clone(&self.draft), taps: vec![tap], stage: self.stage, types: PhantomData };
        (self, dead)
    }
}

/// Returns the last part of a type's path, without its arguments.
fn short<S>() -> &'static str {
    let name = std::any::type_name::<S>();
    let end = name.find('<').unwrap_or(name.len());
    name[..end].rsplit("::").next().unwrap_or(name)
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pipeline({})", self.draft.borrow().plan.name)
    }
}

impl<T, At> std::fmt::Debug for Flow<T, At> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Flow({:?})", self.taps)
    }
}
