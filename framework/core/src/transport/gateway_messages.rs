//! The messages between the node and its gateway, over the gateway's control channel.
//!
//! The gateway is a worker that talks to other hosts. As for all actors, the node decides where an actor of
//! another host is reached from here: at a location in the gateway, whose mailbox passes messages on. The
//! gateway passes the questions of other hosts to the node, which answers them.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::control_channel::{FromNode, Location, ToNode};
use super::envelope::Envelope;
use super::lifecycle::{Activity, EndReason, Lifecycle, Whereabouts};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::observe::log::LogRecord;

/// A host of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its number: 0 is the head. No number is given twice in the life of a node.
    pub number: u16,
    /// The name that it gives itself.
    pub name: String,
    /// `host:port` at which the others reach it.
    pub address: String,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { number, name, address } = self;
        if name.is_empty() {
            write!(f, "host {number} ({address})")
        } else {
            write!(f, "host {number} `{name}` ({address})")
        }
    }
}

impl Host {
    /// Returns the name used in metrics and log records: its number, and the name that it gives itself.
    pub(crate) fn short(&self) -> String {
        format!("{} {}", self.number, self.name).trim_end().to_owned()
    }
}

/// A record of a host's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostRecord {
    /// The name of the worker; `"node"` for the node itself.
    pub(crate) worker: String,
    pub(crate) record: LogRecord,
}

/// Returns the actor of a host's node that takes requests of other hosts: the host's first actor.
pub(crate) fn starter_of(host: u16) -> ActorId {
    ActorId::numbered(host, 1)
}

/// Encodes a message to a starter in the form in which the starter's own gateway passes it on: a pair in
/// MessagePack of the number of the sending host and the message. So no host can ask in another's name.
pub(crate) fn from_host(host: u16, message: &[u8]) -> Vec<u8> {
    // An array of two, and a number of 16 bits (MessagePack: fixarray, uint 16).
    let [high, low] = host.to_be_bytes();
    [&[0x92, 0xcd, high, low], message].concat()
}

/// Why a host does not get a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NameRefused {
    /// An actor has it. If the actor is on a third host, only that host is known, and the actor's number is
    /// 0.
    By(ActorId),
    /// The head has as many names of that host as it may.
    Full,
    /// Too many requests for names are open.
    Busy,
}

/// How a host went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostEnd {
    /// It has left in order, after its actors stopped.
    Left,
    /// The head has declared it lost: its workers have ended by themselves (HOST-10).
    Lost,
    /// It was given up for another reason: its workers may still run.
    GivenUp,
}

impl HostEnd {
    /// Returns whether its actors may be restarted elsewhere (HOST-10).
    pub(crate) fn is_certain(self) -> bool {
        self != HostEnd::GivenUp
    }
}

fn seal(said: &impl Serialize) -> Envelope {
    // No value of these types is refused. An empty envelope would be, by the process that opens it.
    Envelope(rmp_serde::to_vec_named(said).unwrap_or_default())
}

/// Decodes a message from all of an envelope (WIRE-1).
fn open<T: DeserializeOwned>(Envelope(bytes): &Envelope) -> Result<T, String> {
    let mut rest = bytes.as_slice();
    let said = rmp_serde::decode::from_read(&mut rest).map_err(|error| error.to_string())?;
    match rest.len() {
        0 => Ok(said),
        trailing => Err(format!("{trailing} bytes follow it")),
    }
}

impl ToGateway {
    /// Makes the message that the node sends its gateway.
    pub(crate) fn sealed(&self) -> FromNode {
        FromNode::Neighbours(seal(self))
    }

    pub(crate) fn open(envelope: &Envelope) -> Result<Self, String> {
        open(envelope)
    }
}

impl FromGateway {
    /// Makes the message that the gateway sends its node.
    pub(crate) fn sealed(&self) -> ToNode {
        ToNode::Neighbours(seal(self))
    }

    pub(crate) fn open(envelope: &Envelope) -> Result<Self, String> {
        open(envelope)
    }
}

