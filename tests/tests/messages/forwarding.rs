//! Tensors that pass through many processes: always the same memory, and all of it comes back.

use std::time::Duration;

use tensorpost::node::{ProcessId, Spawned};
use tensorpost::prelude::*;
use tensorpost::tensor::LeaseId;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Hold, Holder, How, LetGo, Make};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_allocations, until_free};

/// A tensor that goes along a route.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Pass {
    tensor: Tensor,
    route: Vec<Address<Pass>>,
    /// Whether every stop adds one to each element, in place.
    in_place: bool,
    /// The door at which every stop waits first.
    door: Option<Door>,
    trail: Vec<Step>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    pid: u32,
    lease: LeaseId,
    sole: bool,
}

/// "Pass it on to `to`, keep nothing else of it, and write it." The reply says why that failed.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(), String>)]
struct ShareAndWrite {
    tensor: Tensor,
    to: Address<Hold>,
}

struct Relay {
    stream: DeviceStream,
}

impl Actor for Relay {
    type Context = Context<Self>;
}

impl RemoteActor for Relay {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Relay { stream: env.stream() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Pass>().message::<ShareAndWrite>();
    }
}

impl Handler<Pass> for Relay {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, pass: Pass, _: &mut Context<Self>) -> Self::Result {
        let Pass { mut tensor, mut route, in_place, door, mut trail } = pass;
        if let Some(door) = &door {
            door.pass().expect("the gate is there");
        }
        trail.push(Step { pid: std::process::id(), lease: tensor.lease().id(), sole: tensor.is_sole() });
        if in_place {
            let mut writable = tensor.into_mut(&self.stream).expect("it was moved all the way");
            self.stream
                .run((writable.of_mut::<u32>(),), |(numbers,)| numbers.iter_mut().for_each(|n| *n += 1))
                .unwrap();
            tensor = writable.freeze();
        }
        let next = route.remove(0);
        let sent = next.send(Pass { tensor, route, in_place, door, trail });
        Box::pin(async move { sent.await.expect("the next stop is there") })
    }
}

impl Handler<ShareAndWrite> for Relay {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, message: ShareAndWrite, _: &mut Context<Self>) -> Self::Result {
        let ShareAndWrite { tensor, to } = message;
        let stream = self.stream.clone();
        Box::pin(async move {
            to.ask(Hold::with(0, tensor.clone())).await.expect("the other holds it");
            tensor.into_mut(&stream).map(|_| ()).map_err(|error| error.to_string())
        })
    }
}

fn relays(node: &Node, count: usize) -> Vec<Address<Pass>> {
    (0..count).map(|_| node.spawn::<Relay>(()).start().unwrap().address()).collect()
}

fn holder(node: &Node) -> Spawned<Holder> {
    node.spawn::<Holder>(()).start().unwrap()
}

// LEASE-3: each next holder is in the owner's lease table before the previous one lets go.
fn a_tensor_passed_on_and_on_stays_where_it_is_and_comes_home(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let [b, c] = <[_; 2]>::try_from(relays(&node, 2)).unwrap();
    let (home, mut arrivals) = node.channel::<Pass>().unwrap();
    let tensor = numbers(&stream, 0, 1000);
    let lease = tensor.lease().id();
    for round in 0..20 {
        let route = vec![c.clone(), b.clone(), c.clone(), home.clone()];
        let tensor = tensor.clone();
        deliver(&node, &b, Pass { tensor, route, in_place: false, door: None, trail: vec![] });
        let back = arrivals.blocking_recv().unwrap();
        assert_eq!(back.tensor.to_vec::<u32>().unwrap(), (0..1000).collect::<Vec<u32>>());
        assert_eq!(back.tensor.lease().id(), lease);
        assert!(back.trail.iter().all(|step| step.lease == lease && !step.sole), "round {round}");
        assert_eq!(back.trail.len(), 4);
        assert_eq!(stream.pool().stats().allocations, 1);
    }
    drop(tensor);
    until_free(&node);
}

