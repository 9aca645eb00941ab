//! Stages that are written in Python, as a program in Rust sees them.
//!
//! Their workers are Python interpreters, which know neither the program's types nor its closures. They run
//! the same actors around a stage as any worker, from the package for Python: there the stage calls Python,
//! and its items are core's `RawItem`s. So deliveries, ends, losses, restarts and reports are the same, in
//! the same code. This module and the plan handle the differences:
//!
//! * the actor is started under a name of its own ([`STAGE`], [`SOURCE`]), because its type is another one
//!   there;
//! * it sends with the keys that its receivers know (`BranchArgs::key`), and takes any key: the schemas of
//!   its items are compared before it starts;
//! * no stage of this program runs beside it, and a choice by a closure is made in a stage behind it.

use std::marker::PhantomData;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::{Env, Python};
use tensorpost_core::api::message::Portable;

use super::flow::{AfterSource, AfterStage, Ending, Flow, Pipeline, Tuned};
use super::item::Item;
use super::out::Out;
use super::plan::{DEAD, Kind, Plan, StagePlan};
use super::stages::Nothing;
use super::traits::{Source, Stage};
use super::work::{SourceWork, StageWork};
use super::worker::args::Select;

/// The name of the actor around a stage.
pub const STAGE: &str = "tensorpost.python.stage";
/// The name of the actor around a source.
pub const SOURCE: &str = "tensorpost.python.source";

/// The description of a stage for its worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PythonStage {
    /// The stage, and the arguments that it is called with.
    pub python: Python,
    /// The schema of the items that it takes; none for a source.
    pub takes: Option<String>,
    /// The schema of the items that it makes; none for a sink.
    pub makes: Option<String>,
}

/// Stands for a stage of Python in the program that knows its types.
struct StageThere<I, O>(PhantomData<(I, O)>);

/// The same for a source.
struct SourceThere<O>(PhantomData<O>);

fn not_here<S>(order: &PythonStage) -> anyhow::Result<S> {
    anyhow::bail!("`{}` is written in Python, and this worker is none", order.python.named())
}

impl<I: Item, O: Item> Stage for StageThere<I, O> {
    type Args = PythonStage;
    type In = I;
    type Out = O;
    const WIRE_NAME: Option<&'static str> = Some(STAGE);

    fn create(order: PythonStage, _: &Env) -> anyhow::Result<Self> {
        not_here(&order)
    }

    fn process(&mut self, _: I, _: &mut Out<O>) -> anyhow::Result<()> {
        unreachable!("`create` makes none")
    }
}

impl<O: Item> Source for SourceThere<O> {
    type Args = PythonStage;
    type Out = O;
    const WIRE_NAME: Option<&'static str> = Some(SOURCE);

    fn create(order: PythonStage, _: &Env) -> anyhow::Result<Self> {
        not_here(&order)
    }

    fn next(&mut self) -> anyhow::Result<Option<O>> {
        unreachable!("`create` makes none")
    }
}

/// Returns the last part of `app.stages:Detect`.
fn short(python: &Python) -> &str {
    let name = python.named();
    name.rsplit([':', '.']).next().unwrap_or(name)
}

impl Pipeline {
    /// Adds a source that is written in Python: a class or function of a module that is decorated with
    /// `@tp.stage`, in a worker that is an interpreter. See [`Flow::python`].
    pub fn python_source<O: Item + Portable>(&self, source: Python) -> Flow<O, AfterSource> {
        let name = short(&source).to_owned();
        let order = PythonStage { python: source.clone(), takes: None, makes: Some(O::schema()) };
        let flow = self.begin(&name, Rc::new(SourceWork::<SourceThere<O>>(order)));
        flow.in_python(source)
    }
}

