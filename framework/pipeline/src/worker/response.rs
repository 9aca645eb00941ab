//! The result of a handler that may have to wait for room at the next stage.

use actix::dev::{MessageResponse, OneshotSender};
use actix::fut::{ActorFutureExt, wrap_future};
use actix::{Actor, AsyncContext, Context, Message};
use futures_util::future::{FutureExt, LocalBoxFuture};

use super::ack_guard::AckGuard;

/// An actor that checks its timer when it has handled a message.
pub(crate) trait Settle: Actor<Context = Context<Self>> {
    /// Called when a message was handled.
    fn settle(&mut self, ctx: &mut Context<Self>);
}

/// Work on a message: done, or going on while the actor takes no other message. The message is answered when
/// the last clone of its ack guard drops.
pub(crate) struct Handled {
    work: Option<LocalBoxFuture<'static, ()>>,
    ack_guard: AckGuard,
}

impl Handled {
    /// Makes the result of a handler whose work is done except for `rest`, which begins now.
    pub(crate) fn begin<A: Settle>(
        actor: &mut A,
        ctx: &mut Context<A>,
        ack_guard: AckGuard,
        rest: Option<LocalBoxFuture<'static, ()>>,
    ) -> Self {
        // If `rest` need not wait, the context need not know of it.
        let work = rest.and_then(|mut rest| (&mut rest).now_or_never().is_none().then_some(rest));
        if work.is_none() {
            actor.settle(ctx);
        }
        Handled { work, ack_guard }
    }
}

impl<A: Settle, M: Message<Result = ()>> MessageResponse<A, M> for Handled {
    fn handle(self, ctx: &mut Context<A>, answer: Option<OneshotSender<()>>) {
        self.ack_guard.answer_to(answer);
        drop(self.ack_guard);
        if let Some(work) = self.work {
            ctx.wait(wrap_future::<_, A>(work).map(|(), actor, ctx| actor.settle(ctx)));
        }
    }
}
