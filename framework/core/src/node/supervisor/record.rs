//! What the supervisor knows about one worker.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::actor::NewActor;
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::node::control::{Down, encode};
use crate::node::group::Supervision;
use crate::node::limits::END_GRACE;
use crate::node::line::{LineError, Outgoing, Receiving};
use crate::node::shutdown::Phase;
use crate::node::wait;
use crate::os::last_words::LastWords;
use crate::os::{PidFd, Seqpacket};
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::EndReason;

use super::groups::GroupRestart;
use super::launch::Launched;
use super::spares::SpareFor;
use super::{Reply, SpawnError, StartError, WorkerId};

/// How a process ended, as the system's number.
mod exit_status {
    use super::{Deserialize, ExitStatus, ExitStatusExt, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(of: &Option<ExitStatus>, to: S) -> Result<S::Ok, S::Error> {
        of.map(ExitStatusExt::into_raw).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ExitStatus>, D::Error> {
        Ok(Option::<i32>::deserialize(from)?.map(ExitStatusExt::from_raw))
    }
}

/// The state of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerState {
    /// Its process was started; it is not ready.
    Starting,
    /// Its actors run.
    Running,
    /// It was told to end, or is being killed.
    Ending,
    /// It has no actor, and waits to go on as another worker when that one's process ends
    /// ([`Spawn::spares`](crate::node::Spawn::spares)).
    Spare {
        /// That worker.
        of: WorkerId,
        /// Whether it has started, and opened the device.
        ready: bool,
    },
    /// Its process has ended, and it gets another.
    Restarting {
        /// Why it ended.
        reason: EndReason,
    },
    /// Its process has ended.
    Exited {
        /// How; `None` if the system did not say.
        #[serde(with = "exit_status")]
        exit: Option<ExitStatus>,
        /// What was wrong, if the node knows.
        why: Option<String>,
    },
}

/// The status of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The worker.
    pub worker: WorkerId,
    /// Its slot, and which life of the slot this is.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// The process id that the system gave it.
    pub pid: u32,
    /// Its state.
    pub state: WorkerState,
    /// Actors in it.
    pub actors: usize,
    /// Messages that it should not have sent; each is in the log.
    pub complaints: u64,
    /// Events of its log that were dropped because nobody read fast enough.
    pub logs_dropped: u64,
    /// How often it was restarted, or an actor in it.
    pub restarts: u32,
    /// Why that was, the last time.
    pub last_end: Option<EndReason>,
}

/// The stages of a worker's process, in the order in which it passes them.
pub(super) enum WorkerPhase {
    /// It has not said hello.
    Greeting { deadline: Instant, asker: Asker },
    /// It was welcomed and opens its process.
    Opening { deadline: Instant, asker: Asker },
    /// Its actors run.
    Running,
    /// It will end; nothing that it says now counts, except its log.
    Ending,
}

/// Who hears how a worker's start went.
pub(super) enum Asker {
    /// Whoever asked for the worker.
    Caller(Reply<Result<WorkerId, SpawnError>>),
    /// The supervisor itself: it is another life of the worker, whose actors are to follow.
    Restart,
    /// The supervisor itself: it is to be the next gateway.
    #[cfg(feature = "hosts")]
    Gateway,
    /// Nobody: it is a spare.
    Nobody,
}

impl Asker {
    /// Whether somebody waits for the answer.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Asker::Caller(_))
    }

    pub(super) fn answer(&self, result: Result<WorkerId, SpawnError>) {
        if let Asker::Caller(reply) = self {
            // Whoever asked may be gone.
            let _ = reply.try_send(result);
        }
    }
}

/// An actor that the worker was told to start.
pub(super) struct Pending {
    pub(super) location: Location,
    pub(super) type_name: String,
    /// It ended before the worker said that it had started; inside, why, and whether its senders wait.
    pub(super) ended: Option<(Option<EndReason>, bool)>,
    /// Set for its first life.
    pub(super) first: Option<First>,
}

/// An actor that has not started for the first time yet.
pub(super) struct First {
    pub(super) made_of: NewActor,
    pub(super) how: Supervision,
    pub(super) reply: Reply<Result<(ActorId, Location), StartError>>,
    /// The number of the life that it begins here; another than 0 where it has lived on another host.
    pub(super) life: u32,
}