// ONE-WRITER: the right to write is handed over with the memory.
fn one_buffer_is_written_in_place_by_three_processes_one_after_the_other(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let relays = relays(&node, 3);
    let (home, mut arrivals) = node.channel::<Pass>().unwrap();
    let mut tensor = numbers(&stream, 0, 5000);
    let lease = tensor.lease().id();
    for round in 1..=20 {
        let mut route = relays[1..].to_vec();
        route.push(home.clone());
        deliver(&node, &relays[0], Pass { tensor, route, in_place: true, door: None, trail: vec![] });
        let back = arrivals.blocking_recv().unwrap();
        let pids: std::collections::HashSet<u32> = back.trail.iter().map(|step| step.pid).collect();
        assert_eq!(pids.len(), 3);
        assert!(back.trail.iter().all(|step| step.lease == lease && step.sole), "{:?}", back.trail);
        let mut writable = back.tensor.into_mut(&stream).expect("it came home");
        let numbers = writable.as_mut_slice::<u32>().unwrap();
        assert!(
            numbers.iter().copied().eq(4 * round - 1..4 * round - 1 + 5000),
            "round {round}: {:?}",
            &numbers[..3]
        );
        numbers.iter_mut().for_each(|number| *number += 1);
        tensor = writable.freeze();
        assert_eq!(stream.pool().stats().allocations, 1);
    }
    drop(tensor);
    until_free(&node);
}

fn memory_of_a_worker_goes_around_through_its_owner_and_back_to_it(builder: Builder) {
    let node = builder.start().unwrap();
    let (owner, relays) = (holder(&node), relays(&node, 2));
    let (home, mut arrivals) = node.channel::<Pass>().unwrap();
    let tensor = ask(&node, &owner.address(), Make { elements: vec![5, 6, 7], door: None });
    let lease = tensor.lease().id();
    assert_ne!(lease.chunk.owner, ProcessId::NODE);
    let route = vec![relays[1].clone(), home];
    deliver(&node, &relays[0], Pass { tensor, route, in_place: false, door: None, trail: vec![] });
    let back = arrivals.blocking_recv().unwrap();
    assert_eq!(back.tensor.to_vec::<u32>().unwrap(), [5, 6, 7]);
    assert!(back.trail.iter().all(|step| step.lease == lease));
    assert_eq!(ask(&node, &owner.address(), Hold::with(1, back.tensor)), 1);
    assert_eq!(ask(&node, &owner.address(), Check).allocations, 1);
    ask(&node, &owner.address(), LetGo);
    until("the owner has its memory back", || ask(&node, &owner.address(), Check).allocations == 0);
}

// ONE-WRITER: the receiver of a reply is the only holder of a tensor that was moved into it, from the first
// moment.
fn a_tensor_that_came_in_a_reply_can_be_handed_over_at_once(builder: Builder) {
    let node = builder.start().unwrap();
    let (owner, relays) = (holder(&node), relays(&node, 1));
    let (home, mut arrivals) = node.channel::<Pass>().unwrap();
    for _ in 0..300 {
        let tensor = ask(&node, &owner.address(), Make { elements: vec![5, 6, 7], door: None });
        let route = vec![home.clone()];
        deliver(&node, &relays[0], Pass { tensor, route, in_place: false, door: None, trail: vec![] });
        let back = arrivals.blocking_recv().unwrap();
        assert!(back.trail[0].sole);
        assert!(back.tensor.into_mut(&node.host_stream().unwrap()).is_ok());
    }
}

// ONE-WRITER, with a copy that was sent in between.
fn who_has_given_a_copy_on_cannot_write(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let relay = node.spawn::<Relay>(()).start().unwrap();
    let keeper = holder(&node);
    let message = ShareAndWrite { tensor: numbers(&stream, 0, 10), to: keeper.address() };
    let refused = ask(&node, &relay.address(), message).unwrap_err();
    assert!(refused.contains("another process holds it too"), "{refused}");
    ask(&node, &keeper.address(), LetGo);
    until_free(&node);
}

