//! Two nodes in one process, whose processes have the same numbers. An id of one node is never looked up in
//! the other (SAFE-1, CLOCK-1, CLOCK-2). A cluster is such a node.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use actix::{Actor, Context};
use serde::{Deserialize, Serialize};
use tensorpost_core::api::actor::{
    Address, Env, Handles, Lifecycle, Python, RegisterError, RemoteActor, SendFailure,
};
use tensorpost_core::api::message::{EncodeError, GpuMessage};
#[cfg(feature = "dlpack")]
use tensorpost_core::api::tensor::DlPackReady;
use tensorpost_core::node::Node;
use tensorpost_core::tensor::part::JoinReason;
use tensorpost_core::tensor::{
    DType, DeviceStream, NotSole, NotSoleReason, Tensor, TensorError, TensorMut, TensorPart,
};
use tensorpost_core::testing::{Cluster, Target, TestInbox, Unsent};
use tensorpost_core::transport::AskFailure;
use tensorpost_core::transport::inbox::Refusal;

/// Long enough for anything.
const SOON: Duration = Duration::from_secs(30);
/// Long enough for a result that comes too early.
const A_MOMENT: Duration = Duration::from_millis(30);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Carried(Tensor);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core)]
struct Friend(Address<Carried>);

/// Makes two nodes of two processes each. The clocks of the second node are already past all values that
/// those of the first will reach for a while.
fn two() -> (Cluster, Cluster) {
    let nodes = (Cluster::new(2), Cluster::new(2));
    for process in 0..2 {
        let stream = nodes.1.stream(process);
        for _ in 0..50 {
            drop(written(stream, 1, 0));
        }
        stream.synchronize().expect("it runs");
    }
    nodes.0.connect();
    nodes.1.connect();
    nodes
}

/// Makes a tensor of `count` numbers, which a kernel of its own stream writes.
fn written(stream: &DeviceStream, count: usize, number: u64) -> Tensor {
    let mut tensor = stream.empty(DType::U64, &[count]).expect("memory");
    stream.run((tensor.of_mut::<u64>(),), move |(all,)| all.fill(number)).expect("a host stream");
    tensor.freeze()
}

/// Makes four zeros that become sevens when the returned sender is dropped.
fn pending(stream: &DeviceStream) -> (Sender<()>, Tensor) {
    let (open, wait) = channel::<()>();
    let mut tensor = stream.zeros(DType::U64, &[4]).expect("memory");
    tensor.wait(None).expect("it is there");
    let write = move |(all,): (&mut [u64],)| {
        let _ = wait.recv();
        all.fill(7);
    };
    stream.run((tensor.of_mut::<u64>(),), write).expect("a host stream");
    (open, tensor.freeze())
}

fn is_other_node(error: &TensorError) -> bool {
    let text = error.to_string();
    matches!(error, TensorError::OtherNode { tensor, stream } if tensor != stream
        && text.contains(tensor) && text.contains(stream) && text.contains("stream.copy(&tensor)"))
}

/// Runs `look` on a tensor that is not written yet. Checks that it returns only after the write, and returns
/// what it saw.
fn seen_late<T: Send>(look: impl FnOnce(&Tensor) -> T + Send, from: &DeviceStream) -> T {
    let (open, tensor) = pending(from);
    std::thread::scope(|scope| {
        let (told, saw) = channel();
        let looking: ScopedJoinHandle<'_, ()> = scope.spawn(|| {
            let told = told;
            let _ = told.send(look(&tensor));
        });
        let early = saw.recv_timeout(A_MOMENT);
        drop(open);
        assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "it looked before the data was there");
        let seen = saw.recv_timeout(SOON).expect("the data comes");
        looking.join().expect("it looks");
        seen
    })
}

