//! The stages of an image pipeline, as actors that each run in a process of their own.
//!
//! Each stage works on the device that its actor is started on (`.device(Device::cuda(0)?)`), with the same result, see
//! [`ops`](crate::ops); all of one pipeline have to be on one device.
//!
//! ```text
//! ImageSource --Frame--> Resize --Planes--> EdgeFilter --Edges--> PngSink --Event--> the program
//!   decodes              and normalises     in place              writes, measures
//! ```
//!
//! **Order.** Frames leave a stage in the order in which they came. **Backpressure.** A stage is done with a frame when
//! the next one has accepted what became of it, and only then has its sender the credit back. So a mailbox of `n`
//! messages bounds what waits before each stage, the source included. **Ahead of the data.** A stage puts its work on its
//! stream and sends the result on at once; the next stage's stream waits for it. **The end.** Behind the last frame comes
//! an [`End`]; each stage adds its [`StageReport`] to it.
//!
//! **On a failure** a stage says so in an [`Event`] and in its report, drops what still comes, and passes the end on.
//! **On a shutdown of the node** the source stops after the frame it is at; the rest is done and reported as always.
//! **On the death of a stage's process** the one before it reports that nothing can be sent on.
//!
//! Read in this order: [`messages`], [`meter`], then the stages [`decode`], [`resize`], [`edge`] and [`sink`], and
//! [`reference`](mod@reference), which is the same computation without any of this.

pub mod decode;
pub mod edge;
pub mod messages;
pub mod meter;
pub mod reference;
pub mod resize;
pub mod sink;

pub use decode::{ImageSource, ImageSourceArgs, Produce};
pub use edge::{EdgeFilter, EdgeFilterArgs};
pub use messages::{Edges, End, Event, Failure, Frame, Next, Planes, Skipped, StageReport, Written};
pub use meter::Meter;
pub use reference::{Reference, edge_gain, reference};
pub use resize::{Resize, ResizeArgs};
pub use sink::{PngSink, PngSinkArgs, STATISTICS};

use std::fmt::Display;
use std::time::Instant;

use tensorpost::prelude::*;

/// Messages that a stage's mailbox should hold: one that is worked on, one that is ready, and two against jitter. More
/// would only keep more memory in use.
pub const MAILBOX: u32 = 4;

/// What every stage has: where it runs, its device, its measurements, and whom it reports to.
#[derive(Clone, Debug)]
struct Stage {
    name: &'static str,
    env: Env,
    gpu: Gpu,
    meter: Meter,
    events: Address<Event>,
}

impl Stage {
    fn new(name: &'static str, env: &Env, events: Address<Event>) -> Self {
        Stage { name, env: env.clone(), gpu: env.gpu(), meter: Meter::default(), events }
    }

    /// Notes a failure, and tells the program of the stage's first.
    async fn fail(&self, frame: Option<u64>, why: impl Display) {
        self.meter.fail(Failure { stage: self.name.to_owned(), frame, why: why.to_string() });
        self.tell_failure().await;
    }

    /// Whether something failed, here or in a kernel that was sent on before it ran.
    async fn has_failed(&self) -> bool {
        self.tell_failure().await;
        self.meter.has_failed()
    }

    async fn tell_failure(&self) {
        if let Some(failure) = self.meter.untold() {
            self.tell(Event::Failed(failure)).await;
        }
    }

    async fn tell(&self, event: Event) {
        // An error is a program that has stopped listening: then nobody misses it.
        let _ = self.events.send(event).await;
    }

    /// Sends a result on; the time until it was accepted counts as waiting.
    async fn pass<M: GpuMessage>(&self, frame: u64, next: &Next<M>, message: M) -> bool {
        let since = Instant::now();
        let sent = next.item.send(message).await;
        self.meter.waited(since.elapsed());
        match sent {
            Ok(()) => true,
            Err(error) => {
                self.fail(Some(frame), error).await;
                false
            }
        }
    }

    /// A new tensor; the time until there was memory counts as waiting.
    async fn room(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut, TensorError> {
        let since = Instant::now();
        let tensor = self.gpu.empty_when_free(dtype, shape).await;
        self.meter.waited(since.elapsed());
        tensor
    }

    /// Waits until the work on the stream is done, then adds this stage's report to the end of the stream.
    async fn end(&self, mut end: End) -> End {
        if let Err(error) = self.meter.idle(&self.gpu).await {
            self.fail(None, error).await;
        }
        self.tell_failure().await;
        end.stages.push(self.report());
        end
    }

    fn report(&self) -> StageReport {
        self.meter.report(self.name, self.env.name(), self.env.stats().bytes_not_copied)
    }
}
