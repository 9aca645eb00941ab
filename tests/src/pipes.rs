//! Parts of pipelines to test with: a source that counts, a stage that follows orders, a sink that writes
//! down the items that it got.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorpost::pipeline::{AfterStage, Gather, Progress, Snapshot, gather_tensors};
use tensorpost::prelude::*;

use crate::gate::Door;
use crate::wait::numbers;

/// An item.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Numbered {
    /// Its place in the source's count.
    pub number: u64,
    /// A tensor with the number in every element, where there is one.
    pub tensor: Option<Tensor>,
}

/// Several items, with their tensors as one.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Rows {
    /// Their numbers.
    pub numbers: Vec<u64>,
    /// A tensor with a row for each item.
    #[tensor(dtype = u32, shape = [_, 4])]
    pub rows: Tensor,
}

impl Gather for Numbered {
    type Gathered = Rows;

    fn gather(items: Vec<Numbered>, stream: &DeviceStream) -> anyhow::Result<Rows> {
        let rows = gather_tensors(stream, items.iter().filter_map(|item| item.tensor.as_ref()))?;
        Ok(Rows { numbers: items.iter().map(|item| item.number).collect(), rows })
    }
}

/// A source of the numbers from 0 on.
pub struct Count {
    stream: DeviceStream,
    args: CountArgs,
    next: u64,
}

/// The work of a [`Count`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CountArgs {
    /// How many items it makes; without a number it never stops.
    pub count: Option<u64>,
    /// Elements of the tensor in each item.
    pub elements: usize,
    /// Numbers at which it returns an error once.
    pub fails: Vec<u64>,
    /// A number on which its process dies, unless the file already exists. The source makes the file first.
    pub dies_once: Option<(u64, PathBuf)>,
    /// A number that it makes only once it has passed a door.
    pub door: Option<(u64, Door)>,
}

impl CountArgs {
    /// Makes this many items, with a small tensor each.
    pub fn to(count: u64) -> Self {
        CountArgs { count: Some(count), elements: 4, fails: Vec::new(), dies_once: None, door: None }
    }

    /// Makes items until it is stopped.
    pub fn endless() -> Self {
        CountArgs { count: None, ..CountArgs::to(0) }
    }
}

impl Source for Count {
    type Args = CountArgs;
    type Out = Numbered;

    fn create(args: CountArgs, env: &Env) -> anyhow::Result<Self> {
        Ok(Count { stream: env.stream(), args, next: 0 })
    }

    fn next(&mut self) -> anyhow::Result<Option<Numbered>> {
        let number = self.next;
        if self.args.count.is_some_and(|count| number >= count) {
            return Ok(None);
        }
        if let Some(at) = self.args.fails.iter().position(|fails| *fails == number) {
            self.args.fails.remove(at);
            anyhow::bail!("no {number} yet");
        }
        die_once(&self.args.dies_once, number);
        if let Some((_, door)) = self.args.door.as_ref().filter(|(at, _)| *at == number) {
            door.pass()?;
        }
        self.next += 1;
        let elements = self.args.elements;
        let tensor = (elements > 0).then(|| numbers(&self.stream, number as u32, elements));
        Ok(Some(Numbered { number, tensor }))
    }
}

/// A stage that follows orders.
pub struct Obey {
    orders: Orders,
    tried: HashMap<u64, u32>,
    held: Vec<Numbered>,
}

/// The orders, by number.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Orders {
    /// Numbers on which it fails, and how often.
    pub fails: HashMap<u64, u32>,
    /// A number on which its process dies.
    pub dies: Option<u64>,
    /// A number on which its process dies, unless the file already exists. The stage makes the file first.
    pub dies_once: Option<(u64, PathBuf)>,
    /// A number on which it panics.
    pub panics: Option<u64>,
    /// A number at which it waits at a door.
    pub door: Option<(u64, Door)>,
    /// Whether it takes its time, more or less by number.
    pub dawdles: bool,
    /// Whether it keeps all items until the end, and then emits them from the last to the first.
    pub reverses: bool,
    /// How often it emits each item; once without a number.
    pub copies: Option<u64>,
}

