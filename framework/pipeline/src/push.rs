//! Messages of a stage to actors outside of its pipeline: asks of any type, behind an interface without
//! types.
//!
//! Every such message is an ask, like every hop of a pipeline. Its answer says that the actor has handled it.
//! If the actor dies, the ask fails, so the stage knows what was lost.

use futures_util::future::{FutureExt, LocalBoxFuture};
use tensorpost_core::api::actor::{Address, Ask, AskError, AskFailure, Refusal, SendFailure};
use tensorpost_core::api::message::GpuMessage;

use super::item::Tag;
use super::worker::ack_guard::AckGuard;
use super::worker::meter::Cause;

/// A message that a stage wants to send when its call has returned.
pub(super) struct Pushed<T> {
    /// The number of results that were emitted before it.
    pub(super) at: usize,
    /// The item whose call it was, if there was one.
    pub(super) of: Option<(Tag, AckGuard)>,
    pub(super) push: Box<dyn Push<T>>,
}

/// A message to an actor. `T` is the type of the stage's results.
pub(super) trait Push<T> {
    /// Returns the name of the actor, for people.
    fn to(&self) -> String;

    /// Sends it, and resolves when the stage need not wait for it any longer.
    fn begin(self: Box<Self>) -> LocalBoxFuture<'static, Result<Taken<T>, Unserved>>;
}

/// A message that was accepted.
pub(super) enum Taken<T> {
    /// The answer comes later.
    Following(LocalBoxFuture<'static, Result<(), Unserved>>),
    /// The results that were made of the answer.
    Answered(Vec<T>),
}

/// Why nothing comes of a message.
pub(super) struct Unserved {
    pub(super) why: String,
    /// The cause under which it counts as lost; `None` if no actor could take it at all, which is an error of
    /// the stage.
    pub(super) lost: Option<Cause>,
}

/// A message that the actor has to accept.
pub(super) struct ToAccept<M: GpuMessage> {
    pub(super) address: Address<M>,
    pub(super) message: M,
}

/// A message that the actor has to answer.
pub(super) struct ToAnswer<M: GpuMessage, F> {
    pub(super) address: Address<M>,
    pub(super) message: M,
    /// Makes results of the answer.
    pub(super) then: F,
}

impl<M: GpuMessage, T> Push<T> for ToAccept<M> {
    fn to(&self) -> String {
        self.address.actor().to_string()
    }

    fn begin(self: Box<Self>) -> LocalBoxFuture<'static, Result<Taken<T>, Unserved>> {
        let ToAccept { address, message } = *self;
        let mut ask = address.ask(message);
        async move {
            ask.accepted().await.map_err(Unserved::of)?;
            Ok(Taken::Following(handled(ask).boxed_local()))
        }
        .boxed_local()
    }
}

/// Resolves when the actor has handled the message that it accepted. Its reply is dropped.
async fn handled<M: GpuMessage>(ask: Ask<M>) -> Result<(), Unserved> {
    match ask.await {
        Ok(_) | Err(AskError::NoReply(AskFailure::BadReply(_))) => Ok(()),
        Err(error) => Err(Unserved::of(error)),
    }
}

impl<M, T, I, F> Push<T> for ToAnswer<M, F>
where
    M: GpuMessage,
    I: IntoIterator<Item = T>,
    F: FnOnce(M::Reply) -> I + 'static,
{
    fn to(&self) -> String {
        self.address.actor().to_string()
    }

    fn begin(self: Box<Self>) -> LocalBoxFuture<'static, Result<Taken<T>, Unserved>> {
        let ToAnswer { address, message, then } = *self;
        let ask = address.ask(message);
        async move {
            let reply = ask.await.map_err(Unserved::of)?;
            Ok(Taken::Answered(then(reply).into_iter().collect()))
        }
        .boxed_local()
    }
}

impl Unserved {
    fn of<M>(error: AskError<M>) -> Self {
        let (why, lost) = match error {
            AskError::NotSent(error) => {
                let lost = matches!(error.reason, SendFailure::Tainted(_)).then_some(Cause::Tainted);
                (error.reason.to_string(), lost)
            }
            AskError::NoReply(failure) => {
                let cause = match &failure {
                    AskFailure::Refused(Refusal::Tainted(_)) => Cause::Tainted,
                    AskFailure::Refused(Refusal::Undelivered(_) | Refusal::BadReply(_))
                    | AskFailure::BadReply(_)
                    | AskFailure::Blocking
                    | AskFailure::Forked => Cause::Unread,
                    _ => Cause::Outside,
                };
                (failure.to_string(), Some(cause))
            }
            _ => ("it was not answered in time".to_owned(), Some(Cause::Outside)),
        };
        Unserved { why, lost }
    }
}
