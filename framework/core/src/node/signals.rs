//! Runs a node until a signal asks it to stop, or until something else has ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::shutdown::ShutdownReport;
use super::supervisor::{NodeClosed, Supervisor};

/// Why waiting for a signal failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The system refused it.
    #[error("signals cannot be waited for: {0}")]
    Signals(#[from] io::Error),
    /// The node has ended already.
    #[error(transparent)]
    Closed(#[from] NodeClosed),
}

pub(super) fn run_until_ctrl_c(
    supervisor: &Arc<Supervisor>,
    ended: impl Future<Output = ()> + Send,
    deadline: Duration,
) -> Result<ShutdownReport, RunError> {
    if supervisor.shared().is_inherited() {
        return Err(NodeClosed::Forked.into());
    }
    // A thread of its own, because the caller may be inside a runtime already.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(wait_and_stop(supervisor, ended, deadline))
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

async fn wait_and_stop(
    supervisor: &Arc<Supervisor>,
    ended: impl Future<Output = ()>,
    deadline: Duration,
) -> Result<ShutdownReport, RunError> {
    let mut signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tracing::info!(target: "tensorpost::node", "running; press Ctrl-C to stop");
    tokio::select! {
        () = either(&mut signals) => {
            tracing::info!(target: "tensorpost::node", "stopping; press Ctrl-C again to end at once");
        }
        () = ended => {}
        () = supervisor.until_stopping() => {}
    }
    let stopper = supervisor.clone();
    let mut stopped = tokio::task::spawn_blocking(move || stopper.shutdown(deadline));
    loop {
        tokio::select! {
            result = &mut stopped => return Ok(result.map_err(|_| NodeClosed::Ended)??),
            () = either(&mut signals) => supervisor.kill_all(),
        }
    }
}

async fn either((interrupt, terminate): &mut (Signal, Signal)) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
