//! Several machines: how the nodes of one program on several hosts become one node.

pub(crate) mod all_hosts;
mod all_traces;
mod fenced_send;
pub(in crate::node) mod head_log;
pub(in crate::node) mod other_hosts;
mod shared;
mod start;
pub(in crate::node) mod starter;
mod wait;

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::limits::DROP_DEADLINE;
use super::spawn::ActorError;
use super::supervisor::Making;
use super::supervisor::hosts::{await_hosts, begin_hosts};
use super::{Node, NodeClosed, NodeError, Processes};
use crate::device::Device;
use crate::gateway;
use crate::transport::Transport;
use crate::transport::envelope::Envelope;
use crate::transport::gateway_messages::{Host, Nixl, Settings};

pub(crate) use self::shared::AllHosts;
pub(in crate::node) use self::start::Elsewhere;

/// The name of the worker that speaks to other hosts.
pub(super) use crate::transport::lifecycle::GATEWAY;

/// Makes this process the gateway to other hosts, as its node asks.
pub(super) fn begin_gateway(transport: &Arc<Transport>, said: &Envelope, descriptors: Vec<OwnedFd>) {
    gateway::begin(transport, said, descriptors.into_iter().next());
}

/// How this host joins a node of several hosts: as its head, or as an agent of a head.
///
/// The same program runs on each host, and names its role here; it may act by [`Node::is_head`]. Actors of
/// all hosts are found by their names, and messages and arguments carry their addresses as within one host.
///
/// Without a key (`TENSORPOST_KEY_FILE`, or [`key_file`](Self::key_file)) hosts are reached only on this
/// machine's loopback.
///
/// ```no_run
/// use std::time::Duration;
/// use tensorpost::hosts::Hosts;
/// use tensorpost::prelude::*;
///
/// # #[derive(Serialize, Deserialize, GpuMessage)] #[gpu_message(reply = u32)] struct Ask;
/// # struct Clerk;
/// # impl Actor for Clerk { type Context = Context<Self>; }
/// # impl RemoteActor for Clerk {
/// #     type Args = ();
/// #     fn create((): (), _: &Env) -> anyhow::Result<Self> { Ok(Clerk) }
/// #     fn handles(on: &mut Handles<Self>) { on.message::<Ask>(); }
/// # }
/// # impl Handler<Ask> for Clerk {
/// #     type Result = MessageResult<Ask>;
/// #     fn handle(&mut self, _: Ask, _: &mut Context<Self>) -> Self::Result { MessageResult(1) }
/// # }
/// fn main() -> anyhow::Result<()> {
///     // By TENSORPOST_HEAD, or the variables of Slurm, torchrun or Kubernetes; alone where there are none.
///     let node = Node::builder().hosts(Hosts::from_environment()?).start()?;
///     if node.is_head() {
///         let clerk = node.spawn::<Clerk>(()).name("clerk").start()?;
///         node.run_until_ctrl_c(Duration::from_secs(10))?;
///         drop(clerk);
///     } else {
///         // An actor of the head; a message to it takes the way of any other.
///         let clerk = node.block_on(node.registry().lookup::<Ask>("clerk"))?;
///         println!("{}", node.block_on(clerk.ask(Ask))?);
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Hosts {
    settings: Settings,
    agents_serve: bool,
}

/// The host with the fewest actors, this one included, for [`Spawn::on`](super::Spawn::on). If several have
/// the fewest, the host with the lowest number is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anywhere;

/// Where an actor is started: on a [`Host`], or [`Anywhere`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum OnHost {
    Number(u16),
    Anywhere,
}

impl From<&Host> for OnHost {
    fn from(host: &Host) -> Self {
        OnHost::Number(host.number)
    }
}

impl From<Anywhere> for OnHost {
    fn from(_: Anywhere) -> Self {
        OnHost::Anywhere
    }
}

/// The error for environment variables that do not make sense as a description of this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct HostsError(#[from] tensorpost_hosts::join::EnvironmentError);

