//! A gateway of either side is replaced: the other side's session with it ends, and goes on with the next.

use std::time::Duration;

use super::*;
use crate::ids::Gateway as Which;
use crate::refused::Kind;
use crate::session::Ended;

/// Makes another gateway of the same host. It knows nothing, except maybe the other side's gateway for its
/// session.
fn next(own: (u16, u32), other: (u16, Which)) -> Gateway {
    let memory = Arc::new(Buffers::default());
    let refused = Arc::new(Refused::default());
    let own_gateway = (who(own.0), Which(own.1));
    let session = Session::of_gateways(own_gateway, (who(other.0), other.1), Bounds::default());
    let pulse = Pulse::Link(LinkPulse::default());
    let peer = Peer::new(session, Arc::clone(&memory) as Arc<dyn Memory>, pulse, Arc::clone(&refused));
    Gateway { own: own.0, peer, memory, refused }
}

/// Waits for the end of a session, and returns its unfinished work and the next gateway.
pub(super) async fn renewed(gateway: &Gateway) -> (Ended, Which) {
    let end = async {
        loop {
            match gateway.peer.next().await {
                Some(Happened::Renewed(ended, next)) => return (ended, next),
                Some(Happened::Ended(_)) | None => panic!("its host is given up"),
                Some(_) => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), end).await.expect("it notices")
}

/// Sends a message with its bytes from one gateway to the other.
async fn goes(from: &Gateway, to: &Gateway) {
    let head = Bytes::from_static(b"on");
    let sent = async {
        loop {
            match from.post(To::Send(actor(to.own, 1)), head.clone(), &[Bytes::from_static(&[7; 300_000])]) {
                Ok(post) => return post,
                Err(_) => drop(from.next().await.expect("an event")),
            }
        }
    };
    let sent = tokio::time::timeout(Duration::from_secs(20), sent).await.expect("it is offered");
    let came = async {
        loop {
            if let Event::Message { post, .. } = to.next().await.expect("an event") {
                assert_eq!(to.memory.take(post), [vec![7; 300_000]]);
                return to.peer.with(|session| session.done(post));
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), came).await.expect("it comes");
    let back = async {
        loop {
            if from.next().await.expect("an event") == (Event::Done { post: sent }) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), back).await.expect("it is done with");
}

pub(super) fn keep(gateway: &Gateway, to: SocketAddr) {
    let (peer, dial) = (Arc::clone(&gateway.peer), dial(to, &Security::loopback(), 1));
    tokio::spawn(async move { dial.keep(&peer).await.expect("it is not refused") });
}

pub(super) async fn listen_on(gateway: &Gateway, socket: std::net::TcpListener) -> (Listener, Arc<Peers>) {
    let peers = Arc::new(Peers::default());
    assert!(peers.add(Arc::clone(&gateway.peer)));
    let (refused, introduction, threads) =
        (Arc::clone(&gateway.refused), Arc::new(introduction()), threads());
    let listener =
        Listener::on(socket, Security::loopback(), introduction, Arc::clone(&peers), refused, None, &threads);
    (listener.await.expect("it listens already"), peers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_gateway_of_either_side_begins_anew_and_the_socket_stays() {
    let (zero, one) = (Gateway::new(0, 1), Gateway::new(1, 0));
    zero.serve(1, 5);
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let (listener, peers) = listen_on(&zero, socket.try_clone().expect("a descriptor")).await;
    let at = listener.address();
    keep(&one, at);
    goes(&one, &zero).await;
    let asked = one.peer.with(|session| session.post(To::Ask(actor(0, 1)), Bytes::new(), vec![]));
    let asked = asked.expect("a place").correlation.expect("an ask");

    // The listening gateway dies. Connections made meanwhile wait for the next one.
    let outlives = listener.socket().try_clone_to_owned().expect("a descriptor");
    drop((listener, peers, socket));
    zero.peer.end();
    let zero = next((0, 2), (1, Which::UNKNOWN));
    zero.serve(1, 5);
    let (_listener, peers) = listen_on(&zero, outlives.into()).await;
    let (ended, found) = renewed(&one).await;
    assert_eq!((ended.asks, found), (vec![(asked, Some(actor(0, 1)))], Which(2)));
    let one = next((1, 1), (0, found));
    keep(&one, at);
    goes(&one, &zero).await;

    // The dialling gateway dies.
    let open = one.post(To::Send(actor(0, 1)), Bytes::new(), &[]).expect("a place");
    let came = async {
        while !matches!(zero.next().await.expect("an event"), Event::Message { post, .. } if post == open) {}
    };
    tokio::time::timeout(Duration::from_secs(20), came).await.expect("it comes");
    one.peer.end();
    let one = next((1, 2), (0, Which::UNKNOWN));
    keep(&one, at);
    let (ended, found) = renewed(&zero).await;
    assert_eq!((ended.open, found), (vec![actor(0, 1)], Which(2)), "no mailbox has taken it");
    let before = zero;
    let zero = next((0, 2), (1, found));
    zero.serve(1, 5);
    assert!(peers.add(Arc::clone(&zero.peer)));
    goes(&one, &zero).await;
    assert!(before.peer.is_over());
    for gateway in [&before, &zero, &one] {
        let lies = [Kind::Forged, Kind::Garbage, Kind::Stranger].map(|kind| gateway.refused.count(kind));
        assert_eq!(lies, [0; 3], "nobody has lied");
    }
}
