//! A worker's channel to the node: usable on any thread, waits for nobody.
//!
//! Messages that find no room in the socket wait in a bounded queue, which the control thread sends on. A
//! full queue means that the node has not read for a long time; the worker gives up on it, and the control
//! thread ends the process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};

use crate::ids::ActorId;
use crate::node::control::{Up, encode};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_QUEUED_BYTES, MAX_QUEUED_LOGS, cut};
use crate::node::line::{Flushed, LineError, Outgoing};
use crate::node::wait;
use crate::observe::log::{LogRecord, LogSink};
use crate::os::{Birth, EventFd, Seqpacket};
use crate::transport::control_channel::{ControlChannel, ControlChannelClosed, ToNode};
use crate::transport::lifecycle::EndReason;

pub(crate) struct Uplink {
    birth: Birth,
    socket: Arc<Seqpacket>,
    // Nothing that logs may run under this lock: logging takes it.
    line: Mutex<Line>,
    wake: EventFd,
}

struct Line {
    outgoing: Outgoing,
    logs_dropped: u64,
    failed: Option<LineError>,
}

impl Uplink {
    pub(crate) fn new(socket: Arc<Seqpacket>) -> std::io::Result<Self> {
        let line = Line { outgoing: Outgoing::new(socket.clone()), logs_dropped: 0, failed: None };
        Ok(Uplink { birth: Birth::here(), socket, line: Mutex::new(line), wake: EventFd::create()? })
    }

    /// Sends a message of this crate's own, or queues it.
    pub(crate) fn send(&self, message: &Up, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed> {
        if self.birth.is_inherited() {
            // A forked child says nothing in its parent's name.
            return Err(ControlChannelClosed);
        }
        match encode(message) {
            Ok(bytes) => self.line.lock().send(&bytes, descriptors, &self.wake),
            Err(error) => {
                tracing::error!(%error, "a message to the node was dropped");
                Ok(())
            }
        }
    }

    pub(crate) fn actor_stopped(&self, actor: ActorId, why: Option<EndReason>, away: bool) {
        let why = why.map(|why| match why {
            EndReason::HandlerPanic(text) => EndReason::HandlerPanic(cut(text, MAX_FAILURE_TEXT)),
            EndReason::Linked(text) => EndReason::Linked(cut(text, MAX_FAILURE_TEXT)),
            other => other,
        });
        // When the node is gone, so is this process in a moment.
        let _ = self.send(&Up::ActorStopped { actor, why, away }, Vec::new());
    }

    /// Returns the doorbell, which is readable when there is something for [`flush`](Self::flush) to do.
    pub(crate) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Sends the queued messages, as far as there is room. For the control thread.
    pub(crate) fn flush(&self) -> Result<Flushed, LineError> {
        let mut line = self.line.lock();
        if let Some(error) = line.failed.take() {
            return Err(error);
        }
        let flushed = line.outgoing.flush()?;
        if flushed == Flushed::All && line.logs_dropped > 0 {
            line.report_dropped_logs(&self.wake);
            return Ok(line.outgoing.flushed());
        }
        Ok(flushed)
    }

    /// Whether metrics of user code would hold up no more important message.
    pub(super) fn has_room_for_metrics(&self) -> bool {
        self.line.lock().has_room_for_logs()
    }

    /// Waits until everything is sent, or cannot be.
    pub(crate) fn drain(&self) {
        while let Ok(flushed) = self.flush() {
            if flushed == Flushed::All {
                return;
            }
            let mut fds = [PollFd::new(&*self.socket, PollFlags::OUT)];
            if wait::poll(&mut fds, wait::retry_after(flushed)).is_err() {
                return;
            }
        }
    }
}

impl Line {
    /// Whether messages that may be dropped would hold up nothing else.
    fn has_room_for_logs(&self) -> bool {
        self.outgoing.queued() < MAX_QUEUED_LOGS && self.outgoing.queued_bytes() <= MAX_QUEUED_BYTES / 4
    }

