//! What travels between the stages.

use std::fmt;

use serde::{Deserialize, Serialize};
use tensorpost::node::Spawned;
use tensorpost::prelude::{Address, GpuMessage, Handler, RemoteActor, Tensor};

use crate::image::stats::Stats;

/// A decoded photograph.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Frame {
    /// Its number, counted from 0. Numbers of skipped files are left out.
    pub id: u64,
    /// The file's name, without its folder.
    pub name: String,
    /// HWC bytes: `[height, width, 3]`.
    #[tensor(dtype = u8, shape = [_, _, 3])]
    pub pixels: Tensor,
}

/// A resized and normalised image.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Planes {
    /// The frame's number.
    pub id: u64,
    /// The file's name.
    pub name: String,
    /// CHW floats: `[3, height, width]`.
    #[tensor(dtype = f32, shape = [3, _, _])]
    pub pixels: Tensor,
}

/// The edges of an image.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Edges {
    /// The frame's number.
    pub id: u64,
    /// The file's name.
    pub name: String,
    /// Magnitudes: `[height, width]`.
    #[tensor(dtype = f32, shape = [_, _])]
    pub magnitude: Tensor,
}

/// Behind the last frame.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct End {
    /// Frames that the source sent.
    pub frames: u64,
    /// The stages that the end has passed, in order.
    pub stages: Vec<StageReport>,
}

/// What a stage did, from its start to the end of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// What the stage does.
    pub stage: String,
    /// Its actor's name.
    pub name: String,
    /// The process it ran in.
    pub pid: u32,
    /// Frames it worked on.
    pub frames: u64,
    /// Time in its host kernels, in microseconds.
    pub total_us: u64,
    /// The longest of them, in microseconds.
    pub max_us: u64,
    /// Time until there was memory and until the next stage had accepted, in microseconds.
    pub waiting_us: u64,
    /// Frames whose result lies in the memory that they came in.
    pub in_place: u64,
    /// Bytes of tensor memory that its process handed over as leases.
    pub bytes_not_copied: u64,
    /// The first thing that went wrong.
    pub failure: Option<Failure>,
}

/// Something that a stage could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the stage does.
    pub stage: String,
    /// The frame it was at, if it was at one.
    pub frame: Option<u64>,
    /// What happened, and with which file.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame {
            Some(frame) => write!(f, "{} failed at frame {frame}: {}", self.stage, self.why),
            None => write!(f, "{} failed: {}", self.stage, self.why),
        }
    }
}

impl std::error::Error for Failure {}

/// A frame that was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// The frame's number.
    pub id: u64,
    /// The photograph's name.
    pub name: String,
    /// The file that was written, in the sink's folder.
    pub file: String,
    /// Of the edges' magnitudes.
    pub stats: Stats,
}

/// A frame that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The frame's number.
    pub id: u64,
    /// Why; names the file.
    pub why: String,
}

/// What a pipeline tells the program.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub enum Event {
    /// A frame is done.
    Written(Written),
    /// A file could not be decoded and was left out, as the source was told to.
    Skipped(Skipped),
    /// A stage failed. The end still comes.
    Failed(Failure),
    /// Everything is written; nothing comes after this.
    Finished(End),
}

/// The address of a stage, for items of type `M` and for their end. Both take the same way, so the end stays behind.
#[derive(Serialize, Deserialize)]
#[serde(bound = "M: GpuMessage")]
pub struct Next<M: GpuMessage> {
    /// For the items.
    pub item: Address<M>,
    /// For the end.
    pub end: Address<End>,
}

impl<M: GpuMessage> Next<M> {
    /// The address of `stage`.
    pub fn to<A: RemoteActor + Handler<M> + Handler<End>>(stage: &Spawned<A>) -> Self {
        Next { item: stage.address(), end: stage.address() }
    }
}

impl<M: GpuMessage> Clone for Next<M> {
    fn clone(&self) -> Self {
        Next { item: self.item.clone(), end: self.end.clone() }
    }
}

impl<M: GpuMessage> fmt::Debug for Next<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({:?})", self.item)
    }
}
