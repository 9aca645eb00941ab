//! The node's side: a thread that takes connections and questions, and gets the answers from the supervisor.
//!
//! The thread waits for the supervisor, for [`WAIT_FOR_SUPERVISOR`] at most, and otherwise answers that the
//! supervisor does not answer. It waits for no watcher: an answer that does not go out at once ends the
//! connection. The log mentions each kind of misbehaviour once.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::LogRing;
use super::protocol::{Answer, Hello, NodeSnapshot, Packet, Request, TraceFacts, VERSION};
use crate::limits::{MAX_PACKET, MAX_PACKET_FDS};
use crate::node::limits::{
    MAX_CONSOLE_ANSWER, MAX_QUESTION, MAX_TRACED_TIME, MAX_WATCHERS, SNAPSHOT_LASTS, WAIT_FOR_SUPERVISOR,
};
use crate::node::serving::{self, End, NO_DESCRIPTOR, Serving};
use crate::node::supervisor::Shared;
use crate::observe::metrics::ProcessState;
use crate::observe::text::time;
use crate::observe::trace::Collector;
use crate::os::named_socket::{Listener, Peer, peer};
use crate::os::{Seqpacket, memfd, monotonic_ns};

/// A watcher that has asked nothing for this long gives its place to another that wants it.
const IDLE: Duration = Duration::from_secs(10);
/// The name of the memory in which long answers go out.
const MEMORY: &str = "tensorpost-console";

/// The console of a node. Dropping it ends it.
pub(crate) struct Server {
    _thread: Serving,
}

impl Server {
    /// Starts the thread. `None`: the system refused it, which the log says.
    pub(crate) fn start(listener: Listener, shared: Arc<Shared>, log: Arc<LogRing>) -> Option<Self> {
        let started = Serving::start("tp-console", move |end| {
            let (watchers, said) = (Vec::new(), HashSet::new());
            Thread { listener, end, shared, log, watchers, deaf_until: None, snapshot: None, said }.run();
        });
        started
            .map(|thread| Server { _thread: thread })
            .inspect_err(|error| {
                tracing::warn!(target: "tensorpost::node", %error, "this node has no console: the system refused a thread");
            })
            .ok()
    }
}

/// The kinds of log lines about watchers, each logged once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WatcherFault {
    OtherUser,
    TooMany,
    Garbage,
    DoesNotRead,
    NoDescriptor,
}

struct Watcher {
    socket: Seqpacket,
    who: Peer,
    asked: Instant,
    /// The interval that it traces now. At most one watcher has one.
    tracing: Option<Tracing>,
}

/// An interval that is traced.
struct Tracing {
    until: Instant,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    since: u64,
    collector: Arc<Collector>,
}

struct Thread {
    listener: Listener,
    end: End,
    shared: Arc<Shared>,
    log: Arc<LogRing>,
    watchers: Vec<Watcher>,
    /// Until then no connection is taken.
    deaf_until: Option<Instant>,
    /// The last snapshot, and when it came.
    snapshot: Option<(Instant, NodeSnapshot)>,
    said: HashSet<WatcherFault>,
}

