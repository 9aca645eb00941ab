//! Several processes' transports in one process.
//!
//! Nothing moves unless the test says so: a transport looks at its links when it is polled, and
//! [`Cluster::run_until_idle`] polls all of them until nothing is left to do. The node's own broker plays the
//! node's part. Each transport has its own clock page, pool and memory files, and shares with the others only
//! the memory that it exports to them, exactly as between processes. Only a process's *end* is simulated.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tensorpost::tensor::Tensor;
//! use tensorpost_core::testing::Cluster;
//!
//! let cluster = Cluster::new(2);
//! let (to, inbox) = cluster.inbox::<Tensor>(1, 8);
//! let tensor = cluster.stream(0).from_slice(&[3], &[1_f32, 2.0, 3.0])?.freeze();
//! cluster.send(0, &to, tensor);
//! cluster.run_until_idle();
//! assert_eq!(inbox.take_one().message.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
//! cluster.run_until_idle();
//! assert_eq!(cluster.leases(0), 0);
//! # Ok(())
//! # }
//! ```

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hub::Hub;
use super::inbox::{Target, TestInbox};
use super::sending::{self, Asked, Lack, Prepared, Unsent, Waiter};
use crate::actor::Address;
use crate::clock::Ticket;
use crate::device::Backend;
use crate::device::host::HostBackend;
use crate::ids::{ActorId, ChunkId, ProcessId};
use crate::lease::pool::NextIdleCheck;
use crate::lease::{LeaseId, PoolOptions};
use crate::message::GpuMessage;
use crate::message::wire::Kind;
use crate::tensor::DeviceStream;
use crate::transport::control_channel::Location;
use crate::transport::ring::Entry;
use crate::transport::{FrameBuffer, Link, Transport};

/// More rounds of polls than this are a defect: something moves for ever.
const MOST_ROUNDS: usize = 100_000;

/// Several transports, and the node between them. See the module.
pub struct Cluster {
    members: Vec<Member>,
    hub: Arc<Hub>,
    options: PoolOptions,
    next_actor: AtomicU64,
    buffer: Mutex<FrameBuffer>,
}

struct Member {
    transport: Arc<Transport>,
    stream: DeviceStream,
    ended: Mutex<bool>,
}

impl Member {
    fn join(hub: &Arc<Hub>, process: ProcessId, backend: Arc<dyn Backend>, options: PoolOptions) -> Self {
        let transport =
            Transport::open(process, hub.control(process), hub.pages(process)).expect("a transport opens");
        hub.joined(&transport);
        let pool = transport.pool(&backend, options);
        let stream = DeviceStream::new(pool, Arc::clone(transport.domain())).expect("a stream starts");
        Member { transport, stream, ended: Mutex::new(false) }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.transport)).finish()
    }
}

/// The shares in one allocation, as its owner's lease table has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Leases of the owner's process.
    pub local: u32,
    /// Leases of other processes, in the order of the processes.
    pub holders: Vec<(ProcessId, u32)>,
}

impl Cluster {
    /// Creates `n` processes with a pool of 64 MiB of host memory each.
    ///
    /// # Panics
    /// Here and below: the operating system gives no memory or descriptors, or an index is out of range.
    pub fn new(n: usize) -> Self {
        Self::with_pools(n, PoolOptions { budget: 64 << 20, first_chunk: 1 << 20 })
    }

    /// Creates `n` processes with pools of that size.
    pub fn with_pools(n: usize, options: PoolOptions) -> Self {
        Self::with_device(n, options, HostBackend::new)
    }

    /// Creates `n` processes on a device of another kind; `device` makes the backend of each. If they are to
    /// send bodies larger than a ring takes, give them host memory as well, by `transport.pool`.
    pub fn with_device<B: Backend>(n: usize, options: PoolOptions, device: impl Fn() -> Arc<B>) -> Self {
        let hub = Hub::start();
        let members = (0..n).map(|index| {
            let process = ProcessId::new(1 + index as u16, 0).expect("a test has few processes");
            Member::join(&hub, process, device(), options)
        });
        let members = members.collect();
        Cluster { members, hub, options, next_actor: AtomicU64::new(1), buffer: Mutex::default() }
    }

