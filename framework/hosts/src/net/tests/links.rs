//! Messages with tensors between two hosts, whatever happens to their connections.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::relay::{Relay, Weather};
use super::*;
use crate::frame::Frame;
use crate::limits::{AGENT_GRACE, MAX_EVENTS, MAX_NOTES};
use crate::session::Claim;
use crate::testing::Random;
use crate::verdict::{Agent, Moment};

/// Returns bytes that identify their message and span.
fn content(from: u16, number: u64, span: u64) -> Bytes {
    let mut random = Random::new(number * 64 + span * 4 + u64::from(from));
    let len = [1, 300, 70_000, 600_000][random.below(4) as usize] + random.below(9);
    let mut bytes = vec![0; len as usize];
    bytes.chunks_mut(8).for_each(|chunk| {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    });
    Bytes::from(bytes)
}

fn spans(from: u16, number: u64) -> Vec<Bytes> {
    (0..number % 3).map(|span| content(from, number, span)).collect()
}

/// Sends `messages` messages to each of two mailboxes of the other side, and takes as many, until all of both
/// are done.
async fn talk(gateway: Arc<Gateway>, other: u16, messages: u64) {
    let mut sent = [0_u64; 2];
    let mut taken = [0_u64; 2];
    let mut released = 0;
    let with_spans = 2 * (0..messages).filter(|number| number % 3 > 0).count();
    let done = |sent: &[u64; 2], taken: &[u64; 2], released: usize| {
        sent.iter().chain(taken).all(|count| *count == messages) && released == with_spans
    };
    while !done(&sent, &taken, released) {
        let Some(event) = gateway.next().await else { panic!("the session of {other} is over") };
        match event {
            Event::Message { post, message } => {
                let mailbox = message.target.actor().expect("nobody asks");
                let index = usize::from(mailbox == actor(gateway.own, 2));
                let number = taken[index];
                assert_eq!(message.head, number.to_string(), "in order, once");
                let memory = gateway.memory.take(post);
                assert!(memory == spans(other, number), "message {number} to {mailbox} is not what was sent");
                taken[index] += 1;
                gateway.peer.with(|session| session.done(post));
            }
            Event::Released { whole, .. } => {
                assert!(whole);
                released += 1;
            }
            _ => {}
        }
        // Sends as many as there is room for.
        for (index, sent) in sent.iter_mut().enumerate() {
            while *sent < messages {
                let to = To::Send(actor(other, index as u64 + 1));
                let head = Bytes::from(sent.to_string());
                match gateway.post(to, head, &spans(gateway.own, *sent)) {
                    Ok(_) => *sent += 1,
                    Err(
                        PostError::Full { .. } | PostError::NoWindow { .. } | PostError::NotServed { .. },
                    ) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    assert_eq!(gateway.memory.lent(), 0);
}

/// Runs two gateways through a relay, one of which dials. `weather` breaks connections until both are done.
async fn through<F: Future<Output = ()>>(
    security: &Security,
    messages: u64,
    weather: impl FnOnce(Relay, Arc<AtomicBool>) -> F,
) -> u64 {
    let (zero, one) = (Arc::new(Gateway::new(0, 1)), Arc::new(Gateway::new(1, 0)));
    for gateway in [&zero, &one] {
        gateway.serve(1, 5);
        gateway.serve(2, 128);
    }
    let listener = zero.listen(security).await;
    let relay = Relay::start(listener.address()).await;
    let dial = dial(relay.address, security, 2);
    let peer = Arc::clone(&one.peer);
    let dialling = tokio::spawn(async move { dial.keep(&peer).await });
    let calm = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&calm);
    let both = async {
        let (zero, one) = (Arc::clone(&zero), Arc::clone(&one));
        let talks = [tokio::spawn(talk(zero, 1, messages)), tokio::spawn(talk(one, 0, messages))];
        for talk in talks {
            talk.await.expect("it went well");
        }
        until.store(true, Relaxed);
    };
    let all = async { tokio::join!(both, weather(relay, calm)) };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("in time");
    let attempts = one.peer.with(|session| session.dial().attempt) - 1;
    // The dialling side ends first. If the listening side did, the dialling one would see its connection end.
    // It could come back and be refused before its own end, which looks like a verdict.
    one.peer.end();
    dialling.await.expect("it ended").expect("nobody refused");
    zero.peer.end();
    attempts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_with_tensors_arrive_whole_and_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    for security in [Security::loopback(), secured(folder.path(), "key", [7; 32])] {
        let attempts = through(&security, 60, |_relay, _| async {}).await;
        assert_eq!(attempts, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_lose_double_and_reorder_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let security = secured(folder.path(), "key", [7; 32]);
    let mut attempts = 0;
    for seed in 0..3 {
        attempts += through(&security, 100, |relay, calm| async move {
            let mut random = Random::new(seed);
            for _ in 0..40 {
                if calm.load(Relaxed) {
                    return;
                }
                // Each time at some point of the conversation, including handshakes.
                tokio::time::sleep(Duration::from_micros(random.below(60_000))).await;
                let which = (random.below(3) > 0).then(|| random.next());
                let weather = match random.below(5) {
                    0 => Weather::Slow(Duration::from_millis(random.below(20))),
                    1 => Weather::Fair,
                    many => Weather::Cut { reset: many == 2 },
                };
                relay.change(which, weather);
            }
            relay.change(None, Weather::Fair);
        })
        .await;
    }
    assert!(attempts > 10, "{attempts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_noticed_and_replaced() {
    // All of it; then one lane alone, while the control stream works. Both wait for silence, so they wait
    // together.
    let through = async |which: Option<u64>| {
        let attempts = through(&Security::loopback(), 400, |relay, calm| async move {
            // The control stream and two lanes take a while on a busy machine. The pause then leads some way
            // into the conversation.
            relay.until_made(3).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
            relay.change(which, Weather::HalfOpen);
            // New connections work.
            assert!(!calm.load(Relaxed), "there was nothing left to say");
        })
        .await;
        assert!(attempts > 1, "{which:?}: {attempts}");
    };
    tokio::join!(through(None), through(Some(1)));
}

/// HOST-9: events that a gateway has not taken are bounded, a host that sends more waits, and nothing of it
/// is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_more_than_is_taken_waits() {
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    let security = Security::loopback();
    let listener = zero.listen(&security).await;
    dial(listener.address(), &security, 1).connect(&one.peer).await.expect("a connection");
    let note = |number: usize| Bytes::from(number.to_string());
    let most = MAX_EVENTS + 2 * MAX_NOTES;
    let mut sent = 0;
    let flood = async {
        while sent < 2 * most {
            if one.peer.with(|session| session.note(note(sent))) {
                sent += 1;
            } else {
                assert_eq!(one.next().await, Some(Event::NoteRoom));
            }
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(2), flood).await;
    assert!(all.is_err(), "all {} were heard, and none taken", 2 * most);
    assert!(sent <= most, "{sent}");
    for number in 0..sent {
        assert_eq!(zero.next().await, Some(Event::Note(note(number))));
    }
}

/// HOST-10: a machine that wakes may run this before any timer.
#[tokio::test]
async fn nothing_leaves_an_agent_whose_time_is_over() {
    let now = Moment::now();
    let long_ago = Moment::since_boot(now.after_boot().saturating_sub(2 * AGENT_GRACE));
    for (asked, leaves) in [(now, true), (long_ago, false)] {
        let agent = Arc::new(Mutex::new(Agent::new(asked)));
        let pulses = [Pulse::Agent(Arc::clone(&agent)), Pulse::Link(LinkPulse::of_agent(Arc::clone(&agent)))];
        for pulse in pulses {
            let (other, memory) = (Gateway::new(0, 1), Arc::new(Buffers::default()));
            other.serve(1, 5);
            let session = Session::new(who(1), who(0), Bounds::default());
            let one = Peer::new(session, Arc::clone(&memory) as Arc<dyn Memory>, pulse, Arc::default());
            let (theirs, answer) = other.peer.accept(&one.dial()).expect("a connection");
            let link = one.answered(&answer).expect("a connection");
            let served = other.peer.next_frame(theirs).await.expect("a beat");
            assert!(matches!(served, Frame::Beat { .. }), "{served:?}");
            let served = other.peer.next_frame(theirs).await.expect("a mailbox");
            one.take(link, served).expect("it is no lie");
            let span = content(1, 1, 1);
            let posted = one
                .with(|session| session.post(To::Send(actor(0, 1)), Bytes::new(), vec![span.len() as u64]));
            memory.lend(posted.expect("room").post, vec![span]);
            let (frame, piece) = (one.next_frame(link).now_or_never(), one.next_piece(link).now_or_never());
            assert_eq!((frame.is_some(), piece.is_some()), (leaves, leaves), "{one:?}: {frame:?}, {piece:?}");
        }
    }
}

/// A lane of a connection that is over is refused, and so is a piece over it.
#[tokio::test]
async fn what_comes_over_an_older_connection_is_not_taken() {
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let first = one.peer.dial();
    let (old, _) = zero.peer.accept(&first).expect("the first");
    let (_, answer) = zero.peer.accept(&one.peer.dial()).expect("the second");
    one.peer.answered(&answer).expect("the answer");
    assert!(zero.peer.with(|session| session.lane(&first)).is_err());
    let piece = crate::frame::Piece { post: 1, span: 0, offset: 0, bytes: 1 };
    assert_eq!(zero.peer.with(|session| session.claim(old, &piece)), Ok(Claim::Drop));
}
