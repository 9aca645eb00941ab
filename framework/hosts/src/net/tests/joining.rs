//! Agents join a head, and both sides count beats.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::*;
use crate::join::{Admitted, Request, Roster};
use crate::refused::Kind;
use crate::verdict::{Agent, Head, Moment};

fn request(life: u64, port: u16) -> Request {
    Request { life: Life(life), name: "agent".to_owned(), port, advertise: None }
}

/// A head that admits every host that asks, and has a session for each.
struct Hub {
    listener: Listener,
    verdict: Arc<Mutex<Head>>,
    refused: Arc<Refused>,
    sessions: Arc<Mutex<Vec<Arc<Peer>>>>,
}

async fn head(at: SocketAddr) -> Hub {
    let head = who(0);
    let roster = Roster::new(head);
    let (peers, refused) = (Arc::new(Peers::default()), Arc::new(Refused::default()));
    let verdict = Arc::new(Mutex::new(Head::default()));
    let sessions: Arc<Mutex<Vec<Arc<Peer>>>> = Arc::default();
    let (known, all, seen, counted) =
        (Arc::clone(&peers), Arc::clone(&sessions), Arc::clone(&verdict), Arc::clone(&refused));
    let admission = move |request: &Request, from: SocketAddr| {
        let (admitted, new) = roster.admit(request, from)?;
        if new {
            seen.lock().joined(admitted.you.host, Moment::now());
            let session = Session::new(head, admitted.you, Bounds::default());
            let pulse = Pulse::Head(Arc::clone(&seen), admitted.you.host);
            let peer = Peer::new(session, Arc::new(Buffers::default()), pulse, Arc::clone(&counted));
            assert!(known.add(Arc::clone(&peer)));
            all.lock().push(peer);
        }
        Ok(admitted)
    };
    let threads = threads();
    let listener = Listener::start(
        at,
        Security::loopback(),
        Arc::new(introduction()),
        peers,
        Arc::clone(&refused),
        Some(Arc::new(admission)),
        &threads,
    );
    Hub { listener: listener.await.expect("a port"), verdict, refused, sessions }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn agent(admitted: &Admitted, asked: Moment) -> (Arc<Mutex<Agent>>, Arc<Peer>) {
    let agent = Arc::new(Mutex::new(Agent::new(asked)));
    let session = Session::new(admitted.you, admitted.head, Bounds::default());
    let pulse = Pulse::Agent(Arc::clone(&agent));
    (agent, Peer::new(session, Arc::new(Buffers::default()), pulse, Arc::default()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_join_and_their_beats_are_answered_until_the_verdict() {
    let hub = head(any_port()).await;
    let dial = dial(hub.listener.address(), &Security::loopback(), 1);
    let (first, asked) = dial.join(&request(5, 7001), Duration::from_secs(20)).await.expect("a place");
    let (second, _) = dial.join(&request(6, 7002), Duration::from_secs(20)).await.expect("a place");
    assert_eq!((first.you.host, second.you.host), (HostId(1), HostId(2)));
    assert_eq!(second.others[0].address, "127.0.0.1:7001");
    let (again, _) = dial.join(&request(5, 7001), Duration::from_secs(20)).await.expect("as before");
    assert_eq!(again.you, first.you);

    let (beats, peer) = agent(&first, asked);
    let until = beats.lock().works_until();
    let (keep, kept) = (dial.clone(), Arc::clone(&peer));
    let keeping = tokio::spawn(async move { keep.keep(&kept).await });
    let answered = async {
        while beats.lock().works_until() <= until {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), answered).await.expect("an answer");

    // The verdict, as if they had not been heard for long.
    let late = Moment::now().after(Duration::from_secs(60));
    assert_eq!(hub.verdict.lock().verdicts(late), [HostId(1), HostId(2)]);
    hub.sessions.lock()[0].end();
    let refused = tokio::time::timeout(Duration::from_secs(20), keeping).await.expect("in time");
    let refused = refused.expect("it ended").expect_err("it was given up").to_string();
    assert!(refused.contains("in a session with host 1"), "{refused}");
    assert!(hub.refused.count(Kind::Stranger) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_waits_for_its_head_until_the_deadline() {
    // A port at which nobody listens yet.
    let socket = TcpListener::bind(any_port()).await.expect("a port");
    let address = socket.local_addr().expect("an address");
    drop(socket);
    let dial = dial(address, &Security::loopback(), 1);
    let nobody = dial.join(&request(5, 7001), Duration::from_millis(200)).await.expect_err("nobody");
    let nobody = nobody.to_string();
    assert!(nobody.contains(&address.to_string()) && nobody.contains("after trying for 0.2 s"), "{nobody}");

    let early = tokio::spawn(async move { dial.join(&request(5, 7001), Duration::from_secs(60)).await });
    let hub = head(address).await;
    let (admitted, _) = early.await.expect("it ended").expect("a place");
    assert_eq!((admitted.you.host, admitted.head), (HostId(1), who(0)));
    drop(hub);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_join_is_told_why_at_once() {
    let hub = head(any_port()).await;
    let mut dial = dial(hub.listener.address(), &Security::loopback(), 1);
    let itself = dial.join(&request(who(0).life.0, 7001), Duration::from_secs(60)).await.expect_err("itself");
    assert!(itself.to_string().contains("life of the head"), "{itself}");
    dial.introduction = Arc::new(Introduction { version: "2".to_owned(), ..introduction() });
    let other = dial.join(&request(5, 7001), Duration::from_secs(60)).await.expect_err("another version");
    assert!(other.to_string().contains("tensorpost \"2\""), "{other}");
    assert_eq!((hub.refused.count(Kind::Build), hub.refused.count(Kind::Stranger)), (1, 1));

    // An agent is no head.
    let gateway = Gateway::new(1, 0);
    let listener = gateway.listen(&Security::loopback()).await;
    let wrong = super::dial(listener.address(), &Security::loopback(), 1);
    let refused = wrong.join(&request(5, 7001), Duration::from_secs(60)).await.expect_err("no head");
    assert!(refused.to_string().contains("not its head"), "{refused}");
}
