//! The node's side: a thread that takes connections and questions, and gets the answers from the supervisor.
//!
//! The thread waits for the supervisor, for [`PATIENCE`] at most, and otherwise answers that the supervisor
//! does not answer. It waits for no watcher: an answer that does not go out at once ends the connection. The
//! log mentions each kind of misbehaviour once.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::LogRing;
use super::protocol::{Answer, Hello, Look, Packet, Request, TraceFacts, VERSION};
use crate::limits::{MAX_PACKET, MAX_PACKET_FDS};
use crate::node::limits::{MAX_CONSOLE_ANSWER, MAX_QUESTION, MAX_TRACED_TIME, MAX_WATCHERS};
use crate::node::supervisor::Shared;
use crate::node::wait;
use crate::observe::metrics::ProcessState;
use crate::observe::text::time;
use crate::observe::trace::Collector;
use crate::os::named::{Listener, Peer, peer};
use crate::os::{EventFd, Seqpacket, monotonic_ns};

/// How long the supervisor may take for a look. It takes 90 ms at most, unless it has no processor.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an old look is shown again instead of a new one.
const LOOK_LASTS: Duration = Duration::from_millis(100);
/// Connections taken before anybody is answered.
const ACCEPT_TURN: usize = 16;
/// A watcher that has asked nothing for this long gives its place to another that wants it.
const IDLE: Duration = Duration::from_secs(10);
/// How long no connection is taken after the system had no descriptor for one.
const NO_DESCRIPTOR: Duration = Duration::from_secs(1);

/// The console of a node. Dropping it ends it.
pub(crate) struct Server {
    wake: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    done: Mutex<Receiver<()>>,
}

impl Server {
    /// Starts the thread. `None`: the system refused it, which the log says.
    pub(crate) fn start(listener: Listener, shared: Arc<Shared>, log: Arc<LogRing>) -> Option<Self> {
        let started = || -> io::Result<Self> {
            let wake = Arc::new(EventFd::create()?);
            let stop = Arc::new(AtomicBool::new(false));
            let (done_sender, done) = sync_channel(0);
            let thread = Thread {
                listener,
                wake: Arc::clone(&wake),
                stop: Arc::clone(&stop),
                shared,
                log,
                watchers: Vec::new(),
                deaf_until: None,
                look: None,
                said: HashSet::new(),
            };
            std::thread::Builder::new().name("tp-console".to_owned()).spawn(move || {
                let _done = done_sender;
                thread.run();
            })?;
            Ok(Server { wake, stop, done: Mutex::new(done) })
        };
        started()
            .inspect_err(|error| {
                tracing::warn!(target: "tensorpost::node", %error, "this node has no console: the system refused a thread");
            })
            .ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A full doorbell is rung already; nothing else can fail on an eventfd of our own.
        let _ = self.wake.ring();
        // Disconnected: the thread has ended. Timeout: a descriptor of a watcher closes slowly, and that must
        // not hold up the node.
        let _ = self.done.lock().recv_timeout(Duration::from_secs(1));
    }
}

/// The kinds of log lines about watchers, each logged once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
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
    wake: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    log: Arc<LogRing>,
    watchers: Vec<Watcher>,
    /// Until then no connection is taken.
    deaf_until: Option<Instant>,
    /// The last look, and when it came.
    look: Option<(Instant, Look)>,
    said: HashSet<Said>,
}

