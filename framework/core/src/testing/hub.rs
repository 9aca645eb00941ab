//! The node's part between the transports of a [`Cluster`](super::Cluster): the node's own broker, fed by a
//! queue in place of sockets. It runs on a thread of its own, so that a transport that waits for an answer
//! gets one.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
#[cfg(test)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::clock::taint::EpochPage;
use crate::clock::{ClockPage, ProcessPages};
use crate::ids::{ChunkId, ProcessId};
use crate::node::broker::{Broker, Delivery};
use crate::node::taint::WAIT_FOR_MARKS;
use crate::transport::Transport;
use crate::transport::control_channel::{ControlChannel, ControlChannelClosed, ToNode};

/// An event from a process: a message to the node, the answer to a ping, or its end.
enum HubEvent {
    Message(ToNode, Vec<OwnedFd>),
    /// The answer to a ping: everything that the process said before it has been handled.
    Pong(u64),
    Ended,
    /// The time for missing answers is up.
    Overdue,
}

type Queue = Sender<(ProcessId, HubEvent)>;

/// The node, as its processes see it.
pub(super) struct Hub {
    queue: Mutex<Option<Queue>>,
    broker: Mutex<Broker>,
    state: Mutex<State>,
    traffic: Mutex<Traffic>,
    idle: Condvar,
}

#[derive(Default)]
struct Traffic {
    /// Number of messages that were sent and not handled yet.
    pending: usize,
    handled: u64,
}

#[derive(Default)]
struct State {
    transports: HashMap<ProcessId, Weak<Transport>>,
    /// Questions for these chunks get no answer.
    withheld: HashSet<ChunkId>,
    /// The messages that wait for stopped processes.
    stopped: HashMap<ProcessId, Vec<Delivery>>,
    /// The processes that may open no more files.
    starved: HashSet<ProcessId>,
    /// The processes that have ended: nothing from them is handled any more.
    ended: HashSet<ProcessId>,
    /// The complaints of the broker.
    complaints: Vec<String>,
    /// Chunks that the broker keeps.
    chunks: usize,
}

impl Hub {
    pub(super) fn start() -> Arc<Self> {
        let (queue, said) = channel();
        let pages = ProcessPages::of_the_node().expect("a test has memory");
        let hub = Arc::new(Hub {
            queue: Mutex::new(Some(queue)),
            broker: Mutex::new(Broker::with_pages(pages)),
            state: Mutex::default(),
            traffic: Mutex::default(),
            idle: Condvar::new(),
        });
        let weak = Arc::downgrade(&hub);
        thread::Builder::new()
            .name("tp-test-node".into())
            .spawn(move || run(&weak, &said))
            .expect("a test can start a thread");
        hub
    }

    /// Returns the way to the node for `process`.
    pub(super) fn control(self: &Arc<Self>, process: ProcessId) -> Arc<dyn ControlChannel> {
        Arc::new(HubChannel { hub: Arc::downgrade(self), process })
    }

    /// Returns the pages that the node makes for a process.
    pub(super) fn pages(&self, process: ProcessId) -> ProcessPages {
        let mut broker = self.broker.lock();
        broker.deaths.prepare(process).expect("a test has memory");
        let descriptors = broker.deaths.descriptors(process).expect("a test has descriptors");
        let [clocks, epoch_page] = <[OwnedFd; 2]>::try_from(descriptors).expect("two pages");
        ProcessPages {
            clocks: ClockPage::adopt(clocks).expect("just prepared"),
            epoch_page: EpochPage::open(epoch_page).expect("an epoch page"),
        }
    }

    pub(super) fn joined(&self, transport: &Arc<Transport>) {
        self.state.lock().transports.insert(transport.process(), Arc::downgrade(transport));
        let first = {
            let mut broker = self.broker.lock();
            let first = broker.joined(transport.process());
            broker.deaths.ready(transport.process());
            first
        };
        if let Some(Delivery { message, descriptors, .. }) = first {
            transport.from_node(message, descriptors);
        }
    }

    /// Holds back the node's messages to `process` until it [goes on](Self::goes_on).
    pub(super) fn stops(&self, process: ProcessId) {
        self.state.lock().stopped.entry(process).or_default();
    }

    pub(super) fn goes_on(&self, process: ProcessId) {
        let waiting = self.state.lock().stopped.remove(&process);
        for delivery in waiting.into_iter().flatten() {
            self.deliver(delivery);
        }
    }

    /// Makes the node stop waiting for processes that have not answered for a death.
    pub(super) fn overdue(&self) {
        let _ = self.say(ProcessId::NODE, HubEvent::Overdue);
    }

