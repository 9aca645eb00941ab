//! Messages between hosts: asks, tensors to the bit, addresses, backpressure, watches, and messages that
//! cannot go.

use tensorpost::actor::{LookupError, SendFailure};
use tensorpost::message::EncodeError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

use crate::actors::{
    Count, Counter, Echo, Echoer, Fail, Gatekeeper, HasPart, HaveFlooded, Hold, HowMany, Item, Open, PassOn,
};
use crate::{Other, address, find, head};

/// The bytes of a tensor's elements.
fn bytes(stream: &DeviceStream, tensor: &Tensor) -> Vec<u8> {
    stream.download_bytes(tensor).expect("its bytes")
}

fn asks_and_tensors_go_there_and_back_to_the_bit(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    go_there_and_back(&node, other);
}

/// The tensors go as those of a GPU do: out of the other host's memory and into it, through the slots of its
/// copiers.
fn tensors_go_there_and_back_by_slots(builder: Builder) {
    let node = head(builder);
    let other = Other::staging_at(&address(&node), 2);
    go_there_and_back(&node, other);
}

fn go_there_and_back(node: &Node, other: Other) {
    let hosts = node.hosts().expect("hosts");
    let names: Vec<_> = hosts.iter().map(|host| (host.number, host.name.as_str())).collect();
    assert_eq!(names, [(0, "first"), (1, "other")]);
    let echo = find::<Echo>(node, "echo");
    let stream = node.host_stream().expect("a stream");
    // Tensors that are packed and not, with and without elements, below and above a piece, of all kinds of
    // bytes.
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
        let echoed = ask(node, &echo, echo_of);
        assert_ne!(echoed.pid, std::process::id());
        assert_eq!((echoed.number, echoed.words, echoed.actor), (77, words, echo.actor()));
        assert!(echoed.bytes == body);
        let came: Vec<_> =
            echoed.tensors.iter().map(|t| (t.dtype(), t.shape().to_vec(), bytes(&stream, t))).collect();
        assert!(came == sent, "with {length} bytes");
    }
    drop((tensors, matrix, large));
    until_free(node);
    // A name that nobody has on either host.
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
                assert!(matches!(error.reason, SendFailure::Full | SendFailure::Connecting), "{error}");
                if full == 0 {
                    // The mailbox has four places, and each host has as many.
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

/// WIRE-1, for two workers of one host. See `an_address_that_lies_about_a_mailbox_costs_nobody_a_link`.
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
    // Other processes than the asker sent them.
    until("all of them are counted", || ask(&node, &counter.address(), HowMany).0 >= 64);
    assert_eq!(ask(&node, &counter.address(), HowMany), (64, Vec::new()));
    other.end();
}

fn watches_see_ends_and_restarts_on_the_other_host(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let (again, fail) = (find::<Echo>(&node, "again"), find::<Fail>(&node, "again"));
    let mut watch = node.watch(&again);
    let before = ask(&node, &again, Echo::empty()).actor;
    deliver(&node, &fail, Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    let up = watch.blocking_recv().expect("an event");
    assert!(matches!(&up, Lifecycle::Up { incarnation: 1, .. }), "{up}");
    assert_eq!(ask(&node, &again, Echo::empty()).actor, before, "the address leads to its next life");

    // An actor that does not come back.
    let (echo, fail) = (find::<Echo>(&node, "echo"), find::<Fail>(&node, "echo"));
    let mut watch = node.watch(&echo);
    ask(&node, &echo, Echo::empty());
    deliver(&node, &fail, Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(down.is_final() && down.to_string().contains("as it was told"), "{down}");
    let refused = node.block_on(echo.send(Echo::empty())).expect_err("it is gone");
    assert!(!refused.is_retryable(), "{refused}");
    other.end();
}

fn parts_stay_on_their_host(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let to = find::<HasPart>(&node, "echo");
    let echo = find::<Echo>(&node, "echo");
    let stream = node.host_stream().expect("a stream");
    // The way is made first: the failure is not that of the address.
    ask(&node, &echo, Echo::empty());
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

pub(crate) fn cases() -> Vec<Case> {
    cases![
        asks_and_tensors_go_there_and_back_to_the_bit,
        tensors_go_there_and_back_by_slots,
        an_address_in_a_message_leads_back,
        a_slow_consumer_holds_its_senders_up_and_nothing_is_lost,
        an_address_that_another_host_forges_breaks_no_link,
        watches_see_ends_and_restarts_on_the_other_host,
        parts_stay_on_their_host,
    ]
}
