//! The loader's half in Rust: worker processes make batches of images from files.
//!
//! Python has the list of files and the transforms. A [`feed`] makes the batches of an epoch ahead of the
//! training program, and [`worker`]s fill them. Only the methods that Python calls take the interpreter.

mod batch;
mod decode;
mod feed;
mod limits;
mod random;
mod steps;
mod worker;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorpost_core::actor::Address;
use tensorpost_core::node::{Node, Restart, WorkerId};

use crate::context::Context;
use crate::failure::exception;
use crate::node::PyNode;
use crate::tensor::PyTensor;
use crate::wait;
use feed::{Epoch, Feed, Source, Stop};
use limits::{BACKOFF, RESTARTS};
use steps::{Filter, Step};
use worker::{Fill, Recipe, Start, Times, Worker};

/// A transform, as Python describes it: its name, its numbers, and its filter.
type Said = (String, Vec<f64>, String);

/// A batch: its tensor, the indices of its samples, the samples that were left out with their errors, and the
/// position in the epoch behind it.
type Given = (Option<PyTensor>, Vec<u32>, Vec<(u32, String)>, usize);

/// Files, and workers that make batches of them.
#[pyclass(frozen, name = "Loader", module = "tensorpost._native")]
pub(crate) struct PyLoader {
    source: Arc<Source>,
    context: Arc<Context>,
    feed: Mutex<Option<Feed>>,
    /// A weak reference: the program that started the node ends it.
    node: Weak<Node>,
    processes: Vec<WorkerId>,
}

fn refused(py: Python<'_>, why: impl ToString) -> PyErr {
    exception(py, "LoaderError", why.to_string())
}

fn step((name, numbers, filter): &Said) -> Option<Step> {
    let filter = || Filter::named(filter);
    let whole = |number: f64| number as usize;
    Some(match (name.as_str(), numbers.as_slice()) {
        ("resize", &[height, width]) => {
            Step::Resize { size: (whole(height), whole(width)), filter: filter()? }
        }
        ("resize", &[to]) => Step::ResizeShorter { to: whole(to), filter: filter()? },
        ("center_crop", &[height, width]) => Step::CenterCrop { size: (whole(height), whole(width)) },
        ("random_crop", &[height, width]) => Step::RandomCrop { size: (whole(height), whole(width)) },
        ("random_resized_crop", &[height, width, least, most, narrowest, widest]) => {
            Step::RandomResizedCrop {
                size: (whole(height), whole(width)),
                scale: (least, most),
                ratio: (narrowest, widest),
                filter: filter()?,
            }
        }
        ("flip_horizontal", &[probability]) => Step::FlipHorizontal(probability),
        ("flip_vertical", &[probability]) => Step::FlipVertical(probability),
        _ => return None,
    })
}

/// Returns how many processors this process may use, by its affinity and its cgroup.
#[pyfunction]
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts the workers, all at the same time.
fn start_workers(
    node: &Node,
    start: &Start,
    count: usize,
    label: &str,
) -> Result<Vec<(WorkerId, Address<Fill>)>, String> {
    let policy = Restart::on_failure(RESTARTS).within(Duration::from_secs(60)).backoff(BACKOFF.0, BACKOFF.1);
    let one = |number: usize| {
        let spawn = node.spawn::<Worker>(start.clone()).label(format!("{label} {number}")).restart(policy);
        // A thread of its own, so that the process's reader goes on while a file is read from a slow disk.
        let started = spawn.own_thread().start().map_err(|error| error.to_string())?;
        Ok((started.worker(), started.address()))
    };
    std::thread::scope(|scope| {
        let starting: Vec<_> = (0..count).map(|number| scope.spawn(move || one(number))).collect();
        let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("what starts a worker panicked".to_owned()))
        };
        starting.into_iter().map(joined).collect()
    })
}