/// One life of a worker.
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) process: ProcessId,
    pub(super) name: Arc<str>,
    pub(super) child: Child,
    pub(super) pidfd: PidFd,
    pub(super) socket: Arc<Seqpacket>,
    /// Its standard error before it greets.
    pub(super) last_words: Option<LastWords>,
    pub(super) incoming: Receiving,
    pub(super) outgoing: Outgoing,
    /// Whether the socket may still be read.
    pub(super) open: bool,
    /// Whether everything that it had sent was read.
    pub(super) read_to_the_end: bool,
    pub(super) phase: WorkerPhase,
    pub(super) pending: HashMap<ActorId, Pending>,
    pub(super) awaiting_end: Vec<Reply<WorkerState>>,
    pub(super) told_to_stop_actors: bool,
    pub(super) actors_stopped: bool,
    pub(super) told_to_exit: bool,
    /// It ends when nothing is left in it.
    pub(super) leaves: bool,
    pub(super) complaints: u64,
    /// How many of them only the worker itself can be to blame for.
    pub(super) offences: u64,
    pub(super) logs_dropped: u64,
    /// When to kill it.
    pub(super) kill_at: Option<Instant>,
    pub(super) killed: Option<Phase>,
    /// The reason of its end, in its words or in ours. The first one counts.
    pub(super) why: Option<String>,
    /// Why it ends, where its exit status does not say it.
    pub(super) cause: Option<EndReason>,
    /// Others have failed, and it ends with them.
    pub(super) group_restart: Option<GroupRestart>,
    /// The GPUs that its actors were started on, or that it has opened for them.
    pub(super) gpus: HashSet<DeviceId>,
    /// Set while it waits for another worker to end.
    pub(super) spare: Option<SpareFor>,
}

impl Worker {
    pub(super) fn new(
        id: WorkerId,
        process: ProcessId,
        name: &str,
        launched: Launched,
        phase: WorkerPhase,
        spare: Option<SpareFor>,
    ) -> Self {
        let socket = Arc::new(launched.socket);
        Worker {
            id,
            process,
            name: spare.as_ref().map_or_else(|| name.into(), |spare| spare.shown_as().into()),
            child: launched.child,
            pidfd: launched.pidfd,
            incoming: Receiving::new(socket.clone()),
            outgoing: Outgoing::new(socket.clone()),
            socket,
            last_words: launched.last_words,
            open: true,
            read_to_the_end: false,
            phase,
            pending: HashMap::new(),
            awaiting_end: Vec::new(),
            told_to_stop_actors: false,
            actors_stopped: false,
            told_to_exit: false,
            leaves: false,
            complaints: 0,
            offences: 0,
            logs_dropped: 0,
            kill_at: None,
            killed: None,
            why: None,
            cause: None,
            group_restart: None,
            gpus: HashSet::new(),
            spare,
        }
    }

    /// The worker whose program and settings it was started with.
    pub(super) fn made_as(&self) -> WorkerId {
        self.spare.as_ref().map_or(self.id, |spare| spare.worker)
    }

    /// What its process calls itself: a spare has the name of whom it waits for, which it may be one day.
    pub(super) fn title(&self) -> &Arc<str> {
        self.spare.as_ref().map_or(&self.name, |spare| &spare.name)
    }

    /// Whether nothing is known by which it would end.
    pub(super) fn can_go_on(&self) -> bool {
        let is_ending = matches!(self.phase, WorkerPhase::Ending) || self.told_to_exit;
        !is_ending && self.open && self.cause.is_none() && self.kill_at.is_none()
    }

