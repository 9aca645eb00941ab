//! The command's side: which nodes there are, and asking one.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::protocol::{Answer, Hello, Look, Packet, Request, VERSION};
use super::traced::Traced;
use crate::limits::MAX_HOST_TRACE;
use crate::node::limits::{ENDLESS, MAX_CONSOLE_ANSWER};
use crate::node::wait;
use crate::observe::text::time_of;
use crate::os::named::{self, Place, peer};
use crate::os::remedy::OPEN_FILES;
use crate::os::{Seqpacket, memfd};

/// How long an answer may take, beside what it is asked to take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for a trace, which begins and ends with a look each.
const TRACE_PATIENCE: Duration = Duration::from_secs(20);

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsoleError {
    /// Nobody listens there.
    #[error("no node answers at {place}: it has ended, or its console is off")]
    Gone {
        /// Where.
        place: String,
    },
    /// Somebody else listens there.
    #[error("{place} is served by user {uid}, and not by this one; nothing was sent to it")]
    OtherUser {
        /// Where.
        place: String,
        /// Whose it is.
        uid: u32,
    },
    /// The node is of another version.
    #[error(
        "the node {pid} has version {version} and console protocol {theirs}, and this command has {VERSION}; use the command \
         `tensorpost` of the node's version: cargo install tensorpost-cli --version {version}"
    )]
    Version {
        /// The node's process id.
        pid: u32,
        /// Its version.
        version: String,
        /// Its protocol.
        theirs: u32,
    },
    /// It does not want to.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// It has shut down.
    #[error("the node has ended")]
    Ended,
    /// It did not answer in time.
    #[error("the node has not answered for {}: its process may be stopped, or in a debugger", time_of(.0))]
    Silent(Duration),
    /// It answered something else.
    #[error("the node's answer cannot be read: {0}")]
    Garbage(String),
    /// The system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A connection to a node.
#[derive(Debug)]
pub struct Console {
    socket: Seqpacket,
    hello: Hello,
}

/// A node that listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Found {
    /// Whose it is, as its name says.
    pub uid: u32,
    /// Its process id, as its name says.
    pub pid: u32,
    place: Place,
}

impl Found {
    /// Where it listens, for people.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    /// Connects to it.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn connect(&self) -> Result<Console, ConsoleError> {
        let console = Console::open(&self.place, self.uid)?;
        Ok(console)
    }
}

/// The nodes of this user that listen by name, and for root those of all; the oldest name first. None of them is asked.
///
/// # Errors
/// `/proc` cannot be read.
pub fn nodes() -> io::Result<Vec<Found>> {
    // A name may hold any bytes.
    let table = std::fs::read("/proc/net/unix")?;
    let own = rustix::process::geteuid().as_raw();
    let mut found = nodes_in(&String::from_utf8_lossy(&table));
    found.retain(|node| own == 0 || node.uid == own);
    Ok(found)
}

fn nodes_in(table: &str) -> Vec<Found> {
    let mut found: Vec<_> = table.lines().filter_map(node_in).collect();
    found.sort();
    found.dedup();
    found
}

/// `Num RefCount Protocol Flags Type St Inode Path`, of which a listening socket has the flag 0x10000.
fn node_in(line: &str) -> Option<Found> {
    let mut words = line.split_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let name = words.nth(3)?.strip_prefix('@')?;
    let (uid, node) = name.strip_prefix("tensorpost/")?.split_once('/')?;
    let (pid, number) = node.split_once('.').unwrap_or((node, "1"));
    let number: u32 = number.parse().ok()?;
    (flags & 0x1_0000 != 0 && number > 0 && words.next().is_none()).then_some(())?;
    Some(Found { uid: uid.parse().ok()?, pid: pid.parse().ok()?, place: Place::Name(name.to_owned()) })
}

