//! A worker of a loader: an actor that reads, decodes and transforms files, and writes each into its place in
//! a batch.
//!
//! The place is a part of a tensor in the pool of the training process, so a sample is written once, where it
//! is used. The worker has no memory of its own for batches, and no state: its tasks can be given to another
//! worker.
//!
//! **The process** is an interpreter without the package (`rust_workers`), which starts in milliseconds.
//!
//! **A broken file** is named in the reply, and its place is filled with zeros. A file on which the decoder
//! panics counts as broken.

use std::ffi::OsStr;
use std::fs::{FileType, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Env, Handles, RemoteActor, WorkerProgram};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::tensor::{DType, TensorPart};

use actix::{Actor, Context, Handler, MessageResult};

use super::decode::{Decoder, Rgb};
use super::limits::MAX_FILE;
use super::random::Random;
use super::steps::{Rows, Step, Table, Transformer, table};
use crate::rust_workers;

/// The steps and settings that make samples of files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recipe {
    pub(super) steps: Vec<Step>,
    /// Rows and columns.
    pub(super) size: (usize, usize),
    /// Whether samples are floats; otherwise they are bytes.
    pub(super) floats: bool,
    /// Means and standard deviations of the channels, to normalise floats.
    pub(super) normalise: Option<([f32; 3], [f32; 3])>,
}

impl Recipe {
    pub(super) fn dtype(&self) -> DType {
        if self.floats { DType::F32 } else { DType::U8 }
    }

    /// Returns the elements of a sample.
    fn elements(&self) -> usize {
        3 * self.size.0 * self.size.1
    }
}

/// The parameters with which a worker is started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) interpreter: String,
    /// The file of this extension.
    pub(super) library: String,
    pub(super) recipe: Recipe,
}

/// One file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) index: u32,
    pub(super) path: Vec<u8>,
}

/// "Write these into your part of the batch." The part comes back.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, reply = Filled)]
pub(super) struct Fill {
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) part: TensorPart,
}

/// The reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Filled {
    pub(super) part: TensorPart,
    /// The broken samples, counted from 0, and their errors.
    pub(super) broken: Vec<(u32, String)>,
    pub(super) times: Times,
}

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) read: u64,
    pub(super) decode: u64,
    pub(super) transform: u64,
    pub(super) write: u64,
}

impl Times {
    /// Adds the times that a worker has reported, without overflow.
    pub(super) fn add(&mut self, other: Times) {
        let Times { read, decode, transform, write } = self;
        let others = [other.read, other.decode, other.transform, other.write];
        for (own, other) in [read, decode, transform, write].into_iter().zip(others) {
            *own = own.saturating_add(other);
        }
    }
}

/// See the module.
pub(super) struct Worker {
    recipe: Recipe,
    table: Arc<Table>,
    file: Vec<u8>,
    decoder: Decoder,
    image: Rgb,
    transformer: Transformer,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

impl RemoteActor for Worker {
    type Args = Start;

    fn create(start: Start, _: &Env) -> anyhow::Result<Self> {
        let recipe = start.recipe;
        Ok(Worker {
            table: Arc::new(table(recipe.normalise)),
            recipe,
            file: Vec::new(),
            decoder: Decoder::default(),
            image: Rgb::default(),
            transformer: Transformer::default(),
        })
    }