/// From the node to its gateway. A `ticket`, a `round` and a `session` of a question come back in its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToGateway {
    /// Become a gateway; answered by [`FromGateway::Began`]. If it follows another gateway, that gateway's
    /// listening socket comes along.
    Begin(Box<Beginning>),
    /// A process of this host wants to send to these actors of other hosts. Answered for each by
    /// [`FromGateway::Reached`] or [`FromGateway::OutOfReach`].
    Reach { actors: Vec<ActorId> },
    /// Take messages for it at this location in the gateway, and say so with [`FromGateway::Serving`].
    Serve { actor: ActorId, location: Location },
    /// Take none for it any more.
    Withdraw { actor: ActorId },
    /// An actor of another host needs a location, and none is free. Answered by [`FromGateway::Rests`], as
    /// soon as one is unused.
    MakeRoom,
    /// The answer to [`FromGateway::Rests`]: no process of this host knows the location any more. `told` is
    /// whether a process of this host watches the actor.
    Rested { actor: ActorId, told: bool },
    /// Processes of this host watch these actors of other hosts. The gateway before had been told of it.
    Watch { actors: Vec<ActorId> },
    /// A process of this host looks up a name that no actor of this host has. Answered by
    /// [`FromGateway::Found`].
    Find { ticket: u64, name: String },
    /// Where an actor of this host is, for which another host has asked. `device` is the one to which the
    /// tensors of its messages are copied, or the GPU that it works on.
    Local { actor: ActorId, at: Whereabouts, device: Option<DeviceId> },
    /// On the home of a roaming actor: it lives on this host from now on. Also the answer to
    /// [`FromGateway::WantLocal`].
    LivesOn { actor: ActorId, host: u16 },
    /// On the home of roaming actors, for a gateway that follows another: the actors, with the numbers of the
    /// hosts on which they live.
    Lives(Vec<(ActorId, u16)>),
    /// The answer to [`FromGateway::WantGuests`], sent after a [`ToGateway::Local`] for each of them that
    /// does not live here.
    Guests { host: u16, session: u64 },
    /// A process of this host that may send asks to actors of other hosts works on this GPU.
    Uses { process: ProcessId, device: DeviceId },
    /// To the head's gateway: ask all other hosts what is under way there, because the node shuts down.
    /// Answered by [`FromGateway::Drained`] for each. After `within` milliseconds the head ends all that is
    /// left.
    Drain { round: u64, within: u64 },
    /// The answer of this host to [`FromGateway::Drain`].
    Drained { round: u64, activity: Activity },
    /// To an agent's gateway: a process of this host wants this name, which then no actor on another host may
    /// have. Answered by [`FromGateway::Claimed`].
    Claim { ticket: u64, name: String },
    /// To an agent's gateway: no actor of this host has this name any more.
    Release { name: String },
    /// To an agent's gateway: all names that actors of this host have, some at a time, for a head that may
    /// not have heard that some became free.
    Names { names: Vec<String>, is_last: bool },
    /// To the head's gateway: whether another host may have a name; the answer to [`FromGateway::Claim`].
    Claimed { host: u16, ticket: u64, name: String, result: Result<(), NameRefused> },
    /// To an agent's gateway: some of this host's log, for the head. It may be lost. `first` is the number of
    /// the first record; if there are none, the number of the next one to come.
    Log { first: u64, records: Vec<HostRecord> },
}

