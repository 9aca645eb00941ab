//! The actors that a pipeline is made of: one around a source, one around a stage or a sink.
//!
//! **An item's way.** A stage's actor is asked with an item, calls the stage, and asks the receivers with what came of
//! it. It is done with the item, and answers, when they have *accepted* the results; until then no other item is taken
//! (backpressure). Its own asks are answered later, and then it knows that nothing was lost on the way.
//!
//! **In a chain** (at-least-once delivery, and each round of a loop) the answer is put off until all results were *handled*
//! and answered, and so on to the sink: an answer then says that nothing of the item is under way any more.
//!
//! **The end.** A sender whose items were all answered sends an end. A stage that has one from each of its senders
//! finishes, waits for its own answers, and passes the end on. The end is answered when that is done.
//!
//! **On a death** the senders' asks fail, and they know by id what was lost. An item whose *data* was lost with a process
//! (DEATH-3) is no error of anybody's: its receiver, which may be the only one left that knows of it, names it and makes
//! sure that nobody waits for its place in an order. Where items are sent again, it is answered with a failure instead,
//! and so is what it came of, back to whoever has something that is still good.

mod answers;
pub(super) mod args;
mod branch;
pub(super) mod cargo;
mod core;
pub(super) mod histogram;
pub(super) mod kept;
mod loss;
pub(super) mod meter;
pub(super) mod order;
mod orphans;
mod outlet;
pub(super) mod pick;
mod response;
mod rounds;
mod siblings;
mod source;
mod stage;
pub(super) mod waits;
mod window;

pub(super) use source::SourceActor;
pub(super) use stage::StageActor;
