//! A worker's main thread: starts and stops actors as the node asks.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use super::uplink::Uplink;
use crate::actor::StartActor;
use crate::node::control::Up;
use crate::node::limits::{LAST_REPLIES, MAX_FAILURE_TEXT, cut};
use crate::node::process_runtime::{Notices, ProcessRuntime};
use crate::os::vital;

/// An order of the control thread to the main thread.
pub(super) enum Task {
    Start(Box<StartActor>),
    StopActors,
    Leave,
    Exit,
}

/// Runs until the node says [`Task::Exit`] or [`Task::Leave`].
pub(super) async fn run(
    process_runtime: &Arc<dyn ProcessRuntime>,
    mut tasks: Receiver<Task>,
    uplink: &Arc<Uplink>,
) {
    while let Some(task) = tasks.recv().await {
        match task {
            Task::Start(start) => {
                actix::spawn(start_actor(process_runtime.clone(), *start, uplink.clone()));
            }
            Task::StopActors => {
                process_runtime.stop_actors().await;
                send_last_replies(process_runtime).await;
                // Some leases are kept until a message was passed. Return them while their owners still read.
                process_runtime.note_returns();
                let _ = uplink.send(&Up::ActorsStopped, Vec::new());
            }
            Task::Leave => {
                send_last_replies(process_runtime).await;
                // Others may hold tensors that are still being computed (LEASE-4), and without this process
                // nobody would finish them. Another thread waits for that, because this one goes on reading.
                if let Err(error) = tokio::task::spawn_blocking(process_runtime.unfinished_work()).await {
                    tracing::error!(%error, "what is on the streams was not waited for");
                }
                return process_runtime.note_returns();
            }
            // The actors have stopped by now, in all processes or the one that this process ends with. So
            // these replies are the last.
            Task::Exit => {
                send_last_replies(process_runtime).await;
                return process_runtime.note_returns();
            }
        }
    }
}

/// Delivers replies that were given before the end, even if the receiver's ring had no room, or the link to
/// it was not open yet.
async fn send_last_replies(process_runtime: &Arc<dyn ProcessRuntime>) {
    if tokio::time::timeout(LAST_REPLIES, process_runtime.last_replies()).await.is_err() {
        tracing::warn!("replies are lost with this worker: their receivers do not read");
    }
}

async fn start_actor(process_runtime: Arc<dyn ProcessRuntime>, start: StartActor, uplink: Arc<Uplink>) {
    let (actor, notices) = (start.actor, Notices::new(uplink.clone()));
    // The start runs in a task of its own, so that a panic becomes an answer too.
    let result = match actix::spawn(async move { process_runtime.start_actor(start, notices).await }).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => {
            Err(format!("it panicked: {}", vital::panic_text(&*error.into_panic())))
        }
        Err(_) => Err("the worker is ending".to_owned()),
    };
    let result = result.map_err(|why| cut(why, MAX_FAILURE_TEXT));
    let _ = uplink.send(&Up::Started { actor, result }, Vec::new());
}
