//! A mailbox that keeps its messages for the test to look at.

use std::any::{Any, type_name};
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use crate::clock::Ticket;
use crate::ids::{ActorId, ProcessId};
use crate::message::codec;
use crate::transport::Transport;
use crate::transport::control_channel::Location;
use crate::transport::inbox::{Delivery, Inbox, LocalCredits, Receipt, Refusal, Undelivered};

/// The place of a [`TestInbox`] for messages of type `M`, as an address would hold it.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<M> {
    /// The actor that owns the mailbox.
    pub actor: ActorId,
    /// Its location.
    pub location: Location,
    /// The key of messages that are sent to it, see [`test_key`].
    pub key: u64,
    message: PhantomData<fn(M)>,
}

impl<M> Clone for Target<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Target<M> {}

impl<M> Target<M> {
    pub(super) fn new(actor: ActorId, location: Location) -> Self {
        Target { actor, location, key: test_key::<M>(), message: PhantomData }
    }

    /// Returns the same mailbox, for messages of type `N` that carry the key of `N`.
    pub fn of<N>(self) -> Target<N> {
        Target::new(self.actor, self.location)
    }

    /// Returns the same mailbox, for messages of type `N` that claim to be of type `M`.
    pub fn disguising<N>(self) -> Target<N> {
        Target { key: self.key, ..self.of() }
    }
}

/// A message that arrived. Dropping it drops its receipt: the message is done with, and its sender gets the
/// credit.
#[derive(Debug)]
pub struct Received<M> {
    /// The message, with its tensors.
    pub message: M,
    /// The tickets that a stream has to wait for before it uses the tensors (CLOCK-1).
    pub tickets: SmallVec<[Ticket; 2]>,
    /// The credit, and the way for a reply. Declared last, so dropped last: leases go before the credit does.
    pub receipt: Receipt,
}

impl<M> Received<M> {
    /// Returns the sender.
    pub fn sender(&self) -> ProcessId {
        self.receipt.sender()
    }
}

/// Returns the key under which a cluster sends messages of type `M`.
pub fn test_key<M>() -> u64 {
    type_name::<M>().bytes().fold(0x7e57, |hash: u64, byte| hash.rotate_left(5) ^ u64::from(byte))
}

/// A mailbox for messages of type `M`, which only keeps them.
#[derive(Debug)]
pub struct TestInbox<M> {
    actor: ActorId,
    capacity: u32,
    /// The transport that addresses in messages connect to. It holds this mailbox.
    transport: Weak<Transport>,
    local: Arc<LocalCredits>,
    arrived: Mutex<Vec<Received<M>>>,
    refused: Mutex<Vec<String>>,
}

impl<M: DeserializeOwned + Send + 'static> TestInbox<M> {
    pub(super) fn new(actor: ActorId, capacity: u32, transport: &Arc<Transport>) -> Arc<Self> {
        Arc::new(TestInbox {
            actor,
            capacity,
            transport: Arc::downgrade(transport),
            local: LocalCredits::new(capacity),
            arrived: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Takes everything that has arrived, in the order of its arrival.
    pub fn take(&self) -> Vec<Received<M>> {
        std::mem::take(&mut self.arrived.lock())
    }

    /// Takes the only message that has arrived.
    ///
    /// # Panics
    /// There is none, or more than one.
    pub fn take_one(&self) -> Received<M> {
        let mut all = self.take();
        assert_eq!(all.len(), 1, "messages in the inbox; refused were {:?}", self.refused());
        all.remove(0)
    }

    /// Returns the number of messages that have arrived and were not taken.
    pub fn len(&self) -> usize {
        self.arrived.lock().len()
    }

    /// Returns whether there is no message to take.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns why messages were refused, in words.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().clone()
    }

    fn refuse(&self, error: Undelivered, receipt: Receipt) -> Result<(), Undelivered> {
        self.refused.lock().push(error.to_string());
        receipt.refuse(&Refusal::Undelivered(error.to_string()));
        Err(error)
    }
}

impl<M: DeserializeOwned + Send + 'static> Inbox for TestInbox<M> {
    fn actor(&self) -> ActorId {
        self.actor
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered> {
        let Delivery { key, body, tensors, tickets, receipt, context: _ } = delivery;
        if key != test_key::<M>() {
            drop(tensors);
            return self.refuse(Undelivered::Unregistered { key }, receipt);
        }
        let context = self.transport.upgrade().map(|transport| transport as Arc<dyn Any + Send + Sync>);
        match codec::decode(body, tensors, context) {
            Ok(message) => {
                self.arrived.lock().push(Received { message, tickets, receipt });
                Ok(())
            }
            Err(error) => {
                let why = error.to_string();
                self.refuse(Undelivered::Malformed { message: type_name::<M>(), why }, receipt)
            }
        }
    }

    fn local(&self) -> &Arc<LocalCredits> {
        &self.local
    }
}
