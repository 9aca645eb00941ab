//! The parts that run in the workers: sources, stages and sinks that follow the spec, compare every tensor,
//! and log the items that they got.

use std::collections::{HashMap, VecDeque};
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tensorpost::pipeline::HeldItem;
use tensorpost::prelude::*;

use super::history::{Log, Past, Place, Step};
use super::plan::fail_times;
use super::spec::{Form, How, Source as SourceSpec, Stage as StageSpec, Work};
use super::thing::{Thing, Wrong, note_wrong};
use crate::pipes::spin;

/// A part's orders.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The part that they are for.
    pub place: Place,
    /// The folder in which all parts write.
    pub folder: PathBuf,
    /// The part's work.
    pub stage: StageSpec,
    /// How often it is called again after an error.
    pub retries: u32,
    /// The faults that end its process.
    pub faults: Vec<OrderedFault>,
}

/// An end of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderedFault {
    /// Its index in the spec's faults.
    pub fault: usize,
    /// Its process ends on the first item with this number or a later one.
    pub at: u64,
    /// The way to end.
    pub how: How,
    /// How often it happens.
    pub times: u32,
}

/// A part as it is in its process. On the way there only its orders travel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Orders", into = "Orders")]
pub struct Hand {
    orders: Orders,
    log: Log,
    failed: HashMap<Past, u32>,
    kept: VecDeque<Thing>,
}

impl From<Orders> for Hand {
    fn from(orders: Orders) -> Hand {
        Hand::new(orders)
    }
}

impl From<Hand> for Orders {
    fn from(hand: Hand) -> Orders {
        hand.orders
    }
}

impl Hand {
    /// Makes a part that has done nothing yet.
    pub fn new(orders: Orders) -> Hand {
        let log = Log::new(&orders.folder.join("log"), orders.place);
        Hand { orders, log, failed: HashMap::new(), kept: VecDeque::new() }
    }

    /// Begins work on an item: logs it, dies, takes its time or fails, as the orders say.
    ///
    /// # Errors
    /// The part was told to fail, or the log cannot be written.
    pub fn begin(&mut self, past: &Past, life: u32, stream: Option<&DeviceStream>) -> anyhow::Result<()> {
        let before = self.failed.get(past).copied().unwrap_or(0);
        if before == 0 {
            self.log.write(life, past)?;
            self.strike(past.number, stream);
            spin(Duration::from_micros(self.orders.stage.slow));
        }
        if before < fail_times(self.orders.stage.fails, past.number) {
            if before < self.orders.retries {
                self.failed.insert(past.clone(), before + 1);
            } else {
                self.failed.remove(past);
            }
            anyhow::bail!("told to fail on {past}, attempt {}", before + 1);
        }
        self.failed.remove(past);
        Ok(())
    }

    fn strike(&self, number: u64, stream: Option<&DeviceStream>) {
        let faults = self.orders.faults.iter().filter(|fault| number >= fault.at);
        for fault in faults {
            let mut marks =
                (0..fault.times).map(|n| self.orders.folder.join(format!("fault-{}-{n}", fault.fault)));
            let claim = |mark: PathBuf| OpenOptions::new().write(true).create_new(true).open(mark).is_ok();
            if marks.any(claim) {
                end(fault.how, self.orders.place, stream);
            }
        }
    }

    /// Does the work on an item's tensors.
    ///
    /// # Errors
    /// The tensors are lost with a process, or wrong.
    pub fn work(&mut self, mut thing: Thing, stream: Option<&DeviceStream>) -> anyhow::Result<Thing> {
        if let Some(stream) = stream {
            let done = match self.orders.stage.work {
                Work::Pass => Ok(()),
                Work::Check => thing.check(stream),
                Work::Add(more) => thing.add(more, stream, self.orders.stage.late),
                Work::Copy => thing.copy(stream).map_err(Into::into),
            };
            self.note(done)?;
        }
        if self.orders.stage.keeps {
            self.kept.push_back(thing.clone());
            if self.kept.len() > 3 {
                self.kept.pop_front();
            }
        }
        Ok(thing)
    }

    /// Compares an item's tensors, whatever the orders are.
    ///
    /// # Errors
    /// The tensors are lost with a process, or wrong.
    pub fn check(&self, thing: &Thing, stream: &DeviceStream) -> anyhow::Result<()> {
        self.note(thing.check(stream))
    }

    fn note<T>(&self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        if let Err(error) = &done
            && error.chain().any(|cause| cause.is::<Wrong>())
        {
            note_wrong(&self.orders.folder, &format!("at {}: {error:#}", self.orders.place));
        }
        done
    }

    /// Returns a step of the part's own.
    pub fn step(&self, copy: u16) -> Step {
        Step::At(self.orders.place.op, copy)
    }
}

fn end(how: How, place: Place, stream: Option<&DeviceStream>) {
    match how {
        How::Abort => std::process::abort(),
        How::Exit => std::process::exit(3),
        How::Panic => panic!("{place} was told to panic"),
        How::Late(millis) => {
            std::thread::sleep(Duration::from_millis(millis));
            std::process::abort();
        }
        How::InKernel(millis) => {
            let any = stream.and_then(|stream| Some((stream, stream.zeros(DType::U8, &[1]).ok()?.freeze())));
            let Some((stream, any)) = any else { std::process::abort() };
            let work = stream.run((any.of::<u8>(),), move |_| {
                std::thread::sleep(Duration::from_millis(millis));
                std::process::abort();
            });
            if work.is_err() {
                std::process::abort();
            }
        }
    }
}

