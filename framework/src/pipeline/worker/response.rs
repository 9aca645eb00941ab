//! The result of a handler that may have to wait for room at the next stage.

use actix::dev::{MessageResponse, OneshotSender};
use actix::fut::{ActorFutureExt, wrap_future};
use actix::{Actor, AsyncContext, Context, Message};
use futures_util::future::{FutureExt, LocalBoxFuture};

use super::cargo::Cargo;

/// An actor that looks at its clock when it is done with a message.
pub(in crate::pipeline) trait Settle: Actor<Context = Context<Self>> {
    /// A message is done with.
    fn settle(&mut self, ctx: &mut Context<Self>);
}

/// Work on a message: done, or going on, with the actor's mailbox closed meanwhile. The message is answered when the last
/// of its cargo is gone.
pub(in crate::pipeline) struct Handled {
    work: Option<LocalBoxFuture<'static, ()>>,
    cargo: Cargo,
}

impl Handled {
    /// Begins the work, now.
    pub(in crate::pipeline) fn begin<A: Settle>(
        actor: &mut A,
        ctx: &mut Context<A>,
        cargo: Cargo,
        work: impl Future<Output = ()> + 'static,
    ) -> Self {
        let mut work = work.boxed_local();
        // Most work never waits; then the context need not know of it.
        if (&mut work).now_or_never().is_some() {
            actor.settle(ctx);
            return Handled { work: None, cargo };
        }
        Handled { work: Some(work), cargo }
    }
}

impl<A: Settle, M: Message<Result = ()>> MessageResponse<A, M> for Handled {
    fn handle(self, ctx: &mut Context<A>, answer: Option<OneshotSender<()>>) {
        self.cargo.answer_to(answer);
        drop(self.cargo);
        if let Some(work) = self.work {
            ctx.wait(wrap_future::<_, A>(work).map(|(), actor, ctx| actor.settle(ctx)));
        }
    }
}
