//! Lanes have threads of their own.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::*;
use crate::frame::Piece;

/// Memory whose writes block their thread until the test lets it go.
struct Slow {
    began: Notify,
    let_go: Mutex<mpsc::Receiver<()>>,
    was_let_go: Mutex<Option<bool>>,
}

impl Memory for Slow {
    fn read(&self, _: Piece) -> BoxFuture<'_, Option<Bytes>> {
        async { None }.boxed()
    }

    fn write(&self, _: Piece, _: Parts) -> BoxFuture<'_, ()> {
        async {
            self.began.notify_one();
            *self.was_let_go.lock() = Some(self.let_go.lock().recv_timeout(Duration::from_secs(1)).is_ok());
        }
        .boxed()
    }
}

/// Everything but the lanes runs on one thread here, as in a gateway.
#[tokio::test]
async fn no_message_waits_for_the_bytes_of_a_tensor() {
    let (go, let_go) = mpsc::channel();
    let slow = Slow { began: Notify::new(), let_go: Mutex::new(let_go), was_let_go: Mutex::default() };
    let (slow, one) = (Arc::new(slow), Gateway::new(1, 0));
    let mut session = Session::new(who(0), who(1), Bounds::default());
    for number in [1, 2] {
        session.serve(actor(0, number), 5).expect("a mailbox");
    }
    let memory = Arc::clone(&slow) as Arc<dyn Memory>;
    let zero = Peer::new(session, memory, Pulse::Link(LinkPulse::default()), Arc::default());
    let peers = Arc::new(Peers::default());
    assert!(peers.add(Arc::clone(&zero)));
    let (security, own) = (Security::loopback(), LaneThreads::start(1).expect("a thread"));
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener =
        Listener::start(at, security.clone(), Arc::new(introduction()), peers, Arc::default(), None, &own)
            .await
            .expect("a port");
    dial(listener.address(), &security, 1).connect(&one.peer).await.expect("a connection");
    for _ in 0..2 {
        assert!(matches!(one.next().await, Some(Event::Served { .. })));
    }
    let large = one.post(To::Send(actor(0, 1)), Bytes::new(), &[Bytes::from_static(&[5; 1000])]);
    let large = large.expect("room");
    slow.began.notified().await;
    let small = one.post(To::Send(actor(0, 2)), Bytes::from_static(b"now"), &[]).expect("room");
    let mut came = Vec::new();
    while came.len() < 2 {
        let next = tokio::time::timeout(Duration::from_secs(20), zero.next()).await;
        if let Some(Happened::Event(Event::Message { post, .. })) = next.expect("a message") {
            came.push(post);
            // The lane's thread waits for this, or has given it up.
            let _ = go.send(());
        }
    }
    assert_eq!(came, [small, large]);
    assert_eq!(*slow.was_let_go.lock(), Some(true), "the message waited");

    // The lane ends with its thread, and so does the connection.
    let link = zero.link().expect("it is whole");
    drop(own);
    let cut = tokio::time::timeout(Duration::from_secs(20), zero.cut_of(link)).await;
    assert!(cut.is_ok(), "a lane without a thread");
}