    fn send(
        &mut self,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
        wake: &EventFd,
    ) -> Result<(), ControlChannelClosed> {
        if self.failed.is_some() {
            return Err(ControlChannelClosed);
        }
        let before = self.outgoing.flushed();
        let result = self.outgoing.send(bytes, descriptors);
        let closed = match result {
            Ok(flushed) if flushed == before => return Ok(()),
            Ok(_) => Ok(()),
            Err(error) => {
                self.failed = Some(error);
                Err(ControlChannelClosed)
            }
        };
        // Wake the control thread: it has to wait for room, or to end the process. A full doorbell is rung
        // already.
        let _ = wake.ring();
        closed
    }

    fn report_dropped_logs(&mut self, wake: &EventFd) {
        let count = std::mem::take(&mut self.logs_dropped);
        if let Ok(bytes) = encode(&Up::LogsDropped { count }) {
            let _ = self.send(&bytes, Vec::new(), wake);
        }
    }
}

impl ControlChannel for Uplink {
    fn send(&self, message: ToNode, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed> {
        Uplink::send(self, &Up::Node(message), descriptors)
    }

    #[cfg(feature = "hosts")]
    fn send_if_room(&self, message: ToNode) -> bool {
        let Ok(bytes) = encode(&Up::Node(message)) else { return false };
        let mut line = self.line.lock();
        line.has_room_for_logs() && line.send(&bytes, Vec::new(), &self.wake).is_ok()
    }
}

impl LogSink for Uplink {
    fn offer(&self, record: LogRecord) {
        if self.birth.is_inherited() {
            return record.say();
        }
        let Ok(bytes) = encode(&Up::Log(record.cut())) else {
            self.line.lock().logs_dropped += 1;
            return;
        };
        let mut line = self.line.lock();
        if !line.has_room_for_logs() {
            line.logs_dropped += 1;
            return;
        }
        if line.logs_dropped > 0 {
            line.report_dropped_logs(&self.wake);
        }
        let _ = line.send(&bytes, Vec::new(), &self.wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::control::decode;
    use crate::node::line::{Incoming, Receiving};
    use crate::observe::log::Severity;

    fn record(i: usize) -> LogRecord {
        LogRecord {
            severity: Severity::Info,
            target: "t".into(),
            message: i.to_string(),
            fields: vec![],
            spans: vec![],
            location: None,
        }
    }

    // MBX-2.
    #[test]
    fn logs_that_find_no_room_are_counted_and_leave_room_for_control_messages() {
        let (mine, nodes) = Seqpacket::pair().unwrap();
        let uplink = Uplink::new(Arc::new(mine)).unwrap();
        const OFFERED: usize = 20_000;
        for i in 0..OFFERED {
            uplink.offer(record(i));
        }
        assert!(uplink.line.lock().logs_dropped > 0);
        uplink.send(&Up::Ready, Vec::new()).unwrap();
        assert!(uplink.wake().drain().unwrap(), "the control thread was told to wait for room");

        let mut receiving = Receiving::new(Arc::new(nodes));
        let (mut logs, mut dropped, mut ready) = (0, 0, false);
        loop {
            match receiving.next().unwrap() {
                Incoming::Message(bytes, _) => match decode(&bytes).unwrap() {
                    Up::Log(_) => logs += 1,
                    Up::LogsDropped { count } => dropped += count as usize,
                    Up::Ready => ready = true,
                    other => panic!("{other:?}"),
                },
                Incoming::Empty if logs + dropped == OFFERED => break,
                Incoming::Empty => assert!(uplink.flush().is_ok()),
                Incoming::Part | Incoming::Closed | Incoming::Starved(_) => panic!("closed"),
            }
        }
        assert!(ready && dropped > 0);
    }

    #[test]
    fn a_closed_node_shows() {
        let (mine, nodes) = Seqpacket::pair().unwrap();
        let uplink = Uplink::new(Arc::new(mine)).unwrap();
        drop(nodes);
        assert!(uplink.send(&Up::Ready, Vec::new()).is_err());
        assert!(matches!(uplink.flush(), Err(LineError::Closed)));
    }
}
