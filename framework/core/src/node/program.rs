//! How a program of actor types becomes processes: joins `node/` to the transport and its actors.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::process_runtime::{Activity, Identity, Notices, ProcessRuntime};
use crate::actor::{OnActorEnd, ProcessActors, Program, StartActor};
use crate::clock::ProcessPages;
use crate::device::Backend;
use crate::device::host::HostBackend;
use crate::ids::DeviceId;
use crate::lease::PoolOptions;
use crate::limits::{CHUNK_BYTES, MAX_ACTORS};
use crate::observe::hang_probe::HangProbe;
use crate::observe::metrics::ProcessMetrics;
use crate::observe::survey::Survey;
use crate::observe::trace::TraceRing;
use crate::stream::finish_own_work;
use crate::transport::Transport;
use crate::transport::control_channel::{ControlChannel, FromNode};

/// The exit status of a worker that cannot be reached any more, the same as after a panic of the main thread.
const EXIT_DEAF: i32 = 101;

/// Opens a process of a node with actors of `types`.
pub(super) fn opens(
    types: &Program,
) -> impl Fn(&Identity, Arc<dyn ControlChannel>, ProcessPages) -> Result<Arc<ProcessActors>, String> {
    |identity, control, pages| ProcessActors::open(types, identity, control, pages)
}

impl Transport {
    inside! {
        /// Returns the present activity of the process.
        pub fn activity(&self) -> Activity {
            // `busy` is read last: a message that was counted as received before is then seen as busy, or is
            // done.
            let stats = self.stats();
            // Waiting senders are checked first: a sender that stops waiting makes its actor's process busy
            // before that.
            let busy = somebody_waits_here(self) || self.is_busy();
            let leaves_unread = self.lifecycle.leaves_unread();
            Activity { sent: stats.sent, received: stats.received, busy, leaves_unread }
        }
    }
}

/// Whether a sender of this process waits for room in a mailbox of this process.
fn somebody_waits_here(transport: &Transport) -> bool {
    let mut inboxes = (0..MAX_ACTORS).filter_map(|index| transport.actors.inbox(index as u16));
    inboxes.any(|inbox| inbox.local().queue().is_waited_in())
}

impl ProcessActors {
    /// Opens a process of a node of `program`.
    pub(crate) fn open(
        program: &Program,
        identity: &Identity,
        control: Arc<dyn ControlChannel>,
        pages: ProcessPages,
    ) -> Result<Arc<Self>, String> {
        let transport =
            Transport::open(identity.process, control, pages).map_err(|error| error.to_string())?;
        if identity.detects_hangs {
            // Before there is a stream, because a stream records its waits from its beginning.
            transport.domain().detect_hangs();
        }
        transport.directory.set_host(identity.host);
        if let Some(budget) = identity.gpu_budget {
            transport.memory.set_gpu_budget(budget);
        }
        // There is always a host pool: large bodies travel in it, and peers' host tensors are mapped through
        // it.
        let host: Arc<dyn Backend> = HostBackend::new();
        transport.pool(&host, PoolOptions { budget: identity.host_budget, first_chunk: CHUNK_BYTES });
        if identity.process == crate::ids::ProcessId::NODE {
            run_reader_on_a_thread(&transport)?;
        }
        Ok(Arc::new(ProcessActors::new(program.clone(), transport)))
    }
}

impl ProcessRuntime for ProcessActors {
    fn from_node(&self, message: FromNode, descriptors: Vec<OwnedFd>) {
        if let FromNode::Neighbours(said) = &message
            && self.transport().gate.get().is_none()
        {
            return super::hosts::begin_gateway(self.transport(), said, descriptors);
        }
        self.transport().from_node(message, descriptors);
    }

    fn from_node_starved(&self, message: &FromNode) -> bool {
        self.transport().from_node_starved(message)
    }

    #[cfg(feature = "cuda")]
    fn probe_gpus(&self) -> bool {
        crate::device::cuda::probe_all()
    }

    fn activity(&self) -> Activity {
        self.transport().activity()
    }

    fn metrics(&self) -> ProcessMetrics {
        self.transport().metrics()
    }

    #[cfg(feature = "hosts")]
    fn set_host(&self, host: u16) {
        self.transport().directory.set_host(host);
    }

    fn survey(&self) -> Survey {
        self.transport().survey()
    }

    fn hang_probe(&self) -> HangProbe {
        self.transport().hang_probe()
    }

    fn trace(&self, ring: TraceRing) {
        self.transport().domain().tracer().start(ring.0);
    }

    fn end_trace(&self) {
        self.transport().domain().tracer().stop();
    }

    fn stopping(&self) {
        self.transport().lifecycle.begin_stopping();
    }

    fn leaving(&self) {
        self.transport().lifecycle.begin_leaving();
    }

    fn note_returns(&self) {
        self.transport().take_in_last_returns();
    }

    fn last_replies(&self) -> LocalBoxFuture<'_, ()> {
        let transport = self.transport();
        transport.last_replies.are_sent(&transport.links).boxed_local()
    }

    fn unfinished_work(&self) -> Box<dyn FnOnce() + Send> {
        let domain = Arc::clone(self.transport().domain());
        Box::new(move || finish_own_work(&domain))
    }

    fn node_ended(&self) {
        self.transport().take_in_last_returns();
        self.transport().lifecycle.watching.end();
    }

    fn node_dropped(&self) {
        // The reader keeps the transport, with its memory and its descriptors, and a program may have many
        // nodes in turn.
        self.transport().stop();
    }

    fn open_device(&self, device: DeviceId) -> Result<(), String> {
        self.warm_up(device).map_err(|error| error.to_string())
    }

    fn begin_actors(&self) -> Result<(), String> {
        // The reader runs on the actors' thread, so that a message costs no switch.
        let reader = Arc::clone(self.transport());
        actix::spawn(async move {
            match AssertUnwindSafe(Arc::clone(&reader).run()).catch_unwind().await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the reader failed, and with it this worker"),
                Err(_) => tracing::error!("the reader panicked, and with it this worker"),
            }
            if !reader.lifecycle.is_stopped() {
                // Without a reader it would hang, and so would all its senders.
                std::process::exit(EXIT_DEAF);
            }
        });
        Ok(())
    }

    fn start_actor(
        self: Arc<Self>,
        start: StartActor,
        notices: Notices,
    ) -> LocalBoxFuture<'static, Result<(), String>> {
        let actor = start.actor;
        let ended: OnActorEnd = Box::new(move |why, away| notices.actor_ended(actor, why, away));
        async move { self.start(start, ended).await }.boxed_local()
    }

    fn stop_actors(&self) -> LocalBoxFuture<'_, ()> {
        async {
            self.stop().await;
            if let Some(gate) = self.transport().gate.get() {
                gate.leave().await;
            }
        }
        .boxed_local()
    }
}

fn run_reader_on_a_thread(transport: &Arc<Transport>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime for the node's reader: {error}"))?;
    let transport = Arc::clone(transport);
    let spawned = std::thread::Builder::new().name("tp-reader".into()).spawn(move || {
        // The reader is a task of the runtime, and not its root, because the root cannot yield without a
        // system call.
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