impl Stage for Obey {
    type Args = Orders;
    type In = Numbered;
    type Out = Numbered;

    fn create(orders: Orders, _: &Env) -> anyhow::Result<Self> {
        Ok(Obey { orders, tried: HashMap::new(), held: Vec::new() })
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        let number = item.number;
        let tried = self.tried.entry(number).or_default();
        *tried += 1;
        if self.orders.dies == Some(number) {
            std::process::abort();
        }
        die_once(&self.orders.dies_once, number);
        assert!(self.orders.panics != Some(number), "told to panic on {number}");
        if let Some((at, door)) = &self.orders.door
            && *at == number
        {
            door.pass()?;
        }
        if self.orders.dawdles {
            // Some items take 40 times as long as others.
            spin(Duration::from_micros(5 + 195 * u64::from(number.is_multiple_of(7))));
        }
        if *tried <= self.orders.fails.get(&number).copied().unwrap_or(0) {
            out.emit(item);
            anyhow::bail!("told to fail on {number}, attempt {tried}");
        }
        if self.orders.reverses {
            self.held.push(item);
            return Ok(());
        }
        for _ in 0..self.orders.copies.map_or(1, |copies| number % (copies + 1)) {
            out.emit(item.clone());
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        self.held.drain(..).rev().for_each(|item| out.emit(item));
        Ok(())
    }
}

/// A stage that makes its results on its stream. From one item on the stream waits at a door, so the results
/// for this item and for later ones are not ready yet when the next stage gets them.
pub struct Late {
    stream: DeviceStream,
    args: LateArgs,
}

/// The item at which it is late.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LateArgs {
    /// The item, the door, and a file. The stage is late only where the file did not exist, and makes it.
    pub at: Option<(u64, Door, PathBuf)>,
}

impl Stage for Late {
    type Args = LateArgs;
    type In = Numbered;
    type Out = Numbered;

    fn create(args: LateArgs, env: &Env) -> anyhow::Result<Self> {
        Ok(Late { stream: env.stream(), args })
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if let Some((at, door, mark)) = &self.args.at
            && *at == item.number
            && is_first(mark)
        {
            let (any, door) = (self.stream.empty(DType::U8, &[1])?.freeze(), door.clone());
            self.stream.run((any.of::<u8>(),), move |_| drop(door.pass()))?;
        }
        let tensor = item.tensor.map(|tensor| self.stream.copy(&tensor)).transpose()?;
        out.emit(Numbered { number: item.number, tensor: tensor.map(TensorMut::freeze) });
        Ok(())
    }
}

/// Spins for a while.
pub fn spin(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// A sink that writes the numbers of its items into a file, a line each, and checks the tensors.
pub struct WriteDown {
    args: WriteDownArgs,
    lines: String,
}

/// The file, and when it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WriteDownArgs {
    /// The file, written at the end.
    pub file: PathBuf,
    /// Written with each item instead.
    pub at_once: bool,
    /// A number at which it waits at a door, or [its end](Self::AT_ITS_END).
    pub door: Option<(u64, Door)>,
    /// A number on which its process dies, unless the file already exists. The sink makes the file first.
    pub dies_once: Option<(u64, PathBuf)>,
}

impl WriteDownArgs {
    /// The end, when all items have come.
    pub const AT_ITS_END: u64 = u64::MAX;

    /// Writes into this file.
    pub fn to(file: impl AsRef<Path>) -> Self {
        WriteDownArgs { file: file.as_ref().to_owned(), ..WriteDownArgs::default() }
    }
}

impl Sink for WriteDown {
    type Args = WriteDownArgs;
    type In = Numbered;

    fn create(args: WriteDownArgs, _: &Env) -> anyhow::Result<Self> {
        Ok(WriteDown { args, lines: String::new() })
    }