/// CLOCK-1: a stream cannot wait for a clock of another node, so no work of it is ordered behind one.
#[test]
fn work_on_a_stream_of_another_node_is_refused() {
    let (a, b) = two();
    let (sa, sb) = (a.stream(0), b.stream(0));
    let (open, tensor) = pending(sa);
    let error = sb.run((tensor.of::<u64>(),), |_| unreachable!("it is not run")).expect_err("no order");
    assert!(is_other_node(&error), "{error}");
    assert!(is_other_node(&sb.begin_read(&tensor).expect_err("no order")));
    #[cfg(feature = "dlpack")]
    assert!(is_other_node(&sb.to_dlpack(&tensor).expect_err("no order")));
    // The tensor is given back, and its own node may write it.
    let NotSole { tensor, why, .. } = tensor.into_mut(sb).expect_err("no order");
    assert!(matches!(&why, NotSoleReason::Tensor(error) if is_other_node(error)), "{why}");
    let mut tensor = tensor.into_mut(sa).expect("the only handle");
    assert!(is_other_node(&sb.begin_write(&mut tensor).expect_err("no order")));
    assert!(is_other_node(&sb.run((tensor.of_mut::<u64>(),), |_| {}).expect_err("no order")));
    assert!(is_other_node(&sb.upload(&mut tensor, &[1_u64, 2, 3, 4]).expect_err("no order")));
    let source = written(sb, 4, 1);
    assert!(is_other_node(&sb.copy_into(&mut tensor, 0, &source).expect_err("no order")));

    let mut parts = tensor.split(0, &[1, 3]).expect("two parts");
    assert!(is_other_node(&sb.run((parts[0].of_mut::<u64>(),), |_| {}).expect_err("no order")));
    let unjoined = TensorMut::join(parts, sb).expect_err("no order");
    assert!(matches!(&unjoined.why, JoinReason::Tensor(error) if is_other_node(error)), "{unjoined}");
    drop(open);
    let tensor = TensorMut::join(unjoined.parts, sa).expect("all of them").freeze();
    assert_eq!(tensor.to_vec::<u64>().expect("it is there"), [7; 4]);
    drop(tensor);
    assert_eq!(a.leases(0), 0, "nothing of another node keeps it");
}

/// CLOCK-1: a read of a tensor by a stream of another node waits by the clocks of the tensor's own node.
#[test]
fn copies_of_a_tensor_of_another_node_are_right() {
    let (a, b) = two();
    let (sa, sb) = (a.stream(0), b.stream(0));
    let numbers = |tensor: TensorMut| tensor.freeze().to_vec::<u64>().expect("it is there");
    let looks: [fn(&DeviceStream, &Tensor) -> Tensor; 4] = [
        |stream, tensor| stream.copy(tensor).expect("memory").freeze(),
        |stream, tensor| stream.contiguous(tensor).expect("memory"),
        |stream, tensor| stream.stack(&[tensor]).expect("memory").freeze().index(0, 0).expect("a row"),
        |stream, tensor| {
            let mut into = stream.zeros(DType::U64, &[4]).expect("memory");
            stream.copy_into(&mut into, 0, tensor).expect("it has room");
            into.freeze()
        },
    ];
    for look in looks {
        let copy = seen_late(|tensor| look(sb, tensor), sa);
        assert_eq!(a.leases(0), 0, "the copy is done when the call returns, and keeps nothing");
        assert_eq!(copy.to_vec::<u64>().expect("it is there"), [7; 4]);
        // The copy belongs to this node, which may write it.
        let mut own = copy.into_mut(sb).expect("the only handle");
        sb.run((own.of_mut::<u64>(),), |(all,)| all[0] += 1).expect("its own stream");
        assert_eq!(numbers(own), [8, 7, 7, 7]);
    }
    assert_eq!(seen_late(|tensor| sb.download::<u64>(tensor).expect("it comes"), sa), [7; 4]);
    assert_eq!(seen_late(|tensor| sb.download_bytes(tensor).expect("it comes"), sa).len(), 32);
    assert_eq!(seen_late(|tensor| tensor.to_vec::<u64>().expect("it comes"), sa), [7; 4]);
    let strided = seen_late(
        |tensor| {
            let every_other = tensor.view(&[2, 2]).expect("four").slice(1, 0..1).expect("a column");
            sb.copy(&every_other).expect("memory")
        },
        sa,
    );
    assert_eq!(numbers(strided), [7; 2]);
}

