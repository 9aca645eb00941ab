//! The view that senders have of a full mailbox, to the message (MBX-2). The handler stands at a door until
//! the test opens it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use tensorpost::node::Spawned;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Arrival, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, Hold, Holder, LetGo, Make, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// An actor whose first handler, number 0, waits at the gate. That message counts against the capacity.
struct Busy {
    node: Node,
    holder: Spawned<Holder>,
    address: Address<Hold>,
    gate: Gate,
    arrival: Option<Arrival>,
}

impl Busy {
    fn start(builder: Builder, capacity: u32, own_thread: bool) -> Self {
        let node = builder.start().unwrap();
        let spawn = node.spawn::<Holder>(()).mailbox(capacity);
        let holder = if own_thread { spawn.own_thread() } else { spawn }.start().unwrap();
        let (address, gate) = (holder.address(), Gate::new());
        deliver(&node, &address, Hold::at(0, &gate.door()));
        let arrival = Some(gate.arrival());
        Busy { node, holder, address, gate, arrival }
    }

    fn tensor(&self, number: u32) -> Tensor {
        numbers(&self.node.host_stream().unwrap(), number, 100)
    }

    fn open(&mut self) {
        self.arrival.take().expect("it was closed").open();
    }

    /// Returns the labels in the order of their handling, once `count` were handled.
    fn seen(&self, count: usize) -> Vec<u64> {
        until("all are handled", || ask(&self.node, &self.holder.address(), Seen).len() >= count);
        ask(&self.node, &self.holder.address(), LetGo)
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

fn exactly_as_many_messages_as_the_mailbox_holds_are_accepted(builder: Builder) {
    for (capacity, own_thread) in [(1, false), (2, true), (7, false), (128, true)] {
        // A builder serves one node; the others are made as the first was.
        let mut busy = Busy::start(fresh(&builder), capacity, own_thread);
        for label in 1..u64::from(capacity) {
            busy.address.try_send(Hold::with(label, busy.tensor(1))).unwrap();
        }
        for _ in 0..3 {
            let error = busy.address.try_send(Hold::label(999)).unwrap_err();
            assert!(matches!(error.reason, SendFailure::Full) && error.is_retryable(), "{error}");
        }
        busy.open();
        assert_eq!(busy.seen(capacity as usize), (0..u64::from(capacity)).collect::<Vec<u64>>());
        until_free(&busy.node);
    }
}

/// The capacity is per sending process: another one has its own.
fn each_sending_process_has_the_whole_capacity(builder: Builder) {
    let mut busy = Busy::start(builder, 3, true);
    busy.address.try_send(Hold::label(1)).unwrap();
    busy.address.try_send(Hold::label(2)).unwrap();
    assert!(busy.address.try_send(Hold::label(9)).is_err());
    let other = busy.node.spawn::<Filler>(()).start().unwrap();
    let accepted = ask(&busy.node, &other.address(), Fill { to: busy.address.clone(), from: 10 });
    assert_eq!(accepted, 3);
    busy.open();
    let mut seen = busy.seen(6);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 10, 11, 12]);
}

/// The same bound holds for a sender in the actor's own process.
fn the_short_way_has_the_same_bound(builder: Builder) {
    let mut busy = Busy::start(builder, 4, true);
    let filler = busy.node.spawn::<Filler>(()).worker(busy.holder.worker()).start().unwrap();
    let accepted = ask(&busy.node, &filler.address(), Fill { to: busy.address.clone(), from: 10 });
    assert_eq!(accepted, 4);
    busy.open();
    assert_eq!(busy.seen(5), [0, 10, 11, 12, 13]);
}

fn try_send_gives_the_message_back_with_its_tensors_as_they_were(builder: Builder) {
    let mut busy = Busy::start(builder, 1, false);
    let tensor = busy.tensor(7);
    let lease = tensor.lease().id();
    let mut message = Hold::with(5, tensor);
    for _ in 0..10 {
        message = busy.address.try_send(message).unwrap_err().message;
    }
    assert_eq!((message.label, message.tensors[0].lease().id()), (5, lease));
    assert_eq!(message.tensors[0].to_vec::<u32>().unwrap()[..3], [7, 8, 9]);
    let tensor = message.tensors.pop().unwrap();
    let stream = busy.node.host_stream().unwrap();
    let mut writable = tensor.into_mut(&stream).expect("nobody else ever had it");
    writable.as_mut_slice::<u32>().unwrap()[0] = 100;
    message.tensors.push(writable.freeze());
    busy.open();
    deliver(&busy.node, &busy.address, message);
    assert_eq!(busy.seen(2), [0, 5]);
    until_free(&busy.node);
}

