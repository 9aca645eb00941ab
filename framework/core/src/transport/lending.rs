//! Makes messages wait until enough of this process's own memory has come back, if there is a bound on the
//! bytes that may be out: see `lease/pool/lending.rs`.
//!
//! In the gateway, messages from other hosts also wait until there is memory for their bodies.
//!
//! A claim asks here. Senders that wait are woken by a pool as well as by the link, because memory may come
//! back from any process. Only processes with a program in another language have a bound. In all others this
//! costs a load or two when a send waits.
//!
//! **Locks.** Those of pools, one after the other.

use std::task::Waker;

use super::link::wants_credit;
use super::memory::Memory;
use super::outgoing::FrameSender;
use super::{Destination, NotNow, TransmitError, Transport};
use crate::lease::{Lease, PoolError};
use crate::message::codec::Encoded;

#[cfg(feature = "bindings")]
impl Transport {
    /// Makes messages with tensors of this process wait from now on while more than the `share`-th part of a
    /// pool's budget is with other processes.
    pub fn bound_lending(&self, share: u64) {
        self.memory.bound_lending(share);
    }

    /// Returns, if messages wait for that, a text that says how much is out and which processes have it.
    pub fn lending_refusal(&self) -> Option<String> {
        self.memory.pools().iter().find_map(|pool| pool.refusal())
    }
}

#[cfg(feature = "bindings")]
impl Memory {
    /// Returns whether a message may go with the memory that it lends.
    pub(super) fn may_lend(&self, encoded: &Encoded) -> bool {
        use crate::ids::DeviceId;
        use crate::limits::MAX_INLINE_BODY;
        if !self.bounds_lending() {
            return true;
        }
        let body = if encoded.body.len() > MAX_INLINE_BODY { encoded.body.len() as u64 } else { 0 };
        if body == 0 && encoded.leases.is_empty() {
            return true;
        }
        self.pools().iter().all(|pool| {
            let own = encoded.leases.iter().map(|(lease, _)| lease);
            let own = own.filter(|lease| lease.pool().is_some_and(|its| std::sync::Arc::ptr_eq(its, pool)));
            let more = if pool.device_id() == DeviceId::HOST { body } else { 0 };
            pool.may_lend(own.map(|lease| lease.id()), more)
        })
    }
}

#[cfg(not(feature = "bindings"))]
impl Memory {
    #[inline]
    pub(super) fn may_lend(&self, _: &Encoded) -> bool {
        true
    }

    #[inline]
    pub(super) fn bounds_lending(&self) -> bool {
        false
    }
}

impl Memory {
    /// Returns whether bodies may be written into memory before the check whether they may go. If lending has
    /// a bound they may not: the sender waits for memory to come back, and the memory of its own unsent body
    /// would wake it.
    #[inline]
    pub(super) fn fills_bodies(&self) -> bool {
        !self.bounds_lending()
    }
}

impl FrameSender<'_> {
    /// Allocates memory for a large body. In the gateway a message waits for it: another host has accepted
    /// the message, and nobody would send it again. A message with tensors does not wait, because messages
    /// that each have a part of their memory would wait for each other.
    pub(super) fn body_lease(
        &self,
        destination: &Destination,
        encoded: &Encoded,
    ) -> Result<Lease, TransmitError> {
        match self.transport.memory.body_lease(&encoded.body) {
            Err(TransmitError::Body { error: PoolError::Full { .. }, .. })
                if self.transport.gate.get().is_some()
                    && wants_credit(destination.kind)
                    && encoded.leases.is_empty() =>
            {
                self.transport.memory.note_refused_body();
                Err(TransmitError::NotNow(NotNow::MemoryOut))
            }
            other => other,
        }
    }
}

impl Transport {
    /// Returns whether messages may wait for memory that they lend, or for memory for their bodies.
    #[inline]
    fn may_wait_for_memory(&self) -> bool {
        self.memory.bounds_lending() || self.gate.get().is_some()
    }

    /// Returns a number that changes whenever memory has come back.
    #[inline]
    pub(crate) fn lending_stamp(&self) -> u64 {
        if !self.may_wait_for_memory() {
            return 0;
        }
        self.memory.pools().iter().fold(0, |sum, pool| sum.wrapping_add(pool.returned()))
    }

    /// Has `waker` woken when memory comes back for lack of which a message was refused. Returns true if some
    /// has come back since `stamp`.
    #[inline]
    pub(crate) fn wake_when_lent_returns(&self, stamp: u64, waker: &Waker) -> bool {
        if !self.may_wait_for_memory() {
            return false;
        }
        #[cfg(feature = "bindings")]
        self.memory.pools().iter().for_each(|pool| pool.wake_if_refused(waker));
        if let Some(pool) = self.memory.pool_that_refused_body() {
            pool.wake_on_return(waker);
        }
        self.lending_stamp() != stamp
    }
}
