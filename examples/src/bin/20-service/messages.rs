//! The messages: frames through the pipeline, weights to the detectors, and detections to the tracker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tensorpost::observe::monotonic_ns;
use tensorpost::prelude::*;
use tensorpost_actors::ready::carrier;

/// The number of a frame, and the time when the camera took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) frame: u64,
    /// The time on the clock that all processes share.
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

/// A frame: bytes `[height, width, 3]` from the camera, or planes of floats `[3, height, width]` behind the
/// resize.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Frame {
    pub(crate) stamp: Stamp,
    pub(crate) pixels: Tensor,
}

carrier!(Frame { stamp: Stamp, pixels });

/// A place where something moves: the first and the last column and row, 0 to 1.
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

/// The detections of one detector in a frame.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Found {
    pub(crate) stamp: Stamp,
    pub(crate) regions: Vec<Region>,
    /// The version of the weights that the detector used.
    pub(crate) weights: u64,
    /// The detector: its name, and the number of its life.
    pub(crate) by: (String, u32),
    /// The frame, as the detector saw it.
    pub(crate) pixels: Tensor,
}

/// The weights of the detectors.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub(crate) struct Weights {
    /// The weight of each colour.
    #[tensor(dtype = f32, shape = [3])]
    pub(crate) colours: Tensor,
    /// The score from which on a cell of the frame belongs to a moving thing.
    pub(crate) threshold: f32,
}

/// The knowledge of the tracker.
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

/// The work of one life of a detector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detector {
    /// The frames that it has examined.
    pub(crate) frames: u64,
    /// The version of the weights that it had for the last frame.
    pub(crate) weights: u64,
}

/// Something that moves, over several frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Track {
    pub(crate) id: u64,
    /// The number of frames that it was seen in.
    pub(crate) seen: u64,
    pub(crate) last_seen: u64,
    pub(crate) region: Region,
}
