//! The command's side: finds nodes, and asks one.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use tensorpost_core::api::watch::named_socket::{SocketName, peer};
use tensorpost_core::api::watch::{
    ENDLESS, MAX_CONSOLE_ANSWER, MAX_HOST_TRACE, MAX_LOG_ANSWER, MAX_LOG_BYTES, MAX_LOG_LINE, MAX_LOG_LINES,
    Packet, Seqpacket, check_memory, named_socket, poll, remedies, shown,
};

use super::text::shown_in_json;
use super::traced::Traced;
use super::{Answer, Hello, LogLine, NodeSnapshot, Request, VERSION};
use crate::draw::time;

/// How long an answer may take, beyond the time that the question asks for.
const WAIT_FOR_ANSWER: Duration = Duration::from_secs(5);

/// The same for a trace, which begins and ends with a snapshot.
const WAIT_FOR_TRACE: Duration = Duration::from_secs(20);

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsoleError {
    /// Nobody listens there.
    #[error("no node answers at {place}: it has ended, or its console is off")]
    Gone {
        /// The place.
        place: String,
    },
    /// Somebody else listens there.
    #[error("{place} is served by user {uid}, and not by this one; nothing was sent to it")]
    OtherUser {
        /// The place.
        place: String,
        /// The user who listens.
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
    /// It refuses.
    #[error("the node refuses: {0}")]
    Refused(String),
    /// It has shut down.
    #[error("the node has ended")]
    Ended,
    /// It did not answer in time.
    #[error("the node has not answered for {}: its process may be stopped, or in a debugger", time(*.0))]
    Silent(Duration),
    /// It answered something else.
    #[error("the node's answer cannot be read: {0}")]
    Garbage(String),
    /// An error of the system.
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
pub struct FoundNode {
    /// The user id in its name.
    pub uid: u32,
    /// The process id in its name.
    pub pid: u32,
    place: SocketName,
}

impl FoundNode {
    /// Returns the place where it listens, for people.
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

/// Returns the nodes of this user that listen by name, in the order of user and process id. None of them is
/// asked.
///
/// # Errors
/// `/proc` cannot be read.
pub fn nodes() -> io::Result<Vec<FoundNode>> {
    let own = rustix::process::geteuid().as_raw();
    Ok(nodes_of_all_users()?.into_iter().filter(|node| node.uid == own).collect())
}

/// Returns the nodes of all users. Only root gets answers from other users' nodes. A user can make such a
/// name say anything.
///
/// # Errors
/// As for [`nodes`].
pub fn nodes_of_all_users() -> io::Result<Vec<FoundNode>> {
    // A name may hold any bytes.
    let table = std::fs::read("/proc/net/unix")?;
    Ok(nodes_in(&String::from_utf8_lossy(&table)))
}

fn nodes_in(table: &str) -> Vec<FoundNode> {
    let mut found: Vec<_> = table.lines().filter_map(node_in).collect();
    found.sort();
    found.dedup();
    found
}

/// Parses a line `Num RefCount Protocol Flags Type St Inode Path`; a listening socket has the flag 0x10000.
fn node_in(line: &str) -> Option<FoundNode> {
    let mut words = line.split_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let name = words.nth(3)?.strip_prefix('@')?;
    let (uid, node) = name.strip_prefix("tensorpost/")?.split_once('/')?;
    let (pid, number) = node.split_once('.').unwrap_or((node, "1"));
    let number: u32 = number.parse().ok()?;
    (flags & 0x1_0000 != 0 && number > 0 && words.next().is_none()).then_some(())?;
    Some(FoundNode {
        uid: uid.parse().ok()?,
        pid: pid.parse().ok()?,
        place: SocketName::Name(name.to_owned()),
    })
}

impl Console {
    /// Connects to the node whose socket is at a path.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, ConsoleError> {
        Self::open(&SocketName::Path(path.into()), rustix::process::geteuid().as_raw())
    }

    /// Connects, and sends nothing before it is known that `uid` listens there (CON-2).
    fn open(place: &SocketName, uid: u32) -> Result<Self, ConsoleError> {
        let socket = named_socket::connect(place).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                ConsoleError::Gone { place: place.to_string() }
            }
            io::ErrorKind::TimedOut => ConsoleError::Silent(Duration::from_secs(1)),
            _ => ConsoleError::Io(error),
        })?;
        let who = peer(socket.as_fd())?;
        let own = rustix::process::geteuid().as_raw();
        // Root may look into the nodes of all users. A socket of root is no trap: root needs none.
        if who.uid != uid && who.uid != 0 && !(own == 0 && matches!(place, SocketName::Path(_))) {
            return Err(ConsoleError::OtherUser { place: place.to_string(), uid: who.uid });
        }
        let mut console = Console {
            socket: Seqpacket::from_fd(socket)?,
            hello: Hello { console: 0, version: String::new(), pid: 0, refused: None },
        };
        let hello = console.receive(WAIT_FOR_ANSWER)?.0;
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

    /// Returns the node's greeting.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// See [`ConsoleError`]; a node that refuses or has ended is an error.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ConsoleError> {
        self.ask_within(request, WAIT_FOR_ANSWER)
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

    /// Returns the state of everything.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn snapshot(&mut self) -> Result<NodeSnapshot, ConsoleError> {
        match self.ask(&Request::Look)? {
            Answer::Look(snapshot) => Ok(*snapshot),
            other => Err(ConsoleError::Garbage(format!("no look but {other:?}"))),
        }
    }

    /// Returns the records of its log with a number above `after`: all that the node keeps, or the first of
    /// more.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask); more or longer records than a node keeps count as garbage.
    pub fn log(&mut self, mut after: u64) -> Result<Vec<LogLine>, ConsoleError> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        while all.len() < MAX_LOG_LINES {
            let lines = match self.ask(&Request::Log { after })? {
                Answer::Log(lines) => lines,
                other => return Err(ConsoleError::Garbage(format!("no log but {other:?}"))),
            };
            if lines.is_empty() {
                break;
            }
            for line in &lines {
                let texts =
                    [line.host.as_deref(), line.worker.as_deref(), Some(&line.target), Some(&line.text)];
                bytes += texts.into_iter().flatten().map(str::len).sum::<usize>();
                // Escapes turn one byte into up to eight.
                if line.number <= after || line.text.len() > 8 * MAX_LOG_LINE || bytes > 8 * MAX_LOG_BYTES {
                    return Err(ConsoleError::Garbage("that is the log of no node".to_owned()));
                }
                after = line.number;
            }
            if lines.len() > MAX_LOG_ANSWER {
                return Err(ConsoleError::Garbage("that is the log of no node".to_owned()));
            }
            all.extend(lines);
        }
        Ok(all)
    }

    /// Traces every process for this time, and waits for the trace. [`Traced::write_to`] makes a file of it.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask); a node that another watcher traces refuses.
    pub fn trace(&mut self, long: Duration) -> Result<Traced, ConsoleError> {
        let facts = match self.ask_within(&Request::Trace { long }, long.saturating_add(WAIT_FOR_TRACE))? {
            Answer::Trace(facts) => facts,
            other => return Err(ConsoleError::Garbage(format!("no trace but {other:?}"))),
        };
        let all = facts.processes.len() + facts.hosts.len();
        let mut rings = Vec::new();
        while rings.len() < all {
            let (bytes, memory) = self.receive(WAIT_FOR_ANSWER)?;
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
                        "this command may open no more files; {}",
                        remedies::OPEN_FILES
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
            poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(left))?;
        }
    }
}

