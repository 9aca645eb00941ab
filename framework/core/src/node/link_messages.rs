//! How often a process has written to another by way of the node.
//!
//! What the node queues for a worker has a bound, past which the node kills that worker because it does not read. So
//! nothing that another worker can repeat may go into that queue, or one process could have another killed. The sender
//! pays, not the receiver: a pair of processes needs each link message once in each direction in its life, so the node
//! passes each on once; a question that needs a chunk's owner leads to one ping at a time; everything that is no
//! message of ours counts against its sender.

use std::collections::HashMap;

use crate::ids::ProcessId;
use crate::transport::control_channel::LinkMessage;

/// The link messages that were passed on, by who wrote them and to whom.
#[derive(Default)]
pub(crate) struct LinkMessages(HashMap<(ProcessId, ProcessId), Passed>);

#[derive(Default)]
struct Passed {
    link: bool,
    acknowledgement: bool,
}

impl LinkMessages {
    /// Whether this is the first of its kind from the one to the other. It is to be passed on then.
    pub(crate) fn is_first(&mut self, from: ProcessId, to: ProcessId, link_message: &LinkMessage) -> bool {
        let passed = self.0.entry((from, to)).or_default();
        let passed = match link_message {
            LinkMessage::Link => &mut passed.link,
            LinkMessage::LinkAck => &mut passed.acknowledgement,
        };
        !std::mem::replace(passed, true)
    }

    /// A process has ended: it writes no more, and nobody to it.
    pub(crate) fn left(&mut self, process: ProcessId) {
        self.0.retain(|(from, to), _| *from != process && *to != process);
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
