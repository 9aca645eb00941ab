//! Failures and their errors: they go to the caller that can act on them, with the message given back.

use std::collections::HashMap;
use std::time::Duration;

use tensorpost::actor::{AskFailure, MAX_MAILBOX, Refusal};
use tensorpost::message::{MAX_BODY, MAX_NESTING};
use tensorpost::node::{ActorError, OnHang, Restart, Spawned, StartError};
use tensorpost::prelude::*;
use tensorpost::tensor::PoolError;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Hold, Holder, How, LetGo, Make, Seen};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Text(String);

#[derive(Debug, Default, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = usize)]
struct Deep {
    tensor: Option<Tensor>,
    inner: Option<Box<Deep>>,
}

/// A message that the actor handles and does not list.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Unlisted(Option<Tensor>);

/// "Reply with a message that cannot be sent."
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Answer)]
struct BadReply(Bad);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Bad {
    Large,
    Deep,
    Panic,
    PanicLater,
    Never,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    text: String,
    deep: Deep,
}

#[derive(Debug, Serialize, Deserialize)]
enum Start {
    Well,
    Error,
    Panic,
    Exit,
    WithTensor(Tensor),
    Large(String),
    Deep(Box<Deep>),
}

struct Fragile;

impl Actor for Fragile {
    type Context = Context<Self>;
}

impl RemoteActor for Fragile {
    type Args = Start;

    fn create(start: Start, _: &Env) -> anyhow::Result<Self> {
        match start {
            Start::Error => {
                Err(anyhow::anyhow!("the disk is on fire")
                    .context("the weights of `resnet` could not be read"))
            }
            Start::Panic => panic!("this was to be expected"),
            Start::Exit => std::process::exit(9),
            _ => Ok(Fragile),
        }
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Text>().message::<Deep>().message::<BadReply>();
    }
}

impl Handler<Text> for Fragile {
    type Result = MessageResult<Text>;

    fn handle(&mut self, Text(text): Text, _: &mut Context<Self>) -> Self::Result {
        MessageResult(text.len())
    }
}

impl Handler<Deep> for Fragile {
    type Result = MessageResult<Deep>;

    fn handle(&mut self, deep: Deep, _: &mut Context<Self>) -> Self::Result {
        MessageResult(
            std::iter::successors(deep.inner, |deep| {
                // The parts are moved out, so that dropping does not recurse either.
                let mut deep = Deep { tensor: None, inner: deep.inner.as_ref().map(|_| Box::default()) };
                deep.inner.take()
            })
            .count(),
        )
    }
}

impl Handler<Unlisted> for Fragile {
    type Result = ();

    fn handle(&mut self, _: Unlisted, _: &mut Context<Self>) {}
}

impl Handler<BadReply> for Fragile {
    type Result = ResponseFuture<Answer>;

    fn handle(&mut self, BadReply(bad): BadReply, _: &mut Context<Self>) -> Self::Result {
        match bad {
            Bad::Large => Box::pin(async { Answer { text: "x".repeat(MAX_BODY + 1), ..Answer::default() } }),
            Bad::Deep => {
                Box::pin(async { Answer { deep: nested(MAX_NESTING + 1, None), ..Answer::default() } })
            }
            Bad::Panic => panic!("the handler was told to panic"),
            Bad::PanicLater => Box::pin(async { panic!("the future was told to panic") }),
            Bad::Never => Box::pin(std::future::pending()),
        }
    }
}

/// Returns a tree of one branch, of this many levels, with a tensor at its end.
fn nested(levels: usize, tensor: Option<Tensor>) -> Deep {
    let leaf = Deep { tensor, inner: None };
    (1..levels).fold(leaf, |inner, _| Deep { tensor: None, inner: Some(Box::new(inner)) })
}

fn fragile(node: &Node) -> Spawned<Fragile> {
    node.spawn::<Fragile>(Start::Well).start().unwrap()
}

// MBX-2.
fn a_message_that_is_too_large_comes_back_and_the_largest_arrives(builder: Builder) {
    let node = builder.start().unwrap();
    let fragile = fragile(&node);
    // The body is one string in an envelope of a few bytes.
    let largest = MAX_BODY - 5;
    assert_eq!(ask(&node, &fragile.address(), Text("x".repeat(largest))), largest);
    let sent = node.stats().sent;
    let error = node.block_on(fragile.address().send(Text("y".repeat(MAX_BODY + 1)))).unwrap_err();
    assert!(matches!(error.reason, SendFailure::Encode(_)) && !error.is_retryable());
    assert!(error.to_string().contains("and may have 67108864; put the data into a tensor"), "{error}");
    assert_eq!(error.message.0.len(), MAX_BODY + 1);
    assert_eq!(node.stats().sent, sent);
    until_free(&node);
}

