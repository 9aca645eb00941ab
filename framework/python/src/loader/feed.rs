//! Feeds an epoch: lets the workers fill batches, within a budget of bytes, and hands them over in order.
//!
//! It runs on a thread of its own, which never takes the interpreter, so batches are made while Python
//! computes. A batch is a tensor of this process's pool. It is split into parts of a few samples each, and
//! the next free worker gets the next part. When all parts have come back, the tensor is whole again, and
//! only this process may write it. So all workers work on the batch that is needed next, the budget does not
//! grow with their number, and a batch is complete as soon as possible.
//!
//! **When a worker dies**, the parts that it had are lost, and the batch cannot be joined any more: the
//! whole batch is made anew in other memory. One batch of that number is delivered, so no sample is lost, and
//! none comes twice. From then on each sample that the dead worker had is given alone to a worker that has
//! nothing else, so that a sample that kills its worker is found; after [`MAX_DEATHS`] it counts as a broken
//! file.
//!
//! **On cancellation** (another epoch begins, or the loader is closed) the asks are dropped; parts that
//! workers still send back go back to the pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_core::actor::{Address, AskError};
use tensorpost_core::os::Inert;
use tensorpost_core::tensor::{DeviceStream, Tensor, TensorError, TensorMut, TensorPart};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use super::batch::{Batch, Broken};
use super::limits::{MAX_DEATHS, MAX_TASK, RESTARTS, TASKS_EACH};
use super::worker::{Fill, Filled, Recipe, Sample, Times};

/// How long memory may be missing, while the program waits for a batch and none is under way, before that is
/// an error.
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(5);

/// The most parts of a batch, unless its samples have to be given one by one.
const MOST_TASKS: usize = 512;

/// The parameters that all epochs have in common.
pub(super) struct Source {
    pub(super) workers: Vec<Address<Fill>>,
    pub(super) paths: Vec<Vec<u8>>,
    pub(super) recipe: Recipe,
    /// The stream of the host, where batches are filled.
    pub(super) host: DeviceStream,
    /// The stream of the GPU to which batches go, if there is one.
    pub(super) device: Option<DeviceStream>,
    pub(super) times: Mutex<Times>,
}

/// An epoch.
pub(super) struct Epoch {
    pub(super) seed: u64,
    pub(super) epoch: u64,
    /// Its samples; those before `position` were delivered before.
    pub(super) order: Vec<u32>,
    pub(super) position: usize,
    pub(super) batch: usize,
    /// The number of batches that are under way or ready at a time.
    pub(super) ahead: usize,
    /// Whether broken files are left out; otherwise the first one ends the epoch.
    pub(super) skip: bool,
}

/// A batch for the training program.
pub(super) struct Ready {
    /// The tensor, which nothing else holds. `None` if all of its samples are broken.
    pub(super) tensor: Option<Tensor>,
    pub(super) indices: Vec<u32>,
    pub(super) broken: Vec<Broken>,
    /// How many of the epoch's samples were had with it.
    pub(super) position: usize,
}

/// The reason why there is no next batch.
#[derive(Debug)]
pub(super) enum Stop {
    Broken(Broken),
    Other(String),
}

impl From<TensorError> for Stop {
    fn from(error: TensorError) -> Self {
        Stop::Other(format!(
            "there is no memory for a batch: {error}; let go of earlier ones, or give more with `tp.Node(host_budget=..)`"
        ))
    }
}

/// The state that the two threads share.
#[derive(Default)]
struct Shared {
    /// Batches that the program has not taken yet.
    ready: AtomicUsize,
    taken: Notify,
    /// Whether the program waits for the next batch.
    awaited: AtomicBool,
}

/// Marks that the program waits for a batch.
struct Awaited<'a>(&'a Shared);

impl<'a> Awaited<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.awaited.store(true, Ordering::Relaxed);
        Awaited(shared)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.awaited.store(false, Ordering::Relaxed);
    }
}

/// An epoch under way.
pub(super) struct Feed {
    batches: mpsc::UnboundedReceiver<Result<Ready, Stop>>,
    shared: Arc<Shared>,
    cancel: Option<oneshot::Sender<()>>,
    thread: Option<Inert<std::thread::JoinHandle<()>>>,
}