impl<T: Item + Portable, At> Flow<T, At> {
    /// Sends the items to a stage that is written in Python: a class or function of a module that is
    /// decorated with `@tp.stage`, in a worker that is an interpreter with the package `tensorpost`. Both
    /// sides' definitions of the items are compared before the pipeline starts. All else is as for a stage of
    /// Rust: an exception is an error of the stage, to which [`on_error`](Flow::on_error) applies, and the
    /// end of its interpreter is a death.
    ///
    /// ```no_run
    /// use tensorpost::actor::Python;
    /// use tensorpost::prelude::*;
    ///
    /// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
    /// #[gpu_message(portable)]
    /// struct Frame {
    ///     #[tensor(dtype = f32)]
    ///     pixels: Tensor,
    /// }
    ///
    /// #[derive(Clone, Serialize, Deserialize, GpuMessage)]
    /// #[gpu_message(portable)]
    /// struct Boxes {
    ///     found: u32,
    /// }
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// let report = Pipeline::new("detected")
    ///     .items("frames", |env| {
    ///         let stream = env.stream();
    ///         (0..100).filter_map(move |_| stream.zeros(DType::F32, &[3, 64, 64]).ok()).map(|p| Frame { pixels: p.freeze() })
    ///     })
    ///     // `@tp.stage def detect(frame: Frame, threshold: float) -> Boxes` in app/stages.py
    ///     .python::<Boxes>(Python::stage("app.stages:detect").args((0.5,)))
    ///     .replicas(2)
    ///     .ordered()
    ///     .restart(Restart::on_failure(5))
    ///     .for_each("print", |boxes: Boxes| Ok(println!("{}", boxes.found)))
    ///     .run()?;
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn python<O: Item + Portable>(self, stage: Python) -> Flow<O, AfterStage<T>> {
        let name = short(&stage).to_owned();
        let order = PythonStage { python: stage.clone(), takes: Some(T::schema()), makes: Some(O::schema()) };
        let flow: Flow<O, AfterStage<T>> =
            self.then(&name, Rc::new(StageWork::<StageThere<T, O>>(order)), Kind::Stage);
        flow.in_python(stage)
    }

    /// Ends the flow in a sink that is written in Python. See [`python`](Self::python).
    pub fn python_sink(self, sink: Python) -> Ending<T> {
        let name = short(&sink).to_owned();
        let order = PythonStage { python: sink.clone(), takes: Some(T::schema()), makes: None };
        let flow: Ending<T> =
            self.then(&name, Rc::new(StageWork::<StageThere<T, Nothing>>(order)), Kind::Sink);
        flow.in_python(sink)
    }
}

impl<T, At: Tuned> Flow<T, At> {
    fn in_python(self, python: Python) -> Self {
        self.tune(|stage| {
            stage.label = python.named().to_owned();
            // The interpreter may hold the stage up, and the process's reader must never wait for that.
            stage.own_thread = true;
            stage.python = Some(python);
        })
    }
}

/// Pipelines that are written in Python: all of their types are those of the package for Python.
#[cfg(feature = "bindings")]
impl Pipeline {
    /// Sets the interpreter of all workers whose stages name no other.
    #[doc(hidden)]
    pub fn in_interpreter(self, python: Python) -> Self {
        self.draft.borrow_mut().plan.interpreter = Some(python);
        self
    }

    #[doc(hidden)]
    pub fn raw_source<S: Source<Args = PythonStage>>(&self, order: PythonStage) -> Flow<S::Out, AfterSource> {
        let python = order.python.clone();
        self.begin(short(&python), Rc::new(SourceWork::<S>(order))).in_python(python)
    }
}

#[cfg(feature = "bindings")]
impl<T: Item, At> Flow<T, At> {
    #[doc(hidden)]
    pub fn raw_stage<S: Stage<In = T, Args = PythonStage>>(
        self,
        order: PythonStage,
    ) -> Flow<S::Out, AfterStage<T>> {
        let python = order.python.clone();
        let flow: Flow<S::Out, AfterStage<T>> =
            self.then(short(&python), Rc::new(StageWork::<S>(order)), Kind::Stage);
        flow.in_python(python)
    }

    #[doc(hidden)]
    pub fn raw_sink<S: Stage<In = T, Args = PythonStage>>(self, order: PythonStage) -> Ending<T> {
        let python = order.python.clone();
        let flow: Ending<T> = self.then(short(&python), Rc::new(StageWork::<S>(order)), Kind::Sink);
        flow.in_python(python)
    }

    /// Sends every item to `count` flows.
    #[doc(hidden)]
    pub fn raw_broadcast(self, count: u16) -> Vec<Flow<T>> {
        let flow = self.single();
        let taps = flow.draft().borrow_mut().plan.fork(flow.taps[0], count, Select::All);
        taps.into_iter().map(|tap| flow.at(vec![tap])).collect()
    }

    /// Returns the flow without its tuning methods.
    #[doc(hidden)]
    pub fn plain(self) -> Flow<T> {
        self.at(self.taps.clone())
    }
}

impl Plan {
    /// Returns the interpreter that the stage's workers run, if they run one.
    pub(super) fn interpreter_of(&self, stage: usize) -> Option<&Python> {
        self.stages[stage].python.as_ref().or(self.interpreter.as_ref())
    }

