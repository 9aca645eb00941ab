//! Connections that are refused, while all others are served.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::codec::EncodeBody;
use tonic::{Status, Streaming};

use super::super::codec::{BytesCodec, Outgoing};
use super::super::service::HostService;
use super::flood::Flood;
use super::*;
use crate::frame::{Body, Frame, Log};
use crate::limits::{MAX_LOG, MAX_QUEUED_LOG, MAX_STRANGERS, MAX_VIOLATIONS};
use crate::refused::Kind;
use crate::security::Pem;
use crate::security::tests::{by_stranger, private};
use crate::verdict::{Agent, Head, Moment};

async fn connected(gateway: &Gateway, to: &Listener, security: &Security) -> Result<(), DialError> {
    dial(to.address(), security, 1).connect(&gateway.peer).await.map(drop)
}

/// Checks that honest hosts can talk: a message goes to the listener's side, and is finished.
async fn served(zero: &Gateway, one: &Gateway) {
    let head = Bytes::from_static(b"still here");
    let posted = async {
        loop {
            match one.post(To::Send(actor(0, 1)), head.clone(), &[Bytes::from_static(&[5; 1000])]) {
                Ok(_) => return,
                Err(_) => drop(one.next().await.expect("an event")),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), posted).await.expect("room");
    let message = async {
        loop {
            if let Event::Message { post, .. } = zero.next().await.expect("an event") {
                assert_eq!(zero.memory.take(post), [vec![5; 1000]]);
                zero.peer.with(|session| session.done(post));
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), message).await.expect("a message");
}

fn why(refused: Result<(), DialError>) -> String {
    match refused {
        Err(DialError::Refused { why, .. }) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_or_none_is_refused_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (key, other) = (secured(folder.path(), "key", [7; 32]), secured(folder.path(), "other", [8; 32]));
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let listener = zero.listen(&key).await;
    connected(&one, &listener, &key).await.expect("the same key");
    let intruder = Gateway::new(1, 0);
    for (wrong, times) in [(&other, 1), (&Security::loopback(), 2)] {
        let refused = connected(&intruder, &listener, wrong).await;
        assert!(matches!(refused, Err(DialError::Unreachable { .. })), "{refused:?}");
        // A host that dials with another key sees at once that the listener's key is wrong, and the listener
        // hears of it later.
        let counted = async {
            while zero.refused.count(Kind::Key) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), counted).await.expect("it is counted");
    }
    // Bytes that are not TLS. The listener counts them before it hangs up.
    let mut stream = TcpStream::connect(listener.address()).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("it is open");
    let mut rest = Vec::new();
    // The stream ends, in order or by a reset.
    let _ = stream.read_to_end(&mut rest).await;
    assert_eq!(zero.refused.count(Kind::Key), 3);
    served(&zero, &one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_build_host_or_life_is_refused_by_name() {
    let security = Security::loopback();
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let listener = zero.listen(&security).await;
    connected(&one, &listener, &security).await.expect("it is of the node");
    let mut other = dial(listener.address(), &security, 1);
    other.introduction = Arc::new(Introduction { build: Build::Program([4; 32]), ..introduction() });
    let build = why(other.connect(&Gateway::new(1, 0).peer).await.map(drop));
    assert!(build.contains("SHA-256 0404"), "{build}");
    let arguments = vec![Bytes::from_static(b"--fast")];
    other.introduction = Arc::new(Introduction { arguments, ..introduction() });
    let arguments = why(other.connect(&Gateway::new(1, 0).peer).await.map(drop));
    assert!(arguments.contains("\"--fast\" as argument 1"), "{arguments}");
    assert_eq!(zero.refused.count(Kind::Build), 2);

    // A host that is not known here may be new: it tries again.
    let stranger = connected(&Gateway::new(7, 0), &listener, &security).await;
    assert!(
        matches!(&stranger, Err(DialError::Unreachable { why, .. }) if why.contains("host 7")),
        "{stranger:?}"
    );
    let life = HostLife { life: Life(1), ..who(1) };
    let session = Session::new(life, who(0), Bounds::default());
    let refused = Arc::new(Refused::default());
    let memory = Arc::new(Buffers::default());
    let another = Peer::new(session, memory, Pulse::Link(LinkPulse::default()), refused);
    let refused = why(dial(listener.address(), &security, 1).connect(&another).await.map(drop));
    assert!(refused.contains("life 0000000000000001"), "{refused}");
    assert_eq!(zero.refused.count(Kind::Stranger), 2);

    // The session's own greeting once more, as an attacker might have kept it.
    let replayed = connected(&Gateway::new(1, 0), &listener, &security).await;
    assert!(
        matches!(&replayed, Err(DialError::Unreachable { why, .. }) if why.contains("replayed")),
        "{replayed:?}"
    );
    assert_eq!(zero.refused.count(Kind::Replayed), 1);
    served(&zero, &one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_the_protocol_again_and_again_is_given_up_and_nobody_else() {
    let security = Security::loopback();
    let (zero, liar) = (Gateway::new(0, 2), Gateway::new(2, 0));
    let (honest, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    honest.serve(1, 5);
    let peers = Arc::new(Peers::default());
    assert!(peers.add(Arc::clone(&zero.peer)) && peers.add(Arc::clone(&honest.peer)));
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let refused = Arc::clone(&zero.refused);
    let introduction = Arc::new(introduction());
    let listener = Listener::start(at, security.clone(), introduction, peers, refused, None, &threads())
        .await
        .expect("a port");
    connected(&one, &listener, &security).await.expect("it is honest");
    let mut times = 0;
    while !zero.peer.is_over() {
        connected(&liar, &listener, &security).await.expect("it is not given up yet");
        let link = zero.peer.link().expect("it is connected");
        // A grant of bytes that were never taken: a frame that its session would never send, with its next
        // number.
        let lie = Frame::Numbered { seq: 1, body: Body::Grant { bytes: 1 } };
        let forged = zero.peer.take(link, lie).expect_err("a lie");
        zero.peer.violated(link, Kind::Forged, listener.address(), &forged);
        times += 1;
    }
    assert_eq!((times, zero.refused.count(Kind::Forged)), (MAX_VIOLATIONS, u64::from(MAX_VIOLATIONS)));
    assert!(matches!(zero.peer.next().await, Some(Happened::Ended(_))));
    assert_eq!(zero.peer.next().await, None);
    let gone = why(connected(&liar, &listener, &security).await);
    assert!(gone.contains("in a session with host 2"), "{gone}");
    served(&honest, &one).await;
}

/// HOST-9: only the host that floods pays for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_floods_the_heads_log_is_cut_and_given_up_and_nobody_else() {
    let security = Security::loopback();
    let beats = Arc::new(Mutex::new(Head::default()));
    let hearing = |host: u16| {
        beats.lock().joined(HostId(host), Moment::now());
        Gateway::pulsing(0, host, Pulse::Head(Arc::clone(&beats), HostId(host)))
    };
    let (zero, honest) = (hearing(2), hearing(1));
    honest.serve(1, 5);
    let agent = |host: u16| {
        let agent = Arc::new(Mutex::new(Agent::new(Moment::now())));
        Gateway::pulsing(host, 0, Pulse::Agent(agent))
    };
    let (liar, one) = (agent(2), agent(1));
    let peers = Arc::new(Peers::default());
    assert!(peers.add(Arc::clone(&zero.peer)) && peers.add(Arc::clone(&honest.peer)));
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let refused = Arc::clone(&zero.refused);
    let introduction = Arc::new(introduction());
    let listener = Listener::start(at, security.clone(), introduction, peers, refused, None, &threads())
        .await
        .expect("a port");
    connected(&one, &listener, &security).await.expect("it is honest");
    let record = Bytes::from(vec![7; MAX_LOG]);
    let log = |first: u64| Log { first, count: 1, records: record.clone() };
    one.peer.tell_log(log(1));
    let mut first = 1;
    while !zero.peer.is_over() {
        // Log frames that wait may end the connection before it is complete.
        let tried = connected(&liar, &listener, &security).await;
        let Some(link) = liar.peer.link().filter(|_| tried.is_ok()) else { continue };
        let peer = Arc::clone(&liar.peer);
        // As fast as it can, and its own gateway does not hold it back.
        let flood = async {
            loop {
                peer.tell_log(log(first));
                first += 1;
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = flood => {}
            () = liar.peer.cut_of(link) => {}
        }
    }
    assert_eq!(zero.refused.count(Kind::Forged), u64::from(MAX_VIOLATIONS));
    let (mut heard, mut lost) = (0, 0);
    while let Some(Happened::Log { lost: more, log }) = zero.peer.next().await {
        heard += log.records.len();
        lost += more;
    }
    assert!(heard <= MAX_QUEUED_LOG && lost > 0, "{heard} bytes, {lost} records lost");
    // The honest one's record arrived, and it is served.
    assert_eq!(honest.peer.next().await, Some(Happened::Log { lost: 0, log: log(1) }));
    served(&honest, &one).await;

    // Only a head accepts logs.
    let (left, right) = (Gateway::new(0, 1), Gateway::new(1, 0));
    let (link, _) = left.peer.accept(&right.peer.dial()).expect("a connection");
    assert!(left.peer.take(link, Frame::Log(log(1))).is_err_and(|lie| lie.contains("not its head")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_over_a_connection_with_the_key_is_refused_and_counted() {
    let security = Security::loopback();
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let listener = zero.listen(&security).await;
    connected(&one, &listener, &security).await.expect("it is honest");
    let dialled = dial(listener.address(), &security, 1);
    let long = Bytes::from(vec![0; crate::limits::MAX_FRAME + 1]);
    let own = introduction().encode();
    let beat = crate::frame::encode(&Frame::Beat { number: 1 });
    let cases: [&[Bytes]; 5] =
        [&[], &[Bytes::from_static(b"hello")], &[long], &[own.clone(), beat.clone()], &[own, Bytes::new()]];
    for (index, case) in cases.into_iter().enumerate() {
        let refused = dialled.say(super::super::service::CONTROL, case.to_vec()).await;
        assert!(refused.is_err(), "{case:?}");
        assert_eq!(zero.refused.count(Kind::Garbage), index as u64 + 1);
    }
    for case in [vec![], vec![beat], vec![Bytes::from(vec![0; crate::limits::MAX_LANE_FRAME + 1])]] {
        assert!(dialled.say(super::super::lanes::all(false)[0].method(), case).await.is_err());
    }
    assert_eq!(zero.refused.count(Kind::Garbage), 8);
    served(&zero, &one).await;
}

/// An honest host whose machine was slow does not give the other up for it.
#[tokio::test]
async fn who_says_nothing_in_time_may_come_again() {
    let zero = Gateway::new(0, 1);
    let hosts = HostService {
        introduction: Arc::new(introduction()),
        peers: Arc::default(),
        refused: Arc::clone(&zero.refused),
        admission: None,
    };
    let nothing = stream::pending::<Result<Outgoing, Status>>();
    let nothing = EncodeBody::new_client(BytesCodec(64), nothing, None, None);
    let mut silent = Streaming::new_request(BytesCodec(64), nothing, None, None);
    let from = SocketAddr::from(([127, 0, 0, 1], 1));
    let late =
        hosts.first_within(Duration::from_millis(1), silent.message(), from).await.expect_err("silence");
    let told = dial(from, &Security::loopback(), 1).status(&late);
    assert!(
        matches!(&told, DialError::Unreachable { why, .. } if why.contains("did not say who it is")),
        "{told}"
    );
    assert_eq!(zero.refused.count(Kind::Garbage), 1);
}

/// Both sides of a session end while a connection of it is being made: nobody is left to hear of the refusal.
#[tokio::test]
async fn who_is_refused_after_the_end_of_its_own_session_has_ended_in_order() {
    let security = Security::loopback();
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    let listener = zero.listen(&security).await;
    let between = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let dial = dial(between.local_addr().expect("an address"), &security, 1);
    let peer = Arc::clone(&one.peer);
    let dialling = tokio::spawn(async move { dial.keep(&peer).await });
    let (mut from, _) = between.accept().await.expect("it dials");
    // Its attempt is under way, and has not reached the listener.
    zero.peer.end();
    one.peer.end();
    let mut to = TcpStream::connect(listener.address()).await.expect("it listens");
    let passing = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
    let kept = tokio::time::timeout(Duration::from_secs(20), dialling).await.expect("in time");
    kept.expect("it ended").expect("its session was over");
    assert_eq!(zero.refused.count(Kind::Stranger), 1, "it was refused");
    passing.abort();
}

/// One flood at a time: two would disturb each other's measurements.
static ONE_FLOOD: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns one of a thousand addresses of this machine.
fn from_afar(number: u16) -> IpAddr {
    IpAddr::from([127, 0, (number / 250) as u8, (number % 250) as u8 + 2])
}

/// Checks that a host with the key is served within a second, and reconnects within a second after each
/// break.
async fn outlasts_a_flood(security: &Security, name: &str) {
    let _one = ONE_FLOOD.lock().await;
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let listener = zero.listen(security).await;
    let flood = Flood::start(listener.address(), from_afar);
    let full = async {
        while zero.refused.count(Kind::Flood) < MAX_STRANGERS as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), full).await.expect("a flood");
    let dial =
        Dial { to: format!("{name}:{}", listener.address().port()), ..dial(listener.address(), security, 2) };
    let mut took = Vec::new();
    for _ in 0..5 {
        let began = std::time::Instant::now();
        let link = loop {
            match dial.connect(&one.peer).await {
                Ok(link) => break link,
                Err(DialError::Unreachable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(refused) => panic!("{refused}"),
            }
        };
        took.push(began.elapsed());
        served(&zero, &one).await;
        one.peer.cut(link);
    }
    drop(flood);
    took.sort();
    println!("connections took {took:?}; {} strangers had no place", zero.refused.count(Kind::Flood));
    // Two may be late, because the machine may be busy.
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
    assert!(zero.refused.count(Kind::Key) > 0, "what is no key was refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_a_thousand_addresses_keeps_nobody_with_the_key_out() {
    let folder = tempfile::tempdir().expect("a folder");
    outlasts_a_flood(&secured(folder.path(), "key", [7; 32]), "127.0.0.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_a_thousand_addresses_keeps_nobody_with_a_certificate_out() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates");
    let file = |name: &str| folder.join(name);
    let files = Pem {
        authority: file("authority.pem"),
        certificate: file("host.pem"),
        key: private(&file("host.key")),
    };
    outlasts_a_flood(&Security::pem(&files).expect("its files"), "localhost").await;
}

/// An eavesdropper has heard a proof of the key, and repeats it.
#[tokio::test]
async fn a_proof_of_the_key_is_taken_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = secured(folder.path(), "key", [7; 32]);
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    let listener = zero.listen(&key).await;
    let proof = key.prover().expect("a key").prove(b'M').expect("random numbers");
    // A proof for one mark is not valid for another. After the proof TLS has to follow, and zeros are not
    // TLS.
    for (mark, key, replayed) in [(b'L', 1, 0), (b'M', 2, 0), (b'M', 2, 1)] {
        let mut stream = TcpStream::connect(listener.address()).await.expect("a connection");
        stream.write_all(&[&[mark], &proof[..], &[0; 64]].concat()).await.expect("it is open");
        // The stream ends, in order or by a reset.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        assert_eq!((zero.refused.count(Kind::Key), zero.refused.count(Kind::Replayed)), (key, replayed));
    }
    connected(&one, &listener, &key).await.expect("a proof of its own");
}

/// HOST-12, at both ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_another_user_is_neither_served_nor_believed() {
    let ((), own) = by_stranger(|| ());
    let here = Security::loopback_of(own);
    let zero = Gateway::new(0, 1);
    let listener = zero.listen(&here).await;
    let to = listener.address();
    let (stream, _) = by_stranger(|| std::net::TcpStream::connect(to).expect("it listens"));
    stream.set_nonblocking(true).expect("a new socket");
    let mut stream = TcpStream::from_std(stream).expect("a stream");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("it is open");
    let mut said = Vec::new();
    // The stream ends, in order or by a reset.
    let _ = stream.read_to_end(&mut said).await;
    assert_eq!((said.len(), zero.refused.count(Kind::Key)), (0, 1));

    let (theirs, _) = by_stranger(|| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let dial = dial(theirs.local_addr().expect("an address"), &here, 1);
    let refused = dial.connect(&Gateway::new(1, 0).peer).await.expect_err("another user's").to_string();
    assert!(refused.contains("without a key a node is of one user"), "{refused}");
}

#[tokio::test]
async fn without_a_key_nobody_listens_at_or_dials_the_network() {
    let zero = Gateway::new(0, 1);
    let at = SocketAddr::from(([0, 0, 0, 0], 0));
    let threads = threads();
    let listened = Listener::start(
        at,
        Security::loopback(),
        Arc::new(introduction()),
        Arc::new(Peers::default()),
        Arc::clone(&zero.refused),
        None,
        &threads,
    );
    let refused = listened.await.expect_err("of the network").to_string();
    assert!(refused.contains("TENSORPOST_KEY_FILE"), "{refused}");
    // An address for documentation (RFC 5737): nothing is sent.
    let network = dial(SocketAddr::from(([192, 0, 2, 1], 7117)), &Security::loopback(), 1);
    let refused = network.connect(&zero.peer).await.expect_err("of the network").to_string();
    assert!(refused.contains("TENSORPOST_KEY_FILE"), "{refused}");
}

#[tokio::test]
async fn a_probe_is_answered_by_the_health_protocol() {
    let zero = Gateway::new(0, 1);
    let listener = zero.listen(&Security::loopback()).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", listener.address()))
        .expect("an address")
        .connect()
        .await
        .expect("it listens");
    let mut probe = tonic_health::pb::health_client::HealthClient::new(channel);
    let request = tonic_health::pb::HealthCheckRequest { service: String::new() };
    let status = probe.check(request).await.expect("an answer").into_inner().status();
    assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving);
}