impl Feed {
    /// # Errors
    /// The system has no thread for the feed.
    pub(super) fn begin(source: Arc<Source>, epoch: Epoch) -> std::io::Result<Self> {
        let (out, batches) = mpsc::unbounded_channel();
        let (cancel, cancelled) = oneshot::channel();
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("tp-loader".to_owned()).spawn(move || {
            runtime.block_on(async {
                let run = Run::new(&source, epoch, told, out.clone());
                let ended = tokio::select! {
                    _ = cancelled => return,
                    ended = run.run() => ended,
                };
                if let Err(stop) = ended {
                    // The training program may have stopped.
                    let _ = out.send(Err(stop));
                }
            });
        })?;
        Ok(Feed { batches, shared, cancel: Some(cancel), thread: Some(Inert::new(thread)) })
    }

    /// Waits for the next batch; `None` after the last one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Ready, Stop>> {
        let awaited = Awaited::begin(&self.shared);
        let next = self.batches.recv().await;
        drop(awaited);
        if matches!(next, Some(Ok(_))) {
            self.shared.ready.fetch_sub(1, Ordering::Relaxed);
            self.shared.taken.notify_one();
        }
        next
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if self.thread.as_ref().is_some_and(Inert::is_inherited) {
            std::mem::forget(self.cancel.take());
            return;
        }
        drop(self.cancel.take());
        if let Some(thread) = self.thread.take().and_then(Inert::into_inner) {
            // If it panicked, that is on stderr.
            let _ = thread.join();
        }
    }
}

/// Some rows of a batch, for a worker.
struct Task {
    batch: u64,
    samples: Vec<Sample>,
    part: TensorPart,
    /// Whether it has one sample, which may have killed a worker.
    alone: bool,
}

/// The record of a task that a worker has.
struct Given {
    worker: usize,
    batch: u64,
    indices: Vec<u32>,
    alone: bool,
}

enum Event {
    Memory(Result<TensorMut, TensorError>),
    Back(Given, Result<Filled, AskError<Fill>>),
}

/// The load of a worker, as the feed sees it.
#[derive(Clone, Default)]
struct Load {
    tasks: usize,
    alone: bool,
    /// How often in a row it did not take a task.
    refusals: u32,
    gone: bool,
}

struct Run<'a> {
    source: &'a Source,
    epoch: Epoch,
    shared: Arc<Shared>,
    out: mpsc::UnboundedSender<Result<Ready, Stop>>,
    events: JoinSet<Event>,
    /// The open batches, in order; later ones may be done before the first.
    open: VecDeque<Batch>,
    /// The number of the first of them.
    first: u64,
    queue: VecDeque<Task>,
    loads: Vec<Load>,
    /// The batch for which an [`Event::Memory`] is still to come, if there is one.
    allocating: Option<u64>,
    deaths: HashMap<u32, u32>,
    last_end: String,
}

impl<'a> Run<'a> {
    fn new(
        source: &'a Source,
        epoch: Epoch,
        shared: Arc<Shared>,
        out: mpsc::UnboundedSender<Result<Ready, Stop>>,
    ) -> Self {
        Run {
            source,
            epoch,
            shared,
            out,
            events: JoinSet::new(),
            open: VecDeque::new(),
            first: 0,
            queue: VecDeque::new(),
            loads: vec![Load::default(); source.workers.len()],
            allocating: None,
            deaths: HashMap::new(),
            last_end: String::new(),
        }
    }

    async fn run(mut self) -> Result<(), Stop> {
        loop {
            self.open_batches();
            // Before memory is asked for, because these batches need some again.
            self.open.iter_mut().for_each(Batch::begin_again_if_lost);
            self.allocate();
            self.dispatch()?;
            self.deliver().await?;
            if self.open.is_empty() && self.epoch.position == self.epoch.order.len() {
                return Ok(());
            }
            if self.may_open() {
                continue;
            }
            let idle = self.allocating.is_some() && self.events.len() == 1;
            tokio::select! {
                Some(event) = self.events.join_next() => self.take(event)?,
                () = self.shared.taken.notified() => {}
                () = tokio::time::sleep(WAIT_FOR_MEMORY), if idle => self.give_up(&self.source.host)?,
            }
        }
    }

