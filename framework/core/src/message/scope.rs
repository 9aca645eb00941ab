//! The scope in which a tensor can be serialised. It knows the frame that the tensor's lease goes into or
//! comes from.
//!
//! Scopes form a stack on the thread. A guard opens one and closes it when it drops, on errors and panics
//! too, so a failed encoding leaves the scope of an outer one as it was. A tensor cannot be serialised
//! outside of a scope: the error says so.
//!
//! **Nodes.** An encoded message leaves by one node, and the leases and addresses in it mean something there
//! alone. An encoding knows its node if the caller does, and `goes_out_by` refuses addresses of another node.
//! Arguments may be written before their node is known; then the first address in them determines it.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::buffers::Gathered;
use super::parts::Form;
use super::search::Search;
use crate::clock::taint::Tainted;
use crate::clock::{NodeNumber, Ticket};
use crate::lease::Lease;
use crate::limits::MAX_TENSORS;
use crate::tensor::part::Inner;
use crate::tensor::{DType, Layout, Tensor};

/// An outgoing tensor of a message: its lease, and its view of the lease's memory.
#[derive(Clone, Debug)]
pub struct Outline {
    /// The index into the frame's leases.
    pub lease: u16,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape, strides and offset in the allocation.
    pub layout: Layout,
}

/// Leases, with the tickets at which their data is ready.
pub type Leases = Vec<(Lease, Option<Ticket>)>;

/// The leases and tensors that an encoding gathers.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Each lease once.
    pub leases: Leases,
    /// Each tensor, in the order in which serde met them.
    pub tensors: Vec<Outline>,
    /// Each part of a split tensor; its whole is among `tensors`.
    pub(crate) parts: Vec<Arc<Inner>>,
    /// The body, if it was written before.
    #[cfg(feature = "raw")]
    pub(super) raw: Option<Vec<u8>>,
}

/// The leases and tensors that a decoding lends.
#[derive(Default)]
pub struct Incoming {
    /// The frame's tensors, by index.
    pub tensors: Vec<Tensor>,
    /// The process's transport, which addresses inside the message connect to.
    pub context: Option<Arc<dyn Any + Send + Sync>>,
    /// The descriptions of parts of split tensors in the body.
    pub(super) forms: Vec<Form>,
    /// The body, if the reader wants it as it is.
    #[cfg(feature = "raw")]
    pub(super) raw: Option<Vec<u8>>,
}

enum Scope {
    /// With the node by which the message leaves, once that is known.
    Encoding(Outgoing, Option<NodeNumber>),
    /// A search for lost data, with its first find.
    Searching(Option<Tainted>),
    Decoding(Incoming),
}

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

/// Closes the scope that it opened.
struct Guard {
    depth: usize,
}

impl Guard {
    fn open(scope: Scope) -> Self {
        SCOPES.with_borrow_mut(|scopes| {
            scopes.push(scope);
            Guard { depth: scopes.len() }
        })
    }

    fn close(self) -> Option<Scope> {
        let depth = self.depth;
        std::mem::forget(self);
        SCOPES.with_borrow_mut(|scopes| {
            scopes.truncate(depth);
            scopes.pop()
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The scopes are taken out first: dropping leases may run code that opens scopes of its own.
        let dropped = SCOPES.with_borrow_mut(|scopes| {
            // Nearly always no inner scope is left open, and an empty list would cost an allocation per
            // message.
            let inner = (scopes.len() > self.depth).then(|| scopes.split_off(self.depth));
            let own = if scopes.len() == self.depth { scopes.pop() } else { None };
            (inner, own)
        });
        drop(dropped);
    }
}

/// Runs `encode` in a scope that gathers tensors. Returns the gathered tensors, and the node by which the
/// message leaves.
///
/// # Errors
/// The result of `encode`.
pub(super) fn encoding<E>(
    node: Option<NodeNumber>,
    encode: impl FnOnce() -> Result<(), E>,
) -> Result<(Outgoing, Option<NodeNumber>), E> {
    let guard = Guard::open(Scope::Encoding(Outgoing::default(), node));
    encode()?;
    match guard.close() {
        Some(Scope::Encoding(outgoing, node)) => Ok((outgoing, node)),
        // Scopes close in reverse order, so the last one is the one opened here.
        _ => Ok((Outgoing::default(), None)),
    }
}

/// Checks that the encoded message, which holds an address of this node, leaves by no other.
///
/// # Errors
/// The message leaves by another node, which is returned.
pub(crate) fn goes_out_by(node: NodeNumber) -> Result<(), NodeNumber> {
    SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
        Some(Scope::Encoding(_, by)) => match *by.get_or_insert(node) {
            by if by == node => Ok(()),
            other => Err(other),
        },
        _ => Ok(()),
    })
}

