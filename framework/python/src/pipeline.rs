//! Runs pipelines that are written in Python: their steps become flows of the pipeline crate, which runs them
//! on a node of this process.
//!
//! All stages are Python's, or the pipeline's own, and all workers are interpreters. The items are raw items,
//! whose classes Python has compared before.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tensorpost_core::actor::{Address, Channel, Python as Start};
use tensorpost_core::bindings::RawItem;
use tensorpost_core::node::{Node, Restart};
use tensorpost_core::os::Birth;
use tensorpost_core::os::fork::INHERITED;
use tensorpost_pipeline::bindings::PythonStage;
use tensorpost_pipeline::{Flow, Input, OnError, Pipeline, PipelineError, RunPipeline, Running};

use crate::context::Context;
use crate::decode;
use crate::failure::exception;
use crate::feed::PyFeed;
use crate::node::{Policy, PyNode, policy};
use crate::plan::Plan;
use crate::stage::{PySource, PyStage};
use crate::wait;

/// Applies the settings of a step to a stage or a sink.
macro_rules! tuned {
    ($flow:expr, $step:expr, $restart:expr) => {{
        let (flow, step) = ($flow.named(&$step.name).replicas($step.replicas), $step);
        let flow = flow.on_error(step.on_error()?);
        let flow = if step.ordered { flow.ordered() } else { flow };
        let flow = step.device.iter().fold(flow, |flow, device| flow.on(device.as_str()));
        let flow = $restart.iter().fold(flow, |flow, policy| flow.restart(*policy));
        let flow = step.mailbox.iter().fold(flow, |flow, items| flow.mailbox(*items));
        let flow = match step.drop.as_deref() {
            None => flow,
            Some("oldest") => flow.drop_oldest(),
            Some("newest") => flow.drop_newest(),
            Some(other) => return Err(format!("drop={other:?}: there are \"oldest\" and \"newest\"")),
        };
        match step.to.as_str() {
            "turns" => flow,
            "least_loaded" => flow.to_least_loaded(),
            "all" => flow.to_all(),
            other => {
                return Err(format!("to={other:?}: there are \"turns\", \"least_loaded\" and \"all\""));
            }
        }
    }};
}

/// A stage: its name in a module, its arguments as bytes, and the schemas of its inputs and results.
type Made = (String, Vec<u8>, Option<String>, Option<String>);

/// One step, as Python describes it.
#[derive(FromPyObject)]
pub(crate) struct Step {
    /// `"feed"`, `"source"`, `"stage"`, `"sink"`, `"for_each"`, `"merge"` or `"broadcast"`.
    #[pyo3(item)]
    kind: String,
    /// The flows that it takes, by their numbers.
    #[pyo3(item)]
    inputs: Vec<usize>,
    #[pyo3(item)]
    name: String,
    #[pyo3(item)]
    made: Option<Made>,
    /// The interpreter and its switches.
    #[pyo3(item)]
    interpreter: Option<Vec<PathBuf>>,
    #[pyo3(item)]
    environment: Vec<(String, String)>,
    #[pyo3(item)]
    replicas: u32,
    #[pyo3(item)]
    device: Option<String>,
    #[pyo3(item)]
    ordered: bool,
    #[pyo3(item)]
    restart: Option<Policy>,
    #[pyo3(item)]
    mailbox: Option<u32>,
    /// `"fail"` or `"skip"`, and attempts after the first.
    #[pyo3(item)]
    on_error: (String, u32),
    /// `"turns"`, `"least_loaded"` or `"all"`.
    #[pyo3(item)]
    to: String,
    #[pyo3(item)]
    drop: Option<String>,
    /// For a broadcast: the number of its branches.
    #[pyo3(item)]
    branches: u16,
}

/// A pipeline as it was written down in Python.
pub(crate) struct Written {
    name: String,
    interpreter: Vec<PathBuf>,
    steps: Vec<Step>,
    policies: Vec<Option<Restart>>,
    at_least_once: Option<u32>,
}

type Raw = Flow<RawItem>;

impl Written {
    pub(crate) fn new(
        py: Python<'_>,
        name: String,
        interpreter: Vec<PathBuf>,
        steps: Vec<Step>,
        at_least_once: Option<u32>,
    ) -> PyResult<Self> {
        let policies =
            steps.iter().map(|step| step.restart.clone().map(|given| policy(py, given)).transpose());
        let policies = policies.collect::<PyResult<_>>()?;
        Ok(Written { name, interpreter, steps, policies, at_least_once })
    }

    fn start(&self, step: &Step) -> Result<PythonStage, String> {
        let Some((name, args, takes, makes)) = step.made.clone() else {
            return Err(format!("the step `{}` names no stage", step.name));
        };
        let interpreter = step.interpreter.as_ref().unwrap_or(&self.interpreter);
        let python = Start::stage(name).with_own_args(args).command(interpreter.iter().cloned());
        let add = |python: Start, (name, value): &(String, String)| python.env(name, value);
        Ok(PythonStage { python: step.environment.iter().fold(python, add), takes, makes })
    }

