//! Nodes on two hosts: two programs of this machine, with a gateway each, that are one node over loopback.
//!
//! The other host is this binary again, with the same arguments and a variable that says what it is.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tensorpost::actor::{ActorId, AskFailure, EndReason, LookupError, MAX_MAILBOX, Refusal, SendFailure};
use tensorpost::hosts::Hosts;
use tensorpost::message::EncodeError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder};
use tensorpost_tests::wait::{ask, deliver, numbers, until_free};

/// Has this binary be the other host.
const OTHER: &str = "TENSORPOST_TEST_HOST";

/// "Give it back", all of it, with what it looks like there.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Echoed)]
struct Echo {
    number: u64,
    words: Vec<String>,
    tensors: Vec<Tensor>,
    bytes: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Echoed {
    pid: u32,
    actor: ActorId,
    number: u64,
    words: Vec<String>,
    tensors: Vec<Tensor>,
    bytes: Vec<u8>,
}

/// "Send what you got to this one": an address in a message.
#[derive(Serialize, Deserialize, GpuMessage)]
struct PassOn {
    to: Address<Item>,
    items: u32,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Item {
    number: u32,
    tensor: Tensor,
}

/// "Take this, in order." The last says how it went.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Count {
    number: u32,
    tensor: Tensor,
}

/// "How many have come, and were they all as they should be?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, Vec<String>))]
struct HowMany;

/// "Take nothing until this one lets you."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Hold(Address<MayGo>);

/// "May I go on?" Answered when there was an [`Open`].
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct MayGo;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Open;

/// "Send so many at once there, open the gate, and say what went wrong."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
struct Flood {
    to: Lie,
    gate: Address<Open>,
    items: u32,
}

/// "Have it flood the mailbox, with an address that says that there is room for all of it."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
struct HaveFlooded {
    via: Address<Flood>,
    to: Address<Count>,
    gate: Address<Open>,
    items: u32,
}

/// An address that is written as if its mailbox took more.
struct Lie(Address<Count>);

impl Serialize for Lie {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = serde_json::to_value(&self.0).map_err(serde::ser::Error::custom)?;
        let place = |what| &written[1][what];
        (&written[0], (place("process"), place("index"), MAX_MAILBOX)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lie {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Address::deserialize(deserializer).map(Lie)
    }
}

/// "Fail."
#[derive(Serialize, Deserialize, GpuMessage)]
struct Fail;

/// Never answered.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Never;

/// A part of a tensor.
#[derive(Serialize, Deserialize, GpuMessage)]
struct HasPart {
    part: TensorPart,
}

struct Echoer(Env);

impl Actor for Echoer {
    type Context = Context<Self>;
}

impl RemoteActor for Echoer {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Echoer(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Echo>().message::<PassOn>().message::<Fail>().message::<Never>().message::<HasPart>();
        on.message::<Flood>().message::<HaveFlooded>();
    }
}

impl Handler<Echo> for Echoer {
    type Result = MessageResult<Echo>;

    fn handle(&mut self, echo: Echo, _: &mut Context<Self>) -> Self::Result {
        let Echo { number, words, tensors, bytes } = echo;
        let (pid, actor) = (std::process::id(), self.0.actor());
        MessageResult(Echoed { pid, actor, number, words, tensors, bytes })
    }
}

impl Handler<PassOn> for Echoer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, PassOn { to, items }: PassOn, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            for number in 0..items {
                let tensor = numbers(&stream, number, 100);
                to.send(Item { number, tensor }).await.expect("it is accepted");
            }
        })
    }
}

impl Handler<Flood> for Echoer {
    type Result = ResponseFuture<Vec<String>>;

    fn handle(&mut self, Flood { to: Lie(to), gate, items }: Flood, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            // The first attempt of each is made by the call.
            let sends: Vec<_> = (0..items)
                .map(|number| to.send(Count { number, tensor: numbers(&stream, number, 10) }))
                .collect();
            gate.send(Open).await.expect("the gate is there");
            let sent = futures_util::future::join_all(sends).await;
            sent.into_iter().filter_map(|sent| sent.err().map(|error| error.to_string())).collect()
        })
    }
}