/// Returns why the data of a tensor somewhere in `value` will never be ready, if there is such a tensor. This
/// walks through the whole value, so call it only if anything is tainted at all.
pub(crate) fn taint_in<T: Serialize>(value: &T) -> Option<Tainted> {
    let guard = Guard::open(Scope::Searching(None));
    // A value that cannot be serialised to its end cannot be searched. It cannot have come from another
    // process either.
    let _ = value.serialize(Search);
    match guard.close() {
        Some(Scope::Searching(found)) => found,
        _ => None,
    }
}

/// Runs `decode` in a scope that lends the tensors of `incoming`.
pub fn decoding<R>(incoming: Incoming, decode: impl FnOnce() -> R) -> R {
    let _guard = Guard::open(Scope::Decoding(incoming));
    decode()
}

/// Returns the transport that addresses connect to, inside [`decoding`].
pub fn context() -> Option<Arc<dyn Any + Send + Sync>> {
    SCOPES.with_borrow(|scopes| match scopes.last() {
        Some(Scope::Decoding(incoming)) => incoming.context.clone(),
        _ => None,
    })
}

const OUTSIDE: &str = "a Tensor can only be serialised as part of a message or a reply, because only its lease travels; \
     send it to an actor, or take its elements with `to_vec`";

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
            Some(Scope::Encoding(outgoing, _)) => outgoing.add(self),
            Some(Scope::Searching(found)) => note(found, self.lease().taint_at(self.ready())),
            _ => Err(OUTSIDE.into()),
        });
        let mut form = serializer.serialize_struct("Tensor", 1)?;
        form.serialize_field(KEY, &index.map_err(ser::Error::custom)?)?;
        form.end()
    }
}

/// Notes that a search has met a tensor or a part. A find ends the search, with an error that nobody reads.
fn note(found: &mut Option<Tainted>, of_this: Option<Tainted>) -> Result<u32, String> {
    match of_this {
        None => Ok(0),
        Some(tainted) => {
            found.get_or_insert(tainted);
            Err(String::new())
        }
    }
}

impl Outgoing {
    fn add(&mut self, tensor: &Tensor) -> Result<u32, String> {
        self.outline(tensor.lease(), tensor.ready(), tensor.dtype(), *tensor.layout())
    }

    /// Takes the lists that the thread keeps, if there are none yet.
    fn take_lists(&mut self) {
        if self.tensors.capacity() == 0 {
            Gathered { leases: self.leases, tensors: self.tensors } = Gathered::take();
        }
    }

    /// Makes room for this many tensors, which are all that come.
    #[cfg(any(feature = "raw", feature = "bindings"))]
    fn make_room(&mut self, count: usize) {
        self.take_lists();
        let count = count.min(MAX_TENSORS);
        self.tensors.reserve_exact(count);
        self.leases.reserve_exact(count);
    }

    fn add_part(&mut self, part: &Arc<Inner>) -> Result<u32, String> {
        if self.parts.iter().any(|known| Arc::ptr_eq(known, part)) {
            return Err(format!("{part:?} is in the message twice, and can have one writer only"));
        }
        // The tickets that its next writer waits for are known when the message's value has been dropped.
        let index = self.outline(part.lease(), None, part.dtype(), *part.whole())?;
        self.parts.push(Arc::clone(part));
        Ok(index)
    }

    fn outline(
        &mut self,
        lease: &Lease,
        ready: Option<Ticket>,
        dtype: DType,
        layout: Layout,
    ) -> Result<u32, String> {
        if self.tensors.len() >= MAX_TENSORS {
            return Err(format!(
                "a message can hold {MAX_TENSORS} tensors; send several messages, or stack the tensors"
            ));
        }
        self.take_lists();
        let known = self.leases.iter().position(|(known, _)| known.same_as(lease));
        let lease = known.unwrap_or_else(|| {
            self.leases.push((lease.clone(), ready));
            self.leases.len() - 1
        });
        self.tensors.push(Outline { lease: lease as u16, dtype, layout });
        Ok((self.tensors.len() - 1) as u32)
    }
}

/// Puts a part into the message that is being encoded. `None` if there is no such message.
pub(super) fn add_part(part: &Arc<Inner>) -> Option<Result<u32, String>> {
    SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
        Some(Scope::Encoding(outgoing, _)) => Some(outgoing.add_part(part)),
        Some(Scope::Searching(found)) => Some(note(found, part.taint())),
        _ => None,
    })
}

