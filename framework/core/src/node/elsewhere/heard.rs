//! Questions of another host's starter that are asked until it has heard them.
//!
//! **Invariants.** What was lost with a gateway, on its way there or back, is asked again: it may come twice.
//! **On the loss** of the host what was asked of it has failed.

use std::sync::Weak;
use std::time::Duration;

use super::{Answer, Request, starter};
use crate::actor::{Ask, AskError};
use crate::transport::inbox::Refusal;
use crate::transport::{AskFailure, Transport};

/// How long to wait before something is asked again that could not be passed on.
const AGAIN: Duration = Duration::from_millis(100);

/// The answer to `asked`, or, where that was lost, to what is asked again.
///
/// # Errors
/// It cannot be heard any more. `None`: this node has ended.
pub(super) async fn until_heard(
    transport: &Weak<Transport>,
    host: u16,
    mut asked: Ask<Request>,
    again: impl Fn() -> Request,
) -> Result<Answer, Option<AskError<Request>>> {
    loop {
        match asked.await {
            Ok(answer) => return Ok(answer),
            // Nobody knows whether it came.
            Err(AskError::NoReply(AskFailure::Refused(Refusal::GatewayEnded(_)))) => {}
            // It did not, because there was too much to do; or the host is lost, and then it cannot be sent
            // the next time.
            Err(AskError::NoReply(AskFailure::Refused(Refusal::NotPassedOn(_)))) => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(Some(error)),
        }
        asked = starter(&transport.upgrade().ok_or(None)?, host).ask(again());
    }
}