impl Handler<HaveFlooded> for Echoer {
    type Result = ResponseFuture<Vec<String>>;

    fn handle(&mut self, have: HaveFlooded, _: &mut Context<Self>) -> Self::Result {
        let HaveFlooded { via, to, gate, items } = have;
        Box::pin(async move { via.ask(Flood { to: Lie(to), gate, items }).await.expect("an answer") })
    }
}

impl Handler<Fail> for Echoer {
    type Result = ();

    fn handle(&mut self, _: Fail, _: &mut Context<Self>) {
        panic!("as it was told");
    }
}

impl Handler<Never> for Echoer {
    type Result = ResponseFuture<u32>;

    fn handle(&mut self, _: Never, _: &mut Context<Self>) -> Self::Result {
        Box::pin(std::future::pending())
    }
}

impl Handler<HasPart> for Echoer {
    type Result = ();

    fn handle(&mut self, _: HasPart, _: &mut Context<Self>) {}
}

/// Takes what comes, in its own time.
#[derive(Default)]
struct Counter {
    count: u32,
    wrong: Vec<String>,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl RemoteActor for Counter {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Counter::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Count>().message::<HowMany>().message::<Hold>();
    }
}

impl Handler<Count> for Counter {
    type Result = ();

    fn handle(&mut self, Count { number, tensor }: Count, _: &mut Context<Self>) {
        let should: Vec<u32> = (number..).take(tensor.len()).collect();
        let found = tensor.to_vec::<u32>().unwrap_or_default();
        if number != self.count || found != should {
            self.wrong.push(format!("message {number} where {} comes next", self.count));
        }
        self.count += 1;
    }
}

impl Handler<HowMany> for Counter {
    type Result = MessageResult<HowMany>;

    fn handle(&mut self, _: HowMany, _: &mut Context<Self>) -> Self::Result {
        MessageResult((self.count, std::mem::take(&mut self.wrong)))
    }
}

impl Handler<Hold> for Counter {
    type Result = ();

    fn handle(&mut self, Hold(gate): Hold, ctx: &mut Context<Self>) {
        // Through the other host, while this mailbox stands still.
        ctx.wait(actix::fut::wrap_future(async move { gate.ask(MayGo).await.expect("it opens") }));
    }
}

/// Keeps whoever asks waiting.
#[derive(Default)]
struct Gatekeeper {
    waiting: Vec<tokio::sync::oneshot::Sender<()>>,
    open: bool,
}

impl Actor for Gatekeeper {
    type Context = Context<Self>;
}

impl RemoteActor for Gatekeeper {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Gatekeeper::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<MayGo>().message::<Open>();
    }
}

impl Handler<MayGo> for Gatekeeper {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: MayGo, _: &mut Context<Self>) -> Self::Result {
        let (go, gone) = tokio::sync::oneshot::channel();
        if !self.open {
            self.waiting.push(go);
        }
        // It ends with the sender.
        Box::pin(async { drop(gone.await) })
    }
}

impl Handler<Open> for Gatekeeper {
    type Result = ();

    fn handle(&mut self, _: Open, _: &mut Context<Self>) {
        self.open = true;
        self.waiting.clear();
    }
}

fn program(builder: Builder) -> Builder {
    builder.actor::<Echoer>().actor::<Counter>().actor::<Gatekeeper>()
}