/// CLOCK-2: memory that a stream of another node reads goes to nobody else, however far that node's clocks
/// are.
#[test]
fn memory_is_not_used_again_under_a_copy() {
    let (a, b) = two();
    let (sa, sb) = (a.stream(0), b.stream(0));
    for number in 0..200 {
        let first = written(sa, 1 << 14, number);
        let copy = sb.copy(&first).expect("memory");
        drop(first);
        let mut next = sa.empty(DType::U64, &[1 << 14]).expect("memory");
        next.as_mut_slice::<u64>().expect("it is there").fill(u64::MAX);
        let copy = copy.freeze();
        let copy = copy.as_slice::<u64>().expect("it is there");
        assert!(copy.iter().all(|found| *found == number), "overwritten in copy {number}");
    }
}

#[cfg(feature = "dlpack")]
#[test]
fn a_tensor_comes_from_another_node_by_dlpack_when_it_is_there() {
    let (a, b) = two();
    let (sa, sb) = (a.stream(0), b.stream(0));
    for ready in [DlPackReady::Now, DlPackReady::OnStream] {
        let came = seen_late(
            |tensor| {
                let managed = sa.to_dlpack(tensor).expect("nothing is waited for");
                let came = sb.from_dlpack(managed, ready).expect("it is waited for");
                came.as_slice::<u64>().expect("it is there").to_vec()
            },
            sa,
        );
        assert_eq!(came, [7; 4]);
    }

    // The memory is kept for as long as the other node's stream reads it (CLOCK-2).
    let tensor = written(sa, 1 << 14, 5);
    let managed = sa.to_dlpack(&tensor).expect("nothing is waited for");
    drop(tensor);
    let came = sb.from_dlpack(managed, DlPackReady::Now).expect("it is waited for");
    let (open, wait) = channel::<()>();
    let (told, found) = channel();
    sb.run((came.of::<u64>(),), move |(all,)| {
        let _ = wait.recv();
        let _ = told.send(all.iter().all(|number| *number == 5));
    })
    .expect("its own stream");
    drop(came);
    for _ in 0..100 {
        drop(written(sa, 1 << 14, 666));
        sa.synchronize().expect("it runs");
    }
    assert_eq!(a.leases(0), 1, "it is still read");
    drop(open);
    assert_eq!(found.recv_timeout(SOON), Ok(true), "overwritten under a reader");

    // A tensor that is handed over whole may be written by the other node.
    let mut own = sa.zeros(DType::U64, &[2]).expect("memory");
    sa.run((own.of_mut::<u64>(),), |(all,)| all.fill(3)).expect("its own stream");
    let managed = sa.into_dlpack(own).expect("nothing is waited for");
    let theirs = sb.from_dlpack(managed, DlPackReady::Now).expect("it is waited for");
    let mut theirs = theirs.into_mut(sb).expect("it was given away");
    sb.run((theirs.of_mut::<u64>(),), |(all,)| all[0] += 1).expect("its own stream");
    assert_eq!(theirs.freeze().to_vec::<u64>().expect("it is there"), [4, 3]);
}

