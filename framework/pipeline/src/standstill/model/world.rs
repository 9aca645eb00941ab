//! The state of a tiny pipeline.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::item::ItemOrder;

/// A message: its edge, its sender, and its number among those of this sender on this edge.
pub(super) type Key = (usize, usize, usize);

/// A sender as its receiver knows it: edge and actor.
pub(super) type Lane = (usize, usize);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Content {
    #[default]
    Item,
    /// Nothing comes with this place in the order.
    Gap,
    End,
}

/// A message that is to be sent, or was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    pub(super) content: Content,
    pub(super) edge: usize,
    /// The items that are in it.
    pub(super) ids: Vec<u8>,
    /// How often it has gone around a loop.
    pub(super) round: u8,
    pub(super) order: Option<ItemOrder>,
    /// The messages that are not answered before this one is.
    pub(super) guards: Vec<Key>,
    /// In a loop: the message with which it came in.
    pub(super) root: Option<Key>,
    /// The receiver; `None` if any replica will do.
    pub(super) to: Option<usize>,
}

/// A message that was sent and is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) piece: Piece,
    pub(super) to: usize,
    /// Whether its receiver has taken it from the mailbox.
    pub(super) taken: bool,
    /// Whether its sender has died.
    pub(super) orphan: bool,
}

/// Something that came for its place in an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Came {
    Nothing,
    /// An item whose turn has not come.
    Early(Piece),
    /// An item that was handled.
    Handled,
}

/// A call of `Reorder`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Put(ItemOrder, Came),
    Skip,
}

impl Call {
    pub(super) fn early(&self) -> Option<&Piece> {
        match self {
            Call::Put(_, Came::Early(piece)) => Some(piece),
            _ => None,
        }
    }
}

/// An item that a stage keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    pub(super) piece: Piece,
    /// In a `zip`: whether it came on the left.
    pub(super) left: bool,
}

/// How far an actor has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum At {
    #[default]
    Running,
    /// It sends its ends.
    Ending,
    /// It waits for all answers.
    Ended,
    Done,
    /// It has died and comes back.
    Down,
    /// It has died for good.
    Gone,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Actor {
    pub(super) at: At,
    pub(super) life: u8,
    /// For a source: how many items it has made.
    pub(super) made: u8,
    /// Whether an error has failed the pipeline here.
    pub(super) failed: bool,
    /// The results that it still has to send before it takes another message.
    pub(super) pending: VecDeque<Piece>,
    /// The items that it sends again, beside its work.
    pub(super) beside: Vec<Piece>,
    pub(super) kept: Vec<Kept>,
    /// The senders whose end came.
    pub(super) over: BTreeSet<Lane>,
    /// Their ends, which are answered when this actor is done.
    pub(super) ends: Vec<Key>,
    /// By edge: the next number.
    pub(super) numbers: BTreeMap<usize, u64>,
    /// The order that it restores.
    pub(super) order: Vec<Call>,
    /// The ends that it still has to send: edge and receiver.
    pub(super) unsaid: VecDeque<(usize, usize)>,
}

impl Actor {
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.at, At::Down | At::Gone)
    }

    /// Returns all messages that it works on.
    fn guards(&self) -> impl Iterator<Item = Key> + '_ {
        let kept = self.kept.iter().map(|kept| &kept.piece);
        let early = self.order.iter().filter_map(Call::early);
        let pieces = self.pending.iter().chain(&self.beside).chain(kept).chain(early);
        pieces.flat_map(|piece| piece.guards.iter().copied()).chain(self.ends.iter().copied())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) actors: Vec<Actor>,
    pub(super) messages: BTreeMap<Key, Message>,
    /// How many messages each sender has sent along each edge.
    pub(super) sent: BTreeMap<Lane, usize>,
    /// Whether the sources were told to stop.
    pub(super) stopping: bool,
    /// Whether Ctrl-C has come.
    pub(super) signalled: bool,
    /// Deaths that may still come.
    pub(super) deaths: u8,
    pub(super) died: bool,
    pub(super) failed: bool,
    /// The items that came to sinks, in order.
    pub(super) sunk: Vec<u8>,
    /// The items that the report names as failed or lost, and as left over.
    pub(super) named: BTreeSet<u8>,
    pub(super) left_over: BTreeSet<u8>,
}

impl World {
    /// Returns the messages of a sender along an edge that are not answered.
    pub(super) fn unanswered(&self, actor: usize, edge: usize) -> impl Iterator<Item = &Piece> + '_ {
        let all = self.messages.iter();
        let of_it = all.filter(move |(key, message)| key.0 == edge && key.1 == actor && !message.orphan);
        of_it.map(|(_, message)| &message.piece)
    }

    /// Returns the first message of each sender in an actor's mailbox (MBX-1).
    pub(super) fn mailbox(&self, actor: usize) -> Vec<Key> {
        let mut first: Vec<Key> = Vec::new();
        for (key, message) in &self.messages {
            let is_next = first.last().is_none_or(|last| (last.0, last.1) != (key.0, key.1));
            if message.to == actor && !message.taken && is_next {
                first.push(*key);
            }
        }
        first
    }

    /// Answers the messages that nobody works on any more. Each answer may lead to others.
    pub(super) fn settle(&mut self) {
        loop {
            let messages = self.messages.values().flat_map(|message| message.piece.guards.iter().copied());
            let held: BTreeSet<Key> =
                messages.chain(self.actors.iter().flat_map(|actor| actor.guards())).collect();
            let before = self.messages.len();
            self.messages.retain(|key, message| !message.taken || held.contains(key));
            if self.messages.len() == before {
                return;
            }
        }
    }
}