/// The number of sources made in this process.
static LIVES: AtomicU32 = AtomicU32::new(0);

/// A source.
pub struct Maker {
    stream: DeviceStream,
    hand: Hand,
    args: SourceSpec,
    life: u32,
    next: u64,
}

impl Maker {
    /// Makes the source in its process.
    pub fn new((orders, args): (Orders, SourceSpec), env: &Env) -> Maker {
        // A source that panicked may be made anew in the same process.
        let life = std::process::id() << 8 | LIVES.fetch_add(1, Ordering::Relaxed) & 0xff;
        Maker { stream: env.stream(), hand: Hand::new(orders), args, life, next: 0 }
    }

    /// Makes the next item.
    ///
    /// # Errors
    /// The source was told to fail.
    pub fn make(&mut self) -> anyhow::Result<Option<Thing>> {
        if self.next >= self.args.count {
            return Ok(None);
        }
        if let Some(at) = self.args.fails.iter().position(|fails| *fails == self.next) {
            self.args.fails.remove(at);
            anyhow::bail!("told to fail before item {}", self.next);
        }
        let past = Past::new(self.hand.orders.place.op, self.next);
        let late = if self.next.is_multiple_of(5) { self.args.slow } else { 0 };
        let thing = Thing::make(self.args.tensors, past, self.life, &self.stream, late)?;
        spin(Duration::from_micros(self.args.slow));
        self.hand.begin(&thing.past, thing.life, Some(&self.stream))?;
        self.next += 1;
        Ok(Some(thing))
    }
}

impl Source for Maker {
    type Args = (Orders, SourceSpec);
    type Out = Thing;

    fn create(args: Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Maker::new(args, env))
    }

    fn next(&mut self) -> anyhow::Result<Option<Thing>> {
        self.make()
    }
}

/// The iterator of a source that is a closure.
impl Iterator for Maker {
    type Item = Thing;

    fn next(&mut self) -> Option<Thing> {
        // Such a source is not told to fail.
        self.make().unwrap_or_default()
    }
}

/// A stage that is a type.
pub struct Obedient {
    stream: DeviceStream,
    hand: Hand,
}

impl Stage for Obedient {
    type Args = Orders;
    type In = Thing;
    type Out = Thing;

    fn create(orders: Orders, env: &Env) -> anyhow::Result<Self> {
        Ok(Obedient { stream: env.stream(), hand: Hand::new(orders) })
    }

    fn process(&mut self, thing: Thing, out: &mut Out<Thing>) -> anyhow::Result<()> {
        self.hand.begin(&thing.past, thing.life, Some(&self.stream))?;
        let thing = self.hand.work(thing, Some(&self.stream))?;
        out.emit(thing.then(self.hand.step(0)));
        Ok(())
    }
}

/// A stage that keeps some items for a while.
pub struct Holder {
    stream: DeviceStream,
    hand: Hand,
    most: usize,
    held: Vec<(Thing, HeldItem)>,
    until: Option<Instant>,
}

/// The longest that it keeps an item.
const HOLDS_FOR: Duration = Duration::from_millis(5);

impl Holder {
    fn give(&mut self, out: &mut Out<Thing>) {
        self.until = None;
        for (thing, held) in self.held.drain(..) {
            out.emit_for(thing, [held]);
        }
    }
}

impl Stage for Holder {
    type Args = Orders;
    type In = Thing;
    type Out = Thing;

    fn create(orders: Orders, env: &Env) -> anyhow::Result<Self> {
        let Form::Hold(most) = orders.stage.form else { anyhow::bail!("it was not told how many") };
        let hand = Hand::new(orders);
        Ok(Holder { stream: env.stream(), hand, most: most as usize, held: Vec::new(), until: None })
    }

    fn process(&mut self, thing: Thing, out: &mut Out<Thing>) -> anyhow::Result<()> {
        self.hand.begin(&thing.past, thing.life, Some(&self.stream))?;
        let thing = self.hand.work(thing, Some(&self.stream))?;
        self.until.get_or_insert_with(|| Instant::now() + HOLDS_FOR);
        self.held.push((thing.then(self.hand.step(0)), out.hold()));
        if self.held.len() >= self.most {
            self.give(out);
        }
        Ok(())
    }

    fn wake_at(&self) -> Option<Instant> {
        self.until
    }

    fn wake(&mut self, out: &mut Out<Thing>) -> anyhow::Result<()> {
        self.give(out);
        Ok(())
    }

    fn finish(&mut self, out: &mut Out<Thing>) -> anyhow::Result<()> {
        self.give(out);
        Ok(())
    }
}

/// A sink that is a type.
pub struct Taker {
    stream: DeviceStream,
    hand: Hand,
}

impl Sink for Taker {
    type Args = Orders;
    type In = Thing;

    fn create(orders: Orders, env: &Env) -> anyhow::Result<Self> {
        Ok(Taker { stream: env.stream(), hand: Hand::new(orders) })
    }

    fn consume(&mut self, thing: Thing) -> anyhow::Result<()> {
        self.hand.begin(&thing.past, thing.life, Some(&self.stream))?;
        self.hand.check(&thing, &self.stream)
    }
}
