//! The supervisor's record of one worker.

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
use crate::node::journal::Journal;
use crate::node::limits::{END_GRACE, MAX_NAME, cut};
use crate::node::line::{LineError, Outgoing, Receiving};
use crate::node::wait;
use crate::observe::pace::Pace;
use crate::os::last_words::LastWords;
use crate::os::{PidFd, Seqpacket};
use crate::transport::control_channel::Location;
use crate::transport::lifecycle::EndReason;

use super::departure::Departure;
use super::launch::Launched;
use super::reply::Reply;
use super::{SpawnError, StartError, WorkerId};

/// Serializes how a process ended, as the system's number.
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
#[non_exhaustive]
pub enum WorkerState {
    /// Its process was started, but it is not ready.
    Starting,
    /// Its actors run.
    Running,
    /// It was told to end, or is being killed.
    Ending,
    /// It has no actor, and waits to replace another worker when that worker's process ends
    /// ([`Spawn::spares`](crate::node::Spawn::spares)).
    Spare {
        /// The worker that it may replace.
        of: WorkerId,
        /// Whether it has started and opened the device.
        ready: bool,
    },
    /// Its process has ended, and it gets another process.
    Restarting {
        /// Why it ended.
        reason: EndReason,
    },
    /// Its process has ended.
    Exited {
        /// How; `None` if the system did not say.
        #[serde(with = "exit_status")]
        exit: Option<ExitStatus>,
        /// The cause, if the node knows it.
        why: Option<String>,
    },
}

/// The status of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
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
    /// The number of actors in it.
    pub actors: usize,
    /// Messages that it should not have sent. Another process can be to blame for some of them: the log has
    /// at most one of these a second.
    pub complaints: u64,
    /// Events of its log that were dropped because nobody read fast enough.
    pub logs_dropped: u64,
    /// How often it, or an actor in it, was restarted.
    pub restarts: u32,
    /// The reason of the last restart.
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

/// The party that hears how a worker's start went.
pub(super) enum Asker {
    /// The caller that asked for the worker.
    Caller(Reply<Result<WorkerId, SpawnError>>),
    /// The supervisor itself: this is another life of the worker, and its actors start next.
    Restart,
    /// Nobody: it is a spare, or serves the node itself.
    Nobody,
}

impl Asker {
    /// Whether somebody waits for the answer.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Asker::Caller(_))
    }

    pub(super) fn answer(&self, result: Result<WorkerId, SpawnError>) {
        if let Asker::Caller(reply) = self {
            // The caller may be gone.
            reply.answer(result);
        }
    }
}

/// An actor that the worker was told to start.
pub(super) struct Pending {
    pub(super) location: Location,
    pub(super) type_name: String,
    /// Set if it ended before the worker said that it had started: why it ended, and whether its senders
    /// wait.
    pub(super) ended: Option<(Option<EndReason>, bool)>,
    /// Set for its first life.
    pub(super) first: Option<First>,
}

/// An actor that has not started for the first time yet.
pub(super) struct First {
    pub(super) made_of: NewActor,
    pub(super) how: Supervision,
    pub(super) reply: Reply<Result<(ActorId, Location), StartError>>,
    /// The number of the life that it begins here; not 0 if it has lived on another host.
    pub(super) life: u32,
}

/// The round that a worker ends in.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupRestart {
    pub(super) round: u64,
    /// When the next lives begin, if all have ended by then.
    pub(super) at: Instant,
}

/// A spare's role: the worker that it may replace.
pub(super) struct SpareFor {
    pub(super) worker: WorkerId,
    /// That worker's name.
    pub(super) name: Arc<str>,
    /// The device that it opens; `HOST` for none.
    pub(super) device: DeviceId,
    pub(super) began: Instant,
}

impl SpareFor {
    /// Returns the spare's own name, as long as it waits.
    pub(super) fn shown_as(&self) -> String {
        const MARK: &str = " (spare)";
        cut(self.name.to_string(), MAX_NAME - MARK.len()) + MARK
    }
}

/// The ways on which a worker speaks.
pub(super) struct WorkerLine {
    /// Its standard error until it greets.
    pub(super) last_words: Option<LastWords>,
    pub(super) incoming: Receiving,
    pub(super) outgoing: Outgoing,
    pub(super) socket: Arc<Seqpacket>,
    /// Whether the socket may still be read.
    pub(super) open: bool,
    /// Whether everything that it had sent has been read.
    pub(super) read_to_the_end: bool,
}

/// How far the end of a worker's actors is, in a shutdown.
#[derive(Default)]
pub(super) struct ActorsStop {
    pub(super) is_told: bool,
    pub(super) is_done: bool,
}

/// The faults of a worker: messages that it should not have sent, and records that it dropped from its log.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) complaints: u64,
    /// The complaints that only the worker itself can have caused.
    pub(super) offences: u64,
    /// Lines of the node's log about complaints for which another process can be to blame.
    pub(super) innocent: Pace,
    pub(super) logs_dropped: u64,
    /// The part of them that the node's log has not mentioned yet.
    pub(super) untold: u64,
    /// Lines of the node's log about them.
    pub(super) dropped: Pace,
}

