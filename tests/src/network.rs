//! A process in a network namespace of its own, with links to programs in other namespaces. It takes the
//! links down in both directions or in one.
//!
//! A namespace here has no name. It goes with its last process, and its links with it, however the test ends;
//! and no address outside of it is ever used. The namespace belongs to a process and not to a thread, because
//! all nodes of a process start their workers by one thread.
//!
//! One direction is cut by a neighbour with a wrong hardware address. Packets leave and arrive, but no
//! interface takes them, so the sender hears nothing of it. The method needs only `ip`; `tc netem` and rules
//! of `nft` are not in all kernels.
//!
//! A process that is not root makes a user namespace too, in which it is root.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Says that its namespace is there, waits for its address, and becomes the program in its arguments.
const BEGIN: &str = "echo there && read -r address && ip address add \"$address\" dev here && ip link set here up && exec \"$0\" \"$@\"";
/// Names the namespace of the process that started this one in another.
const OUTSIDE: &str = "TENSORPOST_TESTS_NETWORK";
/// The needs of this module, for people.
const TAKES: &str = "it takes root or user namespaces, and `ip` of iproute2";
/// A hardware address that no interface has.
const WRONG: &str = "02:00:00:00:00:01";

/// A direction of a link, seen from the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Both directions: the link is down, as its two ends see.
    Both,
    /// Packets to the program at the other end are lost.
    There,
    /// Packets from that program are lost.
    Back,
}

impl Way {
    /// All three ways.
    pub const ALL: [Way; 3] = [Way::Both, Way::There, Way::Back];
}

/// The namespace of this process, which is its own.
#[derive(Debug)]
pub struct Network {
    links: u8,
}

/// A link between this process and a program in another namespace.
#[derive(Debug)]
pub struct Link {
    number: u8,
    there: File,
}

/// Returns whether this process may make namespaces and links, and has the commands for it.
///
/// # Errors
/// The reason why not.
pub fn possible() -> Result<(), String> {
    tried("ip link add one type veth peer name other").map_err(|why_not| {
        format!("no network namespaces with a link between them can be made here ({why_not}); {TAKES}")
    })
}

/// Returns whether this process may make a namespace to which a whole network of IPv6 leads.
///
/// # Errors
/// The reason why not.
pub fn ipv6_possible() -> Result<(), String> {
    tried("ip link set lo up && ip -6 route add local 2001:db8::/32 dev lo")
        .map_err(|why_not| format!("no network namespace with IPv6 can be made here ({why_not}); {TAKES}"))
}

/// Runs a line of the shell in a namespace of its own.
fn tried(line: &str) -> Result<(), String> {
    match unshare().args(["sh", "-c", line]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--net");
    command
}

/// Returns a command that runs a program in a namespace of its own.
pub fn alone(program: &Path) -> Command {
    let mut command = unshare();
    command.arg(program).env(OUTSIDE, namespace());
    command
}

fn namespace() -> PathBuf {
    std::fs::read_link("/proc/self/ns/net").expect("each process has one")
}

fn ip(arguments: &str) -> Result<(), String> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{program} {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs `work` in a namespace.
fn within<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).expect("it may enter");
            work()
        });
        working.join().expect("it works")
    })
}

impl Network {
    /// Returns the namespace of this process, which [`alone`] has started. The process ends with the thread
    /// that started it, so a test that is given up leaves nothing behind.
    ///
    /// # Panics
    /// Panics where the process is in the network of its parent.
    pub fn own() -> Self {
        set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
        let outside = std::env::var_os(OUTSIDE).map(PathBuf::from).expect("it was started alone");
        assert_ne!(namespace(), outside, "its network is another's");
        Network { links: 0 }
    }

    /// Makes all addresses of a network of IPv6, and loopback, lead to this process.
    pub fn take(&self, network: &str) {
        let taken = ip("link set lo up").and_then(|()| ip(&format!("-6 route add local {network} dev lo")));
        taken.expect("a route");
    }

    /// Starts a program in a namespace of its own, with a link to it. `command` gets the address by which the
    /// program reaches this namespace. It returns the program with its arguments and variables. Its standard
    /// input and output are pipes.
    pub fn start(&mut self, command: impl FnOnce(&str) -> Command) -> (Child, Link) {
        let number = self.links;
        self.links += 1;
        let command = command(&format!("10.77.{number}.1"));
        let mut wrapped = unshare();
        wrapped.args(["sh", "-c", BEGIN]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        let mut child =
            wrapped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare is there");
        let mut line = [0; 6];
        child.stdout.as_mut().expect("its output").read_exact(&mut line).expect("it has a namespace");
        assert_eq!(&line, b"there\n");
        let there = File::open(format!("/proc/{}/ns/net", child.id())).expect("its namespace");
        let link = Link { number, there };
        let begun = ip(&format!("link add {} type veth peer name here netns {}", link.name(), child.id()))
            .and_then(|()| ip(&format!("address add {}/30 dev {}", link.here(), link.name())))
            .and_then(|()| ip(&format!("link set {} up", link.name())));
        begun.expect("a link");
        let stdin = child.stdin.as_mut().expect("its input");
        writeln!(stdin, "{}/30", link.there()).expect("it listens");
        (child, link)
    }
}

impl Link {
    fn name(&self) -> String {
        format!("there{}", self.number)
    }

    fn here(&self) -> String {
        format!("10.77.{}.1", self.number)
    }

    /// Returns the address of the program at the other end.
    pub fn there(&self) -> String {
        format!("10.77.{}.2", self.number)
    }

    /// Limits each direction to this rate from now on, in bits a second as `tc` writes them: `1gbit`. The
    /// headers of packets count.
    ///
    /// # Errors
    /// Fails where the kernel or the machine has no `tbf`.
    pub fn limit(&self, rate: &str) -> Result<(), String> {
        let limited = |by: &str| {
            run("tc", &format!("qdisc replace dev {by} root tbf rate {rate} burst 256kb latency 50ms"))
        };
        limited(&self.name())?;
        within(&self.there, || limited("here"))
    }

    /// Makes the link lose all packets that go this way, from now on.
    pub fn cut(&self, way: Way) {
        let lost =
            |to: &str, by: &str| ip(&format!("neighbour replace {to} lladdr {WRONG} nud permanent dev {by}"));
        match way {
            Way::Both => ip(&format!("link set {} down", self.name())),
            Way::There => lost(&self.there(), &self.name()),
            Way::Back => within(&self.there, || lost(&self.here(), "here")),
        }
        .expect("a link that can be cut");
    }

    /// Undoes a [`cut`](Self::cut).
    pub fn mend(&self, way: Way) {
        let known = |to: &str, by: &str| ip(&format!("neighbour delete {to} dev {by}"));
        match way {
            Way::Both => ip(&format!("link set {} up", self.name())),
            Way::There => known(&self.there(), &self.name()),
            Way::Back => within(&self.there, || known(&self.here(), "here")),
        }
        .expect("a link that was cut");
    }
}
