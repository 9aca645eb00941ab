//! What the node and its gateway say to each other, over the gateway's control channel.
//!
//! The gateway is a worker that speaks to other hosts. The node decides, as for all actors, where an actor of
//! another host is reached from here: at a place in the gateway, whose mailbox passes on what comes. And it
//! says what other hosts ask of this one.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::control_channel::Location;
use super::inbox::Inbox;
use super::lifecycle::{EndReason, Lifecycle, Whereabouts};
use crate::ids::{ActorId, DeviceId, ProcessId};
use crate::observe::log::LogRecord;

/// What a transport passes on that is for the gateway, in the process that is it.
pub(crate) trait Gate: Send + Sync {
    /// The node says something. Never waits.
    fn hear(&self, said: ToGateway);

    /// The mailbox for a message to an actor of another host that was sent to a place which it has no more.
    fn late(&self, actor: ActorId) -> Arc<dyn Inbox>;

    /// Leaves the other hosts. Resolves when they know, or some time has passed.
    fn leave(&self) -> BoxFuture<'static, ()>;
}

/// A host of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its number: 0 is the head. None is given twice in the life of a node.
    pub number: u16,
    /// What it calls itself.
    pub name: String,
    /// `host:port` where the others reach it.
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
    /// As a figure or a record of its log names it: the number, and what it calls itself.
    pub(crate) fn short(&self) -> String {
        format!("{} {}", self.number, self.name).trim_end().to_owned()
    }
}

/// A record of a host's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The name of the worker; `"node"` for the node itself.
    pub worker: String,
    /// What it says.
    pub record: LogRecord,
}

/// The mailbox of a host's node for what other hosts ask of it: its first actor.
pub(crate) fn starter_of(host: u16) -> ActorId {
    ActorId::numbered(host, 1)
}

/// A message to a starter, as its own gateway passes it on: the number of the host that it has come from, and
/// it, as a pair in MessagePack. So no host can ask in another's name.
pub(crate) fn from_host(host: u16, message: &[u8]) -> Vec<u8> {
    // An array of two, and a number of 16 bits (MessagePack: fixarray, uint 16).
    let [high, low] = host.to_be_bytes();
    [&[0x92, 0xcd, high, low], message].concat()
}

/// What all processes of a host have sent and received among themselves, and whether anything is under way
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostActivity {
    /// Messages that they have handed to each other.
    pub sent: u64,
    /// Messages that they have taken from each other.
    pub received: u64,
    /// Whether any has anything queued, running or on its way out, to another host too.
    pub busy: bool,
    /// Whether the counts need not agree: one has died or was given up.
    pub leaves_unread: bool,
}

/// Why a host does not get a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameRefused {
    /// An actor has it. Of one on a third host, its host alone is known, and its number is 0.
    By(ActorId),
    /// The head knows as many names of that host as it may.
    Full,
    /// Too many names are asked for at a time.
    Busy,
}

/// How a host went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gone {
    /// It has left in order: its actors have stopped.
    Left,
    /// The head has spoken its verdict: its workers have ended by themselves (HOST-10).
    Lost,
    /// Somebody has given it up for another reason: its workers may still run.
    GivenUp,
}

impl Gone {
    /// Returns whether next lives of its actors may begin elsewhere (HOST-10).
    pub(crate) fn is_certain(self) -> bool {
        self != Gone::GivenUp
    }
}