// MBX-1: waiting sends are served in the order in which they asked, and no other send goes around them.
fn waiting_sends_are_first_come_first_served(builder: Builder) {
    let mut busy = Busy::start(builder, 2, false);
    busy.address.try_send(Hold::label(1)).unwrap();
    let mut waiting: Vec<_> =
        (2..20).map(|label| busy.address.send(Hold::with(label, busy.tensor(1)))).collect();
    assert!(waiting.iter_mut().all(|send| poll(send).is_pending()));
    assert!(busy.address.try_send(Hold::label(99)).is_err());
    busy.open();
    // However they are polled, they go in the order of their calls.
    waiting.reverse();
    for result in busy.node.block_on(futures_util::future::join_all(waiting)) {
        result.unwrap();
    }
    assert_eq!(busy.seen(20), (0..20).collect::<Vec<u64>>());
    until_free(&busy.node);
}

fn try_send_does_not_overtake_those_who_wait(builder: Builder) {
    let mut busy = Busy::start(builder, 1, true);
    let mut waiting = busy.address.send(Hold::label(1));
    assert!(poll(&mut waiting).is_pending());
    busy.open();
    until("there is room", || ask_seen(&busy) == [0]);
    // There is room, but another send waited first.
    let error = busy.address.try_send(Hold::label(2)).unwrap_err();
    assert!(matches!(error.reason, SendFailure::Full));
    busy.node.block_on(waiting).unwrap();
    deliver(&busy.node, &busy.address, error.message);
    assert_eq!(busy.seen(3), [0, 1, 2]);
}

/// Returns the labels seen so far, asked by another way than the mailbox under test: a sender of its own.
fn ask_seen(busy: &Busy) -> Vec<u64> {
    let asker = busy.node.spawn::<Filler>(()).start().unwrap();
    ask(&busy.node, &asker.address(), Relayed(busy.holder.address()))
}

fn a_send_that_waits_too_long_gives_the_message_back(builder: Builder) {
    let mut busy = Busy::start(builder, 1, false);
    let send = busy.address.send(Hold::with(5, busy.tensor(3))).timeout(Duration::from_millis(20));
    let error = busy.node.block_on(send).unwrap_err();
    assert!(matches!(error.reason, SendFailure::TimedOut) && error.is_retryable());
    assert_eq!(error.message.tensors[0].to_vec::<u32>().unwrap()[0], 3);
    let asked = busy.address.ask(error.message).timeout(Duration::from_millis(20));
    let Err(AskError::NotSent(error)) = busy.node.block_on(asked) else { panic!("there was no room") };
    assert!(matches!(error.reason, SendFailure::TimedOut));
    busy.open();
    // Within its deadline, a send with one is like any other.
    busy.node.block_on(busy.address.send(error.message).timeout(Duration::from_secs(30))).unwrap();
    assert_eq!(busy.seen(2), [0, 5]);
    until_free(&busy.node);
}

fn cancelled_sends_leave_no_trace_and_hold_nobody_up(builder: Builder) {
    let mut busy = Busy::start(builder, 1, false);
    let mut sends: Vec<_> =
        (1..=6).map(|label| Some(busy.address.send(Hold::with(label, busy.tensor(1))))).collect();
    // Some were polled, some never.
    for send in sends.iter_mut().flatten().step_by(2) {
        assert!(poll(send).is_pending());
    }
    // The first, one in the middle, and the last are dropped.
    for gone in [0, 3, 5] {
        sends[gone] = None;
    }
    assert_eq!(
        busy.node.host_stream().unwrap().pool().stats().allocations,
        3,
        "their tensors went with them"
    );
    busy.open();
    for send in sends.into_iter().flatten() {
        busy.node.block_on(send).unwrap();
    }
    assert_eq!(busy.seen(4), [0, 2, 3, 5]);
    until_free(&busy.node);
}

