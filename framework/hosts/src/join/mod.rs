//! How hosts become one node: [which host this is](Hosts), what an agent asks, and how the head numbers who
//! joins.
//!
//! An agent says its life, its name and where it listens, behind an [introduction](crate::introduction). The
//! head gives it a number that no other host had, and says who is there. Who asks again with the same life,
//! because an answer was lost, gets the same number; who was given up asks with another life and gets another
//! number.

mod environment;
mod roster;
mod wire;

use std::net::SocketAddr;

pub use self::environment::{
    ADVERTISE, EnvironmentError, HEAD, Hosts, JOINED_FILE, LISTEN, Role, SERVICE, tell_starter,
};
pub use self::roster::{NotAdmitted, Roster};
use crate::ids::{HostLife, Life};

/// What an agent asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its life.
    pub life: Life,
    /// Its name, for people.
    pub name: String,
    /// The port that it listens at.
    pub port: u16,
    /// `host:port` under which others reach it, where that is not what the head sees. A port 0 stands for
    /// that of its listener.
    pub advertise: Option<String>,
}

/// A host of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number and its life.
    pub who: HostLife,
    /// Its name, for people.
    pub name: String,
    /// `host:port` where others reach it.
    pub address: String,
}

/// What the head answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who asks, from now on.
    pub you: HostLife,
    /// The head.
    pub head: HostLife,
    /// The other agents that are there; those that come later hear of this host.
    pub others: Vec<Member>,
}

impl Request {
    /// Where others reach who asks this from `from`. What the head sees is right but for translated
    /// addresses; then the host says it itself.
    pub fn address(&self, from: SocketAddr) -> String {
        match &self.advertise {
            None => SocketAddr::new(from.ip().to_canonical(), self.port).to_string(),
            Some(said) => match said.strip_suffix(":0") {
                Some(host) => format!("{host}:{}", self.port),
                None => said.clone(),
            },
        }
    }
}