/// From the node to its gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToGateway {
    /// Become a gateway; answered by [`FromGateway::Began`]. Where it follows another, the socket at which
    /// that one listened comes along.
    Begin(Box<Beginning>),
    /// Somebody here wants to send to these actors of other hosts. Answered for each by
    /// [`FromGateway::Reached`] or [`FromGateway::OutOfReach`].
    Reach {
        /// Which.
        actors: Vec<ActorId>,
    },
    /// Take messages for it here, and say so with [`FromGateway::Serving`].
    Serve {
        /// Which.
        actor: ActorId,
        /// Where in the gateway.
        location: Location,
    },
    /// Take none for it any more.
    Withdraw {
        /// Which.
        actor: ActorId,
    },
    /// An actor of another host is to have a place, and there is none. Answered by [`FromGateway::Rests`], as
    /// soon as there is one that nobody uses.
    MakeRoom,
    /// The answer to [`FromGateway::Rests`]: nobody here knows the place any more.
    Rested {
        /// Which.
        actor: ActorId,
        /// Whether somebody here wants to hear what happens to it.
        told: bool,
    },
    /// Somebody here wants to hear what happens to these actors of other hosts, which was told to the gateway
    /// before.
    Watch {
        /// Which.
        actors: Vec<ActorId>,
    },
    /// Somebody here looks a name up that nobody has here. Answered by [`FromGateway::Found`].
    Find {
        /// Echoed in the answer.
        ticket: u64,
        /// The name.
        name: String,
    },
    /// Where an actor of this host is, which another host has asked for.
    Local {
        /// Which.
        actor: ActorId,
        /// Where.
        at: Whereabouts,
        /// The device that the tensors of its messages are brought to, or the GPU that it works on.
        device: Option<DeviceId>,
    },
    /// On the home of an actor that roams: it lives on this host from now on. Also the answer to
    /// [`FromGateway::WantLocal`].
    LivesOn {
        /// Which.
        actor: ActorId,
        /// The number of that host.
        host: u16,
    },
    /// On the home of actors that roam, for a gateway that follows another: on which hosts they live, with
    /// the numbers of these.
    Lives(Vec<(ActorId, u16)>),
    /// The answer to [`FromGateway::WantGuests`]: behind a [`ToGateway::Local`] for each that does not live
    /// here.
    Guests {
        /// From the question.
        host: u16,
        /// From the question.
        session: u64,
    },
    /// A process of this host that may ask actors of others works on this GPU.
    Uses {
        /// Which process.
        process: ProcessId,
        /// Its GPU.
        device: DeviceId,
    },
    /// The head: ask all other hosts what is under way there, because the node shuts down. Answered by
    /// [`FromGateway::Drained`] for each.
    Drain {
        /// Echoed in the answers.
        round: u64,
        /// Milliseconds until the head ends all that is left.
        within: u64,
    },
    /// The answer of this host to [`FromGateway::Drain`].
    Drained {
        /// From the question.
        round: u64,
        /// Of this host.
        activity: HostActivity,
    },
    /// An agent: somebody here wants this name, which nobody on another host may have then. Answered by
    /// [`FromGateway::Claimed`].
    Claim {
        /// Echoed in the answer.
        ticket: u64,
        /// The name.
        name: String,
    },
    /// An agent: nobody here has this name any more.
    Release {
        /// The name.
        name: String,
    },
    /// An agent: all names that actors of this host have, some at a time, for a head that may not have heard
    /// of some that are free.
    Names {
        /// Some of them.
        names: Vec<String>,
        /// Whether these are the last.
        is_last: bool,
    },
    /// The head: whether another host may have a name; the answer to [`FromGateway::Claim`].
    Claimed {
        /// Which host.
        host: u16,
        /// From the question.
        ticket: u64,
        /// From the question.
        name: String,
        /// Why not.
        result: Result<(), NameRefused>,
    },
    /// An agent: some of this host's log, for the head. It may be lost.
    Log {
        /// The number of the first; without any, that of the next that there will be.
        first: u64,
        /// One after the other.
        records: Vec<HostRecord>,
    },
}