    /// Gives up if the pool is full and no batch is under way: the program would wait for ever.
    fn give_up(&self, stream: &DeviceStream) -> Result<(), Stop> {
        if self.shared.ready.load(Ordering::Relaxed) > 0 || !self.shared.awaited.load(Ordering::Relaxed) {
            return Ok(());
        }
        stream.empty(self.source.recipe.dtype(), &self.shape(self.epoch.batch))?;
        Ok(())
    }

    fn shape(&self, samples: usize) -> [usize; 4] {
        let (height, width) = self.source.recipe.size;
        [samples, 3, height, width]
    }

    fn may_open(&self) -> bool {
        let ahead = self.open.len() + self.shared.ready.load(Ordering::Relaxed);
        self.epoch.position < self.epoch.order.len() && (ahead == 0 || ahead < self.epoch.ahead)
    }

    fn open_batches(&mut self) {
        while self.may_open() {
            let from = self.epoch.position;
            let to = (from + self.epoch.batch).min(self.epoch.order.len());
            self.open.push_back(Batch::new(self.epoch.order[from..to].to_vec(), to));
            self.epoch.position = to;
        }
    }

    /// Asks for the memory of the first batch that has none.
    fn allocate(&mut self) {
        if self.allocating.is_some() {
            return;
        }
        let Some(at) = self.open.iter().position(Batch::wants_memory) else { return };
        self.allocating = Some(self.first + at as u64);
        let shape = self.shape(self.open[at].samples.len());
        let (stream, dtype) = (self.source.host.clone(), self.source.recipe.dtype());
        self.events.spawn(async move { Event::Memory(stream.empty_when_free(dtype, &shape).await) });
    }

    fn take(&mut self, event: Result<Event, tokio::task::JoinError>) -> Result<(), Stop> {
        let event = event.map_err(|error| Stop::Other(format!("the loader's own task failed: {error}")))?;
        match event {
            Event::Memory(memory) => {
                let number = self.allocating.take();
                let at = number.and_then(|number| number.checked_sub(self.first)).unwrap_or(0) as usize;
                let memory = memory?;
                let workers = self.loads.iter().filter(|load| !load.gone).count();
                self.cut(at, memory, workers)
            }
            Event::Back(given, Ok(filled)) => {
                self.give_worker_back(&given);
                self.loads[given.worker].refusals = 0;
                self.source.times.lock().add(filled.times);
                self.batch(given.batch).took(filled.part, filled.broken);
                Ok(())
            }
            Event::Back(given, Err(AskError::NotSent(error))) => {
                self.give_worker_back(&given);
                let load = &mut self.loads[given.worker];
                load.refusals += 1;
                load.gone |= !error.reason.is_retryable() || load.refusals > 16;
                self.last_end = error.reason.to_string();
                let Fill { samples, part, .. } = error.message;
                // At the front, because its batch is needed before those in the queue.
                self.queue.push_front(Task { batch: given.batch, samples, part, alone: given.alone });
                Ok(())
            }
            Event::Back(given, Err(error)) => {
                self.give_worker_back(&given);
                self.last_end = error.to_string();
                tracing::warn!(
                    samples = given.indices.len(),
                    "a worker of a loader has lost its samples, which others are given again: {error}"
                );
                // Any of them may have killed the worker, so each is given out alone from now on.
                for index in &given.indices {
                    *self.deaths.entry(*index).or_default() += 1;
                }
                self.batch(given.batch).lost_part();
                Ok(())
            }
        }
    }

    fn give_worker_back(&mut self, given: &Given) {
        let load = &mut self.loads[given.worker];
        load.tasks -= 1;
        load.alone = false;
    }

    /// Returns an open batch. The batch of a task is open until the task has come back.
    fn batch(&mut self, number: u64) -> &mut Batch {
        &mut self.open[(number - self.first) as usize]
    }