    /// Starts the next life of process `i`, which has ended: a further member, on host memory. Returns its
    /// index.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn revive(&mut self, i: usize) -> usize {
        let last = self.process(i);
        let next = ProcessId::new(last.slot() as u16, last.incarnation() + 1).expect("the same slot");
        self.members.push(Member::join(&self.hub, next, HostBackend::new(), self.options));
        self.members.len() - 1
    }

    /// Returns the transport of process `i`.
    pub fn transport(&self, i: usize) -> &Arc<Transport> {
        &self.members[i].transport
    }

    /// Returns memory and a stream of process `i`.
    pub fn stream(&self, i: usize) -> &DeviceStream {
        &self.members[i].stream
    }

    /// Returns the name of process `i`.
    pub fn process(&self, i: usize) -> ProcessId {
        self.members[i].transport.process()
    }

    /// Returns a mailbox in process `i` for messages of type `M`, with room for `capacity` messages per
    /// sender.
    pub fn inbox<M: DeserializeOwned + Send + 'static>(
        &self,
        i: usize,
        capacity: u32,
    ) -> (Target<M>, Arc<TestInbox<M>>) {
        let actor = ActorId(self.next_actor.fetch_add(1, Ordering::Relaxed));
        let inbox = TestInbox::new(actor, capacity, self.transport(i));
        let made = Arc::clone(&inbox);
        let index = self.transport(i).serve(|_| made).expect("a test has few actors");
        (Target::new(actor, Location { process: self.process(i), index, capacity }), inbox)
    }

    /// Returns the address of a mailbox, as an actor of process `i` has it.
    pub fn address<M: GpuMessage>(&self, i: usize, to: &Target<M>) -> Address<M> {
        Address::new(Arc::clone(self.transport(i)), to.actor, to.location)
    }

    /// Lets process `i` look at its links once. Returns whether there was anything to do.
    pub fn poll(&self, i: usize) -> bool {
        !*self.members[i].ended.lock() && self.transport(i).poll(&mut self.buffer.lock())
    }

    /// Polls as [`poll`](Self::poll) does, but like a reader that other links keep busy, which saves as much
    /// work as it can.
    pub fn glance(&self, i: usize) -> bool {
        !*self.members[i].ended.lock() && self.transport(i).glance(&mut self.buffer.lock())
    }

    /// Lets the node finish its open requests.
    pub fn run_node_until_idle(&self) {
        self.hub.wait_until_idle();
    }

    /// Polls all processes, and lets the node answer, until nothing moves.
    ///
    /// # Panics
    /// Something moves for ever.
    pub fn run_until_idle(&self) {
        let mut handled = self.hub.wait_until_idle();
        for _ in 0..MOST_ROUNDS {
            let mut any = false;
            for i in 0..self.members.len() {
                any |= self.poll(i);
            }
            // A transport may have waited for something that the node did meanwhile.
            let now = self.hub.wait_until_idle();
            any |= std::mem::replace(&mut handled, now) != now;
            if !any {
                return;
            }
        }
        panic!("the cluster does not come to rest: {self:?}");
    }

    /// Makes the links between all processes, so that sends need not wait for them.
    pub fn connect(&self) {
        for from in 0..self.members.len() {
            for to in 0..self.members.len() {
                self.begin_link(from, to);
            }
        }
        self.run_until_idle();
    }

    /// Lets process `from` begin to make a link to process `to`.
    pub fn begin_link(&self, from: usize, to: usize) {
        self.transport(from).link(self.process(to));
    }

    /// Sends `message` from process `from`, once the link is there.
    ///
    /// # Panics
    /// It cannot be sent now. See [`try_send`](Self::try_send).
    pub fn send<M: Serialize>(&self, from: usize, to: &Target<M>, message: M) {
        if let Err((_, unsent)) = self.try_send(from, to, message) {
            panic!("the message was not sent: {unsent:?}");
        }
    }

    /// Sends `message` from process `from`, once the link is there; never waits for anything else.
    ///
    /// # Errors
    /// The message comes back, with the reason.
    pub fn try_send<M: Serialize>(&self, from: usize, to: &Target<M>, message: M) -> Result<(), (M, Unsent)> {
        match sending::send(self.transport(from), to, Kind::Send, 0, message) {
            Err((message, Unsent::NotNow(Lack::Link))) => {
                self.run_until_idle();
                sending::send(self.transport(from), to, Kind::Send, 0, message)
            }
            result => result,
        }
    }

    /// Encodes `message` and takes the credit, room and leases that it needs, but does not send it yet.
    ///
    /// # Panics
    /// It cannot be sent now.
    pub fn prepare<M: Serialize>(&self, from: usize, to: &Target<M>, message: M) -> Prepared {
        self.run_until_idle();
        let prepared = Prepared::new(self.transport(from), to, Kind::Send, 0, message);
        prepared.unwrap_or_else(|(_, unsent)| panic!("the message cannot be sent: {unsent:?}"))
    }

    /// Asks, from process `from`, once the link is there.
    ///
    /// # Panics
    /// It cannot be sent now.
    pub fn ask<M: Serialize, R: DeserializeOwned + Send + 'static>(
        &self,
        from: usize,
        to: &Target<M>,
        message: M,
    ) -> Asked<R> {
        let asked = self.try_ask(from, to, message);
        asked.unwrap_or_else(|(_, unsent)| panic!("the ask was not sent: {unsent:?}"))
    }

    /// Asks, from process `from`, once the link is there; never waits for anything else.
    ///
    /// # Errors
    /// The message comes back, with the reason.
    pub fn try_ask<M: Serialize, R: DeserializeOwned + Send + 'static>(
        &self,
        from: usize,
        to: &Target<M>,
        message: M,
    ) -> Result<Asked<R>, (M, Unsent)> {
        match Asked::send(self.transport(from), to, message) {
            Err((message, Unsent::NotNow(Lack::Link))) => {
                self.run_until_idle();
                Asked::send(self.transport(from), to, message)
            }
            result => result,
        }
    }

    /// Returns whether the reader of process `i` sleeps, or is about to.
    pub fn sleeps(&self, i: usize) -> bool {
        self.transport(i).wakeups.says_it_sleeps()
    }

    /// Returns whether process `i` has published something and not rung yet.
    pub fn has_deferred(&self, i: usize) -> bool {
        self.transport(i).wakeups.has_deferred()
    }

    /// Returns how often process `from` has rung the doorbell of process `to`.
    ///
    /// # Panics
    /// As [`forge_frame`](Self::forge_frame).
    pub fn rung(&self, from: usize, to: usize) -> u64 {
        self.link(from, to).rung()
    }

    /// Joins the queue of senders of process `from` to a mailbox.
    ///
    /// # Panics
    /// The mailbox's process has ended.
    pub fn wait_in_line<M>(&self, from: usize, to: &Target<M>) -> Waiter {
        Waiter::join(self.transport(from), to.location).expect("its process lives")
    }

    /// Ends the process `i` at once: it is never polled again, its messages stay where they are, and the
    /// others are told.
    pub fn end(&self, i: usize) {
        *self.members[i].ended.lock() = true;
        self.hub.ended(self.process(i));
        self.hub.wait_until_idle();
    }

    /// Asks process `i` to report when it has taken everything that was sent to it by now. The flag is true
    /// then.
    #[cfg(test)]
    pub(crate) fn fence(&self, i: usize) -> Arc<std::sync::atomic::AtomicBool> {
        self.hub.fence(self.process(i))
    }

    /// Holds back the node's messages to process `i`, as in the control socket of a process that is stopped.
    /// The test should not poll it either.
    pub fn stop(&self, i: usize) {
        self.hub.stops(self.process(i));
    }

    /// Lets process `i` go on: it takes the messages that the node has sent it meanwhile.
    pub fn go_on(&self, i: usize) {
        self.hub.goes_on(self.process(i));
        self.hub.wait_until_idle();
    }

    /// Sets whether process `i` may open no more files, and so loses the descriptors that the node sends it.
    pub fn starve(&self, i: usize, is_starved: bool) {
        self.hub.starve(self.process(i), is_starved);
    }

    /// Makes the node stop waiting for processes that have not yet answered for a death.
    pub fn overdue(&self) {
        self.hub.overdue();
        self.hub.wait_until_idle();
    }

    /// Crashes the process `i` at once: it ends as with [`end`](Self::end), its unpublished work is never
    /// seen, and its clocks stop. Nobody notices when its tensors, replies and futures are dropped later.
    pub fn abandon(&self, i: usize) {
        self.transport(i).abandon();
        self.end(i);
    }

    /// Sets every clock of process `i` back by one.
    ///
    /// # Panics
    /// Never: the process owns the page.
    pub fn turn_clocks_back(&self, i: usize) {
        let domain = self.transport(i).domain();
        for slot in 0..crate::limits::MAX_STREAMS as u16 {
            let now = domain.own_page().load(slot).expect("a clock");
            domain.forge_clock(slot, now.wrapping_sub(1)).expect("its own page");
        }
    }

    /// Makes the node answer no question for this chunk from now on.
    pub fn withhold(&self, chunk: ChunkId) {
        self.hub.withhold(chunk);
    }

    /// Returns the number of chunks of all processes with descriptors that the node keeps.
    pub fn chunks_kept(&self) -> usize {
        self.hub.chunks()
    }

    /// Returns the number of chunks of others that process `i` knows of: mapped, asked for, or unavailable.
    pub fn chunks_known(&self, i: usize) -> usize {
        self.transport(i).memory.chunks.known()
    }

    /// Returns the number of chunks of others that process `i` has mapped.
    pub fn chunks_mapped(&self, i: usize) -> usize {
        self.transport(i).memory.chunks.mapped()
    }

    /// Returns the number of peers that process `i` has a link to, open or not.
    pub fn links(&self, i: usize) -> usize {
        self.transport(i).links.all().len()
    }

    /// Returns the complaints of the node.
    pub fn complaints(&self) -> Vec<String> {
        self.hub.complaints()
    }

    /// Returns the number of allocations of process `i` that anybody holds.
    pub fn leases(&self, i: usize) -> usize {
        self.stream(i).pool().stats().allocations
    }

    /// Returns the holders of an allocation of process `i`; `None` once it was given back.
    pub fn shares(&self, i: usize, id: LeaseId) -> Option<Shares> {
        self.stream(i).pool().shares(id).map(|(local, mut holders)| {
            holders.sort();
            Shares { local, holders }
        })
    }

    /// Returns how many different forwards of one of `i`'s allocations are not taken yet, and how many holds
    /// on it are unproven.
    pub fn forwards(&self, i: usize, id: LeaseId) -> (usize, u32) {
        self.stream(i).pool().forwards(id)
    }

    /// Passes the bytes of the next frame from process `from` to process `to` through `tamper`; everything
    /// else about the frame (its sender's notes, its leases) stays honest.
    pub fn tamper_next(
        &self,
        from: usize,
        to: usize,
        tamper: impl FnOnce(&mut Vec<u8>) + Send + Sync + 'static,
    ) {
        let link = self.link(from, to);
        link.tamper_next(super::forge::Tamper(Box::new(tamper)));
    }

    /// Writes `bytes` into the ring from process `from` to process `to` as a frame. Returns false where there
    /// is no room.
    ///
    /// # Panics
    /// There is no link between them: see [`connect`](Self::connect).
    pub fn forge_frame(&self, from: usize, to: usize, bytes: &[u8]) -> bool {
        self.link(from, to).forge_frame(bytes)
    }

    /// Writes `notice` into the return ring from process `from` to process `to`. Returns false where there is
    /// no room.
    ///
    /// # Panics
    /// As [`forge_frame`](Self::forge_frame).
    pub fn forge_notice(&self, from: usize, to: usize, notice: Entry) -> bool {
        let link = self.link(from, to);
        link.post(notice).is_ok_and(|due| due.is_some()) && link.publish_notices()
    }

    /// Makes a process promise a value of one of its clocks, which it need not keep.
    pub fn promise(&self, ticket: Ticket) {
        let of = self.members.iter().find(|of| of.transport.process() == ticket.process);
        of.expect("one of these").transport.domain().own_page().promise(ticket.slot, ticket.value);
    }

    /// Makes process `i` look for links and chunks without use since its last look. Returns whether it has to
    /// look again.
    pub fn check_idle(&self, i: usize) -> bool {
        self.transport(i).check_idle() != NextIdleCheck::Never
    }

    /// Makes process `i` move rings for which peers have taken fresh memory, as its reader does when idle.
    pub fn move_rings(&self, i: usize) {
        self.transport(i).move_rings_if_due();
    }

    /// Returns the number of bytes that the rings from process `from` to process `to` have touched.
    pub fn ring_bytes(&self, from: usize, to: usize) -> usize {
        self.link(from, to).rings_out().0
    }

    /// Returns the keepers of those rings' memory, in both processes.
    pub fn ring_memory(&self, from: usize, to: usize) -> Vec<Weak<dyn Any + Send + Sync>> {
        let mut memory = self.link(from, to).rings_out().1;
        memory.extend(self.link(to, from).rings_in());
        memory
    }

    /// Makes process `from` mark its data ring to process `to`, or its return ring, as going on in memory
    /// that it has not offered.
    pub fn forge_move(&self, from: usize, to: usize, data: bool) {
        self.link(from, to).move_unoffered(data);
    }

    /// Returns whether process `from` has given up process `to`.
    pub fn gave_up(&self, from: usize, to: usize) -> bool {
        self.transport(from).link(self.process(to)).is_none()
    }

    fn link(&self, from: usize, to: usize) -> Arc<Link> {
        let (from, to) = (self.transport(from), self.process(to));
        let link = from.link(to).expect("neither has ended");
        if !link.has_ring() {
            self.run_until_idle();
        }
        link
    }
}