    fn worker_program(start: &Start) -> Option<WorkerProgram> {
        Some(rust_workers::worker(&start.interpreter, &start.library, Vec::new()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Fill>();
    }
}

impl Handler<Fill> for Worker {
    type Result = MessageResult<Fill>;

    fn handle(&mut self, fill: Fill, _: &mut Context<Self>) -> Self::Result {
        let Fill { seed, epoch, samples, mut part } = fill;
        let (mut broken, mut times) = (Vec::new(), Times::default());
        // The part may differ from what its sender says: if it does not fit, that is reported, and does no
        // harm.
        let whole = if self.recipe.floats {
            let table = Arc::clone(&self.table);
            let value = |channel: usize, byte: u8| table[channel][usize::from(byte)];
            self.fill(&samples, (seed, epoch), &mut part, value, &mut broken, &mut times)
        } else {
            self.fill(&samples, (seed, epoch), &mut part, |_, byte| byte, &mut broken, &mut times)
        };
        if let Err(why) = whole {
            broken = (0..samples.len() as u32).map(|row| (row, why.clone())).collect();
        }
        MessageResult(Filled { part, broken, times })
    }
}

fn is_a_file(kind: FileType) -> std::io::Result<()> {
    let name = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_dir() => "a folder",
        _ => "a device",
    };
    Err(std::io::Error::other(format!("it is {name}, and no file")))
}

impl Worker {
    fn fill<T: tensorpost_core::tensor::Element + Default>(
        &mut self,
        samples: &[Sample],
        (seed, epoch): (u64, u64),
        part: &mut TensorPart,
        value: impl Fn(usize, u8) -> T,
        broken: &mut Vec<(u32, String)>,
        times: &mut Times,
    ) -> Result<(), String> {
        let elements = self.recipe.elements();
        let mut view = part.elements_mut::<T>().map_err(|error| error.to_string())?;
        let mut runs = view.runs_mut();
        let out = runs.next().filter(|run| run.len() == elements * samples.len());
        let out =
            out.ok_or("the batch has no room for it: the loader and its worker are not of the same mind")?;
        for (row, (sample, place)) in samples.iter().zip(out.chunks_exact_mut(elements)).enumerate() {
            let random = Random::of_sample(seed, epoch, sample.index.into());
            let tried = catch_unwind(AssertUnwindSafe(|| self.sample(sample, random, place, &value, times)));
            let outcome = tried.unwrap_or_else(|_| {
                // Their state after the panic is unknown, so they are made anew.
                (self.decoder, self.transformer) = (Decoder::default(), Transformer::default());
                Err("its decoder panicked; the log says where".to_owned())
            });
            if let Err(why) = outcome {
                place.fill(T::default());
                broken.push((row as u32, why));
            }
        }
        Ok(())
    }

    fn sample<T>(
        &mut self,
        sample: &Sample,
        random: Random,
        place: &mut [T],
        value: impl Fn(usize, u8) -> T,
        times: &mut Times,
    ) -> Result<(), String> {
        let began = Instant::now();
        self.read(&sample.path).map_err(|error| format!("it cannot be read: {error}"))?;
        let read = Instant::now();
        self.decoder.decode(&self.file, &mut self.image)?;
        let decoded = Instant::now();
        let (size, mut transformed, mut fits) = (self.recipe.size, decoded, true);
        self.transformer.run(&self.image, &self.recipe.steps, random, |rows: &Rows<'_>| {
            transformed = Instant::now();
            fits = rows.size() == size;
            if fits {
                rows.planes(place, &value);
            }
        })?;
        if !fits {
            return Err("its transforms end in another size than those of other samples".to_owned());
        }
        let nanoseconds = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as u64;
        times.read += nanoseconds(began, read);
        times.decode += nanoseconds(read, decoded);
        times.transform += nanoseconds(decoded, transformed);
        times.write += nanoseconds(transformed, Instant::now());
        Ok(())
    }

    fn read(&mut self, path: &[u8]) -> std::io::Result<()> {
        self.file.clear();
        let path = OsStr::from_bytes(path);
        is_a_file(std::fs::metadata(path)?.file_type())?;
        // Another file may stand in its place by now, such as a named pipe without a writer.
        let open = |how| OpenOptions::new().read(true).custom_flags(how).open(path);
        let file = match open(libc::O_NONBLOCK | libc::O_NOCTTY) {
            // Another process has a lease on the file, and the blocking open waits until it gives it back.
            Err(error) if error.kind() == ErrorKind::WouldBlock => open(libc::O_NOCTTY),
            opened => opened,
        }?;
        let known = file.metadata()?;
        is_a_file(known.file_type())?;
        let bytes = known.len();
        if bytes > MAX_FILE {
            return Err(std::io::Error::other(format!(
                "it has {bytes} bytes, and at most {MAX_FILE} are read; make it smaller"
            )));
        }
        self.file.reserve(bytes as usize);
        file.take(MAX_FILE).read_to_end(&mut self.file)?;
        Ok(())
    }
}
