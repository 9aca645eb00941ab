//! The console of a running node, which answers the command `tensorpost`.
//!
//! The node's process, and never a worker, serves a local packet socket on a thread of its own:
//! `@tensorpost/<uid>/<pid>`, an abstract name that disappears with the process, no matter how it ends. The
//! node prepares and counts nothing only for the console.
//!
//! - **CON-1.** Watching never makes an actor or the supervisor wait. The console asks the supervisor as
//!   [`Node::metrics`](super::Node::metrics) does. The channel for the answer has room for it, and each
//!   process's control thread gives its part. The processes are asked at most ten times a second, no matter
//!   how many watchers there are. On the head the other hosts are asked beside them, and one that does not
//!   answer in time is named (`node/hosts/all_hosts.rs`).
//! - **CON-2.** No byte of a watcher is read before its uid is known, and only the same user, or root, gets
//!   an answer.
//! - **CON-3.** At most [`MAX_WATCHERS`](super::limits::MAX_WATCHERS) are answered at a time, every question
//!   and every answer is bounded, and a watcher that does not read is disconnected.
//!
//! Everything but [`Request::Stop`] and [`Request::Trace`] only reads. A trace is switched off when its time
//! is up, or when the watcher that asked for it goes away.
//!
//! **On a crash** of a watcher its connection ends, and that is all. **On a crash** of the node its name is
//! gone. A node whose socket cannot be made still starts, and logs that once.
//!
//! | file | holds |
//! |---|---|
//! | `protocol` | the messages |
//! | `server` | the thread |
//! | `log` | the latest records of the log |
//!
//! The command's side is `tensorpost_watch::console`.

mod log;
pub(crate) mod protocol;
#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod server;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::os::named_socket::{Listener, SocketName};

pub(crate) use self::log::LogRing;
pub(crate) use self::protocol::{
    ActorFacts, GpuShare, HangFacts, LinkFacts, NodeFacts, NodeSnapshot, PoolFacts, ProcessFacts,
};
pub(super) use self::server::Server;

/// The environment variable that switches the console off (`off`), or names a path for its socket.
const VARIABLE: &str = "TENSORPOST_CONSOLE";

/// How many names are tried: one process may have as many nodes with a console at a time.
const MOST_NAMES: u32 = 64;

/// Where a node can be looked into with the command `tensorpost`.
///
/// ```
/// use tensorpost::node::{Console, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::builder().console(Console::Off).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Console {
    /// By its process id: an abstract socket of the network namespace, which processes of the same user and
    /// of root find.
    #[default]
    On,
    /// At this path, with the mode 0600: for a user who shares a network namespace with a root that must not
    /// look.
    At(PathBuf),
    /// Nowhere: nothing listens.
    Off,
}

impl From<bool> for Console {
    fn from(on: bool) -> Self {
        if on { Console::On } else { Console::Off }
    }
}

impl Console {
    /// Combines the setting with the environment variable: `off` there always holds, and a path holds if the
    /// program names none.
    fn with_environment(self, variable: Option<OsString>) -> Self {
        match (self, variable.as_deref()) {
            (Console::Off, _) => Console::Off,
            (_, Some(off)) if ["off", "0", "false"].iter().any(|word| off == OsStr::new(word)) => {
                Console::Off
            }
            (Console::On, Some(path)) if path.as_encoded_bytes().contains(&b'/') => Console::At(path.into()),
            (console, _) => console,
        }
    }

    /// Begins to listen. `None`: the console is off, or its socket could not be made, which the log says.
    pub(super) fn listen(self) -> Option<Listener> {
        let listening = match self.with_environment(std::env::var_os(VARIABLE)) {
            Console::Off => return None,
            Console::At(path) => Listener::bind(&SocketName::Path(path)),
            Console::On => listen_by_name(),
        };
        match listening {
            Ok(listening) => Some(listening),
            Err(error) => {
                tracing::warn!(
                    target: "tensorpost::node",
                    %error,
                    "this node cannot be looked into with the command `tensorpost`: its socket could not be made. Say \
                     {VARIABLE}=off if that is meant"
                );
                None
            }
        }
    }
}

/// Listens at the first name that is free. There may be another node in the process, or one with the same
/// process id in another process namespace of this network namespace.
fn listen_by_name() -> std::io::Result<Listener> {
    let mut number = 1;
    loop {
        let place = SocketName::Name(name(rustix::process::geteuid().as_raw(), std::process::id(), number));
        match Listener::bind(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && number < MOST_NAMES => number += 1,
            bound => return bound,
        }
    }
}

/// Returns the name of the node number `number` of a process, without the byte 0 in front.
fn name(uid: u32, pid: u32, number: u32) -> String {
    match number {
        1 => format!("tensorpost/{uid}/{pid}"),
        _ => format!("tensorpost/{uid}/{pid}.{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_is_off_whoever_says_it_and_the_program_chooses_the_path() {
        let at = |path: &str| Console::At(path.into());
        let variable = |text: &str| Some(OsString::from(text));
        for (program, environment, holds) in [
            (Console::On, None, Console::On),
            (Console::On, variable("off"), Console::Off),
            (Console::On, variable("0"), Console::Off),
            (Console::On, variable("on"), Console::On),
            (Console::On, variable("/run/a"), at("/run/a")),
            (Console::Off, variable("/run/a"), Console::Off),
            (at("/run/b"), variable("/run/a"), at("/run/b")),
            (at("/run/b"), variable("off"), Console::Off),
        ] {
            assert_eq!(
                program.clone().with_environment(environment.clone()),
                holds,
                "{program:?} {environment:?}"
            );
        }
    }
}