    /// Makes the pipeline, and the inputs of its feeds in order; if it will not be run, the channels of this
    /// process are left out.
    fn write(&self, channels: &[Address<RawItem>]) -> Result<(Pipeline, Vec<Input<RawItem>>), String> {
        let pipeline = Pipeline::new(&self.name);
        let pipeline = match self.at_least_once {
            Some(most) => pipeline.at_least_once(most),
            None => pipeline,
        };
        let pipeline = pipeline.in_interpreter(Start::stage("").command(self.interpreter.iter().cloned()));
        let (mut flows, mut inputs): (Vec<Option<Raw>>, _) = (Vec::new(), Vec::new());
        let mut channels = channels.iter();
        for (step, restart) in self.steps.iter().zip(&self.policies) {
            let taken: Option<Vec<Raw>> =
                step.inputs.iter().map(|input| flows.get_mut(*input)?.take()).collect();
            let taken =
                taken.ok_or_else(|| format!("`{}` takes a flow that another step has taken", step.name))?;
            let taken = taken.into_iter().reduce(|one, other| one.merge(other));
            let none = || format!("the step `{}` takes no flow", step.name);
            match step.kind.as_str() {
                "feed" => {
                    let (input, flow) = pipeline.input("Feed");
                    inputs.push(input);
                    flows.push(Some(flow.named(&step.name).plain()));
                }
                "source" => {
                    let flow = pipeline.raw_source::<PySource>(self.start(step)?).named(&step.name);
                    let flow = flow.replicas(step.replicas).on_error(step.on_error()?);
                    let flow = step.device.iter().fold(flow, |flow, device| flow.on(device.as_str()));
                    let flow = restart.iter().fold(flow, |flow, policy| flow.restart(*policy));
                    flows.push(Some(flow.plain()));
                }
                "stage" => {
                    let flow = taken.ok_or_else(none)?.raw_stage::<PyStage>(self.start(step)?);
                    flows.push(Some(tuned!(flow, step, restart).plain()));
                }
                "sink" => {
                    let flow = taken.ok_or_else(none)?.raw_sink::<PyStage>(self.start(step)?);
                    drop(tuned!(flow, step, restart));
                }
                "for_each" => {
                    let taken = taken.ok_or_else(none)?;
                    drop(match channels.next() {
                        Some(address) => taken.sink_to(address).named(&step.name),
                        // A check or a description has no channels: a sink of Python stands for the program.
                        None => taken
                            .raw_sink::<PyStage>(PythonStage {
                                python: Start::stage("in this program"),
                                takes: None,
                                makes: None,
                            })
                            .named(&step.name),
                    });
                }
                "merge" => flows.push(Some(taken.ok_or_else(none)?)),
                "broadcast" => {
                    flows.extend(taken.ok_or_else(none)?.raw_broadcast(step.branches).into_iter().map(Some));
                }
                other => return Err(format!("there is no step `{other}`")),
            }
        }
        Ok((pipeline, inputs))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.write(&[])?.0.check().map_err(|error| error.to_string())
    }

    /// Describes it as text, as a Mermaid flow chart, and for Graphviz.
    pub(crate) fn describe(&self) -> Result<(String, String, String), String> {
        let description = self.write(&[])?.0.describe();
        Ok((description.to_string(), description.mermaid(), description.dot()))
    }

    /// Starts the pipeline.
    ///
    /// # Errors
    /// The reason why it did not start.
    pub(crate) fn run(
        &self,
        node: &Node,
        channels: &[Address<RawItem>],
    ) -> Result<(Running, Vec<Input<RawItem>>), String> {
        let (pipeline, inputs) = self.write(channels)?;
        let running = node.run_pipeline(&pipeline).map_err(|error| error.to_string())?;
        Ok((running, inputs))
    }
}

impl Step {
    fn on_error(&self) -> Result<OnError, String> {
        match (self.on_error.0.as_str(), self.on_error.1) {
            ("fail", 0) => Ok(OnError::Fail),
            ("fail", times) => Ok(OnError::Retry(times)),
            ("skip", 0) => Ok(OnError::Skip),
            ("skip", times) => Ok(OnError::RetryThenSkip(times)),
            (other, _) => Err(format!("on_error={other:?}: there are \"fail\" and \"skip\"")),
        }
    }
}

fn refused(py: Python<'_>, why: String) -> PyErr {
    exception(py, "PipelineError", why)
}

/// Checks a pipeline, and raises its mistakes.
#[pyfunction]
pub(crate) fn check_pipeline(
    py: Python<'_>,
    name: String,
    interpreter: Vec<PathBuf>,
    steps: Vec<Step>,
    at_least_once: Option<u32>,
) -> PyResult<()> {
    let written = Written::new(py, name, interpreter, steps, at_least_once)?;
    py.detach(|| written.check()).map_err(|why| refused(py, why))
}

