//! The thread that accepts connections and checks their first bytes.
//!
//! Used by the [listener](super::listener). Each stranger of a flood costs this thread four system calls, and
//! no other thread anything. With a key file, a connection has to begin with a proof of the key, and one
//! without is dropped. Without a key, the other end has to be a process of this user or of root.
//!
//! *When it is dropped*, the thread ends, and connections that wait at the door are closed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::io::late;
use super::strangers::{Proofs, StrangerPlace, Strangers};
use super::{LANE, MESSAGES};
use crate::limits::INTRODUCTION;
use crate::refused::{Kind, Refused};
use crate::security::{Nonce, PROOF_BYTES, Security};

/// Connections that are accepted before those that have sent something are looked at.
const BATCH: usize = 64;
/// How often the thread looks for connections whose time is up.
const EXPIRY_CHECKS: Duration = Duration::from_millis(250);

/// The event numbers of the listener and of the end; connections count from 1.
const LISTENER: u64 = 0;
const END: u64 = u64::MAX;

/// The thread that accepts connections; see the module.
#[derive(Debug)]
pub(super) struct Doors {
    end: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// A connection that may come in, and show the key there.
pub(super) struct Guest {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    /// The user of its process, if only that identifies it.
    pub(super) user: Option<u32>,
    pub(super) is_lane: bool,
    pub(super) place: StrangerPlace,
    /// The moment by which it has to have shown the key.
    pub(super) until: Instant,
}

impl Doors {
    /// Accepts connections of this socket, which does not block.
    ///
    /// # Errors
    /// The system has no thread, or no descriptors.
    pub(super) fn open(
        socket: TcpListener,
        security: Security,
        refused: Arc<Refused>,
        admit: impl FnMut(Guest) + Send + 'static,
    ) -> io::Result<Self> {
        let (epoll, end) = (epoll::create(CreateFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        epoll::add(&epoll, &socket, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        let (strangers, proofs) = (Strangers::default(), Proofs::default());
        let door = Door { socket, epoll, security, refused, strangers, proofs, admit };
        let thread = thread::Builder::new().name("tp-door".to_owned()).spawn(move || door.stand())?;
        Ok(Doors { end, thread: Some(thread) })
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        // Nothing has been written to it before, so there is room.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(target: "tensorpost::hosts", "the thread that takes this host's connections panicked");
        }
    }
}

struct Door<A> {
    socket: TcpListener,
    epoll: OwnedFd,
    security: Security,
    refused: Arc<Refused>,
    strangers: Strangers,
    proofs: Proofs,
    admit: A,
}

/// The first bytes of a connection: whether it is a lane, and the nonce of its proof if one is required.
type Opening = (bool, Option<Nonce>);

impl<A: FnMut(Guest)> Door<A> {
    fn stand(mut self) {
        let mut events = Vec::with_capacity(4 * BATCH);
        let often = Timespec { tv_sec: 0, tv_nsec: EXPIRY_CHECKS.as_nanos() as _ };
        let mut looked = Instant::now();
        loop {
            let wait = (!self.strangers.is_empty()).then_some(&often);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), wait) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(target: "tensorpost::hosts", "nobody can connect to this host: {error}");
                    return;
                }
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.take_connections(),
                    END => return,
                    number => self.look(number),
                }
            }
            let now = Instant::now();
            if now.duration_since(looked) >= EXPIRY_CHECKS {
                looked = now;
                for (from, socket) in self.strangers.late(now) {
                    self.refused.note(Kind::Key, from, &late(INTRODUCTION));
                    drop(socket);
                }
            }
        }
    }

    fn take_connections(&mut self) {
        for _ in 0..BATCH {
            match self.socket.accept() {
                Ok((stream, from)) => self.take(stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The error concerns one connection, or descriptors ran out: then some of the present ones
                // have to end first.
                Err(error) => {
                    tracing::warn!(target: "tensorpost::hosts", "a connection cannot be taken: {error}");
                    return thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    fn take(&mut self, stream: TcpStream, from: SocketAddr) {
        let (number, gone) = self.strangers.enter(stream, from, Instant::now() + INTRODUCTION);
        for (from, socket) in gone {
            self.refused.note(Kind::Flood, from, &"others who have not shown the key have come after it");
            drop(socket);
        }
        // Most connections have sent something by now, and need no waiting.
        self.look(number);
        let epoll = &self.epoll;
        let waits = self.strangers.at(number, |stream| {
            let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(epoll, stream, EventData::new_u64(number), flags)
        });
        if let Some(Err(error)) = waits {
            self.send_away(number, Kind::Flood, &error);
        }
    }

    /// Lets a waiting connection in, if it has sent enough.
    fn look(&mut self, number: u64) {
        let security = &self.security;
        match self.strangers.at(number, |stream| opening(stream, security)) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(opening))) => self.let_in(number, opening),
            Some(Err(error)) => self.send_away(number, Kind::Key, &error),
        }
    }

    fn let_in(&mut self, number: u64, (is_lane, nonce): Opening) {
        if nonce.is_some_and(|nonce| !self.proofs.is_new(nonce)) {
            return self.send_away(number, Kind::Replayed, &"its proof of the key was shown before");
        }
        let Some((stream, from, until, place)) = self.strangers.begin(number, nonce.is_some()) else {
            return;
        };
        // A connection that never waited is not in the set, so an error is fine.
        let _ = epoll::delete(&self.epoll, &stream);
        let user = stream.local_addr().map_err(|error| error.to_string());
        let user = user.and_then(|to| self.security.admits(from, to).map_err(|error| error.to_string()));
        match user
            .and_then(|user| stream.set_nonblocking(true).map(|()| user).map_err(|error| error.to_string()))
        {
            Ok(user) => (self.admit)(Guest { stream, from, user, is_lane, place, until }),
            Err(why) => self.refused.note(Kind::Key, from, &why),
        }
    }

    /// Refuses a connection. The refusal is counted before the connection closes, so that code which sees the
    /// end finds the count.
    fn send_away(&self, number: u64, kind: Kind, why: &dyn std::fmt::Display) {
        if let Some((from, socket)) = self.strangers.remove(number) {
            self.refused.note(kind, from, why);
            drop(socket);
        }
    }
}

/// Takes the bytes that come before TLS; `None` if they have not arrived yet.
fn opening(stream: &TcpStream, security: &Security) -> io::Result<Option<Opening>> {
    let mut said = [0; 1 + PROOF_BYTES];
    let bytes = match recv(stream, &mut said, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (mark, mut proof) = (said[0], [0; PROOF_BYTES]);
    proof.copy_from_slice(&said[1..]);
    let is_lane = mark == LANE && bytes > 0;
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let (length, nonce) = match security.prover() {
        // A connection that has ended is refused by its handshake.
        None => (usize::from(is_lane), None),
        Some(_) if bytes == 0 => return refused("it has ended and shown no key"),
        Some(_) if ![LANE, MESSAGES].contains(&mark) => {
            return refused("it shows no proof of the key before TLS: it has none, or another version");
        }
        Some(_) if bytes < said.len() => return Ok(None),
        Some(prover) => match prover.check(mark, &proof) {
            Some(nonce) => (said.len(), Some(nonce)),
            None => return refused("its proof is of another key"),
        },
    };
    // The bytes have arrived, so this does not block.
    recv(stream, &mut said[..length], RecvFlags::DONTWAIT)?;
    Ok(Some((is_lane, nonce)))
}
