//! Actors by name, for tasks that outlive the handler that started them.

use std::fmt;
use std::sync::Arc;

use super::address::{self, Address, LookupError};
use crate::message::GpuMessage;
use crate::transport::Transport;

/// Finds actors by name, from any task or thread of its process: see [`Env::registry`](super::Env::registry)
/// and [`Node::registry`](crate::node::Node::registry). It only keeps the process's own state alive.
#[derive(Clone)]
pub struct Registry {
    transport: Arc<Transport>,
}

impl Registry {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        Registry { transport }
    }

    /// Finds the actor that was started or registered under `name`.
    ///
    /// # Errors
    /// There is no such actor, it does not handle `M`, or the node has ended.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lookup<M: GpuMessage>(&self, name: &str) -> Result<Address<M>, LookupError> {
        address::lookup(&self.transport, name, None).await
    }

    /// Resolves when the node begins to shut down.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.transport.until_stopping()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("process", &self.transport.process()).finish()
    }
}
