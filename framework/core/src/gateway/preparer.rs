//! Prepares the tensors of messages, and finds memory for those that arrive.
//!
//! Everything here is begun by the gateway's task and goes on beside it. Prepared tensors come back as a
//! command; memory that was found goes to the message's store.

use std::sync::Arc;
use std::time::Duration;

use tensorpost_hosts::ids::Seq;
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::asks::Replying;
use super::command::{Command, Of, Prepared};
use super::copiers::Copiers;
use super::head::Head;
use super::prepare::{Packing, aside, make_ready, ready, targets};
use super::store::Store;
use crate::ids::{ActorId, DeviceId};
use crate::tensor::{DeviceStream, Tensor, TensorError};

/// How long a message waits for memory before the gateway gives back versions that it keeps for followers.
pub(super) const WAIT_FOR_MEMORY: Duration = Duration::from_millis(50);

/// Everything that tensors need on their way out and in.
pub(super) struct Preparer {
    stream: DeviceStream,
    copiers: Arc<Copiers>,
    packing: Packing,
    /// Lets one message at a time take memory: two that have half of theirs would wait for each other.
    memory: Arc<Mutex<()>>,
    to: UnboundedSender<Command>,
}

/// The wait for tensors to be ready; dropping it ends the wait.
pub(super) struct Preparing(AbortHandle);

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Preparer {
    pub(super) fn new(stream: DeviceStream, copiers: Arc<Copiers>, to: UnboundedSender<Command>) -> Self {
        Preparer { stream, copiers, packing: Packing::default(), memory: Arc::default(), to }
    }

    /// Waits until the tensors of a message are ready to be sent, or until the message is dropped.
    pub(super) fn message(&self, item: u64, actor: ActorId, tensors: Vec<Tensor>) -> Preparing {
        let hungry = self.to.clone();
        let hungry = move || drop(hungry.send(Command::Hungry));
        let packing = Arc::clone(&self.packing);
        let ready = ready(tensors, self.stream.clone(), Arc::clone(&self.copiers), packing, hungry);
        Preparing(self.tell_prepared(item, Of::Message(actor), ready))
    }

    /// Waits until the tensors of a reply are ready to be sent. This does not wait for memory: the asker may
    /// hold it until the reply comes.
    pub(super) fn reply(&self, replying: Replying, tensors: Vec<Tensor>) {
        let (stream, copiers) = (self.stream.clone(), Arc::clone(&self.copiers));
        let ready = aside(move || make_ready(&tensors, &stream, &copiers));
        drop(self.tell_prepared(0, Of::Reply(replying), ready));
    }

    /// Sends the outcome of the wait for tensors as a command to the gateway's task.
    fn tell_prepared(
        &self,
        item: u64,
        of: Of,
        ready: impl Future<Output = Result<Vec<Tensor>, TensorError>> + Send + 'static,
    ) -> AbortHandle {
        let to = self.to.clone();
        let told = tokio::spawn(async move {
            let tensors = ready.await;
            // An error means that the gateway has ended, and the message with it.
            let _ = to.send(Command::Prepared(Box::new(Prepared { item, of, tensors })));
        });
        told.abort_handle()
    }

    /// Finds memory for the pieces of a message that arrives, on its receiver's device if it has one.
    pub(super) fn find_memory(&self, head: Head, receiver: Option<DeviceId>, store: Arc<Store>, post: Seq) {
        let (stream, copiers) = (self.stream.clone(), Arc::clone(&self.copiers));
        let (turn, to) = (Arc::clone(&self.memory), self.to.clone());
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            let mut targets = std::pin::pin!(targets(&head, &stream, &copiers, receiver));
            let targets = match tokio::time::timeout(WAIT_FOR_MEMORY, &mut targets).await {
                Ok(targets) => targets,
                Err(_) => {
                    let _ = to.send(Command::Hungry);
                    targets.await
                }
            };
            store.prepared(post, targets);
        });
    }
}