/// Turns a socket error that only means that the other end has gone into [`ConsoleError::Ended`].
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
    check_memory(memory.as_fd(), length).map_err(|error| ConsoleError::Garbage(error.to_string()))?;
    let mut bytes = Vec::with_capacity(length as usize);
    let mut file = File::from(memory);
    io::Seek::rewind(&mut file)?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a process that only claims to be a node. Nothing in the result moves the cursor of a
/// terminal.
fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, ConsoleError> {
    /// The longest text of an error, which may quote the input.
    const MOST: usize = 1 << 10;
    let garbage = |why: String| ConsoleError::Garbage(shown(why, MOST));
    let text = std::str::from_utf8(bytes).map_err(|error| garbage(error.to_string()))?;
    serde_json::from_str(&shown_in_json(text)).map_err(|error| garbage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::thread::{self, JoinHandle};

    use serde_json::{Value, json};

    use super::*;

    const EVIL: &str = "\u{1b}]0;title taken\u{7}\u{1b}[2J\u{1b}[1;1Hnode 1 is fine\u{202e}";

    /// Starts a thread that listens at the name of a node of this user, sends `hello`, and answers each
    /// question with `answer` of the question's number.
    fn pretender(
        number: u32,
        hello: &Value,
        answer: impl Fn(u64) -> Value + Send + 'static,
    ) -> (FoundNode, JoinHandle<u64>) {
        let (uid, pid) = (rustix::process::geteuid().as_raw(), std::process::id());
        let place = SocketName::Name(format!("tensorpost-test/{uid}/{pid}.{number}"));
        let listener = named_socket::Listener::bind(&place).unwrap();
        let hello = hello.to_string();
        let thread = thread::spawn(move || {
            poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
            let socket = Seqpacket::from_fd(listener.accept().unwrap()).unwrap();
            socket.send(hello.as_bytes(), &[]).unwrap();
            let mut question = Vec::new();
            let mut asked = 0;
            loop {
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
                if socket.try_recv(&mut question).is_ok_and(|packet| packet.is_closed()) {
                    return asked;
                }
                asked += 1;
                if socket.send(answer(asked).to_string().as_bytes(), &[]).is_err() {
                    return asked;
                }
            }
        });
        (FoundNode { uid, pid, place }, thread)
    }

    fn hello(version: &str, refused: Option<&str>) -> Value {
        json!({"console": VERSION, "version": version, "pid": 1, "refused": refused})
    }

    fn is_plain(text: &str) {
        assert!(
            !text.contains(['\u{1b}', '\u{7}', '\u{202e}']) && text.contains("node 1 is fine"),
            "{text:?}"
        );
    }

    #[test]
    fn nothing_that_a_pretender_says_moves_the_cursor() {
        let other = json!({"console": 999, "version": EVIL, "pid": 1, "refused": null});
        let wrong = json!({"console": EVIL});
        for (number, hello) in [other, hello("0.1.0", Some(EVIL)), wrong].iter().enumerate() {
            let (found, thread) = pretender(number as u32 + 1, hello, |_| Value::Null);
            is_plain(&found.connect().unwrap_err().to_string());
            thread.join().unwrap();
        }
        let line = json!({"number": 1, "unix_ms": 0, "severity": "Info", "host": EVIL, "worker": EVIL, "target": EVIL, "text": EVIL});
        let answers = [
            json!({"Answer": {"Refused": EVIL}}),
            json!({"Answer": {EVIL: 1}}),
            json!({"Answer": {"Log": [line]}}),
            json!({"Answer": {"Log": []}}),
        ];
        let last = answers.len();
        let (found, thread) =
            pretender(7, &hello(EVIL, None), move |asked| answers[(asked as usize).min(last) - 1].clone());
        let mut console = found.connect().unwrap();
        is_plain(&console.hello().version);
        is_plain(&console.snapshot().unwrap_err().to_string());
        is_plain(&console.snapshot().unwrap_err().to_string());
        let lines = console.log(0).unwrap();
        let line = &lines[0];
        for text in [line.host.as_ref().unwrap(), line.worker.as_ref().unwrap(), &line.target, &line.text] {
            is_plain(text);
        }
        drop(console);
        thread.join().unwrap();
    }

    /// CON-2, on the command's side.
    #[test]
    fn nothing_is_said_to_another_user() {
        let place = SocketName::Name(format!("tensorpost-test/{}/stranger", std::process::id()));
        let (listener, listens, wanted) =
            named_socket::by_stranger(|| named_socket::Listener::bind(&place).unwrap());
        let refused = Console::open(&place, wanted).unwrap_err();
        assert!(matches!(refused, ConsoleError::OtherUser { uid, .. } if uid == listens), "{refused}");
        let socket = Seqpacket::from_fd(listener.accept().unwrap()).unwrap();
        assert!(socket.try_recv(&mut Vec::new()).unwrap().is_closed(), "something was said");
    }

    #[test]
    fn a_log_without_end_is_none() {
        let line = |number: u64, text: String| json!({"number": number, "unix_ms": 0, "severity": "Info", "host": null, "worker": null, "target": "x", "text": text});
        let log = |lines: Vec<Value>| json!({"Answer": {"Log": lines}});
        let ends = |number: u32, answer: Box<dyn Fn(u64) -> Value + Send>| {
            let (found, thread) = pretender(number, &hello("0.1.0", None), answer);
            let read = found.connect().unwrap().log(0);
            (read, thread.join().unwrap())
        };
        // As many as a node keeps, one at a time; then it is enough.
        let (read, asked) = ends(8, Box::new(move |asked| log(vec![line(asked, "y".to_owned())])));
        assert_eq!((read.unwrap().len(), asked), (MAX_LOG_LINES, MAX_LOG_LINES as u64));
        let garbage: [Box<dyn Fn(u64) -> Value + Send>; 4] = [
            Box::new(move |_| log(vec![line(1, "the same again".to_owned())])),
            Box::new(move |asked| log(vec![line(asked, "y".repeat(8 * MAX_LOG_LINE + 1))])),
            Box::new(move |asked| log(vec![line(asked, "y".repeat(4 * MAX_LOG_LINE)); 1])),
            Box::new(move |_| {
                log((1..=MAX_LOG_ANSWER as u64 + 1).map(|number| line(number, String::new())).collect())
            }),
        ];
        for (number, answer) in garbage.into_iter().enumerate() {
            let (read, asked) = ends(9 + number as u32, answer);
            assert!(matches!(read, Err(ConsoleError::Garbage(_))), "{read:?}");
            assert!(asked <= 8 * MAX_LOG_BYTES as u64 / (4 * MAX_LOG_LINE) as u64 + 1, "{asked}");
        }
    }

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