impl Hosts {
    fn new(is_head: bool, head: String) -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let join_deadline = tensorpost_hosts::limits::JOIN_DEADLINE.as_millis() as u64;
        let settings = Settings { is_head, head, name, join_deadline, lanes: 2, ..Settings::default() };
        Hosts { settings, agents_serve: false }
    }

    /// Makes [`start`](super::NodeBuilder::start) on an agent serve and not return. It runs the actors that
    /// other hosts start there, until the head ends, or Ctrl-C or `SIGTERM` comes. Then it ends the process,
    /// with status 0 if everything ended in order. So only the head runs the rest of the program.
    pub fn agents_serve(mut self) -> Self {
        self.agents_serve = true;
        self
    }

    /// Whether this host is an agent that only serves.
    pub(super) fn only_serves(&self) -> bool {
        self.agents_serve && !self.settings.is_head
    }

    /// Makes this host the head of a node, which listens at `host:port`, or with `:port` at every address of
    /// this machine. With port 0 it takes a free port: see [`Node::hosts`].
    pub fn head(listen: impl Into<String>) -> Self {
        Self::new(true, listen.into())
    }

    /// Makes this host an agent of the head at `host[:port]`. It tries to join until
    /// [`join_deadline`](Self::join_deadline).
    pub fn agent(head: impl Into<String>) -> Self {
        Self::new(false, head.into())
    }

    /// Takes the role from `TENSORPOST_HEAD` or `TENSORPOST_LISTEN`, or from the variables of Slurm, torchrun
    /// or Kubernetes; `None` if this program was started alone. `TENSORPOST_BIND` says where the host
    /// listens, and `TENSORPOST_ADVERTISE` where others reach it. If `TENSORPOST_JOINED_FILE` names a file or
    /// a pipe, the host writes a line with its number to it when it has joined.
    ///
    /// # Errors
    /// The variables make no sense; the error says which.
    pub fn from_environment() -> Result<Option<Self>, HostsError> {
        let found = tensorpost_hosts::join::Hosts::from_environment()?;
        Ok(found.map(|found| {
            let is_head = found.role == tensorpost_hosts::join::Role::Head;
            let mut hosts = Self::new(is_head, found.head);
            (hosts.settings.bind, hosts.settings.advertise) = (found.bind, found.advertise);
            hosts.settings.port = found.port;
            hosts.join_deadline(found.join_deadline)
        }))
    }

    /// Sets the name under which people see this host; the default is the machine's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets where an agent listens: `host`, `host:port` or `:port`. The default is every address of this
    /// machine, of IPv6 and IPv4, and without a key 127.0.0.1. Without a port, or with 0, the host chooses
    /// one. A head listens where [`head`](Self::head) says.
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.settings.bind = Some(address.into());
        self
    }

    /// Sets the `host[:port]` under which others reach this host. The default is the address at which it
    /// listens, if that is one, or else the address that the head sees.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        let address = address.into();
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        self.settings.advertise = Some(match address.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]:0"),
            Err(_) if has_port => address,
            Err(_) => format!("{address}:0"),
        });
        self
    }

    /// Names this build of the program. Without it all hosts must run the same file. With it they need only
    /// the same name: for hosts of several architectures, or if each host builds the program itself.
    pub fn build_name(mut self, name: impl Into<String>) -> Self {
        self.settings.build_name = Some(name.into());
        self
    }

    /// Sets the file with the node's key: 32 bytes that only its user can read, the same on all hosts. The
    /// default is the file that `TENSORPOST_KEY_FILE`, or the variables for PEM files, name.
    pub fn key_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.key_file = Some(path.into());
        self
    }

    /// Sets how long an agent tries to join; the default is 120 s.
    pub fn join_deadline(mut self, deadline: Duration) -> Self {
        self.settings.join_deadline = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the number of connections for tensors to each other host, 1 to 8; the default is 2.
    pub fn lanes(mut self, lanes: u16) -> Self {
        self.settings.lanes = lanes;
        self
    }

    /// Sets whether tensors in GPU memory go by NIXL; the default is [`Nixl::Off`]. Tensors that go by NIXL
    /// are *not encrypted*, and NIXL and UCX do not defend against attackers: everybody who can reach the
    /// ports that UCX opens may write to the gateway's memory. So use it only if you trust the hosts, and the
    /// network between them, with the data. A key does not change that.
    ///
    /// The library is `libnixl_capi.so` of the wheel `nixl`, found by the loader or named by the variable
    /// `TENSORPOST_NIXL`. If it is missing, or not faster, the log says so, and tensors go by gRPC. Each pair
    /// of GPUs that uses NIXL takes 256 MiB on both.
    pub fn nixl(mut self, nixl: Nixl) -> Self {
        self.settings.nixl = nixl;
        self
    }
}