/// SAFE-1: the same chunk id names other memory in another node.
#[test]
fn a_tensor_of_another_node_is_not_sent() {
    let (a, b) = two();
    let private = written(b.stream(0), 4, 1);
    let view = private.as_slice::<u64>().expect("it is there");
    let (to, inbox) = b.inbox::<Carried>(1, 4);
    let sent = written(a.stream(0), 4, 11);
    assert_eq!(sent.lease().id().chunk, private.lease().id().chunk, "the same name");
    let refused = b.address(0, &to).try_send(Carried(sent)).expect_err("it is not this node's");
    let SendFailure::Encode(EncodeError::OtherNode { shape, tensor, sender }) = &refused.reason else {
        panic!("{refused}");
    };
    assert_eq!((shape.as_slice(), tensor == sender), (&[4][..], false), "{refused}");
    assert!(refused.to_string().contains("stream.copy(&tensor)"), "{refused}");
    // The message came back, and the remedy that the error names works.
    let copy = b.stream(0).copy(&refused.message.0).expect("memory").freeze();
    b.send(0, &to, Carried(copy));
    b.run_until_idle();
    assert_eq!(inbox.take_one().message.0.to_vec::<u64>().expect("it is there"), [11; 4]);
    assert_eq!(view, [1; 4]);

    // Such a tensor cannot be sent in an ask, as a part, or in a reply either.
    let text = |unsent: Unsent| match unsent {
        Unsent::Failed(why) => why,
        other => panic!("{other:?}"),
    };
    let asked = b.try_ask::<_, ()>(0, &to, Carried(written(a.stream(0), 4, 11)));
    assert!(asked.is_err_and(|(_, why)| text(why).contains("goes out by")));
    let (of_parts, _inbox) = b.inbox::<Vec<TensorPart>>(1, 4);
    let parts = a.stream(0).zeros(DType::U64, &[4]).expect("memory").split(0, &[2, 2]).expect("two parts");
    let (parts, why) = b.try_send(0, &of_parts, parts).expect_err("they are not this node's");
    assert!(text(why).contains("goes out by"));
    assert!(TensorMut::join(parts, a.stream(0)).is_ok(), "nothing was given away");
    let (questions, at_questions) = b.inbox::<u32>(1, 4);
    let asked = b.ask::<_, Tensor>(0, &questions, 1);
    b.run_until_idle();
    at_questions.take_one().receipt.reply(written(a.stream(1), 4, 11));
    b.run_until_idle();
    match asked.take().expect("it is answered") {
        Err(AskFailure::Refused(Refusal::BadReply(why))) => assert!(why.contains("goes out by"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// The same actor id means another actor in another node.
#[test]
fn an_address_of_another_node_is_not_sent() {
    let (a, b) = two();
    let (at_a, _inbox) = a.inbox::<Carried>(1, 4);
    let (at_b, _inbox) = b.inbox::<Carried>(1, 4);
    assert_eq!(at_a.actor, at_b.actor, "the same number");
    let (of_a, of_b) = (a.address(0, &at_a), b.address(0, &at_b));
    assert!(of_a != of_b && of_a == of_a.clone());

    let (to, inbox): (Target<Friend>, _) = b.inbox(1, 4);
    let refused = b.address(0, &to).try_send(Friend(of_a)).expect_err("nobody there has a way to it");
    assert!(matches!(&refused.reason, SendFailure::Encode(EncodeError::Serialise(_))), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("the address in it is of node") && text.contains("it goes out by node"), "{text}");
    b.send(0, &to, Friend(of_b));
    b.run_until_idle();
    assert_eq!(inbox.take_one().message.0.actor(), at_b.actor);
}

struct Keeper;

impl Actor for Keeper {
    type Context = Context<Self>;
}

impl RemoteActor for Keeper {
    type Args = Address<Carried>;

    fn create(_: Address<Carried>, _: &Env) -> anyhow::Result<Self> {
        Ok(Keeper)
    }

    fn handles(_: &mut Handles<Self>) {}
}

#[test]
fn what_a_node_is_asked_of_an_actor_of_another_is_right_or_an_error() {
    let node = || Node::builder().console(false).start().expect("a node");
    let (a, b) = (node(), node());
    let (of_a, mut at_a) = a.channel::<Carried>().expect("a channel");
    let (of_b, _at_b) = b.channel::<Carried>().expect("a channel");
    assert_eq!(of_a.actor(), of_b.actor(), "the same number");
    assert!(of_a != of_b);
    // Within the process a message stays a value, and so does a tensor in it.
    of_a.try_send(Carried(written(&b.host_stream().expect("a stream"), 4, 7))).expect("there is room");
    let Carried(came) = at_a.blocking_recv().expect("it was sent");
    let stream = a.host_stream().expect("a stream");
    assert!(is_other_node(&stream.run((came.of::<u64>(),), |_| {}).expect_err("no order")));
    let copy = stream.copy(&came).expect("memory").freeze();
    assert_eq!([came, copy].map(|tensor| tensor.to_vec::<u64>().expect("it is there")), [[7; 4], [7; 4]]);

    let error = b.register("its", &of_a).expect_err("it is not b's");
    assert!(
        matches!(&error, RegisterError::OtherNode { name, address, node } if name == "its" && address != node)
    );
    a.register("its", &of_a).expect("nobody has the name");
    assert_eq!(a.lookup::<Carried>("its").expect("it has the name"), of_a);

    // Arguments, which go to a worker, refuse it too.
    let names_both = |error: String| {
        let named = error.contains("the address in it is of node") && error.contains("it goes out by node");
        assert!(named, "{error}");
    };
    let chain = |error: &dyn std::error::Error| {
        let causes = std::iter::successors(error.source(), |error| error.source());
        causes.fold(error.to_string(), |all, cause| format!("{all}: {cause}"))
    };
    names_both(chain(&b.spawn::<Keeper>(of_a.clone()).start().expect_err("it is not b's")));
    let python = |args: &[&Address<Carried>]| Python::actor("nowhere:Keeper").args(args);
    for args in [&[&of_a][..], &[&of_a, &of_b], &[&of_b, &of_a]] {
        names_both(chain(&b.spawn::<Python>(python(args)).start().expect_err("it is not b's")));
    }

    // The actor's own node watches it, whichever node is asked.
    let mut watch = b.watch(&of_a);
    drop(at_a);
    let Some(Lifecycle::Down { actor, .. }) = watch.blocking_recv() else { panic!("it is down") };
    assert_eq!(actor, of_a.actor());
    assert!(of_b.try_send(Carried(written(&b.host_stream().expect("a stream"), 1, 1))).is_ok());
}

/// A node ends, and the next one starts.
#[test]
fn a_tensor_outlives_its_node_and_is_not_the_next_ones() {
    let first = Cluster::new(2);
    let kept = written(first.stream(0), 4, 11);
    drop(first);
    let next = Cluster::new(2);
    next.connect();
    let private = written(next.stream(0), 4, 1);
    let (to, _inbox) = next.inbox::<Carried>(1, 4);
    let refused = next.address(0, &to).try_send(Carried(kept)).expect_err("it is not this node's");
    assert!(matches!(&refused.reason, SendFailure::Encode(EncodeError::OtherNode { .. })), "{refused}");
    let kept = refused.message.0;
    assert!(next.stream(0).run((kept.of::<u64>(),), |_| {}).is_err_and(|error| is_other_node(&error)));
    let copy = next.stream(0).copy(&kept).expect("memory").freeze();
    drop(kept);
    assert_eq!(copy.to_vec::<u64>().expect("it is there"), [11; 4]);
    assert_eq!(private.to_vec::<u64>().expect("it is there"), [1; 4]);
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// The number of the node, and of the process in it.
type Place = (usize, usize);

type Mailbox = (Target<Carried>, Arc<TestInbox<Carried>>);

/// A tensor that the test holds, with what is known of it.
struct Known {
    tensor: Tensor,
    of: Place,
    number: u64,
    /// It came by DLPack and cannot be sent.
    is_lent: bool,
}

struct Scene {
    nodes: [Cluster; 2],
    mailboxes: [[Mailbox; 2]; 2],
    known: Vec<Known>,
    looks: Vec<Receiver<bool>>,
    next: u64,
}

impl Scene {
    fn new() -> Self {
        let (a, b) = two();
        let nodes = [a, b];
        let mailboxes =
            std::array::from_fn(|node| std::array::from_fn(|process| nodes[node].inbox(process, 64)));
        Scene { nodes, mailboxes, known: Vec::new(), looks: Vec::new(), next: 0 }
    }

    fn stream(&self, (node, process): Place) -> DeviceStream {
        self.nodes[node].stream(process).clone()
    }

    fn put(&mut self, tensor: Tensor, of: Place, number: u64, is_lent: bool) {
        self.known.push(Known { tensor, of, number, is_lent });
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Submits a read of a tensor to a stream, which checks it when it gets there.
    fn look(&mut self, at: usize, on: Place) {
        let Known { tensor, of, number, .. } = &self.known[at];
        let (told, saw) = channel();
        let number = *number;
        let put = self.stream(on).run((tensor.of::<u64>(),), move |(all,)| {
            let _ = told.send(all.iter().all(|found| *found == number));
        });
        assert_eq!(put.is_ok(), on == *of, "{put:?}");
        match put {
            Ok(()) => self.looks.push(saw),
            Err(error) => assert!(is_other_node(&error), "{error}"),
        }
    }

    fn write(&mut self, at: usize, on: Place) {
        let Known { tensor, of, number, is_lent } = self.known.swap_remove(at);
        let next = self.fresh();
        match tensor.into_mut(&self.stream(on)) {
            Ok(mut tensor) => {
                assert_eq!(on, of, "a stream of another process or node");
                let put = self.stream(on).run((tensor.of_mut::<u64>(),), move |(all,)| all.fill(next));
                put.expect("its own stream");
                self.put(tensor.freeze(), of, next, is_lent);
            }
            Err(NotSole { tensor, why, .. }) => {
                let refused = matches!(&why, NotSoleReason::Tensor(error) if is_other_node(error));
                assert_eq!(refused, on != of, "{why}");
                self.put(tensor, of, number, is_lent);
            }
        }
    }

    fn send(&mut self, at: usize, from: Place, to: usize) {
        let Known { tensor, of, number, is_lent } = self.known.swap_remove(at);
        let (target, inbox) = self.mailboxes[from.0][to].clone();
        match self.nodes[from.0].try_send(from.1, &target, Carried(tensor)) {
            Ok(()) => {
                assert!(of == from && !is_lent, "it is another's");
                self.nodes[from.0].run_until_idle();
                let tensor = inbox.take_one().message.0;
                self.put(tensor, (from.0, to), number, false);
            }
            Err((Carried(tensor), why)) => {
                assert!(of != from || is_lent, "{why:?}");
                self.put(tensor, of, number, is_lent);
            }
        }
        self.nodes[from.0].run_until_idle();
    }

    #[cfg(feature = "dlpack")]
    fn lend(&mut self, at: usize, to: Place) {
        let Known { tensor, of, number, .. } = &self.known[at];
        let (of, number) = (*of, *number);
        let managed = self.stream(of).to_dlpack(tensor).expect("its own stream");
        // A stream of another process of the same node counts as another node's here: each process has its
        // own view of a node.
        let came = self.stream(to).from_dlpack(managed, DlPackReady::Now).expect("it is on the host");
        self.put(came, to, number, true);
    }

    #[cfg(not(feature = "dlpack"))]
    fn lend(&mut self, _: usize, _: Place) {}

    fn step(&mut self, random: &mut Random) {
        let place = (random.below(2), random.below(2));
        if self.known.is_empty() || (self.known.len() < 24 && random.below(4) == 0) {
            let number = self.fresh();
            let tensor = written(&self.stream(place), 1 + random.below(6000), number);
            return self.put(tensor, place, number, false);
        }
        let at = random.below(self.known.len());
        // The place is mostly the tensor's own.
        let place = if random.below(2) == 0 { self.known[at].of } else { place };
        match random.below(8) {
            0 | 1 => self.look(at, place),
            2 => {
                let copy = self.stream(place).copy(&self.known[at].tensor);
                let number = self.known[at].number;
                // A copy for another process of the same node goes by a message, and one for another node by
                // the host.
                self.put(copy.expect("memory").freeze(), place, number, false);
            }
            3 => self.write(at, place),
            4 => self.send(at, place, 1 - place.1),
            5 => self.lend(at, place),
            6 => {
                let Known { tensor, number, .. } = &self.known[at];
                assert!(tensor.as_slice::<u64>().expect("it is there").iter().all(|found| found == number));
            }
            _ => drop(self.known.swap_remove(at)),
        }
    }

    fn end(mut self) {
        for Known { tensor, number, .. } in self.known.drain(..) {
            assert!(tensor.to_vec::<u64>().expect("it is there").iter().all(|found| *found == number));
        }
        for look in self.looks.drain(..) {
            assert_eq!(look.recv_timeout(SOON), Ok(true), "a kernel saw what was not written for it");
        }
        let until = std::time::Instant::now() + SOON;
        for node in &self.nodes {
            node.run_until_idle();
            while (0..2).any(|process| node.leases(process) > 0) {
                // A tensor that came by DLPack is given back on a thread of its own.
                assert!(std::time::Instant::now() < until, "a lease is left");
                std::thread::yield_now();
                node.run_until_idle();
            }
            assert_eq!(node.complaints(), Vec::<String>::new());
        }
    }
}

/// Two nodes exchange all their tensors in an order drawn from a seed. Nobody sees data that was not written
/// for it.
#[test]
fn two_nodes_exchange_everything() {
    const SEED: &str = "TENSORPOST_NODES_SEED";
    let fresh = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    let seed = std::env::var(SEED).map_or_else(|_| fresh(), |seed| seed.parse().expect("a number"));
    println!("two nodes of seed {seed}: {SEED}={seed} has them again");
    let mut random = Random(seed);
    for _ in 0..4 {
        let mut scene = Scene::new();
        for _ in 0..400 {
            scene.step(&mut random);
        }
        scene.end();
    }
}
