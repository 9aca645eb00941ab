//! The items that flow through a pipeline, and how the pipeline tells one item from another.

use std::fmt;

use serde::{Deserialize, Serialize};

use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::api::observe::TraceContext;

/// A type that can flow through a pipeline: any message without a reply that can be cloned. (Cloning a tensor
/// clones a handle, not the memory.) You do not implement this trait; deriving
/// [`GpuMessage`](derive@GpuMessage) and `Clone` does.
///
/// Items are cloned only where the pipeline has to keep one: for several receivers, for another attempt, or
/// until it is acknowledged. Elsewhere they are moved, and a stage can write into the memory that it received
/// ([`Tensor::into_mut`](tensorpost_core::api::tensor::Tensor::into_mut)).
pub trait Item: GpuMessage<Reply = ()> + Clone {}

impl<T: GpuMessage<Reply = ()> + Clone> Item for T {}

/// The id of an item: its source, and its number there. Reports name items by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemId {
    /// The source, counted from 0 in the order in which the pipeline was written down.
    pub source: u16,
    /// The item, counted from 0 in the order in which the source made them.
    pub number: u64,
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source == 0 {
            write!(f, "#{}", self.number)
        } else {
            write!(f, "#{}/{}", self.source, self.number)
        }
    }
}

/// The place of an item in an order that replicas lose and their receiver restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct ItemOrder {
    /// The sender that numbered it.
    pub(super) lane: u32,
    /// When that life of the sender began, on the clock of the machine. Each life begins with number 0, and
    /// so does a new replica in the place of one that has left.
    pub(super) life: u64,
    /// Its number.
    pub(super) number: u64,
    /// Whether nothing more comes with this number.
    pub(super) last: bool,
}

impl ItemOrder {
    /// Whether both are the same place.
    pub(super) fn is(&self, other: ItemOrder) -> bool {
        (self.lane, self.life, self.number) == (other.lane, other.life, other.number)
    }
}

/// The data about an item that travels with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tag {
    pub(super) id: ItemId,
    /// The other items that are in it, if several became one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) also: Vec<ItemId>,
    /// How the items that became this one share those ids, in order. Empty if each has one id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<Shape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<ItemOrder>,
    /// For each loop that it is in, from the outermost on: the name that the stage at the loop's beginning
    /// gave it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rounds: Vec<u64>,
    /// If items are sent again: edge and replica of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<u32>,
    /// Whether more items may come with one of its ids, from a stage that makes several of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", rename = "s")]
    pub(super) several: bool,
    /// 0 unless it was sent again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) attempt: u32,
    /// The key for items of the stage that it goes to. Each item carries it, so its name is short.
    #[serde(rename = "k")]
    pub(super) key: u64,
    /// The trace context of the call that made it.
    #[serde(default, skip_serializing_if = "TraceContext::is_none")]
    pub(super) span: TraceContext,
}

/// How an item was composed, in numbers of ids: a pair has two, a batch of pairs has parts of two each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) ids: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<Shape>,
}

fn is_zero(attempt: &u32) -> bool {
    *attempt == 0
}

impl Tag {
    pub(super) fn of(id: ItemId) -> Self {
        Tag {
            id,
            also: Vec::new(),
            parts: Vec::new(),
            order: None,
            rounds: Vec::new(),
            lane: None,
            several: false,
            attempt: 0,
            key: 0,
            span: TraceContext::default(),
        }
    }

    /// Returns the tag of a result that was made without an item.
    pub(super) fn of_nothing() -> Self {
        Tag::of(ItemId { source: 0, number: 0 })
    }

    /// Returns the ids of all items that are in it.
    pub(super) fn ids(&self) -> impl Iterator<Item = ItemId> + '_ {
        std::iter::once(self.id).chain(self.also.iter().copied())
    }

    pub(super) fn shape(&self) -> Shape {
        Shape { ids: 1 + self.also.len() as u32, parts: self.parts.clone() }
    }

    /// Returns the tags of the items that this one was made of, if there are `count` of them and it says how
    /// they share its ids.
    pub(super) fn taken_apart(&self, count: usize) -> Option<Vec<Tag>> {
        let single = Shape { ids: 1, parts: Vec::new() };
        let all = vec![single; if self.parts.is_empty() { count } else { 0 }];
        let shapes = if self.parts.is_empty() { &all } else { &self.parts };
        let total: usize = shapes.iter().map(|shape| shape.ids as usize).sum();
        if shapes.len() != count || total != 1 + self.also.len() {
            return None;
        }
        let mut ids = self.ids();
        let tags = shapes.iter().map(|shape| {
            let mut own = ids.by_ref().take(shape.ids as usize);
            let id = own.next()?;
            let (also, parts) = (own.collect(), shape.parts.clone());
            Some(Tag { id, also, parts, rounds: self.rounds.clone(), ..*self })
        });
        tags.collect()
    }
}

/// A message from one actor of a pipeline to the next. Each has the receiving stage's key for items.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) enum EdgeMessage<T: Item> {
    /// An item.
    Item(Tag, T),
    /// Nothing came of the item with this place in the order: the restorer need not wait for it.
    Gap { key: u64, order: ItemOrder },
    /// Nothing more comes from this sender, the replica of an edge, for this reason.
    End { key: u64, lane: u32, of: EndOf },
}

impl<T: Item> EdgeMessage<T> {
    /// Returns the key that it was sent with.
    pub(super) fn key(&self) -> u64 {
        match self {
            EdgeMessage::Item(Tag { key, .. }, _)
            | EdgeMessage::Gap { key, .. }
            | EdgeMessage::End { key, .. } => *key,
        }
    }
}

/// Why nothing more comes from a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EndOf {
    /// Everything that the sender makes has come.
    Flow,
    /// The receiver leaves its stage, and other replicas take the sender's further items.
    Receiver,
    /// The sender leaves its stage, and other replicas take the items that would have gone to it. The
    /// receiver answers this end at once, without waiting for its own end.
    Sender,
}

/// Makes a generic container of items an item; the derive would not check the tensors of the items inside. On
/// the wire its full type tells it from others, so the name and the definition can be those of the item
/// inside.
macro_rules! message {
    ($container:ident<$($item:ident),+>, |$this:ident| $check:expr) => {
        impl<$($item: $crate::Item),+> ::actix::Message for $container<$($item),+> {
            type Result = ();
        }

        impl<$($item: $crate::Item),+> tensorpost_core::api::message::GpuMessage for $container<$($item),+> {
            type Reply = ();
            const NAME: &'static str = $crate::item::first([$($item::NAME),+]);
            const SCHEMA: u64 = $crate::item::mixed(&[$($item::SCHEMA),+]);

            fn check(&self) -> Result<(), tensorpost_core::api::message::TensorCheckError> {
                let $this = self;
                $check
            }
        }
    };
}
pub(super) use message;

pub(super) const fn first<const N: usize>(names: [&'static str; N]) -> &'static str {
    names[0]
}

pub(super) const fn mixed(schemas: &[u64]) -> u64 {
    let (mut mixed, mut index) = (0_u64, 0);
    while index < schemas.len() {
        mixed = mixed.rotate_left(7) ^ schemas[index];
        index += 1;
    }
    mixed
}

message!(EdgeMessage<T>, |message| match message {
    EdgeMessage::Item(_, item) => item.check(),
    EdgeMessage::Gap { .. } | EdgeMessage::End { .. } => Ok(()),
});