    /// Whether closures choose the receivers of the stage's items, and its program has no closures.
    pub(super) fn chooses_in_python(&self, stage: usize, output: u8) -> bool {
        let by = |select: &Select| matches!(select, Select::By(_));
        self.is_in_python(&self.stages[stage])
            && (by(&self.stages[stage].outputs[usize::from(output)].select)
                || self.edges_from(stage, output).iter().any(|(_, edge)| by(&self.stages[edge.to].select)))
    }

    fn is_in_python(&self, stage: &StagePlan) -> bool {
        stage.python.is_some()
    }

    /// Returns the mistake of a stage of Python, or of one beside it, that asks for something that only other
    /// stages can do.
    pub(super) fn python_mistake(&self, stage: usize) -> Option<&'static str> {
        let here = &self.stages[stage];
        let beside = here.beside.map(|beside| &self.stages[beside]);
        if beside.is_some_and(|beside| self.is_in_python(beside) || self.is_in_python(here)) {
            return Some(
                "a stage of Python has an interpreter of its own, with nothing beside it; leave `beside` out",
            );
        }
        self.chooses_in_python(stage, DEAD).then_some(
            "a stage of Python has no closures that could choose who takes its dead letters; put a `map` in between",
        )
    }
}

#[cfg(test)]
mod tests {
    use tensorpost_core::api::message::GpuMessage;

    use super::*;

    #[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = tensorpost_core, portable)]
    struct Number(u64);

    fn numbers(pipeline: &Pipeline) -> Flow<Number, AfterSource> {
        pipeline.python_source::<Number>(Python::stage("app.stages:numbers"))
    }

    fn stage() -> Python {
        Python::stage("app.stages:twice")
    }

    #[test]
    fn what_chooses_by_a_closure_stands_behind_a_stage_that_has_none() {
        let pipeline = Pipeline::new("keys");
        let (even, odd) = numbers(&pipeline).python::<Number>(stage()).split(|number| number.0 % 2 == 0);
        even.map("same", Ok).replicas(2).by_key(|number: &Number| number.0).for_each("drop", |_| Ok(()));
        odd.python_sink(stage());
        pipeline.check().unwrap();
        let text = pipeline.describe().to_string();
        assert!(text.contains("stage twice (app.stages:twice) -> twice relay\n"), "{text}");
        assert!(text.contains("stage twice relay -> same (chosen), twice 2 (chosen)\n"), "{text}");
        // Replicas that take turns need no relay.
        let plain = Pipeline::new("turns");
        numbers(&plain).python::<Number>(stage()).replicas(2).for_each("drop", |_| Ok(()));
        assert!(!plain.describe().to_string().contains("relay"));
    }

    #[test]
    fn an_order_is_restored_behind_it_in_one_stage_of_this_program() {
        let pipeline = Pipeline::new("order");
        let ordered = numbers(&pipeline).python::<Number>(stage()).replicas(2).ordered();
        ordered.map("same", Ok).replicas(2).by_key(|number: &Number| number.0).for_each("drop", |_| Ok(()));
        let plan = pipeline.draft.borrow().plan.clone().complete();
        let names: Vec<_> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["numbers", "twice", "same", "drop", "twice order"]);
        assert!(plan.stages[4].python.is_none() && plan.restores_order(4));
    }

    #[test]
    fn nothing_is_beside_it_and_its_dead_letters_are_not_chosen_by_a_key() {
        let pipeline = Pipeline::new("beside");
        let numbers = numbers(&pipeline).python::<Number>(stage());
        let (good, dead) = numbers.dead_letters();
        good.batch(crate::Batch::of(2)).for_each("drop", |_| Ok(()));
        let plan = pipeline.draft.borrow().plan.clone().complete();
        assert!(plan.stages.iter().all(|stage| stage.beside.is_none()), "a batch has a worker of its own");
        dead.map("same", Ok).replicas(2).by_key(|dead| dead.attempts).for_each("drop too", |_| Ok(()));
        let error = pipeline.check().unwrap_err().to_string();
        assert!(error.contains("stage `twice`") && error.contains("who takes its dead letters"), "{error}");

        let pipeline = Pipeline::new("beside too");
        super::tests::numbers(&pipeline).python_sink(stage()).beside();
        let error = pipeline.check().unwrap_err().to_string();
        assert!(error.contains("stage `twice`") && error.contains("an interpreter of its own"), "{error}");
    }
}
