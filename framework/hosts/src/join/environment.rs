//! Finds out which host of a node this process is, from the environment variables of the tool that started
//! it.
//!
//! The role is a number that the starter gives. It never comes from a comparison of host names, because one
//! machine may have several. No starter's variables make several hosts of a program that was started once.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::limits::{JOIN_DEADLINE, MAX_HOSTS, PORT};

/// Names the head, for an agent: `host[:port]`.
pub const HEAD: &str = "TENSORPOST_HEAD";
/// The address at which the head listens: an address, `address:port`, or `:port`.
pub const LISTEN: &str = "TENSORPOST_LISTEN";
/// The address at which this host listens, if it is an agent, or a head whose starter or whose [`LISTEN`]
/// names no address: an address, `address:port`, or `:port`.
pub const BIND: &str = "TENSORPOST_BIND";
/// The address under which the other hosts reach this one, if it is not the one that the head sees:
/// `host[:port]`.
pub const ADVERTISE: &str = "TENSORPOST_ADVERTISE";
/// The headless service of a StatefulSet or an indexed Job of Kubernetes.
pub const SERVICE: &str = "TENSORPOST_SERVICE";
/// A file or a pipe that gets a line with the number of this host as soon as it has joined: see
/// [`tell_starter`].
pub const JOINED_FILE: &str = "TENSORPOST_JOINED_FILE";

/// The role of a host in its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It starts the node.
    Head,
    /// It joins the node of a head.
    Agent,
}

/// A host of a node, as it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Its role.
    pub role: Role,
    /// The address of the head, `host:port`; on the head itself, the address at which it listens, or `:port`
    /// for every address of the machine.
    pub head: String,
    /// The address at which an agent listens, `host:port`, or `:port` for every address, if it is set. A port
    /// 0 stands for `port`.
    pub bind: Option<String>,
    /// How many hosts were started, including the head, if the starter says so.
    pub count: Option<u16>,
    /// The address under which others reach this host, `host:port`, if it is set. A port 0 stands for that of
    /// its listener.
    pub advertise: Option<String>,
    /// The port that an agent listens at, if it is free. If a starter has put one host on each machine, it is
    /// the common port, so that firewalls and probes know it. If several may be on one machine, it is 0,
    /// which takes any free port.
    pub port: u16,
    /// How long it tries to join.
    pub join_deadline: Duration,
}

/// The variables make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum EnvironmentError {
    /// A variable has a value that it cannot have.
    #[error("{name} is {value:?}, which is {what}")]
    Value { name: &'static str, value: String, what: &'static str },
    /// More hosts were started than a node can have.
    #[error("{name} is {value}, and a node has {MAX_HOSTS} hosts at most: start several nodes")]
    TooMany { name: &'static str, value: u64 },
    /// A variable is missing that belongs to another.
    #[error("{with} is set and {name} is not: {what}")]
    Missing { name: &'static str, with: &'static str, what: &'static str },
    /// More than one process was started on a host.
    #[error(
        "{name} is {value}: one process was to be started on each host, and it starts its workers itself ({remedy})"
    )]
    Several { name: &'static str, value: u64, remedy: &'static str },
}

impl Hosts {
    /// Reads the variables of this process; `None` if it was started alone.
    ///
    /// # Errors
    /// The variables make no sense.
    pub fn from_environment() -> Result<Option<Self>, EnvironmentError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads these variables. Tensorpost's own come first; then Slurm's, torchrun's and those of Kubernetes.
    ///
    /// # Errors
    /// The variables make no sense.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, EnvironmentError> {
        let variables = Variables { get: &get };
        let (found, port) = match variables.own()? {
            Some(own) => (Some(own), 0),
            None => (variables.of_a_starter()?, PORT),
        };
        let Some((role, mut head, count)) = found else { return Ok(None) };
        let bind = match variables.text(BIND) {
            Some(value) => Some(to_listen_at(BIND, &value, 0)?),
            None => None,
        };
        if let (Role::Head, Some((address, _))) = (&role, bind.as_deref().and_then(|at| at.rsplit_once(':')))
            && head.starts_with(':')
        {
            head.insert_str(0, address);
        }
        let advertise = match variables.text(ADVERTISE) {
            Some(value) => Some(with_port(ADVERTISE, &value, 0)?),
            None => None,
        };
        Ok(Some(Hosts { role, head, bind, count, advertise, port, join_deadline: JOIN_DEADLINE }))
    }
}

type Found = Result<Option<(Role, String, Option<u16>)>, EnvironmentError>;

struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, EnvironmentError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let what = "no number";
        value.parse().map(Some).map_err(|_| EnvironmentError::Value { name, value, what })
    }

    /// Returns a number that belongs to another variable.
    fn needed(
        &self,
        name: &'static str,
        with: &'static str,
        what: &'static str,
    ) -> Result<u64, EnvironmentError> {
        self.number(name)?.ok_or(EnvironmentError::Missing { name, with, what })
    }

    fn own(&self) -> Found {
        match (self.text(HEAD), self.text(LISTEN)) {
            (Some(value), Some(_)) => {
                let what = "set together with TENSORPOST_LISTEN: a host is the head or has one";
                Err(EnvironmentError::Value { name: HEAD, value, what })
            }
            (Some(head), None) => Ok(Some((Role::Agent, with_port(HEAD, &head, PORT)?, None))),
            (None, Some(at)) => Ok(Some((Role::Head, to_listen_at(LISTEN, &at, PORT)?, None))),
            (None, None) => Ok(None),
        }
    }

    fn of_a_starter(&self) -> Found {
        if let Some(slurm) = self.slurm()? {
            return Ok(Some(slurm));
        }
        match self.torchrun()? {
            Some(torchrun) => Ok(Some(torchrun)),
            None => self.kubernetes(),
        }
    }

    fn slurm(&self) -> Found {
        const NODES: &str = "SLURM_JOB_NUM_NODES";
        const RANK: &str = "SLURM_NODEID";
        // A shell of `salloc` and the script of `sbatch` belong to a job but to no step: one process, not one
        // per host.
        let (Some(count), Some(_)) = (self.number(NODES)?, self.text("SLURM_STEP_ID")) else {
            return Ok(None);
        };
        let Some(count) = several(NODES, count)? else { return Ok(None) };
        let remedy = "srun --ntasks-per-node=1";
        if let Some(local @ 1..) = self.number("SLURM_LOCALID")? {
            return Err(EnvironmentError::Several { name: "SLURM_LOCALID", value: local, remedy });
        }
        let rank = self.needed(RANK, NODES, "srun sets it in each process that it starts")?;
        const LIST: &str = "SLURM_JOB_NODELIST";
        let what = "srun sets it in each process that it starts";
        let list = self.text(LIST).ok_or(EnvironmentError::Missing { name: LIST, with: NODES, what })?;
        let what = "no list of hosts";
        let first =
            first_of(&list).ok_or(EnvironmentError::Value { name: LIST, value: list.clone(), what })?;
        placed(RANK, rank, format!("{first}:{PORT}"), count)
    }

    fn torchrun(&self) -> Found {
        const WORLD: &str = "WORLD_SIZE";
        const HEAD_OF_IT: &str = "MASTER_ADDR";
        let Some(master) = self.text(HEAD_OF_IT) else { return Ok(None) };
        let world = self.needed(WORLD, HEAD_OF_IT, "torchrun sets both")?;
        let remedy = "torchrun --nproc-per-node=1";
        if let Some(local @ 2..) = self.number("LOCAL_WORLD_SIZE")? {
            return Err(EnvironmentError::Several { name: "LOCAL_WORLD_SIZE", value: local, remedy });
        }
        let Some(count) = several(WORLD, world)? else { return Ok(None) };
        let rank = self.needed("RANK", HEAD_OF_IT, "torchrun sets both")?;
        // The port of MASTER_PORT is that of torch's own store.
        placed("RANK", rank, with_port(HEAD_OF_IT, &master, PORT)?, count)
    }

    fn kubernetes(&self) -> Found {
        let Some(service) = self.text(SERVICE) else { return Ok(None) };
        let what = "it is the name of the pod";
        let missing = EnvironmentError::Missing { name: "HOSTNAME", with: SERVICE, what };
        let pod = self.text("HOSTNAME").ok_or(missing)?;
        let what = "no name of a pod of a StatefulSet or an indexed Job, which ends in its number";
        let wrong = || EnvironmentError::Value { name: "HOSTNAME", value: pod.clone(), what };
        let (set, ordinal) = pod.rsplit_once('-').ok_or_else(wrong)?;
        // A Job also gives its index in a variable.
        let ordinal = match self.number("JOB_COMPLETION_INDEX")? {
            Some(index) => index,
            None => ordinal.parse().map_err(|_| wrong())?,
        };
        let role = if ordinal == 0 { Role::Head } else { Role::Agent };
        // The number of hosts is left open: a set can grow. The head's name exists before its pod answers.
        let head = match role {
            Role::Head => format!(":{PORT}"),
            Role::Agent => format!("{set}-0.{service}:{PORT}"),
        };
        Ok(Some((role, head, None)))
    }
}

