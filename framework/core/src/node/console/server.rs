//! The node's side: a thread that takes connections, questions and, of the supervisor, answers.
//!
//! It waits for the supervisor, which answers a look within [`PATIENCE`] or is said not to, and for no watcher: what does not
//! go out at once ends the connection. Whoever misbehaves is in the node's log once.

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
use super::protocol::{Answer, Hello, Look, Packet, Request, VERSION};
use crate::limits::MAX_PACKET;
use crate::node::limits::{MAX_CONSOLE_ANSWER, MAX_QUESTION, MAX_WATCHERS};
use crate::node::supervisor::Shared;
use crate::node::wait;
use crate::os::named::{Listener, Peer, peer};
use crate::os::{EventFd, Seqpacket};

/// How long the supervisor may take for a look. It takes 90 ms at most, unless it has no processor.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long a look is shown again rather than asked for anew.
const LOOK_LASTS: Duration = Duration::from_millis(100);
/// Connections taken before anybody is answered.
const ACCEPT_TURN: usize = 16;
/// A watcher that has asked nothing for so long gives its place to another who wants it.
const IDLE: Duration = Duration::from_secs(10);
/// How long no connection is taken where the system has no descriptor for it.
const NO_DESCRIPTOR: Duration = Duration::from_secs(1);

/// The console of a node. Dropping it ends it.
pub(crate) struct Server {
    wake: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    done: Mutex<Receiver<()>>,
}

impl Server {
    /// Starts the thread. `None`: the system refused it, which is in the log then.
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
            std::thread::Builder::new().name("tp:console".to_owned()).spawn(move || {
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
        // Disconnected: it has ended. Timeout: something that a watcher sent closes slowly, and that must not hold the node.
        let _ = self.done.lock().recv_timeout(Duration::from_secs(1));
    }
}

/// What is said of watchers, once each.
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
                return self.shared.say(format!("the console has ended: it cannot wait for events: {error}"));
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.deaf_until = self.deaf_until.filter(|until| now < *until);
        let listens = if self.deaf_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.listener, listens)];
        fds.extend(self.watchers.iter().map(|watcher| PollFd::new(&watcher.socket, PollFlags::IN)));
        wait::poll(&mut fds, self.deaf_until.map(|until| until - now))?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        // From behind, because one that has ended is taken out.
        for index in (0..self.watchers.len()).rev() {
            if ready[index + 2] && !self.stop.load(Ordering::Acquire) && !self.serve(index) {
                self.watchers.swap_remove(index);
            }
        }
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

    /// A connection: nothing that came over it has been read (CON-2).
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
            let text = format!("{MAX_WATCHERS} look into this node already: {}", by.join(", "));
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
        // A new socket has room; one that has none is no watcher.
        if socket.try_send(&hello, &[]).is_ok() && !is_refused {
            self.watchers.push(Watcher { socket, who, asked: Instant::now() });
        }
    }

    fn let_an_idle_one_go(&mut self) -> bool {
        let idle = self.watchers.iter().position(|watcher| watcher.asked.elapsed() >= IDLE);
        idle.map(|index| self.watchers.swap_remove(index)).is_some()
    }

    /// Answers the next question of a watcher; false: it is let go.
    fn serve(&mut self, index: usize) -> bool {
        let watcher = &mut self.watchers[index];
        let mut question = [0; MAX_QUESTION];
        // Without room for descriptors: those that came along are closed by the kernel, and fill no table here.
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
            // So that a person who tries by hand knows why it ends.
            let why = "this is no question of the protocol; the command `tensorpost` of the node's version knows them";
            let _ = self.send(index, &Answer::Refused(why.to_owned()));
            return false;
        };
        let answer = self.answer(request);
        match self.send(index, &answer) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let who = self.watchers[index].who;
                self.say(Said::DoesNotRead, || {
                    format!("a watcher ({}) does not read its answers, and was let go", described(who))
                });
                false
            }
            // It is gone, or there is no memory for its answer.
            Err(_) => false,
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Look => self.look(),
            Request::Log { after } => Answer::Log(self.log.after(after)),
            Request::Stop { within } => match self.shared.begin_shutdown(within) {
                Ok(()) => Answer::Stopping,
                Err(_) => Answer::Ended,
            },
        }
    }

    fn look(&mut self) -> Answer {
        if let Some((_, look)) = self.look.as_ref().filter(|(at, _)| at.elapsed() < LOOK_LASTS) {
            return Answer::Look(Box::new(look.clone()));
        }
        match self.shared.look(PATIENCE) {
            Ok(Some(look)) => {
                self.look = Some((Instant::now(), look.clone()));
                Answer::Look(Box::new(look))
            }
            Ok(None) => Answer::Refused(format!(
                "the node's supervisor has not answered for {} s: the machine is overloaded, or it stands still",
                PATIENCE.as_secs()
            )),
            Err(_) => Answer::Ended,
        }
    }

    /// Sends an answer whole, or not at all.
    fn send(&self, index: usize, answer: &Answer) -> io::Result<()> {
        let socket = &self.watchers[index].socket;
        let bytes = serde_json::to_vec(&PacketOf::Answer(answer))?;
        if bytes.len() <= MAX_PACKET {
            return socket.try_send(&bytes, &[]);
        }
        if bytes.len() > MAX_CONSOLE_ANSWER {
            let text =
                format!("the answer would have {} bytes, and {MAX_CONSOLE_ANSWER} are the most", bytes.len());
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

/// As [`Packet`], of an answer that is kept.
#[derive(serde::Serialize)]
enum PacketOf<'a> {
    Answer(&'a Answer),
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

/// Memory with these bytes that nobody can change any more.
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
