//! What a worker's subscriber has beside the layer that forwards its log: the program's own, for
//! OpenTelemetry for example.

use tracing_subscriber::{Layer, Registry};

/// A layer for the `tracing` subscriber of a worker, and what is to be done when the worker ends. See
/// [`NodeBuilder::worker_telemetry`](crate::node::NodeBuilder::worker_telemetry).
pub struct Telemetry {
    pub(crate) layer: Box<dyn Layer<Registry> + Send + Sync>,
    pub(crate) at_end: Option<Box<dyn FnOnce() + Send>>,
}

impl Telemetry {
    /// A layer.
    pub fn new(layer: impl Layer<Registry> + Send + Sync) -> Self {
        Telemetry { layer: Box::new(layer), at_end: None }
    }

    /// Has a worker that ends in order call this at last: to send what an exporter has kept until then. A
    /// worker that is killed, or panics, does not.
    #[must_use]
    pub fn at_end(mut self, call: impl FnOnce() + Send + 'static) -> Self {
        self.at_end = Some(Box::new(call));
        self
    }
}
