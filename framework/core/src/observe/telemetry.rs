//! The program's own layer in a worker's subscriber, beside the layer that forwards the log: for
//! OpenTelemetry, for example.

use tracing_subscriber::{Layer, Registry};

/// A layer for the `tracing` subscriber of a worker, and a function to call when the worker ends. See
/// [`NodeBuilder::worker_telemetry`](crate::node::NodeBuilder::worker_telemetry).
pub struct Telemetry {
    pub(crate) layer: Box<dyn Layer<Registry> + Send + Sync>,
    pub(crate) at_end: Option<Box<dyn FnOnce() + Send>>,
}

impl Telemetry {
    /// Makes telemetry from a layer.
    pub fn new(layer: impl Layer<Registry> + Send + Sync) -> Self {
        Telemetry { layer: Box::new(layer), at_end: None }
    }

    /// Adds a function that a worker calls last if it ends cleanly, to send the data that an exporter has
    /// kept until then. A worker that is killed or panics does not call it.
    #[must_use]
    pub fn at_end(mut self, call: impl FnOnce() + Send + 'static) -> Self {
        self.at_end = Some(Box::new(call));
        self
    }
}