fn a_tensor_that_others_hold_cannot_be_written_until_they_let_go(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let keeper = holder(&node);
    let tensor = numbers(&stream, 0, 10);
    let clone = tensor.clone();
    let refused = tensor.into_mut(&stream).unwrap_err();
    assert!(
        refused.to_string().contains("1 other handles on its memory are left in this process"),
        "{refused}"
    );
    drop(clone);
    let tensor = refused.tensor;
    ask(&node, &keeper.address(), Hold::with(0, tensor.clone()));
    let refused = tensor.into_mut(&stream).unwrap_err();
    assert!(refused.to_string().contains("another process holds it too"), "{refused}");
    ask(&node, &keeper.address(), LetGo);
    let mut tensor = Some(refused.tensor);
    until("the holder's release is seen", || match tensor.take().unwrap().into_mut(&stream) {
        Ok(_) => true,
        Err(refused) => {
            tensor = Some(refused.tensor);
            false
        }
    });
    until_free(&node);
}

fn one_tensor_for_eight_workers_is_one_allocation(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holders: Vec<_> = (0..8).map(|_| holder(&node)).collect();
    let tensor = numbers(&stream, 0, 10_000);
    let held = |holder: &Spawned<Holder>| ask(&node, &holder.address(), Hold::with(0, tensor.clone()));
    assert!(holders.iter().all(|holder| held(holder) == 1));
    drop(tensor);
    let stats = stream.pool().stats();
    assert_eq!((stats.allocations, stats.held_bytes), (1, 40_000));
    for holder in &holders {
        until_allocations(&node, 1);
        ask(&node, &holder.address(), LetGo);
    }
    until_free(&node);
}

// LEASE-2, for messages that were never opened.
fn a_full_mailbox_of_an_actor_that_ends_gives_everything_back(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    for how in [How::Stop, How::Terminate, How::Panic] {
        let gate = Gate::new();
        let holder = node.spawn::<Holder>(()).mailbox(50).start().unwrap();
        deliver(&node, &holder.address(), End { how, door: Some(gate.door()) });
        let arrival = gate.arrival();
        for label in 1..50 {
            deliver(&node, &holder.address(), Hold::with(label, numbers(&stream, 0, 100)));
        }
        assert_eq!(stream.pool().stats().allocations, 49);
        arrival.open();
        until_free(&node);
    }
}

// LEASE-2, for messages whose actor ended while they were in the ring.
fn messages_to_an_actor_that_is_gone_give_everything_back(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let worker = node.worker("both").unwrap();
    let reader = node.spawn::<Holder>(()).worker(worker).start().unwrap();
    let gone = node.spawn::<Holder>(()).worker(worker).own_thread().start().unwrap();
    // A reply shows that the link is made in both directions.
    ask(&node, &gone.address(), Check);
    let (reader_gate, gone_gate) = (Gate::new(), Gate::new());
    deliver(&node, &gone.address(), End { how: How::Stop, door: Some(gone_gate.door()) });
    let ending = gone_gate.arrival();
    // The worker's main thread, which reads the ring, waits at a door: frames stay in the ring.
    deliver(&node, &reader.address(), Hold::at(0, &reader_gate.door()));
    let reading = reader_gate.arrival();
    let address = gone.address::<Hold>();
    (1..100).for_each(|label| deliver(&node, &address, Hold::with(label, numbers(&stream, 0, 100))));
    ending.open();
    let mut probe = Some(Hold::with(100, numbers(&stream, 0, 1)));
    until("its end is seen", || {
        match address.try_send(probe.take().unwrap()).map_err(|error| (error.reason, error.message)) {
            Err((SendFailure::NoSuchActor, _)) => true,
            Err((_, message)) => {
                probe = Some(message);
                false
            }
            Ok(()) => {
                probe = Some(Hold::with(100, numbers(&stream, 0, 1)));
                false
            }
        }
    });
    reading.open();
    drop(probe);
    until_free(&node);
    assert_eq!(ask(&node, &reader.address(), LetGo), [0]);
}