    fn consume(&mut self, item: Numbered) -> anyhow::Result<()> {
        if let Some(tensor) = &item.tensor {
            let expected: Vec<_> = (item.number as u32..).take(tensor.len()).collect();
            anyhow::ensure!(tensor.to_vec::<u32>()? == expected, "the tensor of {} is another", item.number);
        }
        if let Some((at, door)) = &self.args.door
            && *at == item.number
        {
            door.pass()?;
        }
        die_once(&self.args.dies_once, item.number);
        self.lines += &format!("{}\n", item.number);
        if self.args.at_once { self.write() } else { Ok(()) }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        if let Some((WriteDownArgs::AT_ITS_END, door)) = &self.args.door {
            door.pass()?;
        }
        self.write()
    }
}

impl WriteDown {
    fn write(&mut self) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.args.file)?;
        Ok(file.write_all(std::mem::take(&mut self.lines).as_bytes())?)
    }
}

fn die_once(at: &Option<(u64, PathBuf)>, number: u64) {
    if let Some((at, mark)) = at
        && *at == number
        && is_first(mark)
    {
        std::process::abort();
    }
}

fn is_first(mark: &Path) -> bool {
    OpenOptions::new().write(true).create_new(true).open(mark).is_ok()
}

/// Returns the numbers that [`WriteDown`] wrote.
pub fn written(file: impl AsRef<Path>) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// Returns the numbers of [`written`], sorted.
pub fn written_sorted(file: impl AsRef<Path>) -> Vec<u64> {
    let mut numbers = written(file);
    numbers.sort_unstable();
    numbers
}

/// Has a pipeline report its progress. Also returns a function that says how many items a stage has had.
pub fn watch(pipeline: Pipeline) -> (Pipeline, impl Fn(&str) -> u64) {
    let seen: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let told = Arc::clone(&seen);
    let tell = move |snapshot: &Snapshot| {
        let items = snapshot.stages.iter().map(|stage| (stage.stage.clone(), stage.items));
        *told.lock() = items.collect();
    };
    let pipeline = pipeline.progress(Progress::to(tell)).progress_every(Duration::from_millis(10));
    (pipeline, move |stage| seen.lock().get(stage).copied().unwrap_or(0))
}

/// Has a pipeline report its progress. Also returns a function that gives the last report.
pub fn watched(pipeline: Pipeline) -> (Pipeline, impl Fn() -> Snapshot) {
    let seen: Arc<Mutex<Snapshot>> = Arc::default();
    let told = Arc::clone(&seen);
    let tell = move |snapshot: &Snapshot| *told.lock() = snapshot.clone();
    let pipeline = pipeline.progress(Progress::to(tell)).progress_every(Duration::from_millis(10));
    (pipeline, move || seen.lock().clone())
}

/// Returns the number of replicas of a stage, and of the items that it has had.
pub fn of(snapshot: &Snapshot, name: &str) -> (u32, u64) {
    let stage = snapshot.stages.iter().find(|stage| stage.stage == name);
    stage.map_or((0, 0), |stage| (stage.replicas, stage.items))
}

/// Maps the numbers of the items with a function that captures nothing.
pub fn map_numbers<At>(
    flow: Flow<Numbered, At>,
    name: &str,
    map: impl Fn(u64) -> u64 + Copy + Send + Sync + 'static,
) -> Flow<Numbered, AfterStage<Numbered>> {
    flow.map(name, move |item| Ok(Numbered { number: map(item.number), ..item }))
}

/// Adds a million with a closure of this crate.
pub fn plus_a_million<At>(flow: Flow<Numbered, At>) -> Flow<Numbered, AfterStage<Numbered>> {
    map_numbers(flow, "a million", |number| number + 1_000_000)
}

/// A stage whose calls take long until a file is there.
pub struct Slow(PathBuf);

impl Stage for Slow {
    type Args = PathBuf;
    type In = Numbered;
    type Out = Numbered;

    fn create(fast: PathBuf, _: &Env) -> anyhow::Result<Self> {
        Ok(Slow(fast))
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        if !self.0.exists() {
            // The sleep is the duration of the call; nothing is waited for.
            std::thread::sleep(Duration::from_millis(10));
        }
        out.emit(item);
        Ok(())
    }
}
