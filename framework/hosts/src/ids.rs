//! Identifiers that mean the same on every host of a node.
//!
//! HOST-1: processes, leases, chunks and tickets have no type here, so that none of them can be put into a
//! frame.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A host of a node. 0 is the head, and also every node that stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostId(pub u16);

impl HostId {
    /// The host on which the program was started first; it supervises the others.
    pub const HEAD: HostId = HostId(0);
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HostId::HEAD => write!(f, "the head"),
            HostId(number) => write!(f, "host {number}"),
        }
    }
}

/// One life of a host in the node, drawn at random when it begins, so that nothing meant for one life reaches
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Life(pub u64);

impl Life {
    /// Draws a new one; `None` if the system has no random numbers.
    pub fn draw() -> Option<Self> {
        let drawn = ring::rand::generate::<[u8; 8]>(&ring::rand::SystemRandom::new()).ok()?;
        Some(Life(u64::from_le_bytes(drawn.expose())))
    }
}

/// The number of a gateway of a host. It counts the gateways that the host has had in one of its lives, from
/// 1.
///
/// A host outlives its gateway, and the gateway's state is lost with it. So a session belongs to two
/// gateways, and both sides state both numbers ([`Hello`](crate::frame::Hello)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gateway(pub u32);

impl Gateway {
    /// Not known yet: the number of the other side before it has introduced itself.
    pub const UNKNOWN: Gateway = Gateway(0);
    /// The gateway with which a host begins.
    pub const FIRST: Gateway = Gateway(1);
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Gateway::UNKNOWN => write!(f, "no gateway that it knows"),
            Gateway(number) => write!(f, "gateway {number}"),
        }
    }
}

/// A host in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostLife {
    /// The host.
    pub host: HostId,
    /// The life.
    pub life: Life,
}

impl fmt::Display for HostLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (life {:016x})", self.host, self.life.0)
    }
}

/// An actor of the whole node: its home in the upper 16 bits, and below them the number that the home gave
/// it. It lives at home, unless the upper bit of the number says that it may live on any host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId(pub u64);

impl ActorId {
    const NUMBER_BITS: u32 = 48;
    const ROAMS: u64 = 1 << (Self::NUMBER_BITS - 1);

    /// The actor to which `host` gave this number; `None` if the number has more than 48 bits.
    pub fn new(host: HostId, number: u64) -> Option<Self> {
        let above = number >> Self::NUMBER_BITS;
        (above == 0).then_some(ActorId(u64::from(host.0) << Self::NUMBER_BITS | number))
    }

    /// The host that numbered it.
    pub fn home(self) -> HostId {
        HostId((self.0 >> Self::NUMBER_BITS) as u16)
    }

    /// Whether it can live on this host: on its home, or on any host if it roams. The session's user decides
    /// which hosts may offer a roaming actor.
    pub fn may_live_on(self, host: HostId) -> bool {
        self.home() == host || self.0 & Self::ROAMS != 0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0 & (Self::ROAMS - 1);
        match self.home() {
            HostId::HEAD => write!(f, "actor#{number}"),
            host => write!(f, "actor#{number} of {host}"),
        }
    }
}

/// The number of a frame in a session, from 1.
pub type Seq = u64;

/// Ties a reply to its ask; drawn by the session of the asking host.
pub type Correlation = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_names_its_host() {
        let actor = ActorId::new(HostId(3), 7).expect("a small number");
        assert_eq!((actor.home(), actor.to_string().as_str()), (HostId(3), "actor#7 of host 3"));
        assert_eq!(ActorId::new(HostId::HEAD, 7), Some(ActorId(7)), "on one machine nothing changes");
        assert_eq!(ActorId::new(HostId(3), 1 << 48), None, "the host would be another");
        let roams = ActorId::new(HostId(3), 1 << 47 | 7).expect("a bit of the number");
        assert_eq!((roams.home(), roams.to_string()), (HostId(3), actor.to_string()));
        assert!(
            roams.may_live_on(HostId(4)) && !actor.may_live_on(HostId(4)) && actor.may_live_on(HostId(3))
        );
    }
}
