//! The actors that a pipeline is made of: one around a source, one around a stage or a sink.
//!
//! **Every hop is an ask**, whose answer says that the item is done with. This one mechanism gives the
//! backpressure of bytes, the least loaded replica, the items that a death took, at-least-once delivery and
//! the bound of a loop; they differ only in when the answer is given. The price is a reply per item and hop.
//! Nothing here is closed to users: `Ask::accepted` (there was room, before the reply) and `Env::publish` (a
//! handler that may take long does not hold up what earlier ones of its turn sent) are part of the public API
//! for this reason.
//!
//! **An item's way.** A stage's actor is asked with an item, calls the stage, and asks the receivers with
//! what came of it. It is done with the item, and answers, when they have *accepted* the results; until then
//! it takes no other item (backpressure). Its own asks are answered later, and then it knows that nothing was
//! lost on the way.
//!
//! **In a chain** (at-least-once delivery, and each round of a loop) the answer is put off until all results
//! were *handled* and answered, and so on to the sink: an answer then says that nothing of the item is under
//! way any more.
//!
//! **The end.** A sender whose items were all answered sends an end. A stage that has one from each of its
//! senders finishes, waits for its own answers, and passes the end on. It answers the end when that is done.
//!
//! **On a death** the senders' asks fail, and they know by id what was lost. An item whose *data* was lost
//! with a process (DEATH-3) is nobody's error: its receiver, which may be the only one left that knows of it,
//! names it and makes sure that nobody waits for its place in an order. Where items are sent again, the
//! receiver answers with a failure instead, and so does the sender of what the item was made of, back to
//! whoever has something that is still good.

pub(super) mod ack_guard;
mod answers;
pub(super) mod args;
pub(super) mod branch;
mod core;
mod fork_tracker;
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
pub(super) mod waits;
mod window;

use futures_util::FutureExt;
use tokio::task::JoinHandle;

pub(super) use source::SourceActor;
pub(super) use stage::StageActor;

/// Spawns a task on this thread. Boxed, so that what tokio has of a task is compiled once, and not for each
/// task of each stage: that was a quarter of all code that a program has for a stage.
fn spawn(task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
    actix::spawn(task.boxed_local())
}
