//! What travels: frames through the pipeline, weights to the detectors, what they find to the tracker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tensorpost::observe::monotonic_ns;
use tensorpost::prelude::*;
use tensorpost_actors::ready::carrier;

/// Which frame it is, and when the camera took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) frame: u64,
    /// On the clock that all processes share.
    taken: u64,
}

impl Stamp {
    pub(crate) fn now(frame: u64) -> Self {
        Stamp { frame, taken: monotonic_ns() }
    }

    /// Returns how old the frame is.
    pub(crate) fn age(self) -> Duration {
        Duration::from_nanos(monotonic_ns().saturating_sub(self.taken))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}", self.frame)
    }
}

/// A frame: bytes `[height, width, 3]` from the camera, planes of floats `[3, height, width]` behind the
/// resize.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Frame {
    pub(crate) stamp: Stamp,
    pub(crate) pixels: Tensor,
}

carrier!(Frame { stamp: Stamp, pixels });

/// Where something moves: the first and the last column and row, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) left: f32,
    pub(crate) top: f32,
    pub(crate) right: f32,
    pub(crate) bottom: f32,
}

impl Region {
    pub(crate) fn centre(&self) -> (f32, f32) {
        ((self.left + self.right) / 2.0, (self.top + self.bottom) / 2.0)
    }
}

/// What a detector found in a frame.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Found {
    pub(crate) stamp: Stamp,
    pub(crate) regions: Vec<Region>,
    /// The version of the weights that it was found with.
    pub(crate) weights: u64,
    /// Who found it: a detector's name, and which of its lives.
    pub(crate) by: (String, u32),
    /// The frame, as the detector saw it.
    pub(crate) pixels: Tensor,
}

/// What the detectors find with.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Weights {
    /// How much each colour counts.
    #[tensor(dtype = f32, shape = [3])]
    pub(crate) colours: Tensor,
    /// From which score on a cell of the frame belongs to something.
    pub(crate) threshold: f32,
}

/// What the tracker knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Scene {
    /// The last frame.
    pub(crate) frame: u64,
    /// All frames so far.
    pub(crate) frames: u64,
    /// Each life of each detector: `detect.0, life 1`.
    pub(crate) detectors: BTreeMap<String, Detector>,
    pub(crate) tracks: Vec<Track>,
}

/// What a life of a detector has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detector {
    /// The frames that it has examined.
    pub(crate) frames: u64,
    /// The version of the weights that it had for the last of them.
    pub(crate) weights: u64,
}

/// Something that moves, over several frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Track {
    pub(crate) id: u64,
    /// How many frames it was seen in.
    pub(crate) seen: u64,
    pub(crate) last_seen: u64,
    pub(crate) region: Region,
}