/// Describes a pipeline as text, a Mermaid flow chart, and a graph for Graphviz.
#[pyfunction]
pub(crate) fn describe_pipeline(
    py: Python<'_>,
    name: String,
    interpreter: Vec<PathBuf>,
    steps: Vec<Step>,
    at_least_once: Option<u32>,
) -> PyResult<(String, String, String)> {
    let written = Written::new(py, name, interpreter, steps, at_least_once)?;
    py.detach(|| written.describe()).map_err(|why| refused(py, why))
}

/// Starts a pipeline on a node. `plans` are the plans of the items of each `for_each`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "Python calls it")]
pub(crate) fn run_pipeline(
    py: Python<'_>,
    node: &PyNode,
    name: String,
    interpreter: Vec<PathBuf>,
    steps: Vec<Step>,
    at_least_once: Option<u32>,
    plans: Vec<Py<Plan>>,
    is_interrupted: Bound<'_, PyAny>,
) -> PyResult<(PyRunning, Vec<PyFeed>, Vec<PyEnd>)> {
    let written = Written::new(py, name, interpreter, steps, at_least_once)?;
    let (node, context) = node.running(py)?;
    let (mut addresses, mut channels) = (Vec::new(), Vec::new());
    for plan in plans {
        let made = py.detach(|| node.channel::<RawItem>());
        let (address, channel) = made.map_err(|error| refused(py, error.to_string()))?;
        addresses.push(address);
        channels.push(PyEnd { channel: Mutex::new(Some(channel)), plan, context: Arc::clone(&context) });
    }
    let goes_on = || match is_interrupted.call0()?.is_truthy()? {
        true => Err(PyKeyboardInterrupt::new_err(())),
        false => Ok(()),
    };
    // A pipeline whose start nobody awaits any more is cancelled as its `Running` drops.
    let started = wait::aside_while(py, move || written.run(&node, &addresses), goes_on)?;
    let (running, inputs) = started.map_err(|why| refused(py, why))?;
    let feeds = inputs.into_iter().map(|input| PyFeed::new(input, &context)).collect();
    Ok((PyRunning { running: Mutex::new(Some(running)), birth: Birth::here() }, feeds, channels))
}

/// The end of a flow in this program.
#[pyclass(frozen, name = "End", module = "tensorpost._native")]
pub(crate) struct PyEnd {
    channel: Mutex<Option<Channel<RawItem>>>,
    plan: Py<Plan>,
    context: Arc<Context>,
}

#[pymethods]
impl PyEnd {
    /// Waits for the next item; raises if none comes in time, or none will come.
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = wait::seconds(py, timeout)?;
        // Only one thread receives at a time.
        let Some(mut taken) = self.channel.lock().take() else {
            return Err(refused(py, "another thread receives from it".to_owned()));
        };
        let received = wait::wait(py, Box::pin(taken.recv()), timeout);
        *self.channel.lock() = Some(taken);
        let RawItem { body, tensors } = match received? {
            None => {
                return Err(exception(py, "DeadlineError", "no item came before the deadline".to_owned()));
            }
            Some(Err(error)) => return Err(refused(py, error.to_string())),
            Some(Ok(item)) => item,
        };
        let plan = self.plan.get();
        let value = decode::arrived(plan, py, &body, tensors, &self.context, None);
        value.map(Bound::unbind).map_err(|failure| failure.raise(py, "DecodeError", &plan.name))
    }
}

/// A running pipeline.
#[pyclass(frozen, name = "Running", module = "tensorpost._native")]
pub(crate) struct PyRunning {
    running: Mutex<Option<Running>>,
    birth: Birth,
}

#[pymethods]
impl PyRunning {
    /// Waits for the end. Returns why it failed, if it did, and the report as text and as JSON; None if it
    /// has not ended in time.
    #[expect(clippy::type_complexity, reason = "Python takes it apart")]
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(Option<String>, Option<(String, String)>)>> {
        if self.birth.is_inherited() {
            return Err(refused(py, INHERITED.to_owned()));
        }
        let timeout = wait::seconds(py, timeout)?;
        let ended = self.running.lock().as_ref().map(Running::ended);
        let Some(ended) = ended else { return Err(refused(py, "its report was taken".to_owned())) };
        if wait::wait(py, Box::pin(ended), timeout)?.is_none() {
            return Ok(None);
        }
        let Some(running) = self.running.lock().take() else {
            return Err(refused(py, "its report was taken".to_owned()));
        };
        let told = |report: &tensorpost_pipeline::Report| (report.to_string(), report.to_json());
        Ok(Some(match py.detach(|| running.wait()) {
            Ok(report) => (None, Some(told(&report))),
            Err(error) => (Some(error.to_string()), PipelineError::report(&error).map(told)),
        }))
    }

    /// Stops the sources; items under way are finished.
    fn cancel(&self) {
        if let Some(running) = &*self.running.lock() {
            running.cancel();
        }
    }

    /// Kills it at once.
    fn kill(&self) {
        if let Some(running) = &*self.running.lock() {
            running.kill();
        }
    }
}

impl Drop for PyRunning {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().take() {
            running.kill();
            // Its end may need the interpreter.
            Python::try_attach(|py| py.detach(|| drop(running)));
        }
    }
}