// LEASE-2, for replies.
fn a_reply_that_nobody_waits_for_gives_everything_back(builder: Builder) {
    let node = builder.start().unwrap();
    let maker = holder(&node);
    let address = maker.address::<Make>();
    // This makes the way there, so that the asks are sent before they give up.
    ask(&node, &maker.address(), Check);
    for _ in 0..5 {
        let gate = Gate::new();
        let make = Make { elements: vec![1; 100], door: Some(gate.door()) };
        let asked = node.block_on(address.ask(make).timeout(Duration::from_millis(1)));
        assert!(matches!(asked, Err(AskError::TimedOut)));
        gate.pass_one();
        // And a reply whose ask is dropped at once.
        drop(address.ask(Make { elements: vec![2; 100], door: None }));
    }
    until("the maker has its memory back", || ask(&node, &maker.address(), Check).allocations == 0);
}

// LEASE-3: a forwarder keeps its lease until the next holder has posted its own, and not longer, though
// nothing else happens in its process.
fn a_forwarder_that_sleeps_lets_go(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let relay = node.spawn::<Relay>(()).own_thread().start().unwrap();
    let (home, mut arrivals) = node.channel::<Pass>().unwrap();
    let pid = node.workers()[0].pid;
    let next = relays(&node, 1);
    // A first tensor makes the link between the two.
    let route = || vec![next[0].clone(), home.clone()];
    let pass =
        |door| Pass { tensor: numbers(&stream, 0, 10), route: route(), in_place: false, door, trail: vec![] };
    deliver(&node, &relay.address(), pass(None));
    drop(arrivals.blocking_recv().unwrap());
    let gate = Gate::new();
    deliver(&node, &relay.address(), pass(Some(gate.door())));
    let arrival = gate.arrival();
    until("the forwarder's reader sleeps", || is_asleep(pid));
    arrival.open();
    gate.pass_one();
    drop(arrivals.blocking_recv().unwrap());
    until_free(&node);
}

/// Returns whether the main thread of a process, which reads its messages, sleeps. It looks often enough to
/// rule out chance.
fn is_asleep(pid: u32) -> bool {
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    })
}

// LEASE-4.
fn leases_of_a_killed_worker_come_back(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let (victim, other) = (holder(&node), holder(&node));
    let shared = numbers(&stream, 0, 100);
    ask(&node, &victim.address(), Hold::with(0, shared.clone()));
    ask(&node, &other.address(), Hold::with(0, shared));
    for label in 1..10 {
        ask(&node, &victim.address(), Hold::with(label, numbers(&stream, 0, 100)));
    }
    node.supervisor().kill_worker(victim.worker());
    node.supervisor().await_end(victim.worker());
    until_allocations(&node, 1);
    ask(&node, &other.address(), LetGo);
    until_free(&node);
}

// LEASE-4: what a dead process owned stays with its holders.
fn memory_of_a_killed_worker_stays_with_its_holders(builder: Builder) {
    let node = builder.start().unwrap();
    let victim = holder(&node);
    let tensor = ask(&node, &victim.address(), Make { elements: vec![1, 2, 3], door: None });
    assert_eq!(tensor.to_vec::<u32>().unwrap(), [1, 2, 3]);
    node.supervisor().kill_worker(victim.worker());
    node.supervisor().await_end(victim.worker());
    assert_eq!(tensor.to_vec::<u32>().unwrap(), [1, 2, 3]);
    assert_eq!(
        node.host_stream().unwrap().copy(&tensor).unwrap().freeze().to_vec::<u32>().unwrap(),
        [1, 2, 3]
    );
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_tensor_passed_on_and_on_stays_where_it_is_and_comes_home,
        one_buffer_is_written_in_place_by_three_processes_one_after_the_other,
        memory_of_a_worker_goes_around_through_its_owner_and_back_to_it,
        a_tensor_that_came_in_a_reply_can_be_handed_over_at_once,
        who_has_given_a_copy_on_cannot_write,
        a_tensor_that_others_hold_cannot_be_written_until_they_let_go,
        one_tensor_for_eight_workers_is_one_allocation,
        a_full_mailbox_of_an_actor_that_ends_gives_everything_back,
        messages_to_an_actor_that_is_gone_give_everything_back,
        a_reply_that_nobody_waits_for_gives_everything_back,
        a_forwarder_that_sleeps_lets_go,
        leases_of_a_killed_worker_come_back,
        memory_of_a_killed_worker_stays_with_its_holders,
    ]
}