#[pymethods]
impl PyLoader {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python calls it")]
    fn new(
        py: Python<'_>,
        node: &PyNode,
        interpreter: String,
        library: String,
        paths: Vec<Vec<u8>>,
        steps: Vec<Said>,
        size: (usize, usize),
        floats: bool,
        normalise: Option<([f32; 3], [f32; 3])>,
        workers: usize,
        label: String,
        device: Option<i32>,
    ) -> PyResult<Self> {
        let (node, context) = node.running(py)?;
        if u32::try_from(paths.len()).is_err() {
            return Err(refused(py, "a loader has at most 4,294,967,295 files"));
        }
        let understood =
            |said: &Said| step(said).ok_or_else(|| refused(py, format!("there is no transform {said:?}")));
        let steps = steps.iter().map(understood).collect::<PyResult<_>>()?;
        let recipe = Recipe { steps, size, floats, normalise };
        let host = context.host_stream().map_err(|error| refused(py, error))?;
        let device = device.map(|ordinal| context.stream_on(ordinal)).transpose();
        let device = device.map_err(|why| refused(py, format!("a batch of this loader {why}")))?;
        let start = Start { interpreter, library, recipe: recipe.clone() };
        let weak = Arc::downgrade(&node);
        let started = wait::aside(py, move || start_workers(&node, &start, workers, &label))?;
        let started = started.map_err(|why| {
            let why = format!(
                "{workers} workers of a loader could not be started: {why}; say how many with `workers=`"
            );
            exception(py, "SpawnError", why)
        })?;
        let (processes, workers) = started.into_iter().unzip();
        let times = Mutex::new(Times::default());
        let source = Arc::new(Source { workers, paths, recipe, host, device, times });
        Ok(PyLoader { source, context, feed: Mutex::new(None), node: weak, processes })
    }

    /// Begins an epoch after its first `position` samples; an epoch that was under way ends.
    #[expect(clippy::too_many_arguments, reason = "Python calls it")]
    fn begin(
        &self,
        py: Python<'_>,
        seed: u64,
        epoch: u64,
        shuffle: bool,
        samples: usize,
        position: usize,
        batch: usize,
        ahead: usize,
        skip: bool,
    ) -> PyResult<()> {
        self.context.check_fork(py, "LoaderError")?;
        self.stop(py);
        let begun = py.detach(|| {
            let count = self.source.paths.len();
            let mut order = random::order(count as u32, shuffle.then_some((seed, epoch)));
            order.truncate(samples);
            let position = position.min(order.len());
            let epoch = Epoch { seed, epoch, order, position, batch: batch.max(1), ahead, skip };
            Feed::begin(Arc::clone(&self.source), epoch)
        });
        *self.feed.lock() = Some(begun?);
        Ok(())
    }

    /// Waits for the next batch; None after the last one.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Given>> {
        self.context.check_fork(py, "LoaderError")?;
        let Some(mut feed) = self.feed.lock().take() else { return Ok(None) };
        let next = wait::wait(py, Box::pin(feed.next()), None);
        let Some(next) = (match next {
            Ok(next) => next.flatten(),
            Err(interrupted) => {
                *self.feed.lock() = Some(feed);
                return Err(interrupted);
            }
        }) else {
            return Ok(None);
        };
        match next {
            Ok(ready) => {
                *self.feed.lock() = Some(feed);
                let shown = |tensor| PyTensor::owned(tensor, Some(Arc::clone(&self.context)));
                let tensor = ready.tensor.map(shown);
                let broken = ready.broken.into_iter().map(|broken| (broken.index, broken.why)).collect();
                Ok(Some((tensor, ready.indices, broken, ready.position)))
            }
            Err(Stop::Broken(broken)) => {
                let path = String::from_utf8_lossy(&self.source.paths[broken.index as usize]).into_owned();
                let why = format!("{path}: {}; on_error=\"skip\" leaves such files out", broken.why);
                Err(refused(py, why))
            }
            Err(Stop::Other(why)) => Err(refused(py, why)),
        }
    }

    /// Ends the epoch that is under way.
    fn stop(&self, py: Python<'_>) {
        let feed = self.feed.lock().take();
        py.detach(|| drop(feed));
    }

    /// Ends the workers.
    fn close(&self, py: Python<'_>) {
        self.stop(py);
        if let Some(node) = self.node.upgrade().filter(|_| !self.context.transport.is_inherited()) {
            self.processes.iter().for_each(|worker| node.supervisor().retire(*worker));
            py.detach(|| drop(node));
        }
    }

    /// Returns the order of an epoch.
    #[staticmethod]
    fn order(py: Python<'_>, count: u32, seed: u64, epoch: u64) -> Vec<u32> {
        py.detach(|| random::order(count, Some((seed, epoch))))
    }

    /// Returns the seconds that all workers together have taken to read, decode, transform and write.
    fn times(&self) -> (f64, f64, f64, f64) {
        let Times { read, decode, transform, write } = *self.source.times.lock();
        let seconds = |nanoseconds: u64| nanoseconds as f64 * 1e-9;
        (seconds(read), seconds(decode), seconds(transform), seconds(write))
    }
}