/// From the gateway to its node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromGateway {
    /// Whether this host is of its node now, as which number and in which life. With it come what outlives
    /// the gateway: its page (`transport/works_until.rs`), and the socket at which it listens.
    Began {
        /// Why not.
        result: Result<(u16, u64), String>,
    },
    /// It is not stopped. Said each second.
    Alive,
    /// Who is of the node, this host among them, each with its life.
    Members(Vec<(Host, u64)>),
    /// A host has another gateway: what was under way with the one before was answered, or is lost.
    Renewed {
        /// Which.
        host: u16,
    },
    /// On the head: names that actors of another host have.
    Names {
        /// Which host.
        host: u16,
        /// Some of them.
        names: Vec<String>,
        /// Whether these are the last.
        is_last: bool,
    },
    /// The actor's host takes messages for it.
    Reached {
        /// Which.
        actor: ActorId,
        /// So many at a time.
        capacity: u32,
    },
    /// Its mailbox here takes messages.
    Serving {
        /// Which.
        actor: ActorId,
    },
    /// Nobody has sent to this one for longest, and nothing is on its way to it: it gives its place up.
    /// Answered by [`ToGateway::Rested`].
    Rests {
        /// Which.
        actor: ActorId,
    },
    /// The actor cannot be reached (any more): it has ended, or its host is lost.
    OutOfReach {
        /// Which.
        actor: ActorId,
        /// Why, if anybody knows.
        why: Option<EndReason>,
    },
    /// What became of a look-up on the other hosts.
    Found {
        /// From the question.
        ticket: u64,
        /// The actor, and its place on its own host.
        found: Option<(ActorId, Location)>,
    },
    /// On the head: another host wants this name; answered by [`ToGateway::Claimed`].
    Claim {
        /// Which host.
        host: u16,
        /// Echoed in the answer.
        ticket: u64,
        /// The name.
        name: String,
    },
    /// On the head: another host gives a name back.
    Release {
        /// Which host.
        host: u16,
        /// The name.
        name: String,
    },
    /// On an agent: whether this host may have a name; the head's answer to [`ToGateway::Claim`].
    Claimed {
        /// From the question.
        ticket: u64,
        /// From the question.
        name: String,
        /// Why not.
        result: Result<(), NameRefused>,
    },
    /// Another host asks for this actor; answered by [`ToGateway::Local`], or where it roams and lives
    /// elsewhere by [`ToGateway::LivesOn`], as soon as it lives somewhere. Of one that roams this host asks,
    /// too.
    WantLocal {
        /// Which.
        actor: ActorId,
    },
    /// Actors that roam live here, as their home says, which wants to hear what happens to them. Answered by
    /// [`ToGateway::Guests`].
    WantGuests {
        /// Their home.
        host: u16,
        /// Counts the sessions with it; echoed in the answer.
        session: u64,
        /// Which.
        actors: Vec<ActorId>,
    },
    /// Something has happened to an actor of another host, and it goes on.
    Lifecycle(Lifecycle),
    /// On the home of an actor that roams: the host that it lives on says that it has ended.
    LifeOver {
        /// Which.
        actor: ActorId,
        /// The number of that host.
        host: u16,
        /// Why, if that host knows.
        why: Option<EndReason>,
    },
    /// The head shuts the node down, and asks what is under way here; answered by [`ToGateway::Drained`].
    Drain {
        /// Echoed in the answer.
        round: u64,
        /// Milliseconds until the head ends all that is left.
        within: u64,
    },
    /// On the head: what is under way on another host.
    Drained {
        /// Which.
        host: u16,
        /// From the question.
        round: u64,
        /// Of that host.
        activity: HostActivity,
    },
    /// On the head: some of the log of another host. It may be lost.
    Log {
        /// Whose.
        host: u16,
        /// Records that were dropped on the way, before these.
        lost: u64,
        /// What came.
        records: Vec<HostRecord>,
    },
    /// On an agent: what is to be added to a time of `CLOCK_MONOTONIC` here for the head's, by the beats.
    Clock {
        /// Nanoseconds, head minus agent.
        nanos: i64,
        /// It is right to so many.
        within: u64,
    },
    /// A host is lost, or has left. What it had is told actor by actor, but for those that roam.
    HostGone {
        /// Its number.
        host: u16,
        /// Which, and why.
        why: String,
        /// How sure it is that nothing runs there any more.
        how: Gone,
    },
    /// This host is not of its node any more, because of the head: it ends, at once where it is `cut_off`.
    NodeGone {
        /// Why.
        why: String,
        /// Whether the head may give its actors other lives.
        cut_off: bool,
    },
}

/// The beginning of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// How this host becomes one of its node.
    pub settings: Settings,
    /// Counts the gateways of this host, from 1.
    pub gateway: u32,
    /// What the one before has left, where there was one.
    pub left: Option<Left>,
}

/// What outlives a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The number of this host.
    pub number: u16,
    /// Who was of the node, this host among them, each with its life.
    pub members: Vec<(Host, u64)>,
    /// On the head: the last number that a host was given.
    pub last: u16,
    /// On an agent: until when its workers may work, in nanoseconds since the start of the machine.
    pub works_until: u64,
    /// How hosts went that are not of the node any more: the last of them to join.
    pub gone: Vec<(u16, Gone)>,
}

/// How a host becomes one of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it starts the node, and does not join one.
    pub is_head: bool,
    /// `host:port`: where the head is reached; on the head itself, where it listens.
    pub head: String,
    /// What it is called.
    pub name: String,
    /// `host[:port]` under which others reach it, where that is not what the head sees.
    pub advertise: Option<String>,
    /// Where an agent listens, unless somebody else does; 0 for any free port.
    pub port: u16,
    /// What the build is called, where programs of several architectures are of one node.
    pub build_name: Option<String>,
    /// The file with the node's key, where it is not named by the environment.
    pub key_file: Option<std::path::PathBuf>,
    /// Milliseconds that it tries to join.
    pub join_deadline: u64,
    /// Connections for tensors to each other host.
    pub lanes: u16,
    /// Whether they may go by NIXL.
    pub nixl: Nixl,
}

/// Whether tensors in GPU memory go to other hosts by [NIXL](https://github.com/ai-dynamo/nixl), from memory
/// of one GPU into memory of the other; see [`Hosts::nixl`](crate::api::hosts::Hosts::nixl).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nixl {
    /// Never: all goes by gRPC.
    #[default]
    Off,
    /// Where both hosts say so, the library is there, and 32 MiB were seen to take less time than by all
    /// lanes of gRPC.
    WhereFaster,
}