impl Thread {
    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
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
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.listener, listens)];
        fds.extend(self.watchers.iter().map(|watcher| PollFd::new(&watcher.socket, PollFlags::IN)));
        let tracing = self.watchers.iter().filter_map(|watcher| watcher.tracing.as_ref());
        let next = tracing.map(|tracing| tracing.until).chain(self.deaf_until).min();
        wait::poll(&mut fds, next.map(|until| until.saturating_duration_since(now)))?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        // From the end, because a watcher that has gone is removed.
        for index in (0..self.watchers.len()).rev() {
            if ready[index + 2] && !self.stop.load(Ordering::Acquire) && !self.serve(index) {
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
        for _ in 0..ACCEPT_TURN {
            match self.listener.accept() {
                Ok(fd) => self.admit(fd),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.deaf_until = Some(Instant::now() + NO_DESCRIPTOR);
                    return self.say(Said::NoDescriptor, || format!("no watcher can connect: {error}"));
                }
            }
        }
    }

    /// Admits a connection, of which nothing has been read yet (CON-2).
    fn admit(&mut self, fd: OwnedFd) {
        let Ok(who) = peer(fd.as_fd()) else { return };
        if !may_watch(who.uid, rustix::process::geteuid().as_raw()) {
            return self.say(Said::OtherUser, || {
                format!("a process of another user ({}) tried to look into this node", described(who))
            });
        }
        let Ok(socket) = Seqpacket::from_fd(fd) else { return };
        let mut refused = None;
        if self.watchers.len() >= MAX_WATCHERS && !self.let_an_idle_one_go() {
            let by: Vec<_> = self.watchers.iter().map(|watcher| described(watcher.who)).collect();
            let text = format!(
                "{MAX_WATCHERS} look into this node already, as many as may; end one of them first: {}",
                by.join(", ")
            );
            self.say(Said::TooMany, || format!("a watcher was refused: {text}"));
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
            self.say(Said::Garbage, || {
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
            Request::Look => self.look(),
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
                self.say(Said::DoesNotRead, || {
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
        let collector = match self.shared.begin_trace(PATIENCE) {
            Ok(Some(Ok(collector))) => collector,
            Ok(Some(Err(error))) => {
                return Err(Answer::Refused(format!("it cannot be traced: {error}")));
            }
            Ok(None) => return Err(does_not_answer()),
            Err(_) => return Err(Answer::Ended),
        };
        // The workers hear of the trace before they answer this look, so the interval begins when all of them
        // trace. A silent worker begins later, or not at all.
        let _ = self.shared.look(PATIENCE);
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
            // The workers hear of the end before they answer this look, so their memory stays as it is.
            let silent = match self.shared.look(PATIENCE) {
                Ok(Some(look)) => {
                    let silent = look.processes.into_iter().filter(|of| of.state == ProcessState::Silent);
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
            memory.push(sealed(&trace)?);
        }
        for rings in memory.chunks(MAX_PACKET_FDS) {
            let rings: Vec<_> = rings.iter().map(AsFd::as_fd).collect();
            self.watchers[index].socket.try_send(&packet, &rings)?;
        }
        Ok(())
    }

    fn look(&mut self) -> Answer {
        if let Some((_, look)) = self.look.as_ref().filter(|(at, _)| at.elapsed() < LOOK_LASTS) {
            return Answer::Look(Box::new(look.clone()));
        }
        match self.shared.look_at_all(PATIENCE) {
            Ok(Some(look)) => {
                self.look = Some((Instant::now(), look.clone()));
                Answer::Look(Box::new(look))
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
        let memory = sealed(&bytes)?;
        socket.try_send(&serde_json::to_vec(&Packet::Memory(bytes.len() as u64))?, &[memory.as_fd()])
    }

    fn say(&mut self, what: Said, text: impl FnOnce() -> String) {
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
        time(PATIENCE)
    ))
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

/// Makes sealed memory with these bytes, which nobody can change any more.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = memfd_create("tensorpost-console", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(&memory, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    // CON-2.
    #[test]
    fn the_same_user_and_root_may_watch_and_nobody_else() {
        assert!(may_watch(1000, 1000) && may_watch(0, 1000) && may_watch(0, 0));
        assert!(!may_watch(1001, 1000) && !may_watch(1000, 0) && !may_watch(65534, 1000));
    }

    #[test]
    fn sealed_memory_has_its_bytes_and_takes_no_others() {
        let memory = sealed(b"as it was").unwrap();
        assert_eq!(rustix::io::pwrite(&memory, b"x", 0), Err(Errno::PERM));
        let mut read = [0; 16];
        assert_eq!(rustix::io::pread(&memory, &mut read[..], 0), Ok(9));
        assert_eq!(&read[..9], b"as it was");
    }
}
