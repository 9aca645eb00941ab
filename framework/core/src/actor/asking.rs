//! Asking: a send whose sender waits for the reply.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::address::Address;
use super::blocking::is_blocking_poll;
use super::error::{AskError, SendFailure};
use super::sending::Sending;
use crate::message::GpuMessage;
use crate::transport::AskFailure;
use crate::transport::inbox::Refusal;

/// The future of [`Address::ask`].
#[must_use = "a message that finds no room waits only while this is polled, and is not sent where it is dropped before"]
pub struct Ask<M: GpuMessage> {
    address: Address<M>,
    sending: Option<Sending<M>>,
    reply: oneshot::Receiver<Result<M::Reply, AskFailure>>,
    correlation: Option<u64>,
    timeout: Option<Duration>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<M: GpuMessage> Unpin for Ask<M> {}

impl<M: GpuMessage> Ask<M> {
    pub(super) fn new(address: Address<M>, message: M) -> Self {
        let (answer, reply) = oneshot::channel();
        let sending = Sending::start(&address, message, Some(answer));
        Ask { address, sending: Some(sending), reply, correlation: None, timeout: None, sleep: None }
    }

    /// Gives up if there is no reply within `timeout`, counted from the first poll. Needs a tokio runtime
    /// with time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Gives the message back, with [`SendFailure::Restarting`], if the actor is between two lives, also if
    /// that begins while this waits for room. Otherwise an ask waits for the actor's next life. For senders
    /// that can ask another actor.
    pub fn unless_restarting(mut self) -> Self {
        if let Some(sending) = &mut self.sending {
            sending.unless_restarting();
        }
        self
    }

    /// Resolves when the mailbox has accepted the message; await the ask itself for the reply afterwards. For
    /// senders that must know when there was room, and that send the next message without waiting for the
    /// handler.
    ///
    /// # Errors
    /// [`AskError::NotSent`] with the message; the ask has ended then.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the ask goes on.
    pub async fn accepted(&mut self) -> Result<(), AskError<M>> {
        poll_fn(|cx| match self.poll_accepted(cx) {
            Poll::Pending if is_blocking_poll(cx) => {
                self.refuse();
                self.poll_accepted(cx)
            }
            accepted => accepted,
        })
        .await
    }

    /// As [`accepted`](Self::accepted), without waiting: `None` while the mailbox has not accepted the
    /// message. The caller is woken only if it awaits `accepted`, or the ask.
    ///
    /// # Errors
    /// As for [`accepted`](Self::accepted).
    pub fn try_accepted(&mut self) -> Option<Result<(), AskError<M>>> {
        match self.poll_accepted(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(accepted) => Some(accepted),
            Poll::Pending => None,
        }
    }

    /// Stops waiting for room: from here on the message is in the mailbox, or is never sent there. This makes
    /// no attempt.
    ///
    /// # Errors
    /// [`AskError::NotSent`] with the message, if the mailbox has not accepted it; the ask has ended then.
    pub fn withdraw(&mut self) -> Result<(), AskError<M>> {
        if let Some(sending) = &mut self.sending {
            sending.withdraw();
        }
        self.try_accepted().unwrap_or(Ok(()))
    }

    /// Fails the send, because it would wait in a call that may not wait.
    fn refuse(&mut self) {
        if let Some(sending) = &mut self.sending {
            sending.fail(SendFailure::Blocking);
        }
    }

    fn poll_accepted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AskError<M>>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let sent = std::task::ready!(sending.poll(cx));
        self.sending = None;
        Poll::Ready(match sent {
            Ok(correlation) => {
                self.correlation = correlation;
                Ok(())
            }
            Err(error) => Err(AskError::NotSent(error)),
        })
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Result<M::Reply, AskError<M>>> {
        std::task::ready!(self.poll_accepted(cx))?;
        Pin::new(&mut self.reply).poll(cx).map(|reply| {
            self.correlation = None;
            match reply {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(failure)) => Err(AskError::NoReply(failure)),
                Err(_) => Err(AskError::NoReply(AskFailure::Refused(Refusal::NoReply))),
            }
        })
    }
}

impl<M: GpuMessage> Future for Ask<M> {
    type Output = Result<M::Reply, AskError<M>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = this.poll_reply(cx) {
            return Poll::Ready(outcome);
        }
        if this.address.transport().is_inherited() {
            // The reply goes to the parent process.
            return Poll::Ready(Err(AskError::NoReply(AskFailure::Forked)));
        }
        if is_blocking_poll(cx) {
            if this.sending.is_none() {
                return Poll::Ready(Err(AskError::NoReply(AskFailure::Blocking)));
            }
            this.refuse();
            return this.poll_reply(cx);
        }
        let Some(timeout) = this.timeout else { return Poll::Pending };
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if let Some(sending) = &mut this.sending {
            sending.fail_late();
            return this.poll_reply(cx);
        }
        let limit = this.address.transport().held_to_the_limit();
        Poll::Ready(Err(limit.map_or(AskError::TimedOut, |limit| AskError::LeasesOut(limit.to_string()))))
    }
}

impl<M: GpuMessage> Drop for Ask<M> {
    fn drop(&mut self) {
        let sent = self.correlation.take().or_else(|| self.sending.as_ref().and_then(Sending::correlation));
        if let Some(correlation) = sent {
            self.address.transport().forget_ask(correlation);
        }
    }
}