/// Tells the tool that started this process the number of this host, if [`JOINED_FILE`] is set. If that is a
/// pipe that nobody reads (any more), nothing is written and that is no error.
///
/// # Errors
/// The file cannot be written.
pub fn tell_starter(number: u16) -> io::Result<()> {
    match std::env::var_os(JOINED_FILE).filter(|path| !path.is_empty()) {
        Some(path) => tell_at(Path::new(&path), number, rustix::process::geteuid().as_raw()),
        None => Ok(()),
    }
}

fn tell_at(path: &Path, number: u16, own: u32) -> io::Result<()> {
    // A link that another user than `own` and root has planted is not followed.
    let link = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_symlink);
    let is_own = link.is_some_and(|link| [0, own].contains(&link.uid()));
    let follow = if is_own { OFlags::empty() } else { OFlags::NOFOLLOW };
    // Without `NONBLOCK`, opening a pipe that nobody reads would block.
    let flags = (OFlags::NONBLOCK | follow).bits().cast_signed();
    let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(path);
    match file.and_then(|mut file| file.write_all(format!("{number}\n").as_bytes())) {
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        told => told,
    }
}

/// Returns the number of hosts, or `None` if there is one.
fn several(name: &'static str, count: u64) -> Result<Option<u16>, EnvironmentError> {
    match count {
        0 | 1 => Ok(None),
        many if many <= MAX_HOSTS as u64 => Ok(Some(many as u16)),
        value => Err(EnvironmentError::TooMany { name, value }),
    }
}

fn placed(name: &'static str, rank: u64, head: String, count: u16) -> Found {
    if rank >= u64::from(count) {
        let what = "not below the number of hosts";
        return Err(EnvironmentError::Value { name, value: rank.to_string(), what });
    }
    match rank {
        // The head listens on every interface: its name may be that of an interface other than the one that
        // the others reach.
        0 => Ok(Some((Role::Head, format!(":{}", port_of(&head)), Some(count)))),
        _ => Ok(Some((Role::Agent, head, Some(count)))),
    }
}

fn port_of(address: &str) -> &str {
    address.rsplit_once(':').map_or("0", |(_, port)| port)
}

/// Converts `host[:port]` to `host:port`, as [`with_port`] does; `:port` stays, for every address.
fn to_listen_at(name: &'static str, value: &str, port: u16) -> Result<String, EnvironmentError> {
    match value.strip_prefix(':').map(str::parse::<u16>) {
        Some(Ok(port)) => Ok(format!(":{port}")),
        // `::` and `::1` begin so, too.
        _ => with_port(name, value, port),
    }
}

/// Converts `host[:port]` to `host:port`. A bare IPv6 address is put into brackets.
fn with_port(name: &'static str, value: &str, port: u16) -> Result<String, EnvironmentError> {
    let wrong = |what| EnvironmentError::Value { name, value: value.to_owned(), what };
    if value.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{value}]:{port}"));
    }
    let (host, port) = match value.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !value.ends_with(']') => {
            (host, port.parse().map_err(|_| wrong("no host with a port"))?)
        }
        Some((_, _)) if !value.ends_with(']') => return Err(wrong("no host")),
        _ => (value, port),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let known = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    if known { Ok(format!("{host}:{port}")) } else { Err(wrong("no host")) }
}

/// Returns the first host of Slurm's list: `gpu[03-07,11],big1` begins with `gpu03`.
fn first_of(list: &str) -> Option<String> {
    let (prefix, rest) = list.split_at(list.find([',', '[']).unwrap_or(list.len()));
    let first = match rest.strip_prefix('[') {
        None => prefix.to_owned(),
        Some(ranges) => {
            let (ranges, behind) = ranges.split_once(']')?;
            let first = &ranges[..ranges.find([',', '-']).unwrap_or(ranges.len())];
            let suffix = &behind[..behind.find(',').unwrap_or(behind.len())];
            if first.is_empty() || !first.bytes().all(|c| c.is_ascii_digit()) {
                return None;
            }
            // If there is a second pair of brackets, take its first, too.
            return first_of(&format!("{prefix}{first}{suffix}"));
        }
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!first.is_empty() && first.chars().all(is_name)).then_some(first)
}

#[cfg(test)]
mod tests;