fn a_message_that_is_nested_too_deep_comes_back_with_its_tensor(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let fragile = fragile(&node);
    deliver(&node, &fragile.address(), nested(MAX_NESTING - 1, Some(numbers(&stream, 1, 2)))); // a tensor is a level too
    let error = node
        .block_on(fragile.address().send(nested(MAX_NESTING + 1, Some(numbers(&stream, 1, 2)))))
        .unwrap_err();
    assert!(error.to_string().contains("nested deeper than 64 containers"), "{error}");
    assert!(!error.is_retryable());
    let mut leaf = &error.message;
    while let Some(inner) = &leaf.inner {
        leaf = inner;
    }
    assert_eq!(leaf.tensor.as_ref().unwrap().to_vec::<u32>().unwrap(), [1, 2]);
    drop(error);
    until_free(&node);
}

fn a_tensor_outside_of_a_message_cannot_be_serialised(builder: Builder) {
    let node = builder.start().unwrap();
    let tensor = numbers(&node.host_stream().unwrap(), 1, 2);
    let error = rmp_serde::to_vec(&tensor).unwrap_err();
    assert!(error.to_string().contains("a Tensor can only be serialised as part of a message"), "{error}");
    let error = rmp_serde::to_vec(&vec![Hold::with(1, tensor)]).unwrap_err();
    assert!(error.to_string().contains("send it to an actor, or take its elements with `to_vec`"), "{error}");
    let index = rmp_serde::to_vec(&HashMap::from([("$tensor", 0)])).unwrap();
    let error = rmp_serde::from_slice::<Tensor>(&index).unwrap_err();
    assert!(error.to_string().contains("a Tensor can only be serialised as part of a message"), "{error}");
    until_free(&node);
}

fn a_message_that_the_actor_does_not_list_comes_back(builder: Builder) {
    let node = builder.start().unwrap();
    let fragile = fragile(&node);
    let message = Unlisted(Some(numbers(&node.host_stream().unwrap(), 1, 2)));
    let error = node.block_on(fragile.address().send(message)).unwrap_err();
    assert!(matches!(error.reason, SendFailure::Unregistered("Unlisted")) && !error.is_retryable());
    assert!(error.to_string().contains("on.message::<Unlisted>()"), "{error}");
    assert!(fragile.address().try_send(error.message).is_err());
    // Where this process does not know which messages the actor takes, the worker refuses, and an ask is
    // told.
    let wrong = fragile.address::<Text>().cast::<Unlisted>();
    let asked = node.block_on(wrong.ask(Unlisted(Some(numbers(&node.host_stream().unwrap(), 1, 2)))));
    let Err(AskError::NoReply(AskFailure::Refused(Refusal::Undelivered(why)))) = asked else {
        panic!("it was taken")
    };
    assert!(why.contains("the actor does not handle messages with key"), "{why}");
    until_free(&node);
    assert_eq!(ask(&node, &fragile.address(), Text("still here".into())), 10);
}

/// An actor whose type has the same path as others.
macro_rules! stranger {
    () => {
        struct Stranger;

        impl Actor for Stranger {
            type Context = Context<Self>;
        }

        impl RemoteActor for Stranger {
            type Args = ();

            fn create((): (), _: &Env) -> anyhow::Result<Self> {
                Ok(Stranger)
            }

            fn handles(_: &mut Handles<Self>) {}
        }
    };
}

stranger!();

fn actor_types_and_settings_that_cannot_be_are_refused(builder: Builder) {
    let node = builder.start().unwrap();
    // Two blocks of a function may have types with one path; each type is its own.
    macro_rules! spawn_stranger {
        () => {{
            stranger!();
            node.spawn::<Stranger>(()).start().unwrap();
        }};
    }
    node.spawn::<Stranger>(()).start().unwrap();
    spawn_stranger!();
    spawn_stranger!();
    for mailbox in [0, MAX_MAILBOX + 1] {
        let error = node.spawn::<Fragile>(Start::Well).mailbox(mailbox).start().unwrap_err();
        assert!(error.to_string().contains("a mailbox holds 1 to 65536 messages"), "{error}");
    }
    let error =
        node.spawn::<Fragile>(Start::Deep(Box::new(nested(MAX_NESTING + 1, None)))).start().unwrap_err();
    assert!(error.to_string().contains("nested deeper than"), "{error}");
    let error = node.spawn::<Fragile>(Start::Large("x".repeat(9 << 20))).start().unwrap_err();
    assert!(error.to_string().contains("send large data as a tensor in a message"), "{error}");
    let error = node.spawn::<Fragile>(Start::Well).name("x".repeat(300)).start().unwrap_err();
    assert!(error.to_string().contains("255"), "{error}");
    assert!(node.spawn::<Fragile>(Start::Well).mailbox(MAX_MAILBOX).start().is_ok());
}