// Cancel safety of `ask`: nobody gets a reply that comes late, and its tensor goes home (LEASE-2).
fn a_late_reply_gives_its_leases_back(builder: Builder) {
    let node = builder.start().unwrap();
    let maker = node.spawn::<Holder>(()).start().unwrap();
    // This makes the way there, so that the asks are sent before they give up.
    ask(&node, &maker.address(), Check);
    let gate = Gate::new();
    let make = Make { elements: vec![1, 2, 3], door: Some(gate.door()) };
    let asked = node.block_on(maker.address().ask(make).timeout(Duration::from_millis(20)));
    assert!(matches!(asked, Err(AskError::TimedOut)));
    gate.pass_one();
    until("the reply is home", || ask(&node, &maker.address(), Check).allocations == 0);
    let gate = Gate::new();
    let address = maker.address::<Make>();
    {
        let mut dropped = pin!(address.ask(Make { elements: vec![1], door: Some(gate.door()) }));
        assert!(dropped.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    }
    gate.pass_one();
    until("the reply is home", || ask(&node, &maker.address(), Check).allocations == 0);
}

// A handler whose result resolves later holds its place in the mailbox until then.
fn a_reply_that_is_not_ready_counts_against_the_mailbox(builder: Builder) {
    let mut busy = Busy::start(builder, 1, false);
    let node = &busy.node;
    let slow = node.spawn::<Filler>(()).mailbox(2).start().unwrap();
    // Its reply waits for `busy`, which stands at the door.
    let mut first = slow.address::<Relayed>().ask(Relayed(busy.holder.address()));
    let mut second = slow.address::<Relayed>().ask(Relayed(busy.holder.address()));
    // The link is new, so the first attempts may have had to wait for it.
    until("both are with the actor", || {
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        matches!(slow.address().try_send(Fill { to: busy.address.clone(), from: 0 }), Err(error) if matches!(error.reason, SendFailure::Full))
            && first_and_second_are_sent(node)
    });
    busy.arrival.take().unwrap().open();
    assert_eq!(busy.node.block_on(first).unwrap(), [0]);
    assert_eq!(busy.node.block_on(second).unwrap(), [0]);
    let _ = &busy.gate;
}

fn first_and_second_are_sent(node: &Node) -> bool {
    // They are one `Hold` to the busy actor and the two asks.
    node.stats().sent >= 3
}

// LEASE-2, MBX-2: the resources of `try_send` come back without anybody waiting for them.
fn try_send_alone_can_go_on_for_ever(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let sink = node.spawn::<Sink>(()).start().unwrap();
    let tensors = |count: usize| -> Vec<Tensor> { (0..count).map(|_| numbers(&stream, 1, 1)).collect() };
    deliver(&node, &sink.address(), Drop { tensors: vec![] });
    let mut sent = 0;
    let mut message = Drop { tensors: tensors(100) };
    until("six thousand tensors were taken", || {
        match sink.address().try_send(std::mem::replace(&mut message, Drop { tensors: vec![] })) {
            Ok(()) => {
                sent += 100;
                message = Drop { tensors: tensors(100) };
            }
            Err(error) => message = error.message,
        }
        sent >= 6000
    });
    drop(message);
    until_free(&node);
}

/// "Give messages to `to` until there is no room." The reply is how many it took.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Fill {
    to: Address<Hold>,
    from: u64,
}

/// "Ask it for me."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
struct Relayed(Address<Seen>);

struct Filler;

impl Actor for Filler {
    type Context = Context<Self>;
}

impl RemoteActor for Filler {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Filler)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Fill>().message::<Relayed>();
    }
}

impl Handler<Fill> for Filler {
    type Result = ResponseFuture<usize>;

    fn handle(&mut self, Fill { to, from }: Fill, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move {
            // This waits, because the way there may still be made.
            to.send(Hold::label(from)).await.unwrap();
            let full = (from + 1..).position(|label| to.try_send(Hold::label(label)).is_err());
            1 + full.expect("a mailbox ends")
        })
    }
}

impl Handler<Relayed> for Filler {
    type Result = ResponseFuture<Vec<u64>>;

    fn handle(&mut self, Relayed(to): Relayed, _: &mut Context<Self>) -> Self::Result {
        Box::pin(async move { to.ask(Seen).await.unwrap() })
    }
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Drop {
    tensors: Vec<Tensor>,
}

struct Sink;

impl Actor for Sink {
    type Context = Context<Self>;
}

impl RemoteActor for Sink {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Sink)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Drop>();
    }
}

impl Handler<Drop> for Sink {
    type Result = ();

    fn handle(&mut self, message: Drop, _: &mut Context<Self>) {
        drop(message.tensors);
    }
}

/// Another builder of the same program.
fn fresh(_: &Builder) -> Builder {
    Node::builder()
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        exactly_as_many_messages_as_the_mailbox_holds_are_accepted,
        each_sending_process_has_the_whole_capacity,
        the_short_way_has_the_same_bound,
        try_send_gives_the_message_back_with_its_tensors_as_they_were,
        waiting_sends_are_first_come_first_served,
        try_send_does_not_overtake_those_who_wait,
        a_send_that_waits_too_long_gives_the_message_back,
        cancelled_sends_leave_no_trace_and_hold_nobody_up,
        a_late_reply_gives_its_leases_back,
        a_reply_that_is_not_ready_counts_against_the_mailbox,
        try_send_alone_can_go_on_for_ever,
    ]
}
