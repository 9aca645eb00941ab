//! Requests to another host's starter that are repeated until it has heard them.
//!
//! **Invariants.** A request that was lost with a gateway, or whose answer was, is sent again, so it may come
//! twice. **On the loss** of the host its requests fail.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Answer, Request, starter};
use crate::actor::{Ask, AskError};
use crate::transport::inbox::Refusal;
use crate::transport::{AskFailure, Transport};

/// How long to wait before a request that could not be passed on is sent again.
const SEND_AGAIN: Duration = Duration::from_millis(100);

/// A thread that makes such requests. It begins with the first one.
pub(super) struct Requests<T>(Option<UnboundedSender<T>>);

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Requests(None)
    }
}

impl<T: Send + 'static> Requests<T> {
    /// Adds one, which `run` takes on the thread with this name. If the system refuses the thread, returns
    /// the request and the error.
    pub(super) fn add(
        &mut self,
        request: T,
        name: &str,
        run: impl FnOnce(UnboundedReceiver<T>) + Send + 'static,
    ) -> Option<(T, io::Error)> {
        let request = match &self.0 {
            Some(thread) => thread.send(request).err()?.0,
            None => request,
        };
        let (sender, requests) = unbounded_channel();
        match std::thread::Builder::new().name(name.to_owned()).spawn(move || run(requests)) {
            Ok(_) => {
                // The thread listens.
                let _ = sender.send(request);
                self.0 = Some(sender);
                None
            }
            Err(error) => Some((request, error)),
        }
    }
}

/// Returns the answer to `asked`, or, if that was lost, to a repetition of it.
///
/// # Errors
/// The host cannot hear it any more. `None`: this node has ended.
pub(super) async fn until_heard(
    transport: &Weak<Transport>,
    host: u16,
    mut asked: Ask<Request>,
    again: impl Fn() -> Request,
) -> Result<Answer, Option<AskError<Request>>> {
    loop {
        match asked.await {
            Ok(answer) => return Ok(answer),
            // Nobody knows whether the request came.
            Err(AskError::NoReply(AskFailure::Refused(Refusal::GatewayEnded(_)))) => {}
            // The request did not come, because there was too much to do. Or the host is lost, and then the
            // next attempt cannot be sent.
            Err(AskError::NoReply(AskFailure::Refused(Refusal::NotPassedOn(_)))) => {
                tokio::time::sleep(SEND_AGAIN).await;
            }
            Err(error) => return Err(Some(error)),
        }
        asked = starter(&transport.upgrade().ok_or(None)?, host).ask(again());
    }
}
