//! A life of a roaming actor begins once on a host, no matter how often its home asks for it.
//!
//! If the gateway of either host ends during a start, the request or its answer is lost, and nobody knows
//! which. So the home asks the same host again (`next_life.rs`), which knows: a start that is under way
//! answers all requests for it, and an actor that lives here already is not started a second time. Requests
//! arrive in order (HOST-3), so the answer that the actor has not started holds for all earlier requests.
//!
//! **Invariants.** HOST-10: an answer of "no" says that no life of the actor runs here, nor begins later.
//! MBX-2: a repeated request takes room in the starter's mailbox like any other.

use parking_lot::Mutex;

use super::{Answer, Request, Starts};
use crate::ids::ActorId;
use crate::transport::inbox::Receipt;

/// Returns the roaming actor that a request starts, if the asking host is its home.
pub(super) fn of(host: u16, request: &Request) -> Option<ActorId> {
    let Request::Start(to_start) = request else { return None };
    to_start.guest.map(|guest| guest.actor).filter(|actor| actor.host() == host)
}

/// Notes that a start begins now. Returns `None` if the same start is under way already: its answer then goes
/// to this request too.
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

/// Gives the answer of a start to all repeated requests for it.
pub(super) fn begun(starts: &Mutex<Starts>, guest: Option<ActorId>, answer: &Answer) {
    let also = guest.and_then(|actor| starts.lock().guests.remove(&actor));
    also.into_iter().flatten().for_each(|receipt| receipt.reply(answer.clone()));
}