/// The other host: an agent, with actors that others find by their names, until its standard input ends.
fn be_the_other() -> ! {
    let hosts = Hosts::from_environment().expect("variables that make sense").expect("a head");
    let node = program(Node::builder()).hosts(hosts.name("other")).start().expect("it joins");
    assert!(!node.is_head());
    let echo = node.spawn::<Echoer>(()).name("echo").start().expect("an actor");
    let counter = node.spawn::<Counter>(()).name("counter").mailbox(4).start().expect("an actor");
    let again =
        node.spawn::<Echoer>(()).name("again").restart(Restart::on_failure(3)).start().expect("an actor");
    println!("ready");
    std::io::stdout().flush().expect("somebody reads it");
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    });
    let end = async { drop(end.await) };
    let report = node.run_until_ctrl_c_or(end, Duration::from_secs(20)).expect("it shuts down");
    drop((echo, counter, again));
    std::process::exit(i32::from(!report.is_clean()));
}

/// The other host, as this test sees it. Dropped, it is killed.
struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Other {
    fn start(head: &Node) -> Self {
        let address = head.hosts().expect("hosts")[0].address.clone();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(std::env::args_os().skip(1))
            .env(OTHER, "1")
            .env("TENSORPOST_HEAD", address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = child.stdin.take();
        let mut line = [0; 6];
        child.stdout.take().expect("its output").read_exact(&mut line).expect("it is ready");
        assert_eq!(&line, b"ready\n");
        Other { child, stdin }
    }

    /// Tells it to end, and waits until it has.
    fn end(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    fn kill(&mut self) {
        self.child.kill().expect("it was there");
        self.child.wait().expect("it has ended");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn head(builder: Builder) -> Node {
    builder.hosts(Hosts::head("127.0.0.1:0").name("first")).start().expect("a head")
}

fn find<M: GpuMessage>(node: &Node, name: &str) -> Address<M> {
    node.block_on(node.registry().lookup(name)).expect("it is found on the other host")
}

/// The bytes of a tensor's elements.
fn bytes(stream: &DeviceStream, tensor: &Tensor) -> Vec<u8> {
    stream.download_bytes(tensor).expect("its bytes")
}

fn asks_and_tensors_go_there_and_back_to_the_bit(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let hosts = node.hosts().expect("hosts");
    let names: Vec<_> = hosts.iter().map(|host| (host.number, host.name.as_str())).collect();
    assert_eq!(names, [(0, "first"), (1, "other")]);
    let echo = find::<Echo>(&node, "echo");
    let stream = node.host_stream().expect("a stream");
    // Packed and not, with and without elements, below and above a piece, of all kinds of bytes.
    let large: Vec<u64> = (0..700_001_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let large = stream.from_slice(&[large.len()], &large).expect("room").freeze();
    let matrix = numbers(&stream, 5, 600).view(&[20, 30]).expect("a matrix");
    let tensors = vec![
        numbers(&stream, 7, 3),
        large.clone(),
        matrix.permute(&[1, 0]).expect("transposed"),
        matrix.slice(1, 3..9).expect("some columns"),
        large.slice(0, 100..65_636).expect("a part"),
        stream.zeros(DType::F64, &[0, 3]).expect("nothing").freeze(),
        stream.from_slice(&[], &[-1.5_f64]).expect("a number").freeze(),
        stream.from_slice(&[3], &[true, false, true]).expect("three").freeze(),
        numbers(&stream, 9, 1).broadcast_to(&[4, 1]).expect("four times"),
    ];
    for length in [0, 10, 3_000_000] {
        let sent: Vec<_> =
            tensors.iter().map(|t| (t.dtype(), t.shape().to_vec(), bytes(&stream, t))).collect();
        let body: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let words = vec!["one".to_owned(), String::new(), "drei".repeat(40)];
        let echo_of =
            Echo { number: 77, words: words.clone(), tensors: tensors.clone(), bytes: body.clone() };
        let echoed = ask(&node, &echo, echo_of);
        assert_ne!(echoed.pid, std::process::id());
        assert_eq!((echoed.number, echoed.words, echoed.actor), (77, words, echo.actor()));
        assert!(echoed.bytes == body);
        let came: Vec<_> =
            echoed.tensors.iter().map(|t| (t.dtype(), t.shape().to_vec(), bytes(&stream, t))).collect();
        assert!(came == sent, "with {length} bytes");
    }
    drop((tensors, matrix, large));
    until_free(&node);
    // A name that nobody has, on either.
    let nobody = node.block_on(node.registry().lookup::<Echo>("nobody"));
    assert!(matches!(nobody, Err(LookupError::Unknown(_))), "{nobody:?}");
    other.end();
}

fn an_address_in_a_message_leads_back(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let echo = find::<PassOn>(&node, "echo");
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    deliver(&node, &echo, PassOn { to, items: 300 });
    for number in 0..300 {
        let item = items.blocking_recv().expect("it comes");
        let should: Vec<u32> = (number..).take(100).collect();
        assert_eq!((item.number, item.tensor.to_vec::<u32>().expect("numbers")), (number, should));
    }
    other.end();
}

fn a_slow_consumer_holds_its_senders_up_and_nothing_is_lost(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let counter = find::<Count>(&node, "counter");
    let hold = find::<Hold>(&node, "counter");
    let how_many = find::<HowMany>(&node, "counter");
    let stream = node.host_stream().expect("a stream");
    let gatekeeper = node.spawn::<Gatekeeper>(()).start().expect("an actor");
    deliver(&node, &hold, Hold(gatekeeper.address()));
    let mut full = 0;
    for number in 0..400 {
        let mut message = Count { number, tensor: numbers(&stream, number, 5000) };
        match counter.try_send(message) {
            Ok(()) => continue,
            Err(error) => {
                assert!(matches!(error.reason, SendFailure::Full), "{error}");
                if full == 0 {
                    // Of the mailbox's four places each host has as many.
                    assert!(number <= 8, "{number} were taken");
                    deliver(&node, &gatekeeper.address(), Open);
                }
                full += 1;
                message = error.message;
            }
        }
        deliver(&node, &counter, message);
    }
    assert!(full > 0, "the mailbox was never full");
    let (count, wrong) = ask(&node, &how_many, HowMany);
    assert_eq!((count, wrong), (400, Vec::new()));
    until_free(&node);
    other.end();
}

/// WIRE-1: of two workers of one host, that is. See `an_address_that_lies_about_a_mailbox_costs_nobody_a_link`.
fn an_address_that_another_host_forges_breaks_no_link(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let liar = find::<HaveFlooded>(&node, "echo");
    let counter = node.spawn::<Counter>(()).mailbox(4).start().expect("an actor");
    let gatekeeper = node.spawn::<Gatekeeper>(()).start().expect("an actor");
    let flooder = node.spawn::<Echoer>(()).start().expect("an actor");
    deliver(&node, &counter.address(), Hold(gatekeeper.address()));
    let (via, to, gate) = (flooder.address(), counter.address(), gatekeeper.address());
    let wrong = ask(&node, &liar, HaveFlooded { via, to, gate, items: 64 });
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(ask(&node, &counter.address(), HowMany), (64, Vec::new()));
    other.end();
}

fn watches_see_ends_and_restarts_on_the_other_host(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let (again, fail) = (find::<Echo>(&node, "again"), find::<Fail>(&node, "again"));
    let mut watch = node.watch(&again);
    let empty = || Echo { number: 1, words: Vec::new(), tensors: Vec::new(), bytes: Vec::new() };
    let before = ask(&node, &again, empty()).actor;
    deliver(&node, &fail, Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    let up = watch.blocking_recv().expect("an event");
    assert!(matches!(&up, Lifecycle::Up { incarnation: 1, .. }), "{up}");
    assert_eq!(ask(&node, &again, empty()).actor, before, "the address leads to its next life");

    // One that does not come back.
    let (echo, fail) = (find::<Echo>(&node, "echo"), find::<Fail>(&node, "echo"));
    let mut watch = node.watch(&echo);
    ask(&node, &echo, empty());
    deliver(&node, &fail, Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(down.is_final() && down.to_string().contains("as it was told"), "{down}");
    let refused = node.block_on(echo.send(empty())).expect_err("it is gone");
    assert!(!refused.is_retryable(), "{refused}");
    other.end();
}

fn parts_stay_on_their_host(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let to = find::<HasPart>(&node, "echo");
    let echo = find::<Echo>(&node, "echo");
    let stream = node.host_stream().expect("a stream");
    // The way is made first: what is refused is not the address.
    ask(&node, &echo, Echo { number: 1, words: Vec::new(), tensors: Vec::new(), bytes: Vec::new() });
    let parts = stream.zeros(DType::U8, &[8]).expect("room").split(0, &[3, 5]).expect("two halves");
    for part in parts {
        let refused = node.block_on(to.send(HasPart { part })).expect_err("it stays");
        let why = refused.to_string();
        assert!(matches!(refused.reason, SendFailure::Encode(EncodeError::LeavesHost(_))), "{why}");
        assert!(why.contains("another host") && why.contains("join them"), "{why}");
    }
    until_free(&node);
    other.end();
}

fn the_end_of_the_head_ends_the_others(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    ask(&node, &echo, Echo { number: 1, words: Vec::new(), tensors: Vec::new(), bytes: Vec::new() });
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    let status = other.child.wait().expect("it ends by itself");
    assert!(status.success(), "{status}");
}

fn a_lost_host_answers_its_asks_with_its_name(builder: Builder) {
    let node = head(builder);
    let mut other = Other::start(&node);
    let (echo, never) = (find::<Echo>(&node, "echo"), find::<Never>(&node, "echo"));
    let mut watch = node.watch(&echo);
    let empty = || Echo { number: 1, words: Vec::new(), tensors: Vec::new(), bytes: Vec::new() };
    ask(&node, &echo, empty());
    let mut open = never.ask(Never);
    node.block_on(open.accepted()).expect("it is accepted");
    other.kill();
    let since = Instant::now();
    let error = node.block_on(open).expect_err("it is never answered");
    // 15 s of silence, and one second.
    assert!(since.elapsed() < Duration::from_secs(17), "{:?}", since.elapsed());
    let text = error.to_string();
    assert!(matches!(error, AskError::NoReply(AskFailure::Refused(Refusal::OutOfReach(_)))), "{error:?}");
    assert!(text.contains("host 1 `other`") && text.contains("nobody knows"), "{text}");
    let event = watch.blocking_recv().expect("an event");
    assert!(event.is_final() && event.to_string().contains("`other`"), "{event}");
    let refused = node.block_on(echo.send(empty())).expect_err("it is lost");
    assert!(matches!(&refused.reason, SendFailure::GaveUp(EndReason::OutOfReach(_))), "{refused:?}");
    assert!(refused.to_string().contains("`other`"), "{refused}");
    assert_eq!(node.hosts().expect("hosts").len(), 1);

    // Another host joins, with another number, and all goes on.
    let next = Other::start(&node);
    let echo = find::<Echo>(&node, "echo");
    assert_eq!(ask(&node, &echo, empty()).number, 1);
    assert_eq!(node.hosts().expect("hosts")[1].number, 2);
    next.end();
}

fn main() {
    let _ = program(Node::builder()).run_if_worker();
    if std::env::var_os(OTHER).is_some() {
        be_the_other();
    }
    harness::run(
        program,
        cases![
            asks_and_tensors_go_there_and_back_to_the_bit,
            an_address_in_a_message_leads_back,
            a_slow_consumer_holds_its_senders_up_and_nothing_is_lost,
            an_address_that_another_host_forges_breaks_no_link,
            watches_see_ends_and_restarts_on_the_other_host,
            parts_stay_on_their_host,
            the_end_of_the_head_ends_the_others,
            a_lost_host_answers_its_asks_with_its_name,
        ],
    )
}
