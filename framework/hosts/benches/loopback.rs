//! Two hosts on loopback, with and without mutual TLS. It measures the time of a message, messages per
//! second, and bytes of tensors per second by number of lanes. Run it on quiet cores:
//! `cargo bench -p tensorpost-hosts`.
//!
//! It measures only sessions over gRPC. Tensors are copied only to and from the buffers of gRPC.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tensorpost_hosts::frame::Piece;
use tensorpost_hosts::ids::{ActorId, HostId, HostLife, Life};
use tensorpost_hosts::introduction::Introduction;
use tensorpost_hosts::limits::PIECE_BYTES;
use tensorpost_hosts::net::{
    Dial, Happened, LaneThreads, LinkPulse, Listener, Memory, Parts, Peer, Peers, Pulse,
};
use tensorpost_hosts::refused::Refused;
use tensorpost_hosts::security::Security;
use tensorpost_hosts::session::{Bounds, Event, PostError, Session, To};

const ROUNDS: usize = 20_000;
const MESSAGES: u64 = 200_000;
const TENSOR: u64 = 64 << 20;
const TENSORS: u64 = 32;

/// Sends the same bytes for every piece, and drops what arrives.
struct Same(Bytes);

impl Memory for Same {
    fn read(&self, piece: Piece) -> BoxFuture<'_, Option<Bytes>> {
        let bytes = self.0.slice(..piece.bytes as usize);
        async move { Some(bytes) }.boxed()
    }

    fn write(&self, _: Piece, _: Parts) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

fn who(host: u16) -> HostLife {
    HostLife { host: HostId(host), life: Life(u64::from(host) + 1) }
}

fn mailbox(host: u16) -> ActorId {
    ActorId::new(HostId(host), 1).expect("a small number")
}

fn peer(own: u16, other: u16) -> Arc<Peer> {
    let mut session = Session::new(who(own), who(other), Bounds::default());
    session.serve(mailbox(own), 1024).expect("one mailbox");
    let memory = Arc::new(Same(Bytes::from(vec![7; PIECE_BYTES as usize])));
    Peer::new(session, memory, Pulse::Link(LinkPulse::default()), Arc::default())
}

/// Takes messages and finishes each, until `each` returns a value, which it returns.
async fn take<T>(peer: &Peer, mut each: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(Happened::Event(Event::Message { post, .. })) = peer.next().await {
            peer.with(|session| session.done(post));
            if let Some(end) = each() {
                return end;
            }
        }
    }
}

/// Sends a message as soon as there is room.
async fn send(peer: &Peer, to: u16, head: &Bytes, spans: &[u64]) {
    loop {
        let posted = peer.with(|session| session.post(To::Send(mailbox(to)), head.clone(), spans.to_vec()));
        match posted {
            Ok(_) => return,
            Err(PostError::Full { .. } | PostError::NoWindow { .. } | PostError::NotServed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        peer.next().await.expect("the session goes on");
    }
}

async fn pair(security: &Security, lanes: u16) -> (Arc<Peer>, Arc<Peer>, Listener, [Arc<LaneThreads>; 2]) {
    let (zero, one) = (peer(0, 1), peer(1, 0));
    let introduction = Arc::new(Introduction::of_this_process(Some("bench")).expect("its arguments"));
    let peers = Arc::new(Peers::default());
    assert!(peers.add(Arc::clone(&zero)));
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let refused = Arc::new(Refused::default());
    // Each of the two hosts has threads of its own.
    let [here, there] = [(); 2].map(|()| LaneThreads::start(lanes).expect("threads"));
    let threads = Arc::clone(&here);
    let listener =
        Listener::start(at, security.clone(), Arc::clone(&introduction), peers, refused, None, &there)
            .await
            .expect("a port");
    let dial =
        Dial { to: listener.address().to_string(), security: security.clone(), introduction, lanes, threads };
    dial.connect(&one).await.expect("it listens");
    (zero, one, listener, [here, there])
}

async fn latency(security: &Security) {
    let (zero, one, _listener, _threads) = pair(security, 1).await;
    let head = Bytes::from(vec![7; 256]);
    let echo = Arc::clone(&zero);
    let answer = head.clone();
    let echoing = tokio::spawn(async move {
        loop {
            take(&echo, || Some(())).await;
            send(&echo, 1, &answer, &[]).await;
        }
    });
    let mut took = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        send(&one, 0, &head, &[]).await;
        take(&one, || Some(())).await;
        took.push(start.elapsed() / 2);
    }
    echoing.abort();
    took.sort_unstable();
    println!("  256 B, half a round trip: p50 {:?}, p99 {:?}", took[ROUNDS / 2], took[ROUNDS * 99 / 100]);
}

async fn rate(security: &Security) {
    let (zero, one, _listener, _threads) = pair(security, 1).await;
    let start = Instant::now();
    let taking = tokio::spawn(async move {
        let mut taken = 0;
        take(&zero, || {
            taken += 1;
            (taken == MESSAGES).then_some(())
        })
        .await;
    });
    let head = Bytes::from(vec![7; 256]);
    for _ in 0..MESSAGES {
        send(&one, 0, &head, &[]).await;
    }
    taking.await.expect("it takes all");
    println!("  256 B, one way: {:.0} messages a second", MESSAGES as f64 / start.elapsed().as_secs_f64());
}

async fn tensors(security: &Security, lanes: u16) {
    let (zero, one, _listener, _threads) = pair(security, lanes).await;
    let start = Instant::now();
    let taking = tokio::spawn(async move {
        let mut taken = 0;
        take(&zero, || {
            taken += 1;
            (taken == TENSORS).then_some(())
        })
        .await;
    });
    for _ in 0..TENSORS {
        send(&one, 0, &Bytes::new(), &[TENSOR]).await;
    }
    taking.await.expect("it takes all");
    let gib = (TENSOR * TENSORS) as f64 / f64::from(1 << 30);
    println!("  64 MiB, {lanes} lanes: {:.2} GiB/s", gib / start.elapsed().as_secs_f64());
}

fn key(folder: &Path) -> Security {
    let path = folder.join("key");
    std::fs::write(&path, [7; 32]).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    Security::key_file(&path).expect("a key")
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    for (name, security) in [("loopback, no TLS", Security::loopback()), ("mutual TLS", key(folder.path()))] {
        println!("{name}");
        runtime.block_on(async {
            latency(&security).await;
            rate(&security).await;
            for lanes in [1, 2, 4] {
                tensors(&security, lanes).await;
            }
        });
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
}