impl Thread {
    fn run(mut self) {
        while !self.end.is_asked_for() {
            if let Err(error) = self.turn() {
                self.shared.say(format!("the console has ended: it cannot wait for events: {error}"));
                break;
            }
        }
        // The node has ended, or no later turn would end the traces: hand them to their watchers now.
        self.end_traces(|_| true);
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.deaf_until = self.deaf_until.filter(|until| now < *until);
        let listens = if self.deaf_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&self.end, PollFlags::IN), PollFd::new(&self.listener, listens)];
        fds.extend(self.watchers.iter().map(|watcher| PollFd::new(&watcher.socket, PollFlags::IN)));
        let tracing = self.watchers.iter().filter_map(|watcher| watcher.tracing.as_ref());
        let next = tracing.map(|tracing| tracing.until).chain(self.deaf_until).min();
        let ready = serving::ready(fds, next)?;
        // From the end, because a watcher that has gone is removed.
        for index in (0..self.watchers.len()).rev() {
            if ready[index + 2] && !self.end.is_asked_for() && !self.serve(index) {
                self.let_go(index);
            }
        }
        let now = Instant::now();
        self.end_traces(|tracing| tracing.until <= now);
        if ready[1] && self.deaf_until.is_none() {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        let taken = serving::accept(|| {
            let fd = self.listener.accept()?;
            self.admit(fd);
            Ok(())
        });
        if let Err(error) = taken {
            self.deaf_until = Some(Instant::now() + NO_DESCRIPTOR);
            self.say(WatcherFault::NoDescriptor, || format!("no watcher can connect: {error}"));
        }
    }

    /// Admits a connection, of which nothing has been read yet (CON-2).
    fn admit(&mut self, fd: OwnedFd) {
        let (socket, who) = match watcher(fd, rustix::process::geteuid().as_raw()) {
            Ok(Ok(watcher)) => watcher,
            Ok(Err(who)) => {
                return self.say(WatcherFault::OtherUser, || {
                    format!("a process of another user ({}) tried to look into this node", described(who))
                });
            }
            Err(_) => return,
        };
        let mut refused = None;
        if self.watchers.len() >= MAX_WATCHERS && !self.let_an_idle_one_go() {
            let by: Vec<_> = self.watchers.iter().map(|watcher| described(watcher.who)).collect();
            let text = format!(
                "{MAX_WATCHERS} look into this node already, as many as may; end one of them first: {}",
                by.join(", ")
            );
            self.say(WatcherFault::TooMany, || format!("a watcher was refused: {text}"));
            refused = Some(text);
        }
        let is_refused = refused.is_some();
        let hello = Hello {
            console: VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            refused,
        };
        let Ok(hello) = serde_json::to_vec(&hello) else { return };
        // A new socket has room, so a send that fails means that the watcher has gone.
        if socket.try_send(&hello, &[]).is_ok() && !is_refused {
            self.watchers.push(Watcher { socket, who, asked: Instant::now(), tracing: None });
        }
    }

    fn let_an_idle_one_go(&mut self) -> bool {
        let is_idle = |watcher: &Watcher| watcher.asked.elapsed() >= IDLE && watcher.tracing.is_none();
        let idle = self.watchers.iter().position(is_idle);
        idle.map(|index| self.let_go(index)).is_some()
    }

    /// Removes a watcher; its trace ends with it.
    fn let_go(&mut self, index: usize) {
        if self.watchers.swap_remove(index).tracing.is_some() {
            self.shared.end_trace();
            self.shared.drop_trace_of_hosts();
        }
    }

    /// Answers the next question of a watcher. Returns false if the watcher must be removed.
    fn serve(&mut self, index: usize) -> bool {
        let watcher = &mut self.watchers[index];
        let mut question = [0; MAX_QUESTION];
        // Receive without room for descriptors: the kernel closes those that came along, so they fill no
        // table here.
        let length = match rustix::net::recv(
            &watcher.socket,
            &mut question[..],
            RecvFlags::DONTWAIT | RecvFlags::TRUNC,
        ) {
            Ok((_, 0)) => return false,
            Ok((_, length)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        watcher.asked = Instant::now();
        let request = question.get(..length).and_then(|question| serde_json::from_slice(question).ok());
        let Some(request) = request else {
            let who = watcher.who;
            self.say(WatcherFault::Garbage, || {
                format!("a watcher ({}) asked what is no question, and was let go", described(who))
            });
            // Tell a person who tries by hand why the connection ends.
            let why = "this is no question of the protocol; the command `tensorpost` of the node's version knows them";
            let _ = self.send(index, &Answer::Refused(why.to_owned()));
            return false;
        };
        let answer = match request {
            Request::Trace { long } => match self.begin_trace(index, long) {
                Ok(()) => return true,
                Err(answer) => answer,
            },
            Request::Look => self.snapshot(),
            Request::Log { after } => Answer::Log(self.log.after(after)),
            Request::Stop { within } => match self.shared.begin_shutdown(within) {
                Ok(()) => Answer::Stopping,
                Err(_) => Answer::Ended,
            },
        };
        let sent = self.send(index, &answer);
        self.is_sent(index, sent)
    }

    /// Whether an answer has gone out; if not, the watcher must be removed.
    fn is_sent(&mut self, index: usize, sent: io::Result<()>) -> bool {
        match sent {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let who = self.watchers[index].who;
                self.say(WatcherFault::DoesNotRead, || {
                    format!("a watcher ({}) does not read its answers, and was let go", described(who))
                });
                false
            }
            // The watcher has gone, or there is no memory for its answer.
            Err(_) => false,
        }
    }

    /// Begins to trace for a watcher, which gets its answer when the time is up. `Err` is the answer that
    /// says why not.
    fn begin_trace(&mut self, index: usize, long: Duration) -> Result<(), Answer> {
        if long > MAX_TRACED_TIME {
            let most = time(MAX_TRACED_TIME);
            return Err(Answer::Refused(format!(
                "a trace lasts {most} at most; trace a shorter time, or several times"
            )));
        }
        let other = self.watchers.iter().find_map(|watcher| Some((watcher.who, watcher.tracing.as_ref()?)));
        if let Some((who, tracing)) = other {
            let left = time(tracing.until.saturating_duration_since(Instant::now()));
            return Err(Answer::Refused(format!(
                "it is traced already, for {}, and for {left} more; try again then",
                described(who)
            )));
        }
        let since = monotonic_ns();
        let collector = match self.shared.begin_trace(WAIT_FOR_SUPERVISOR) {
            Ok(Some(Ok(collector))) => collector,
            Ok(Some(Err(error))) => {
                return Err(Answer::Refused(format!("it cannot be traced: {error}")));
            }
            Ok(None) => return Err(does_not_answer()),
            Err(_) => return Err(Answer::Ended),
        };
        // The workers hear of the trace before they give their part of this snapshot, so the interval begins
        // when all of them trace. A silent worker begins later, or not at all.
        let _ = self.shared.snapshot(WAIT_FOR_SUPERVISOR);
        self.shared.begin_trace_of_hosts();
        self.watchers[index].tracing = Some(Tracing { until: Instant::now() + long, since, collector });
        Ok(())
    }

    /// Answers the watchers whose traces are over.
    fn end_traces(&mut self, is_over: impl Fn(&Tracing) -> bool) {
        for index in (0..self.watchers.len()).rev() {
            let Some(tracing) = self.watchers[index].tracing.take_if(|tracing| is_over(tracing)) else {
                continue;
            };
            self.shared.end_trace();
            // The workers hear of the end before they give their part of this snapshot, so their memory stays
            // as it is.
            let silent = match self.shared.snapshot(WAIT_FOR_SUPERVISOR) {
                Ok(Some(snapshot)) => {
                    let silent = snapshot.processes.into_iter().filter(|of| of.state == ProcessState::Silent);
                    silent.map(|of| of.name).collect()
                }
                _ => Vec::new(),
            };
            let until = monotonic_ns();
            let (hosts, silent_hosts) = self.shared.end_trace_of_hosts();
            let silent = [silent, silent_hosts].concat();
            let sent = self.hand_over(index, &tracing, until, silent, hosts);
            if !self.is_sent(index, sent) {
                self.let_go(index);
            }
        }
    }

    fn hand_over(
        &self,
        index: usize,
        tracing: &Tracing,
        until: u64,
        silent: Vec<String>,
        hosts: Vec<(String, Vec<u8>)>,
    ) -> io::Result<()> {
        let traced = tracing.collector.hand_over()?;
        let facts = TraceFacts {
            since: tracing.since,
            until,
            records: traced.records,
            processes: traced.processes,
            forgotten: traced.forgotten,
            silent,
            hosts: hosts.iter().map(|(name, trace)| (name.clone(), trace.len() as u64)).collect(),
        };
        // The answer first: it tells the command how much memory follows.
        self.send(index, &Answer::Trace(facts))?;
        let packet = serde_json::to_vec(&Packet::Rings)?;
        let mut memory = traced.rings;
        for (_, trace) in hosts {
            memory.push(memfd::sealed(MEMORY, &trace)?);
        }
        for rings in memory.chunks(MAX_PACKET_FDS) {
            let rings: Vec<_> = rings.iter().map(AsFd::as_fd).collect();
            self.watchers[index].socket.try_send(&packet, &rings)?;
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Answer {
        if let Some((_, snapshot)) = self.snapshot.as_ref().filter(|(at, _)| at.elapsed() < SNAPSHOT_LASTS) {
            return Answer::Look(Box::new(snapshot.clone()));
        }
        match self.shared.snapshot_of_all(WAIT_FOR_SUPERVISOR) {
            Ok(Some(snapshot)) => {
                self.snapshot = Some((Instant::now(), snapshot.clone()));
                Answer::Look(Box::new(snapshot))
            }
            Ok(None) => does_not_answer(),
            Err(_) => Answer::Ended,
        }
    }

    /// Sends the whole answer, or nothing.
    fn send(&self, index: usize, answer: &Answer) -> io::Result<()> {
        let socket = &self.watchers[index].socket;
        let bytes = serde_json::to_vec(&PacketOf::Answer(answer))?;
        if bytes.len() <= MAX_PACKET {
            return socket.try_send(&bytes, &[]);
        }
        if bytes.len() > MAX_CONSOLE_ANSWER {
            let text = format!(
                "the answer would have {} bytes, and {MAX_CONSOLE_ANSWER} are the most; ask for less",
                bytes.len()
            );
            return socket.try_send(&serde_json::to_vec(&Packet::Answer(Answer::Refused(text)))?, &[]);
        }
        let memory = memfd::sealed(MEMORY, &bytes)?;
        socket.try_send(&serde_json::to_vec(&Packet::Memory(bytes.len() as u64))?, &[memory.as_fd()])
    }

    fn say(&mut self, what: WatcherFault, text: impl FnOnce() -> String) {
        if self.said.insert(what) {
            self.shared.say(text());
        }
    }
}

/// As [`Packet`], for an answer that is borrowed.
#[derive(serde::Serialize)]
enum PacketOf<'a> {
    Answer(&'a Answer),
}

fn does_not_answer() -> Answer {
    Answer::Refused(format!(
        "the node's supervisor has not answered for {}: the machine is overloaded, or it stands still",
        time(WAIT_FOR_SUPERVISOR)
    ))
}

/// Returns the socket of a process that may look into a node of the user `own`. Of another it returns only
/// which process that is (CON-2).
fn watcher(fd: OwnedFd, own: u32) -> io::Result<Result<(Seqpacket, Peer), Peer>> {
    let who = peer(fd.as_fd())?;
    if !may_watch(who.uid, own) {
        return Ok(Err(who));
    }
    Ok(Ok((Seqpacket::from_fd(fd)?, who)))
}

/// CON-2: the same user, or root.
fn may_watch(watcher: u32, own: u32) -> bool {
    watcher == own || watcher == 0
}

fn described(who: Peer) -> String {
    match who.pid {
        Some(pid) => format!("process {pid}, user {}", who.uid),
        None => format!("a process of another namespace, user {}", who.uid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::named_socket::{SocketName, by_stranger, connect};

    // CON-2.
    #[test]
    fn the_same_user_and_root_may_watch_and_nobody_else() {
        assert!(may_watch(1000, 1000) && may_watch(0, 1000) && may_watch(0, 0));
        assert!(!may_watch(1001, 1000) && !may_watch(1000, 0) && !may_watch(65534, 1000));
    }

    // CON-2.
    #[test]
    fn of_another_user_only_its_process_is_known() {
        let place = SocketName::Name(format!("tensorpost-test/{}/watched", std::process::id()));
        let listener = Listener::bind(&place).unwrap();
        let (_theirs, uid, own) = by_stranger(|| connect(&place).unwrap());
        let who = watcher(listener.accept().unwrap(), own).unwrap().expect_err("another user's");
        assert_eq!(who, Peer { pid: Some(std::process::id()), uid });
        let _ours = connect(&place).unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(watcher(listener.accept().unwrap(), own).unwrap().is_ok(), "the node's own user");
    }
}