    /// Cuts a batch's memory into tasks.
    fn cut(&mut self, at: usize, memory: TensorMut, workers: usize) -> Result<(), Stop> {
        let number = self.first + at as u64;
        let samples = self.open[at].samples.clone();
        let even = samples.len().div_ceil(workers.max(1) * TASKS_EACH);
        let most = even.clamp(1, MAX_TASK).max(samples.len().div_ceil(MOST_TASKS));
        let suspect = |index: &u32| self.deaths.get(index).copied().unwrap_or(0);
        let mut sizes: Vec<usize> = Vec::new();
        let mut open = false;
        for index in &samples {
            let alone = suspect(index) > 0;
            match sizes.last_mut() {
                Some(size) if open && !alone && *size < most => *size += 1,
                _ => sizes.push(1),
            }
            open = !alone;
        }
        let parts = memory.split(0, &sizes);
        let parts = parts.map_err(|error| Stop::Other(format!("a batch cannot be split: {}", error.why)))?;
        let mut tasks = Vec::new();
        let mut row = 0;
        for (part, size) in parts.into_iter().zip(sizes) {
            let indices = &samples[row..row + size];
            let deaths = suspect(&indices[0]);
            if deaths >= MAX_DEATHS {
                let why = format!("{deaths} workers have died over it; the last: {}", self.last_end);
                self.open[at].keeps(part, row, why);
            } else {
                let sample =
                    |index: &u32| Sample { index: *index, path: self.source.paths[*index as usize].clone() };
                let samples = indices.iter().map(sample).collect();
                tasks.push(Task { batch: number, samples, part, alone: deaths > 0 });
            }
            row += size;
        }
        self.open[at].is_given(tasks.len());
        // Before the tasks of later batches, which exist if this batch is made again.
        let later = self.queue.iter().position(|task| task.batch > number).unwrap_or(self.queue.len());
        let behind = self.queue.split_off(later);
        self.queue.extend(tasks);
        self.queue.extend(behind);
        Ok(())
    }

    /// Gives tasks to the workers that have least to do.
    fn dispatch(&mut self) -> Result<(), Stop> {
        while let Some(task) = self.queue.front() {
            let room = |load: &Load| {
                !load.gone && !load.alone && load.tasks < if task.alone { 1 } else { TASKS_EACH }
            };
            let free = self.loads.iter().enumerate().filter(|(_, load)| room(load));
            let Some((worker, _)) = free.min_by_key(|(_, load)| load.tasks) else { break };
            let Some(Task { batch, samples, part, alone }) = self.queue.pop_front() else { break };
            let load = &mut self.loads[worker];
            (load.tasks, load.alone) = (load.tasks + 1, alone);
            let indices = samples.iter().map(|sample| sample.index).collect();
            let given = Given { worker, batch, indices, alone };
            let (seed, epoch) = (self.epoch.seed, self.epoch.epoch);
            let ask = self.source.workers[worker].ask(Fill { seed, epoch, samples, part });
            self.events.spawn(async move { Event::Back(given, ask.await) });
        }
        if self.loads.iter().all(|load| load.gone) {
            return Err(Stop::Other(format!(
                "all workers of the loader have ended, and each is restarted at most {RESTARTS} times in a minute; the log says \
                 why each ended; the last: {}",
                self.last_end
            )));
        }
        Ok(())
    }

    /// Hands over complete batches, in order.
    async fn deliver(&mut self) -> Result<(), Stop> {
        while self.open.front().is_some_and(Batch::is_done) {
            let Some(mut batch) = self.open.pop_front() else { break };
            self.first += 1;
            let broken = batch.broken();
            if let Some(first) = broken.first().filter(|_| !self.epoch.skip) {
                return Err(Stop::Broken(first.clone()));
            }
            let position = batch.position;
            let (whole, indices) = batch.join(&self.source.host)?;
            let tensor = match (whole, &self.source.device) {
                (Some(whole), Some(device)) => Some(self.upload(device, whole).await?),
                (whole, _) => whole,
            };
            self.shared.ready.fetch_add(1, Ordering::Relaxed);
            // The training program may have stopped; then this ends soon.
            let _ = self.out.send(Ok(Ready { tensor, indices, broken, position }));
        }
        Ok(())
    }

    /// Copies a batch to the GPU. When this is done, the host's memory can be reused.
    async fn upload(&self, device: &DeviceStream, host: Tensor) -> Result<Tensor, Stop> {
        let mut on_device = loop {
            let memory = device.empty_when_free(host.dtype(), host.shape());
            match tokio::time::timeout(WAIT_FOR_MEMORY, memory).await {
                Ok(memory) => break memory?,
                Err(_) => self.give_up(device)?,
            }
        };
        match host.dtype() {
            tensorpost_core::tensor::DType::U8 => device.upload(&mut on_device, host.as_slice::<u8>()?)?,
            _ => device.upload(&mut on_device, host.as_slice::<f32>()?)?,
        }
        Ok(on_device.freeze())
    }
}