/// Returns the tensor at `index` of the message that is being decoded. `None` if there is no such message.
pub(super) fn lent(index: usize) -> Option<Result<Tensor, String>> {
    SCOPES.with_borrow(|scopes| match scopes.last() {
        Some(Scope::Decoding(incoming)) => Some(incoming.tensors.get(index).cloned().ok_or_else(|| {
            format!("the message names tensor {index} but came with {}", incoming.tensors.len())
        })),
        _ => None,
    })
}

/// Returns whether the body of the message that is being decoded describes this part.
pub(super) fn has_form(form: &Form) -> bool {
    SCOPES.with_borrow(
        |scopes| matches!(scopes.last(), Some(Scope::Decoding(incoming)) if incoming.forms.contains(form)),
    )
}

/// Makes this body with these tensors the whole value that is being encoded.
#[cfg(feature = "raw")]
pub(super) fn write_raw(body: &[u8], tensors: &[Tensor]) -> Result<(), String> {
    SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
        Some(Scope::Encoding(outgoing, _)) if outgoing.tensors.is_empty() && outgoing.raw.is_none() => {
            outgoing.raw = Some(body.to_vec());
            outgoing.make_room(tensors.len());
            tensors.iter().try_for_each(|tensor| outgoing.add(tensor).map(|_| ()))
        }
        Some(Scope::Searching(found)) => tensors
            .iter()
            .try_for_each(|tensor| note(found, tensor.lease().taint_at(tensor.ready())).map(|_| ())),
        _ => Err("a raw message is a message by itself, and no part of one".to_owned()),
    })
}

/// Sets the tensors of the next value in the message that is being encoded. They are all tensors of the
/// message, because the value names them by their places among themselves.
#[cfg(feature = "bindings")]
pub(super) fn add_all(tensors: &[Tensor]) -> Result<(), String> {
    SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
        Some(Scope::Encoding(outgoing, _)) if outgoing.tensors.is_empty() && outgoing.raw.is_none() => {
            outgoing.make_room(tensors.len());
            tensors.iter().try_for_each(|tensor| outgoing.add(tensor).map(|_| ()))
        }
        Some(Scope::Encoding(..)) => {
            Err("an item of another language is in a message alone, or without tensors before it".to_owned())
        }
        Some(Scope::Searching(found)) => tensors
            .iter()
            .try_for_each(|tensor| note(found, tensor.lease().taint_at(tensor.ready())).map(|_| ())),
        _ => Err(OUTSIDE.to_owned()),
    })
}

/// Returns all tensors of the message that is being decoded.
#[cfg(feature = "bindings")]
pub(super) fn all_lent() -> Option<Vec<Tensor>> {
    SCOPES.with_borrow(|scopes| match scopes.last() {
        Some(Scope::Decoding(incoming)) => Some(incoming.tensors.clone()),
        _ => None,
    })
}

/// Returns the body of the message that is being decoded, with its tensors.
#[cfg(feature = "raw")]
pub(super) fn read_raw() -> Option<(Vec<u8>, Vec<Tensor>)> {
    SCOPES.with_borrow_mut(|scopes| match scopes.last_mut() {
        Some(Scope::Decoding(incoming)) => {
            Some((incoming.raw.take()?, std::mem::take(&mut incoming.tensors)))
        }
        _ => None,
    })
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Tensor", &[KEY], IndexVisitor).and_then(|index| {
            // A clone, because serde may visit a tensor twice, for example in an untagged enum.
            let tensor = lent(index as usize).unwrap_or_else(|| Err(OUTSIDE.into()));
            let tensor = tensor.map_err(de::Error::custom)?;
            if tensor.lease().is_in_parts() {
                // ONE-WRITER: other processes write this memory.
                return Err(de::Error::custom(format!(
                    "{tensor:?} was split, and cannot be read as a whole"
                )));
            }
            Ok(tensor)
        })
    }
}

/// The key of a tensor in a body, which is a map from it to the tensor's index. A bare number would do, but
/// an untagged enum could not tell it from a user's number.
const KEY: &str = "$tensor";

struct IndexVisitor;

impl<'de> de::Visitor<'de> for IndexVisitor {
    type Value = u32;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a tensor of the message")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<u32, A::Error> {
        let unknown = || de::Error::custom("not a tensor of the message");
        let Key(true) = map.next_key()?.ok_or_else(unknown)? else { return Err(unknown()) };
        let index = map.next_value()?;
        match map.next_key::<Key>()? {
            None => Ok(index),
            Some(_) => Err(unknown()),
        }
    }
}

/// Whether the key of a map is that of a tensor.
struct Key(bool);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Key;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(Key(key == KEY))
            }
        }

        deserializer.deserialize_identifier(Visitor)
    }
}
