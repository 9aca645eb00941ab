//! Names for processes, actors, chunks and devices that mean the same in every process of a node.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::limits::MAX_PROCESSES;

/// A process of a node: its slot in the roster, and the number of its life in that slot.
///
/// Slot 0 is the node itself. A restarted worker keeps its slot and gets the next incarnation, so that a
/// message for one life never reaches another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(into = "u64")]
pub struct ProcessId {
    slot: u16,
    incarnation: u32,
}

impl ProcessId {
    /// The node's own process.
    pub const NODE: ProcessId = ProcessId { slot: 0, incarnation: 0 };

    /// The owner of clocks and memory without a node. It names no process of any node, because the node's own
    /// slot has one life.
    #[cfg(any(test, feature = "inside"))]
    pub const OUTSIDE: ProcessId = ProcessId { slot: 0, incarnation: u32::MAX };

    /// Returns the process in `slot`, in its life number `incarnation`; `None` where the slot is out of
    /// range.
    pub fn new(slot: u16, incarnation: u32) -> Option<Self> {
        (usize::from(slot) < MAX_PROCESSES).then_some(ProcessId { slot, incarnation })
    }

    /// Returns the index in the roster, below [`MAX_PROCESSES`].
    pub fn slot(self) -> usize {
        usize::from(self.slot)
    }

    /// Returns the number of its life in the slot.
    pub fn incarnation(self) -> u32 {
        self.incarnation
    }

    /// Returns both halves in one word, for the wire.
    pub fn to_bits(self) -> u64 {
        (u64::from(self.incarnation) << 16) | u64::from(self.slot)
    }

    /// Creates the process that [`to_bits`](Self::to_bits) made the word of; `None` for a word that names no
    /// process.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let incarnation = u32::try_from(bits >> 16).ok()?;
        Self::new((bits & 0xffff) as u16, incarnation)
    }
}

impl From<ProcessId> for u64 {
    fn from(process: ProcessId) -> u64 {
        process.to_bits()
    }
}

impl<'de> Deserialize<'de> for ProcessId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u64::deserialize(deserializer)?;
        // WIRE-1: a peer may have written the word.
        Self::from_bits(bits).ok_or_else(|| de::Error::custom(format_args!("{bits:#x} names no process")))
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.{}", self.slot, self.incarnation)
    }
}

/// A chunk of device memory: the process whose pool created it, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkId {
    /// The process whose pool the chunk belongs to.
    pub owner: ProcessId,
    /// Index in that process, never used again after the chunk is gone.
    pub index: u32,
}

/// The identity of an actor, unique in the life of a node; it stays the same when the actor is restarted.
///
/// The upper 16 bits are its home host: 0 is the head of several hosts, and every node of one host. The actor
/// lives there in all its lives, unless the bit below says that it *roams*: then its home knows on which host
/// it lives at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ActorId(pub u64);

impl ActorId {
    const NUMBER_BITS: u32 = 48;
    const ROAMS: u64 = 1 << (Self::NUMBER_BITS - 1);

    /// Creates the actor with this number of `host`. (At a million actors a second the numbers last for four
    /// years.)
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn numbered(host: u16, number: u64) -> Self {
        ActorId(u64::from(host) << Self::NUMBER_BITS | number & ((1 << Self::NUMBER_BITS) - 1))
    }

    /// Creates the same as [`numbered`](Self::numbered), for an actor that may live on any host.
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn roaming(host: u16, number: u64) -> Self {
        ActorId(Self::numbered(host, number).0 | Self::ROAMS)
    }

    /// Returns the number of its home: the host on which it lives, unless it [roams](Self::roams).
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn host(self) -> u16 {
        (self.0 >> Self::NUMBER_BITS) as u16
    }

    /// Returns whether it roams, so that only its home knows where it lives.
    #[doc(hidden)] // for `tensorpost-watch`
    pub fn roams(self) -> bool {
        self.0 & Self::ROAMS != 0
    }
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0 & (Self::ROAMS - 1);
        match self.host() {
            0 => write!(f, "actor#{number}"),
            host => write!(f, "actor#{number} of host {host}"),
        }
    }
}

/// A device, by its UUID. Ordinals differ between processes; the UUID does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceId(pub [u8; 16]);

impl DeviceId {
    /// Host memory.
    pub const HOST: DeviceId = DeviceId(*b"tensorpost::host");
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::HOST {
            return write!(f, "host");
        }
        let b = &self.0;
        write!(f, "GPU-")?;
        for (i, byte) in b.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                write!(f, "-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