fn a_tensor_in_arguments_is_refused_before_anything_is_started(builder: Builder) {
    let node = builder.start().unwrap();
    let tensor = numbers(&node.host_stream().unwrap(), 1, 2);
    let error = node.spawn::<Fragile>(Start::WithTensor(tensor)).start().unwrap_err();
    assert!(error.to_string().contains("send it in a message"), "{error}");
    assert!(node.workers().is_empty());
    until_free(&node);
}

fn what_create_says_reaches_whoever_started_it_and_the_worker_goes_on(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("host").unwrap();
    let neighbour = node.spawn::<Fragile>(Start::Well).worker(worker).start().unwrap();
    for own_thread in [false, true] {
        let start = |start| {
            let spawn = node.spawn::<Fragile>(start).worker(worker);
            if own_thread { spawn.own_thread() } else { spawn }.start().unwrap_err().to_string()
        };
        let error = start(Start::Error);
        assert!(error.contains("could not be created in worker `host`"), "{error}");
        assert!(error.contains("the weights of `resnet` could not be read: the disk is on fire"), "{error}");
        let error = start(Start::Panic);
        assert!(error.contains("`create` panicked: this was to be expected"), "{error}");
        assert_eq!(ask(&node, &neighbour.address(), Text("abc".into())), 3);
    }
    let error = node.spawn::<Fragile>(Start::Exit).worker(worker).start().unwrap_err();
    assert!(matches!(error, ActorError::Start(StartError::WorkerExited { .. })));
    assert!(error.to_string().contains("worker `host` ended (exit status: 9)"), "{error}");
    let error = node.spawn::<Fragile>(Start::Well).worker(worker).start().unwrap_err();
    assert!(
        error.to_string().contains("host") || error.to_string().contains("no worker of this node"),
        "{error}"
    );
}

// DEATH-2, in small: a panic costs the actor, and nobody else.
fn a_panic_ends_its_actor_and_nothing_else(builder: Builder) {
    for how in [How::Panic, How::PanicLater] {
        let node = fresh(&builder).start().unwrap();
        let worker = node.worker("shared").unwrap();
        let (victim, neighbour) = (
            node.spawn::<Holder>(()).worker(worker).start().unwrap(),
            node.spawn::<Holder>(()).worker(worker).start().unwrap(),
        );
        let stream = node.host_stream().unwrap();
        ask(&node, &victim.address(), Hold::with(0, numbers(&stream, 0, 10)));
        let gate = Gate::new();
        deliver(&node, &victim.address(), End { how, door: Some(gate.door()) });
        let arrival = gate.arrival();
        let waiting = victim.address::<Hold>().ask(Hold::with(1, numbers(&stream, 0, 10)));
        arrival.open();
        let failed = node.block_on(waiting);
        assert!(matches!(failed, Err(AskError::NoReply(_))), "{failed:?}");
        assert!(!failed.unwrap_err().is_retryable());
        // Later senders are told at once, with the message.
        let mut message = Some(Hold::with(2, numbers(&stream, 7, 10)));
        until("its end is known", || match node.block_on(victim.address().send(message.take().unwrap())) {
            Ok(()) => {
                message = Some(Hold::with(2, numbers(&stream, 7, 10)));
                false
            }
            Err(error) => {
                assert!(matches!(error.reason, SendFailure::NoSuchActor), "{error}");
                message = Some(error.message);
                true
            }
        });
        assert_eq!(message.take().unwrap().tensors[0].to_vec::<u32>().unwrap()[0], 7);
        assert_eq!(ask(&node, &neighbour.address(), Hold::label(3)), 0);
        assert!(node.spawn::<Holder>(()).worker(worker).start().is_ok());
        until_free(&node);
    }
}

fn an_ask_whose_handler_panics_gets_no_reply(builder: Builder) {
    let node = builder.start().unwrap();
    for bad in [Bad::Panic, Bad::PanicLater] {
        let fragile = fragile(&node);
        let error = node.block_on(fragile.address().ask(BadReply(bad))).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let AskError::NoReply(AskFailure::Refused(refusal)) = error else { panic!("{error:?}") };
        assert!(matches!(refusal, Refusal::Panicked(_)), "{refusal:?}");
    }
}

