//! A life of an actor that roams begins once on a host, however often its home asks for it.
//!
//! A start that is under way as the gateway of either host ends is lost, or its answer is, and nobody knows
//! which. So the home asks the same host again (`next_life.rs`), which knows: a start that is under way
//! answers all who have asked for it, and an actor that lives here already is not started a second time. What
//! came first is here first (HOST-3), so an answer that it has not started is true of all that were asked
//! before.
//!
//! **Invariants.** HOST-10: an answer of "no" says that no life of the actor runs here, nor begins later.
//! MBX-2: who asks again has a place of the starter's mailbox as any other.

use parking_lot::Mutex;

use super::{Answer, Request, Starts};
use crate::ids::ActorId;
use crate::transport::inbox::Receipt;

/// The actor that roams and is to be started, if it is one of the host that asks.
pub(super) fn of(host: u16, request: &Request) -> Option<ActorId> {
    let Request::Start(to_start) = request else { return None };
    to_start.guest.map(|guest| guest.actor).filter(|actor| actor.host() == host)
}

/// It is started now. Nothing where it is being started already: then whoever asks is answered with that.
pub(super) fn begins(starts: &Mutex<Starts>, guest: Option<ActorId>, receipt: Receipt) -> Option<Receipt> {
    let Some(actor) = guest else { return Some(receipt) };
    let mut starts = starts.lock();
    if let Some(also) = starts.guests.get_mut(&actor) {
        also.push(receipt);
        return None;
    }
    starts.guests.insert(actor, Vec::new());
    Some(receipt)
}

/// What became of it.
pub(super) fn begun(starts: &Mutex<Starts>, guest: Option<ActorId>, answer: &Answer) {
    let also = guest.and_then(|actor| starts.lock().guests.remove(&actor));
    also.into_iter().flatten().for_each(|receipt| receipt.reply(answer.clone()));
}