/// From the gateway to its node. As in [`ToGateway`], an answer repeats what identifies its question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromGateway {
    /// Whether this host now belongs to its node, with its number and life. The parts that outlive the
    /// gateway come with it: its page (`transport/works_until.rs`), and the socket at which it listens.
    Began { result: Result<(u16, u64), String> },
    /// It is not stopped. Sent each second.
    Alive,
    /// The hosts of the node, this one among them, each with its life.
    Members(Vec<(Host, u64)>),
    /// A host has a new gateway: everything under way with the last one was answered, or is lost.
    Renewed { host: u16 },
    /// On the head: names that actors of another host have, some at a time.
    Names { host: u16, names: Vec<String>, is_last: bool },
    /// The actor's host takes messages for it, at most `capacity` at a time.
    Reached { actor: ActorId, capacity: u32 },
    /// Its mailbox here takes messages.
    Serving { actor: ActorId },
    /// This actor was not sent to for the longest time, and nothing is on its way to it, so it gives up its
    /// location. Answered by [`ToGateway::Rested`].
    Rests { actor: ActorId },
    /// The actor cannot be reached (any more): it has ended, or its host is lost. `why`, if that is known.
    OutOfReach { actor: ActorId, why: Option<EndReason> },
    /// The result of a look-up on the other hosts: the actor, and its location on its own host.
    Found { ticket: u64, found: Option<(ActorId, Location)> },
    /// On the head: another host wants this name; answered by [`ToGateway::Claimed`].
    Claim { host: u16, ticket: u64, name: String },
    /// On the head: another host gives a name back.
    Release { host: u16, name: String },
    /// On an agent: whether this host may have a name; the head's answer to [`ToGateway::Claim`].
    Claimed { ticket: u64, name: String, result: Result<(), NameRefused> },
    /// Another host asks for this actor, or this host does for a roaming one. Answered by
    /// [`ToGateway::Local`], or by [`ToGateway::LivesOn`] if it roams and lives elsewhere, as soon as it
    /// lives somewhere.
    WantLocal { actor: ActorId },
    /// Roaming actors live on this host, as their home `host` says, which watches them. Answered by
    /// [`ToGateway::Guests`]. `session` counts the sessions with the home.
    WantGuests { host: u16, session: u64, actors: Vec<ActorId> },
    /// An event of an actor of another host, after which the actor goes on.
    Lifecycle(Lifecycle),
    /// On the home of a roaming actor: the host on which it lives says that it has ended, and why if that
    /// host knows.
    LifeOver { actor: ActorId, host: u16, why: Option<EndReason> },
    /// The head shuts the node down, and asks what is under way on this host; answered by
    /// [`ToGateway::Drained`]. After `within` milliseconds the head ends all that is left.
    Drain { round: u64, within: u64 },
    /// On the head: the messages under way on another host.
    Drained { host: u16, round: u64, activity: Activity },
    /// On the head: some of the log of another host. It may be lost. `lost` records were dropped on the way,
    /// before these.
    Log { host: u16, lost: u64, records: Vec<HostRecord> },
    /// On an agent: the nanoseconds to add to a time of `CLOCK_MONOTONIC` here to get the head's, and their
    /// accuracy, as the beats measure them.
    Clock { nanos: i64, within: u64 },
    /// A host is lost, or has left. `why` names it; `how` says whether anything may still run there. Its
    /// actors are reported one by one, except for the roaming ones.
    HostGone { host: u16, why: String, how: HostEnd },
    /// This host no longer belongs to its node, because of the head. It ends, at once if it is `cut_off`: the
    /// head may then restart its actors elsewhere.
    NodeGone { why: String, cut_off: bool },
}

/// The beginning of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beginning {
    pub(crate) settings: Settings,
    /// Counts the gateways of this host, from 1.
    pub(crate) gateway: u32,
    /// The state that the last gateway has left, if there was one.
    pub(crate) left: Option<GatewayState>,
}

/// The state that outlives a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GatewayState {
    /// The number of this host.
    pub(crate) number: u16,
    /// The hosts of the node, this one among them, each with its life.
    pub(crate) members: Vec<(Host, u64)>,
    /// On the head: the last number that was given to a host.
    pub(crate) last: u16,
    /// On an agent: until when its workers may work, in nanoseconds since the start of the machine.
    pub(crate) works_until: u64,
    /// How hosts went that no longer belong to the node; only the last ones that had joined.
    pub(crate) gone: Vec<(u16, HostEnd)>,
}

/// How a host joins its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Whether it starts the node instead of joining one.
    pub(crate) is_head: bool,
    /// `host:port` at which the head is reached; on the head itself, at which it listens, or `:port` for
    /// every address.
    pub(crate) head: String,
    /// `host[:port]` or `:port` at which an agent listens, if that is set. A port 0 stands for `port`.
    pub(crate) bind: Option<String>,
    pub(crate) name: String,
    /// `host[:port]` at which others reach it, if that is neither the one address at which it listens nor the
    /// one that the head sees.
    pub(crate) advertise: Option<String>,
    /// The port at which an agent listens, unless another process has it; 0 for any free port.
    pub(crate) port: u16,
    /// The name of the build, if programs of several architectures form one node.
    pub(crate) build_name: Option<String>,
    /// The file with the node's key, if the environment does not name it.
    pub(crate) key_file: Option<std::path::PathBuf>,
    /// For how many milliseconds it tries to join.
    pub(crate) join_deadline: u64,
    /// Connections for tensors to each other host.
    pub(crate) lanes: u16,
    /// Whether tensors may go by NIXL.
    pub(crate) nixl: Nixl,
}

/// Whether tensors in GPU memory go to other hosts by [NIXL](https://github.com/ai-dynamo/nixl), from memory
/// of one GPU into memory of the other; see [`Hosts::nixl`](crate::api::hosts::Hosts::nixl).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nixl {
    /// Never: all tensors go by gRPC.
    #[default]
    Off,
    /// If both hosts say so, the library is present, and 32 MiB were measured to take less time than by all
    /// lanes of gRPC.
    WhereFaster,
}