impl Processes {
    /// Starts the gateway, and waits until this host has joined its node. No actor of this host has an id
    /// before that.
    pub(super) fn become_one_of(&self, hosts: Hosts) -> Result<(), NodeError> {
        let failed = |error: &dyn std::fmt::Display| NodeError::Hosts(error.to_string());
        let making = Making::of(None, 1);
        let gateway = self.supervisor.spawn_worker_of(GATEWAY, making).map_err(|error| failed(&error))?;
        let began = begin_hosts(&self.supervisor, gateway, hosts.settings).map_err(|error| failed(&error))?;
        let host = began.map_err(NodeError::Hosts)?;
        self.process_runtime.set_host(host);
        Ok(())
    }
}

impl Node {
    /// Lets other hosts start actors here. A host that only serves does so until the head ends, and ends.
    pub(super) fn take_part(self, only_serves: bool) -> Result<Node, NodeError> {
        self.serve_other_hosts()?;
        if only_serves {
            self.serve_until_end()
        }
        Ok(self)
    }

    /// Runs until the head ends, or a signal comes, and ends the process.
    fn serve_until_end(self) -> ! {
        let ended = self.run_until_ctrl_c(DROP_DEADLINE);
        let is_clean = match &ended {
            Ok(report) => report.is_clean(),
            Err(error) => {
                tracing::error!(%error, "this host cannot serve");
                false
            }
        };
        // Ends the rest of the node now: a private MPS daemon, for example.
        drop(self);
        std::process::exit(i32::from(!is_clean))
    }

    /// Returns the hosts of the node, this one among them, in the order of their numbers; none if the node
    /// has only this host.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] when the node has shut down.
    pub fn hosts(&self) -> Result<Vec<Host>, NodeClosed> {
        self.supervisor().hosts()
    }

    /// Waits until the node has `count` hosts, this one among them, and returns them as
    /// [`hosts`](Self::hosts) does. After `within` it returns the hosts that there are.
    ///
    /// # Errors
    /// [`NodeClosed::Ended`] when the node has shut down.
    pub fn await_hosts(&self, count: usize, within: Duration) -> Result<Vec<Host>, NodeClosed> {
        await_hosts(self.supervisor(), count, within)
    }

    /// Returns a device of a host of the node, for an actor that is started [there](super::Spawn::on).
    /// `"cuda:1"` is that host's second GPU, counted by the `CUDA_VISIBLE_DEVICES` of its program; this
    /// host's GPUs do not matter. `"cuda"`, `"host"` and `GPU-` with a UUID are read as [`Device`] reads
    /// them. Waits until that host has answered.
    ///
    /// ```no_run
    /// # use tensorpost::prelude::*;
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// for host in node.hosts()? {
    ///     println!("{host}: {}", node.device_on(&host, "cuda:0")?.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ActorError::Elsewhere`] names the host, and says why it has no such device, or that it does not
    /// belong to the node any more.
    pub fn device_on(&self, host: &Host, device: &str) -> Result<Device, ActorError> {
        self.supervisor().device_on(host.number, device)
    }

    /// Whether this host is the head of its node, or the only one.
    pub fn is_head(&self) -> bool {
        self.transport().directory.host() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_ends_in_no_port() {
        for (said, known) in [
            ("::1", "[::1]:0"),
            ("[::1]", "[::1]:0"),
            ("[::1]:80", "[::1]:80"),
            ("a.b", "a.b:0"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            let hosts = Hosts::agent("a").advertise(said);
            assert_eq!(hosts.settings.advertise.as_deref(), Some(known));
        }
    }
}
