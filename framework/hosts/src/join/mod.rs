//! How hosts become one node: [which host this is](Hosts), the request of an agent, and how the head numbers
//! agents.
//!
//! An agent states its life, its name and its listening port, after an [introduction](crate::introduction).
//! The head gives it a number that no other host had, and names the hosts that are there. An agent that asks
//! again with the same life, because an answer was lost, gets the same number. A host that was given up asks
//! with another life and gets another number.

mod environment;
mod roster;
mod wire;

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use self::environment::{
    ADVERTISE, BIND, EnvironmentError, HEAD, Hosts, JOINED_FILE, LISTEN, Role, SERVICE, tell_starter,
};
pub use self::roster::{NotAdmitted, Roster};
use crate::ids::{HostLife, Life};

/// The request of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its life.
    pub life: Life,
    /// Its name, for people.
    pub name: String,
    /// The port at which it listens.
    pub port: u16,
    /// `host:port` under which others reach it, if that is not what the head sees. A port 0 stands for that
    /// of its listener.
    pub advertise: Option<String>,
}

/// A host of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number and its life.
    pub who: HostLife,
    /// Its name, for people.
    pub name: String,
    /// `host:port` under which others reach it.
    pub address: String,
}

/// The answer of the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admitted {
    /// The number and life that the asking host has from now on.
    pub you: HostLife,
    /// The head.
    pub head: HostLife,
    /// The other agents that are there; later ones hear of this host.
    pub others: Vec<Member>,
}

impl Request {
    /// Returns the address under which others reach the host that asks from `from`. The address that the head
    /// sees is right unless it was translated; then the host states its own.
    pub fn address(&self, from: SocketAddr) -> String {
        advertised(self.advertise.as_deref(), SocketAddr::new(from.ip().to_canonical(), self.port))
    }
}

/// Returns the address under which others reach a host that listens there, if it says this of itself.
pub fn advertised(said: Option<&str>, listens: SocketAddr) -> String {
    match said {
        None => listens.to_string(),
        Some(said) => match said.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", listens.port()),
            None => said.to_owned(),
        },
    }
}