    /// Whether its process has ended, which may not have been heard of yet.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // What cannot be asked is heard of later.
        wait::poll(&mut fds, Some(Duration::ZERO)).is_ok() && !fds[0].revents().is_empty()
    }

    /// An actor on this device is started in it.
    pub(super) fn uses(&mut self, device: DeviceId) {
        if device != DeviceId::HOST {
            self.gpus.insert(device);
        }
    }

    /// Sends a message, or queues it. A worker that cannot be written to is as good as dead: it is killed,
    /// unless it has closed its socket, which means that it is ending by itself.
    pub(super) fn send(&mut self, message: &Down, descriptors: Vec<OwnedFd>) {
        let sent = match encode(message) {
            Ok(bytes) => self.outgoing.send(&bytes, descriptors),
            Err(error) => return self.give_up(error.to_string()),
        };
        if let Err(error) = sent {
            self.line_failed(error);
        }
    }

    pub(super) fn flush(&mut self) {
        if let Err(error) = self.outgoing.flush() {
            self.line_failed(error);
        }
    }

    fn line_failed(&mut self, error: LineError) {
        match error {
            // Its last words are still to be read.
            LineError::Closed => self.end_soon(Instant::now()),
            error => self.give_up(error.to_string()),
        }
    }

    /// It closed its socket. It is killed if it has not ended in a moment.
    pub(super) fn end_soon(&mut self, now: Instant) {
        let at = now + END_GRACE;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Kills it, because of `why`.
    pub(super) fn give_up(&mut self, why: String) {
        self.cause.get_or_insert_with(|| EndReason::KilledByNode(why.clone()));
        self.why.get_or_insert(why);
        self.kill();
    }

    /// Ends it because its only actor has ended, for `reason`. It is asked to exit, because a process that is
    /// killed in the middle of a kernel can take others with it; it is killed if it does not.
    pub(super) fn retire(&mut self, reason: EndReason) {
        self.cause.get_or_insert(reason);
        self.phase = WorkerPhase::Ending;
        self.send(&Down::Exit { comes_back: true }, Vec::new());
        self.end_soon(Instant::now());
    }

    /// Ends a spare that nobody needs any more. It has nothing to finish.
    pub(super) fn dismiss(&mut self) {
        self.told_to_exit = true;
        if self.is_running() {
            return self.retire(EndReason::Normal);
        }
        self.cause.get_or_insert(EndReason::Normal);
        self.phase = WorkerPhase::Ending;
        self.kill();
    }

    /// Lets it end by itself, in order; it is killed if it has not ended at `until`. It goes on answering
    /// meanwhile: others may wait for what it still makes, so it must hear of deaths (DEATH-3).
    pub(super) fn leave(&mut self, until: Instant) {
        self.cause.get_or_insert(EndReason::Normal);
        self.told_to_exit = true;
        self.kill_at = Some(self.kill_at.map_or(until, |earlier| earlier.min(until)));
    }

    /// Why it has ended: what the node knows comes before what the exit status says.
    pub(super) fn reason(&self, exit: Option<ExitStatus>) -> EndReason {
        if let Some(cause) = &self.cause {
            return cause.clone();
        }
        match exit {
            Some(exit) if self.told_to_exit && exit.success() => EndReason::Normal,
            Some(exit) => match exit.signal() {
                Some(signal) => EndReason::Signal(signal),
                None => EndReason::Exit(exit.code().unwrap_or(-1)),
            },
            None => EndReason::Exit(-1),
        }
    }

    /// Kills it and whatever processes it has started in its group.
    pub(super) fn kill(&mut self) {
        self.kill_at = None;
        // Its number cannot be somebody else's: the process was not waited for yet.
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        // Where this fails there is no process any more, and its pidfd says so.
        let _ = self.pidfd.kill();
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, WorkerPhase::Running)
    }

    pub(super) fn status(&self, actors: usize) -> WorkerStatus {
        let state = match (&self.phase, &self.spare) {
            (WorkerPhase::Ending, _) => WorkerState::Ending,
            (_, Some(spare)) => WorkerState::Spare { of: spare.worker, ready: self.is_running() },
            (WorkerPhase::Greeting { .. } | WorkerPhase::Opening { .. }, _) => WorkerState::Starting,
            (WorkerPhase::Running, _) if !self.told_to_exit => WorkerState::Running,
            (WorkerPhase::Running, _) => WorkerState::Ending,
        };
        WorkerStatus {
            worker: self.id,
            process: self.process,
            name: self.name.to_string(),
            pid: self.child.id(),
            state,
            actors,
            complaints: self.complaints,
            logs_dropped: self.logs_dropped,
            restarts: 0,
            last_end: None,
        }
    }
}