fn a_reply_that_cannot_be_sent_is_an_error_for_whoever_asked(builder: Builder) {
    let node = builder.start().unwrap();
    let fragile = fragile(&node);
    for (bad, why) in [(Bad::Large, "put the data into a tensor"), (Bad::Deep, "nested deeper")] {
        let error = node.block_on(fragile.address().ask(BadReply(bad))).unwrap_err();
        assert!(matches!(error, AskError::NoReply(AskFailure::Refused(Refusal::BadReply(_)))), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // The way there is made, so the ask is sent at once.
    let asked = fragile.address().ask(BadReply(Bad::Never)).timeout(Duration::from_millis(20));
    assert!(matches!(node.block_on(asked), Err(AskError::TimedOut)));
    assert_eq!(ask(&node, &fragile.address(), Text("still here".into())), 10);
    // The node's end would wait for the reply that never comes.
    node.supervisor().kill_worker(fragile.worker());
}

mod one {
    use tensorpost::prelude::*;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(portable)]
    pub(super) struct Ping {
        n: u32,
    }
}

mod other {
    use tensorpost::prelude::*;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(portable)]
    pub(super) struct Ping {
        n: u32,
    }
}

struct Both;

impl Actor for Both {
    type Context = Context<Self>;
}

impl RemoteActor for Both {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Both)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<one::Ping>().message::<one::Ping>().message::<other::Ping>();
    }
}

impl Handler<one::Ping> for Both {
    type Result = ();

    fn handle(&mut self, _: one::Ping, _: &mut Context<Self>) {}
}

impl Handler<other::Ping> for Both {
    type Result = ();

    fn handle(&mut self, _: other::Ping, _: &mut Context<Self>) {}
}

/// Otherwise one handler would get the other's message. Durations without end are accepted, and nothing ends
/// early.
fn two_messages_that_are_one_on_the_wire_are_refused(builder: Builder) {
    let endless = Duration::MAX;
    let node = builder.start_deadline(endless).hang_limit(endless, OnHang::Report).start().unwrap();
    let error = node.spawn::<Both>(()).restart(Restart::on_failure(1).backoff(endless, endless)).start();
    let text = error.unwrap_err().to_string();
    assert!(text.contains("one::Ping` and `") && text.contains("other::Ping` are one on the wire"), "{text}");
    assert!(text.contains("give one of them another name"), "{text}");
    let asked = fragile(&node).address().ask(Text("ping".to_owned())).timeout(endless);
    assert_eq!(node.block_on(asked).unwrap(), 4);
    assert!(node.shutdown(endless).unwrap().is_clean());
}

fn an_ask_to_an_actor_that_stops_gets_no_reply(builder: Builder) {
    let node = builder.start().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let gate = Gate::new();
    deliver(&node, &holder.address(), End { how: How::Stop, door: Some(gate.door()) });
    let arrival = gate.arrival();
    let asked = [holder.address::<Seen>().ask(Seen), holder.address::<Seen>().ask(Seen)];
    arrival.open();
    for error in asked.map(|asked| node.block_on(asked).unwrap_err()) {
        assert!(matches!(error, AskError::NoReply(AskFailure::Refused(_))), "{error:?}");
    }
}

// MBX-2: a full pool says who holds its bytes.
fn a_pool_that_is_full_names_its_holders_and_one_too_large_a_request_its_budget(builder: Builder) {
    const MIB: usize = 1 << 20;
    let node = builder.host_budget(64 << 20).start().unwrap();
    let stream = node.host_stream().unwrap();
    let error = stream.empty(DType::U8, &[65 * MIB]).unwrap_err();
    assert!(matches!(error, TensorError::Pool(PoolError::TooLarge { .. })), "{error}");
    assert!(error.to_string().contains("budget is 67108864 bytes; raise the budget"), "{error}");
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let held = stream.zeros(DType::U8, &[30 * MIB]).unwrap().freeze();
    ask(&node, &holder.address(), Hold::with(1, held));
    let mine = stream.zeros(DType::U8, &[20 * MIB]).unwrap();
    let error = stream.empty(DType::U8, &[30 * MIB]).unwrap_err();
    assert!(matches!(error, TensorError::Pool(PoolError::Full { .. })), "{error}");
    let text = error.to_string();
    for part in [
        "is full: 31457280 bytes asked for",
        "52428800 of 67108864 bytes in use",
        "p1.0: 31457280 bytes in 1 tensors",
        "p0.0 (this process): 20971520 bytes in 1 tensors",
    ] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    // The request waits where it is asked to, and gets the memory that the holder lets go.
    let waiting = stream.empty_when_free(DType::U8, &[30 * MIB]);
    let (free, _) = node.block_on(futures_util::future::join(waiting, holder.address().ask(LetGo)));
    drop((free.unwrap(), mine));
    until_free(&node);
}