impl Console {
    /// Connects to the node whose socket is at a path.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, ConsoleError> {
        Self::open(&Place::Path(path.into()), rustix::process::geteuid().as_raw())
    }

    /// Connects, and sends nothing before it is known that `uid` listens there (CON-2).
    fn open(place: &Place, uid: u32) -> Result<Self, ConsoleError> {
        let socket = named::connect(place).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                ConsoleError::Gone { place: place.to_string() }
            }
            io::ErrorKind::TimedOut => ConsoleError::Silent(Duration::from_secs(1)),
            _ => ConsoleError::Io(error),
        })?;
        let who = peer(socket.as_fd())?;
        let own = rustix::process::geteuid().as_raw();
        // Root may look into everybody's, and a node of root's is nobody's trap: root needs none.
        if who.uid != uid && who.uid != 0 && !(own == 0 && matches!(place, Place::Path(_))) {
            return Err(ConsoleError::OtherUser { place: place.to_string(), uid: who.uid });
        }
        let mut console = Console {
            socket: Seqpacket::from_fd(socket)?,
            hello: Hello { console: 0, version: String::new(), pid: 0, refused: None },
        };
        let hello = console.receive(PATIENCE)?.0;
        console.hello = parse(&hello)?;
        if console.hello.console != VERSION {
            let Hello { console: theirs, version, pid, .. } = console.hello;
            return Err(ConsoleError::Version { pid, version, theirs });
        }
        match console.hello.refused.take() {
            Some(why) => Err(ConsoleError::Refused(why)),
            None => Ok(console),
        }
    }

    /// What the node said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`ConsoleError`]; a node that refuses or has ended is an error.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ConsoleError> {
        self.ask_within(request, PATIENCE)
    }

    fn ask_within(&mut self, request: &Request, patience: Duration) -> Result<Answer, ConsoleError> {
        let question = serde_json::to_vec(request).map_err(io::Error::from)?;
        self.socket.send(&question, &[]).map_err(closed)?;
        let (bytes, memory) = self.receive(patience)?;
        let answer = match parse(&bytes)? {
            Packet::Answer(answer) => answer,
            Packet::Memory(length) => match parse(&read(memory.into_iter().next(), length)?)? {
                Packet::Answer(answer) => answer,
                _ => return Err(ConsoleError::Garbage("memory in memory".to_owned())),
            },
            Packet::Rings => return Err(ConsoleError::Garbage("a trace that nobody asked for".to_owned())),
        };
        match answer {
            Answer::Refused(why) => Err(ConsoleError::Refused(why)),
            Answer::Ended => Err(ConsoleError::Ended),
            answer => Ok(answer),
        }
    }

    /// How everything stands.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn look(&mut self) -> Result<Look, ConsoleError> {
        match self.ask(&Request::Look)? {
            Answer::Look(look) => Ok(*look),
            other => Err(ConsoleError::Garbage(format!("no look but {other:?}"))),
        }
    }

    /// Has every process note what it does for so long, and waits for it. In [`Traced::write_to`] it becomes a file.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask); a node that is traced by somebody else refuses.
    pub fn trace(&mut self, long: Duration) -> Result<Traced, ConsoleError> {
        let facts = match self.ask_within(&Request::Trace { long }, long.saturating_add(TRACE_PATIENCE))? {
            Answer::Trace(facts) => facts,
            other => return Err(ConsoleError::Garbage(format!("no trace but {other:?}"))),
        };
        let all = facts.processes.len() + facts.hosts.len();
        let mut rings = Vec::new();
        while rings.len() < all {
            let (bytes, memory) = self.receive(PATIENCE)?;
            let Packet::Rings = parse(&bytes)? else {
                return Err(ConsoleError::Garbage("something else in a trace".to_owned()));
            };
            if memory.is_empty() {
                return Err(ConsoleError::Garbage("no memory in a trace".to_owned()));
            }
            rings.extend(memory);
        }
        let hosts = rings.split_off(facts.processes.len().min(rings.len()));
        let hosts = hosts.into_iter().zip(&facts.hosts);
        let hosts = hosts.map(|(memory, (_, length))| read_of(Some(memory), *length, MAX_HOST_TRACE));
        let hosts = hosts.collect::<Result<_, _>>()?;
        Traced::new(facts, rings, hosts)
    }

    fn receive(&mut self, patience: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), ConsoleError> {
        let until = Instant::now() + patience.min(ENDLESS);
        let mut buffer = Vec::new();
        loop {
            match self.socket.try_recv(&mut buffer) {
                Ok(packet) if packet.is_closed() => return Err(ConsoleError::Ended),
                Ok(packet) if packet.starved => {
                    return Err(ConsoleError::Io(io::Error::other(format!(
                        "this command may open no more files; {OPEN_FILES}"
                    ))));
                }
                Ok(packet) => return Ok((buffer, packet.fds)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(closed(error)),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConsoleError::Silent(patience));
            }
            wait::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(left))?;
        }
    }
}

/// The other end has gone: an error of the socket's that is none of the system's.
fn closed(error: io::Error) -> ConsoleError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
            ConsoleError::Ended
        }
        _ => ConsoleError::Io(error),
    }
}

fn read(memory: Option<OwnedFd>, length: u64) -> Result<Vec<u8>, ConsoleError> {
    read_of(memory, length, MAX_CONSOLE_ANSWER)
}

fn read_of(memory: Option<OwnedFd>, length: u64, most: usize) -> Result<Vec<u8>, ConsoleError> {
    let garbage = |why: &str| ConsoleError::Garbage(why.to_owned());
    let memory = memory.ok_or_else(|| garbage("its memory did not come along"))?;
    if length > most as u64 {
        return Err(garbage("it is too long"));
    }
    memfd::check(memory.as_fd(), length).map_err(|error| ConsoleError::Garbage(error.to_string()))?;
    let mut bytes = Vec::with_capacity(length as usize);
    let mut file = File::from(memory);
    io::Seek::rewind(&mut file)?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, ConsoleError> {
    serde_json::from_slice(bytes).map_err(|error| ConsoleError::Garbage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_their_names_and_nothing_else_is() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0005 01 12345 @tensorpost/1000/77\n\
            0: 00000003 00000000 00000000 0005 03 12346 @tensorpost/1000/77\n\
            0: 00000002 00000000 00010000 0005 01 12347 @tensorpost/0/9.2\n\
            0: 00000002 00000000 00010000 0005 01 12348 @tensorpost/0/x\n\
            0: 00000002 00000000 00010000 0005 01 12349 @tensorpost/0/9.2 more\n\
            0: 00000002 00000000 00010000 0001 01 12350 /run/tensorpost/1/2\n\
            0: 00000002 00000000 00000000 0002 01 12351\n\
            \u{fffd}\n";
        let found = nodes_in(table);
        let names: Vec<_> = found.iter().map(|node| (node.uid, node.pid, node.place())).collect();
        assert_eq!(
            names,
            [(0, 9, "@tensorpost/0/9.2".to_owned()), (1000, 77, "@tensorpost/1000/77".to_owned())]
        );
    }
}