    fn deliver(&self, delivery: Delivery) {
        let (transport, starved) = {
            let mut state = self.state.lock();
            if let Some(waiting) = state.stopped.get_mut(&delivery.to) {
                waiting.push(delivery);
                return;
            }
            let starved = state.starved.contains(&delivery.to) && !delivery.descriptors.is_empty();
            (state.transports.get(&delivery.to).and_then(Weak::upgrade), starved)
        };
        let Some(transport) = transport else { return };
        if starved {
            assert!(transport.from_node_starved(&delivery.message), "it goes on without");
        } else {
            transport.from_node(delivery.message, delivery.descriptors);
        }
    }

    /// Ends `process` for the node, which tells all others.
    pub(super) fn ended(&self, process: ProcessId) {
        self.state.lock().ended.insert(process);
        // `say` fails only when the hub is closing, and then nobody is left to tell.
        let _ = self.say(process, HubEvent::Ended);
    }

    /// Asks `process` to report when it has taken everything that was sent to it.
    #[cfg(test)]
    pub(super) fn fence(&self, process: ProcessId) -> Arc<AtomicBool> {
        let opened = Arc::new(AtomicBool::new(false));
        let (opens, mut out) = (Arc::clone(&opened), Vec::new());
        let opens = Box::new(move || opens.store(true, Ordering::Release));
        self.broker.lock().fence(process, opens, &mut out);
        out.into_iter().for_each(|delivery| self.deliver(delivery));
        opened
    }

    /// Sets whether `process` can take no descriptors.
    pub(super) fn starve(&self, process: ProcessId, is_starved: bool) {
        let starved = &mut self.state.lock().starved;
        if is_starved {
            starved.insert(process);
        } else {
            starved.remove(&process);
        }
    }

    pub(super) fn withhold(&self, chunk: ChunkId) {
        self.state.lock().withheld.insert(chunk);
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        self.state.lock().complaints.clone()
    }

    pub(super) fn chunks(&self) -> usize {
        self.state.lock().chunks
    }

    /// Waits until every event has been handled, and returns the number of events since the beginning.
    pub(super) fn wait_until_idle(&self) -> u64 {
        let mut traffic = self.traffic.lock();
        while traffic.pending > 0 {
            self.idle.wait(&mut traffic);
        }
        traffic.handled
    }

    fn say(&self, from: ProcessId, said: HubEvent) -> Result<(), ControlChannelClosed> {
        self.traffic.lock().pending += 1;
        let sent = self.queue.lock().as_ref().is_some_and(|queue| queue.send((from, said)).is_ok());
        if sent {
            return Ok(());
        }
        self.handled();
        Err(ControlChannelClosed)
    }

    fn handled(&self) {
        let mut traffic = self.traffic.lock();
        traffic.pending -= 1;
        traffic.handled += 1;
        if traffic.pending == 0 {
            self.idle.notify_all();
        }
    }

    fn handle(&self, from: ProcessId, said: HubEvent) {
        let mut deliveries = Vec::new();
        let mut guard = self.broker.lock();
        let broker = &mut *guard;
        match said {
            HubEvent::Ended => {
                self.state.lock().transports.remove(&from);
                broker.left(from, &mut deliveries);
            }
            HubEvent::Message(message, descriptors) => {
                if let ToNode::WantChunk { chunk, .. } = &message
                    && self.state.lock().withheld.contains(chunk)
                {
                    return;
                }
                if let Err(complaint) = broker.handle(from, message, descriptors, &mut deliveries) {
                    self.state.lock().complaints.push(format!("{from}: {complaint}"));
                }
            }
            HubEvent::Pong(number) => {
                // Refused where it has ended meanwhile.
                let _ = broker.pong(from, number, &mut deliveries);
            }
            HubEvent::Overdue => {
                broker.deaths.tick(Instant::now() + WAIT_FOR_MARKS, &mut deliveries);
            }
        }
        self.state.lock().chunks = broker.chunks_kept();
        let pings = broker.take_pings();
        drop(guard);
        for delivery in deliveries {
            self.deliver(delivery);
        }
        for ping in pings {
            // The answer goes behind everything that the process has said so far, as on its socket. `say`
            // fails only when the hub is closing.
            let _ = self.say(ping.to, HubEvent::Pong(ping.number));
        }
    }
}

fn run(hub: &Weak<Hub>, said: &Receiver<(ProcessId, HubEvent)>) {
    while let Ok((from, said)) = said.recv() {
        let Some(hub) = hub.upgrade() else { return };
        hub.handle(from, said);
        hub.handled();
    }
}

struct HubChannel {
    hub: Weak<Hub>,
    process: ProcessId,
}

impl ControlChannel for HubChannel {
    fn send(&self, message: ToNode, descriptors: Vec<OwnedFd>) -> Result<(), ControlChannelClosed> {
        let hub = self.hub.upgrade().ok_or(ControlChannelClosed)?;
        if hub.state.lock().ended.contains(&self.process) {
            return Err(ControlChannelClosed);
        }
        hub.say(self.process, HubEvent::Message(message, descriptors))
    }
}