fn wrong_types_shapes_and_ranges_are_errors_with_a_way_out(builder: Builder) {
    let node = builder.start().unwrap();
    let stream = node.host_stream().unwrap();
    let holder = node.spawn::<Holder>(()).start().unwrap();
    let made = ask(&node, &holder.address(), Make { elements: (0..12).collect(), door: None });
    let tensor = made.view(&[3, 4]).unwrap();
    #[track_caller]
    fn says<T>(result: Result<T, TensorError>, part: &str) {
        let text = result.map(|_| ()).expect_err("it cannot be").to_string();
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    says(tensor.to_vec::<f32>(), "the tensor holds u32, not f32; ask for u32");
    says(tensor.as_slice::<i32>().map(<[_]>::to_vec), "the tensor holds u32, not i32");
    says(stream.download::<u8>(&tensor), "the tensor holds u32, not u8");
    says(tensor.view_array::<f64>().map(|_| ()), "the tensor holds u32, not f64");
    says(tensor.permute(&[1, 0]).unwrap().as_slice::<u32>().map(<[_]>::to_vec), "stream.contiguous(&tensor)");
    says(tensor.slice(0, 1..4), "4");
    says(tensor.slice(2, ..), "2");
    says(tensor.index(1, 4), "4");
    #[expect(clippy::reversed_empty_ranges, reason = "that is the mistake")]
    let reversed = tensor.slice(0, 2..1);
    says(reversed, "2");
    says(tensor.view(&[5, 3]), "12");
    says(tensor.permute(&[0, 0]), "0");
    says(tensor.broadcast_to(&[5, 4]), "3");
    says(tensor.item::<u32>(), "12");
    says(stream.from_slice(&[2, 2], &[1_u8; 3]), "shape [2, 2] has 4 elements, but 3 were given");
    says(stream.empty(DType::F64, &[usize::MAX, 2]), "");
    // A tensor of bool whose bytes are not bools.
    let bytes = stream.from_slice(&[2], &[true, false]).unwrap().freeze();
    assert_eq!(bytes.to_vec::<bool>().unwrap(), [true, false]);
    drop((bytes, made, tensor));
    until("nothing is left", || ask(&node, &holder.address(), Check).allocations == 0);
}

/// An error's source is kept, in text and in type.
fn errors_have_sources_and_names(builder: Builder) {
    let node = builder.start().unwrap();
    let fragile = fragile(&node);
    let error = node.block_on(fragile.address().send(Unlisted(None))).unwrap_err();
    assert!(error.to_string().starts_with("Unlisted was not sent: "), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    let wrapped =
        anyhow::Error::from(node.block_on(fragile.address().send(Text("x".repeat(MAX_BODY)))).unwrap_err());
    assert!(format!("{wrapped:#}").contains("67108864"), "{wrapped:#}");
    let by_kind: HashMap<bool, usize> = [SendFailure::Full, SendFailure::TimedOut, SendFailure::NoSuchActor]
        .iter()
        .fold(HashMap::new(), |mut kinds, failure| {
            *kinds.entry(failure.is_retryable()).or_default() += 1;
            kinds
        });
    assert_eq!(by_kind, HashMap::from([(true, 2), (false, 1)]));
}

/// Another builder of the same program.
fn fresh(_: &Builder) -> Builder {
    Node::builder()
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_message_that_is_too_large_comes_back_and_the_largest_arrives,
        a_message_that_is_nested_too_deep_comes_back_with_its_tensor,
        a_tensor_outside_of_a_message_cannot_be_serialised,
        a_message_that_the_actor_does_not_list_comes_back,
        actor_types_and_settings_that_cannot_be_are_refused,
        a_tensor_in_arguments_is_refused_before_anything_is_started,
        what_create_says_reaches_whoever_started_it_and_the_worker_goes_on,
        a_panic_ends_its_actor_and_nothing_else,
        an_ask_whose_handler_panics_gets_no_reply,
        a_reply_that_cannot_be_sent_is_an_error_for_whoever_asked,
        two_messages_that_are_one_on_the_wire_are_refused,
        an_ask_to_an_actor_that_stops_gets_no_reply,
        a_pool_that_is_full_names_its_holders_and_one_too_large_a_request_its_budget,
        wrong_types_shapes_and_ranges_are_errors_with_a_way_out,
        errors_have_sources_and_names,
    ]
}