/// One life of a worker.
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) process: ProcessId,
    pub(super) name: Arc<str>,
    pub(super) child: Child,
    pub(super) pidfd: PidFd,
    pub(super) line: WorkerLine,
    pub(super) phase: WorkerPhase,
    pub(super) pending: HashMap<ActorId, Pending>,
    pub(super) awaiting_end: Vec<Reply<WorkerState>>,
    pub(super) actors_stop: ActorsStop,
    pub(super) end: Departure,
    pub(super) faults: Faults,
    /// Set if others have failed and it restarts with them.
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
            line: WorkerLine {
                incoming: Receiving::new(socket.clone()),
                outgoing: Outgoing::new(socket.clone()),
                socket,
                open: true,
                read_to_the_end: false,
                last_words: launched.last_words,
            },
            phase,
            pending: HashMap::new(),
            awaiting_end: Vec::new(),
            actors_stop: ActorsStop::default(),
            end: Departure::default(),
            faults: Faults::default(),
            group_restart: None,
            gpus: HashSet::new(),
            spare,
        }
    }

    /// Returns the worker whose program and settings it was started with.
    pub(super) fn made_as(&self) -> WorkerId {
        self.spare.as_ref().map_or(self.id, |spare| spare.worker)
    }

    /// Logs how many events of its log it has dropped since the last line about them, once a second.
    pub(super) fn tell_dropped_logs(&mut self, journal: &Journal) {
        let faults = &mut self.faults;
        if faults.untold > 0 && faults.dropped.tell(Instant::now()).is_some() {
            journal.worker_dropped(&self.name, std::mem::take(&mut faults.untold));
        }
    }

    /// Returns when the log has to say how many events the worker has dropped.
    pub(super) fn dropped_logs_due(&self) -> Option<Instant> {
        self.faults.dropped.due().filter(|_| self.faults.untold > 0)
    }

    /// Returns the name that its process uses for itself: a spare has the name of the worker that it may
    /// replace.
    pub(super) fn title(&self) -> &Arc<str> {
        self.spare.as_ref().map_or(&self.name, |spare| &spare.name)
    }

    /// Whether the supervisor knows of no reason for it to end.
    pub(super) fn can_go_on(&self) -> bool {
        !matches!(self.phase, WorkerPhase::Ending) && self.line.open && self.end.is_unknown()
    }

    /// Whether its process has ended, even if the loop has not handled that yet.
    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // If poll fails, the loop hears of the end later.
        wait::poll(&mut fds, Some(Duration::ZERO)).is_ok() && !fds[0].revents().is_empty()
    }

    /// Notes that an actor on this device is started in it.
    pub(super) fn uses(&mut self, device: DeviceId) {
        if device != DeviceId::HOST {
            self.gpus.insert(device);
        }
    }

    /// Sends a message, or queues it. A worker whose socket fails is as good as dead, so the supervisor kills
    /// it. A worker that has closed its socket is ending by itself.
    pub(super) fn send(&mut self, message: &Down, descriptors: Vec<OwnedFd>) {
        let sent = match encode(message) {
            Ok(bytes) => self.line.outgoing.send(&bytes, descriptors),
            Err(error) => return self.give_up(error.to_string()),
        };
        if let Err(error) = sent {
            self.line_failed(error);
        }
    }

    pub(super) fn flush(&mut self) {
        if let Err(error) = self.line.outgoing.flush() {
            self.line_failed(error);
        }
    }

    fn line_failed(&mut self, error: LineError) {
        match error {
            // Its last messages are still unread.
            LineError::Closed => self.end_soon(Instant::now()),
            error => self.give_up(error.to_string()),
        }
    }

    /// Gives a worker that ends by itself a moment; the supervisor kills it afterwards.
    pub(super) fn end_soon(&mut self, now: Instant) {
        self.end.by(now + END_GRACE);
    }

    /// Kills it, because of `why`.
    pub(super) fn give_up(&mut self, why: String) {
        self.end.because(EndReason::KilledByNode, why);
        self.kill();
    }

    /// Ends it because its only actor has ended, for `reason`. The supervisor first asks it to exit, because
    /// a process that is killed in the middle of a kernel can take others with it. If it does not exit, the
    /// supervisor kills it.
    pub(super) fn retire(&mut self, reason: EndReason) {
        self.end.cause.get_or_insert(reason);
        self.phase = WorkerPhase::Ending;
        self.send(&Down::Exit { comes_back: true }, Vec::new());
        self.end_soon(Instant::now());
    }

    /// Ends a spare that is not needed any more. It has nothing to finish.
    pub(super) fn dismiss(&mut self) {
        self.end.told_to_exit = true;
        if self.is_running() {
            return self.retire(EndReason::Normal);
        }
        self.end.cause.get_or_insert(EndReason::Normal);
        self.phase = WorkerPhase::Ending;
        self.kill();
    }

    /// Lets it end by itself, in order; the supervisor kills it if it has not ended at `until`. Until then it
    /// still answers: others may wait for its last results, so it must hear of deaths (DEATH-3).
    pub(super) fn leave(&mut self, until: Instant) {
        self.end.cause.get_or_insert(EndReason::Normal);
        self.end.told_to_exit = true;
        self.end.by(until);
    }

    /// Kills it and all processes that it has started in its group.
    pub(super) fn kill(&mut self) {
        self.end.kill_at = None;
        // Its process id cannot belong to another process: nobody has waited for this one yet.
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        // If this fails, the process is gone already, and its pidfd says so.
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
            (WorkerPhase::Running, _) if !self.end.told_to_exit => WorkerState::Running,
            (WorkerPhase::Running, _) => WorkerState::Ending,
        };
        WorkerStatus {
            worker: self.id,
            process: self.process,
            name: self.name.to_string(),
            pid: self.child.id(),
            state,
            actors,
            complaints: self.faults.complaints,
            logs_dropped: self.faults.logs_dropped,
            restarts: 0,
            last_end: None,
        }
    }
}
