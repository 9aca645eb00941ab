//! The actors that a pipeline is made of: one around a source, one around a stage or a sink.
//!
//! **Every hop is an ask**, whose answer says that the item was handled. This one mechanism gives the
//! backpressure of bytes, the least loaded replica, the names of lost items, at-least-once delivery and the
//! bound of a loop; they differ only in when the answer is given. The price is a reply per item and hop.
//! Users can build the same, with two functions of the public API. `Ask::accepted` resolves when there was
//! room, before the reply. `Env::publish` sends the messages of earlier handlers of a turn before one that
//! may take long.
//!
//! **An item's way.** A stage's actor gets an item as an ask, calls the stage, and sends the results to the
//! receivers as asks. It answers the item when they have *accepted* the results; until then it takes no other
//! item (backpressure). Its own asks are answered later, and then it knows that nothing was lost on the way.
//!
//! **In a chain** (at-least-once delivery, and each round of a loop) the answer waits until all results were
//! *handled* and answered, and so on down to the sink. An answer then says that nothing of the item is under
//! way any more.
//!
//! **The end.** A sender whose items were all answered sends an end. A stage that has an end from each of
//! its senders finishes, waits for its own answers, and passes the end on. It answers the end when that is
//! done.
//!
//! **On a death** the senders' asks fail, and they know by id which items were lost. An item whose *data*
//! was lost with a process (DEATH-3) is not an error of any stage. Its receiver may be the only actor left
//! that knows of it, so the receiver names it and closes its place in an order. Under at-least-once delivery
//! the receiver answers with a failure instead. The sender then fails the item that this one was made of in
//! the same way, back to a sender that has an item that is still good.

pub(super) mod ack_guard;
mod answers;
pub(super) mod args;
mod branch;
mod core;
mod fork_tracker;
mod gate;
mod loss;
pub(super) mod meter;
pub(super) mod order;
mod orphans;
mod outlet;
pub(super) mod pick;
mod pushes;
mod response;
pub(super) mod retained;
mod rounds;
mod source;
mod stage;
pub(super) mod stage_args;
pub(super) mod waits;
mod window;

use futures_util::FutureExt;
use tokio::task::JoinHandle;

pub(super) use source::SourceActor;
pub(super) use stage::StageActor;

/// Spawns a task on this thread. The future is boxed, so that tokio's code for a task is compiled once, and
/// not for each task of each stage: that was a quarter of all code that a program has for a stage.
fn spawn(task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    actix::spawn(task.boxed_local())
}
