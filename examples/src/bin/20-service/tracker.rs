//! The actor at the end of the pipeline: it knows what moves where, and answers questions about it.

use tensorpost::observe::Histogram;
use tensorpost::prelude::*;

use crate::messages::{Found, Region, Scene, Track};

/// A track that was not seen for this many frames is forgotten.
const FORGOTTEN_AFTER: u64 = 25;

/// The largest distance that a thing moves between two frames, as a share of the frame.
const REACH: f32 = 0.3;

#[derive(Default)]
pub(crate) struct Tracker {
    scene: Scene,
    next_track: u64,
    last: Option<Tensor>,
    latency: Histogram,
}

#[actor]
impl Tracker {
    #[handler]
    fn found(&mut self, found: Found) {
        self.latency.note(found.stamp.age());
        metrics::histogram!("latency_seconds").record(found.stamp.age());
        self.scene.frame = found.stamp.frame;
        self.scene.frames += 1;
        let (name, life) = found.by;
        let detector = self.scene.detectors.entry(format!("{name}, life {life}")).or_default();
        (detector.frames, detector.weights) = (detector.frames + 1, found.weights);
        for region in found.regions {
            self.follow(region, found.stamp.frame);
        }
        self.scene.tracks.retain(|track| track.last_seen + FORGOTTEN_AFTER > found.stamp.frame);
        self.last = Some(found.pixels);
    }

    /// "What is there now?"
    #[handler(message = Look)]
    pub(crate) fn look(&self) -> Scene {
        self.scene.clone()
    }

    /// "The last frame, please."
    #[handler(message = LastFrame)]
    pub(crate) fn last(&self) -> Option<Tensor> {
        self.last.clone()
    }

    /// "How long did it take from the camera to you?"
    #[handler(message = Latency)]
    pub(crate) fn latency(&self) -> Histogram {
        self.latency.clone()
    }

    /// Moves the nearest track that was not seen in this frame yet to the region, or begins a new track.
    fn follow(&mut self, region: Region, frame: u64) {
        let distance = |track: &Track| {
            let ((x, y), (to_x, to_y)) = (track.region.centre(), region.centre());
            (x - to_x).hypot(y - to_y)
        };
        let waiting = self.scene.tracks.iter_mut().filter(|track| track.last_seen < frame);
        let nearest = waiting.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        if let Some(track) = nearest.filter(|track| distance(track) < REACH) {
            (track.seen, track.last_seen, track.region) = (track.seen + 1, frame, region);
        } else {
            self.scene.tracks.push(Track { id: self.next_track, seen: 1, last_seen: frame, region });
            self.next_track += 1;
        }
    }
}
