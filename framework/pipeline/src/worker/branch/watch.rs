//! Follows an item that was accepted until it is answered.
//!
//! Used by [`Branch`], on the actor's thread. **On a death** of the receiver the ask fails, and the branch
//! sends the item again or names it. If it is **dropped**, with its actor, it reports nothing.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::future::{FutureExt, LocalBoxFuture};
use tensorpost_core::api::actor::Ask;

use super::{Branch, Underway};
use crate::item::{EdgeMessage, Item};
use crate::worker::meter::Spanned;

/// Follows an item until it is answered. There is one such task for each item, so it is kept small: rare
/// parts are boxed.
pub(super) struct Watch<T: Item> {
    pub(super) branch: Rc<Branch<T>>,
    pub(super) ask: Ask<EdgeMessage<T>>,
    /// The item; `None` once it is answered.
    pub(super) underway: Option<Underway<T>>,
    /// The rest of the work if there is no answer. It is rare, so it is boxed.
    pub(super) rest: Option<LocalBoxFuture<'static, ()>>,
}

impl<T: Item> Unpin for Watch<T> {}

impl<T: Item> Future for Watch<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.rest.is_none() {
            let answer = ready!(Pin::new(&mut this.ask).poll(cx));
            let Some(underway) = this.underway.take() else { return Poll::Ready(()) };
            let branch = &this.branch;
            if let Some(since) = underway.since {
                let of = Spanned::Lease(branch.index);
                branch.meter.span(of, Some(underway.tag.id), since, Instant::now());
            }
            let Err(error) = answer else {
                // First the number, then the counts, which wake this actor if it waits for room. The ack
                // guard drops last, with `underway`: that may answer the sender of the item that this one
                // came from.
                branch.settle(&underway.tag);
                branch.tally.handled.update(|handled| handled + 1);
                branch.answered(underway.to, underway.bytes);
                return Poll::Ready(());
            };
            let branch = Rc::clone(branch);
            this.rest = Some(async move { branch.unanswered(&error, underway).await }.boxed_local());
        }
        this.rest.as_mut().map_or(Poll::Ready(()), |rest| rest.as_mut().poll(cx))
    }
}
