//! How a program of actor types becomes processes: joins `node/` to the transport and its actors.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use super::host::{Activity, ActorHost, Identity, Notices, ProcessRuntime, Runtime, StartActor};
use futures_util::FutureExt;

use crate::actor::{OnActorEnd, Program, Start, WorkerActors};
use crate::clock::ProcessPages;
use crate::device::Backend;
use crate::device::host::HostBackend;
use crate::lease::PoolOptions;
use crate::limits::{CHUNK_BYTES, MAX_ACTORS};
use crate::observe::hang_probe::HangProbe;
use crate::observe::metrics::ProcessMetrics;
use crate::observe::trace::TraceRing;
use crate::transport::Transport;
use crate::transport::control_channel::{ControlChannel, FromNode};

/// The status of a worker that cannot be reached any more: that of a main thread that panicked.
const EXIT_DEAF: i32 = 101;

impl ProcessRuntime for Transport {
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        Transport::from_node(self, message, descriptors);
    }

    fn activity(&self) -> Activity {
        // `busy` is read last: a message counted as received before it is busy for this look or done with.
        let stats = self.stats();
        // Waiting senders are counted first: one that stops waiting makes its actor's process busy before that.
        let busy = somebody_waits_here(self) || self.is_busy();
        Activity { sent: stats.sent, received: stats.received, busy, leaves_unread: self.leaves_unread() }
    }

    fn metrics(&self) -> ProcessMetrics {
        Transport::metrics(self)
    }

    fn hang_probe(&self) -> HangProbe {
        Transport::hang_probe(self)
    }

    fn trace(&self, ring: TraceRing) {
        self.domain().tracer().start(ring.0);
    }

    fn stopping(&self) {
        self.begin_stopping();
    }

    fn leaving(&self) {
        self.begin_leaving();
    }

    fn note_returns(&self) {
        self.take_in_last_returns();
    }

    fn unfinished_work(&self) -> Box<dyn FnOnce() + Send> {
        let domain = Arc::clone(self.domain());
        Box::new(move || domain.finish_own_work())
    }

    fn node_ended(&self) {
        self.take_in_last_returns();
        self.end_watching();
    }

    fn node_dropped(&self) {
        // The reader keeps the transport, with its memory and its descriptors, and a program may have many nodes in turn.
        self.stop();
    }
}

/// Whether a sender of this process waits for room in a mailbox of this process.
fn somebody_waits_here(transport: &Transport) -> bool {
    let mut inboxes = (0..MAX_ACTORS).filter_map(|index| transport.inbox(index as u16));
    inboxes.any(|inbox| !inbox.local().queue().is_empty())
}

impl ActorHost for WorkerStageWithNotices {
    async fn start_actor(&self, start: StartActor) -> Result<(), String> {
        let StartActor {
            actor,
            location,
            name,
            type_name,
            args,
            device,
            receive_on,
            own_thread,
            life,
            restarts,
        } = start;
        let notices = self.notices.clone();
        let ended: OnActorEnd = Box::new(move |why, away| notices.actor_ended(actor, why, away));
        let start =
            Start { actor, location, name, type_name, args, device, receive_on, own_thread, life, restarts };
        self.actor_host.start(start, ended).await
    }

    fn stop_actors(&self) -> impl Future<Output = ()> {
        self.actor_host.stop()
    }
}

/// A worker's stage with the way to tell of ended actors.
pub struct WorkerStageWithNotices {
    actor_host: WorkerActors,
    notices: Notices,
}

fn pool_options(identity: &Identity) -> PoolOptions {
    PoolOptions { budget: identity.host_budget, first_chunk: CHUNK_BYTES }
}

impl Runtime for Program {
    type ProcessRuntime = Transport;
    type ActorHost = WorkerStageWithNotices;

    fn fingerprint(&self) -> u64 {
        Program::fingerprint(self)
    }

    fn open(
        &self,
        identity: &Identity,
        control: Arc<dyn ControlChannel>,
        pages: ProcessPages,
    ) -> Result<Arc<Transport>, String> {
        let transport =
            Transport::open(identity.process, control, pages).map_err(|error| error.to_string())?;
        if let Some(bytes) = identity.gpu_budget {
            transport.set_gpu_budget(bytes);
        }
        // The host pool is always there: large bodies travel in it, and peers' host tensors are mapped through it.
        let host: Arc<dyn Backend> = HostBackend::new();
        transport.pool(&host, pool_options(identity));
        if identity.process == crate::ids::ProcessId::NODE {
            run_reader_on_a_thread(&transport)?;
        }
        Ok(transport)
    }

    fn actor_host(
        &self,
        transport: Arc<Transport>,
        notices: Notices,
    ) -> Result<WorkerStageWithNotices, String> {
        // On the thread that the actors run on: a message then costs no switch.
        let reader = Arc::clone(&transport);
        actix::spawn(async move {
            match AssertUnwindSafe(Arc::clone(&reader).run()).catch_unwind().await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the reader failed, and with it this worker"),
                Err(_) => tracing::error!("the reader panicked, and with it this worker"),
            }
            if !reader.is_stopped() {
                // Deaf, it would hang, and everybody who sends to it.
                std::process::exit(EXIT_DEAF);
            }
        });
        Ok(WorkerStageWithNotices { actor_host: WorkerActors::new(self.clone(), transport), notices })
    }
}

fn run_reader_on_a_thread(transport: &Arc<Transport>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| format!("no runtime for the node's reader: {error}"))?;
    let transport = Arc::clone(transport);
    let spawned = std::thread::Builder::new().name("tensorpost-reader".into()).spawn(move || {
        // A task of the runtime, and not its root: that one could not step aside without a system call.
        match runtime.block_on(async { tokio::spawn(transport.run()).await }) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "the node's reader stopped; no more messages reach this process");
            }
            Err(error) => {
                tracing::error!(%error, "the node's reader panicked; no more messages reach this process");
            }
        }
    });
    spawned.map(|_| ()).map_err(|error| format!("no thread for the node's reader: {error}"))
}
