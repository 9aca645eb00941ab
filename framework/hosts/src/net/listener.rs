//! Takes connections: TLS first, then gRPC for those who have shown the key.
//!
//! Until it has shown the key a connection has cost a socket, a place among [`MAX_STRANGERS`] and at most [`INTRODUCTION`]; past
//! those places, or past those of its address, it is closed at once. So strangers keep nobody out but each other.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::io::{Io, late};
use super::service::{Admission, Hosts, Peers};
use super::threads::LaneThreads;
use super::{CONNECTION_WINDOW, LANE, STREAM_WINDOW};
use crate::introduction::Introduction;
use crate::limits::{
    INTRODUCTION, LANE_FRAME, LINK_SILENCE, MAX_CONNECTIONS, MAX_LANES, MAX_STRANGERS, MAX_STRANGERS_OF_ONE,
};
use crate::refused::{Kind, Refused};
use crate::security::Security;

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    /// Dropped, it ends the tasks.
    _open: watch::Sender<()>,
    health: HealthReporter,
    /// See [`socket`](Self::socket).
    outlives: OwnedFd,
}

impl Listener {
    /// Listens at an address, in the present runtime of tokio; lanes go on in `threads`. A head has an `admission` for those who join.
    ///
    /// # Errors
    /// The address cannot be listened at, or must not without a key (HOST-12).
    pub async fn start(
        at: SocketAddr,
        security: Security,
        introduction: Arc<Introduction>,
        peers: Arc<Peers>,
        refused: Arc<Refused>,
        admission: Option<Arc<Admission>>,
        threads: &LaneThreads,
    ) -> io::Result<Self> {
        security.allows(at).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        let socket = TcpListener::bind(at).await?.into_std()?;
        Self::on(socket, security, introduction, peers, refused, admission, threads).await
    }

    /// As [`start`](Self::start), with a socket that listens already: that of the gateway before. Who has connected meanwhile waits in it.
    ///
    /// # Errors
    /// As there.
    pub async fn on(
        socket: std::net::TcpListener,
        security: Security,
        introduction: Arc<Introduction>,
        peers: Arc<Peers>,
        refused: Arc<Refused>,
        admission: Option<Arc<Admission>>,
        threads: &LaneThreads,
    ) -> io::Result<Self> {
        let at = socket.local_addr()?;
        security.allows(at).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        socket.set_nonblocking(true)?;
        let outlives = OwnedFd::from(socket.try_clone()?);
        let socket = TcpListener::from_std(socket)?;
        let address = socket.local_addr()?;
        let (open, closed) = watch::channel(());
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::Serving).await;
        let hosts = Hosts { introduction, peers, refused: Arc::clone(&refused), admission };
        let serve = |runtime: &Handle| {
            let (ready, connections) = mpsc::channel(16);
            let server = Server::builder()
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_concurrent_streams(u32::from(MAX_LANES) + 8)
                .max_frame_size(Some(LANE_FRAME))
                .http2_keepalive_interval(Some(LINK_SILENCE))
                .http2_keepalive_timeout(Some(LINK_SILENCE))
                .add_service(health_service.clone())
                .add_service(hosts.clone())
                .serve_with_incoming_shutdown(ReceiverStream::new(connections), until_closed(closed.clone()));
            runtime.spawn(async move {
                if let Err(error) = server.await {
                    tracing::error!(target: "tensorpost::hosts", %address, "the listener of this host ended: {error}");
                }
            });
            Way { runtime: runtime.clone(), ready }
        };
        let messages = serve(&Handle::current());
        let lanes = threads.all().map(serve).collect();
        let ways = Arc::new(Ways { messages, lanes, next: AtomicUsize::new(0) });
        let doors = Doors { security, refused, strangers: Arc::default(), ways };
        tokio::spawn(doors.stand(socket, closed));
        Ok(Listener { address, _open: open, health, outlives })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket, for a listener that is to follow this one: as long as somebody has it, nobody who connects is refused.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.outlives.as_fd()
    }

    /// What probes are told, by the health protocol of gRPC: whether this host is of a node that works.
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.health.set_service_status("", status).await;
    }
}

async fn until_closed(mut closed: watch::Receiver<()>) {
    // Nothing is ever sent: it ends with the sender.
    while closed.changed().await.is_ok() {}
}

struct Doors {
    security: Security,
    refused: Arc<Refused>,
    strangers: Arc<Mutex<HashMap<IpAddr, usize>>>,
    ways: Arc<Ways>,
}

/// Where connections go on.
struct Ways {
    messages: Way,
    /// On a thread each.
    lanes: Vec<Way>,
    next: AtomicUsize,
}

#[derive(Clone)]
struct Way {
    runtime: Handle,
    /// Those who have shown the key.
    ready: mpsc::Sender<io::Result<Io>>,
}

impl Ways {
    /// For a connection with this first byte.
    fn of(&self, first: u8) -> &Way {
        let lane = || self.lanes.get(self.next.fetch_add(1, Relaxed) % self.lanes.len().max(1));
        (first == LANE).then(lane).flatten().unwrap_or(&self.messages)
    }
}

/// A place among the strangers.
struct Stranger {
    all: Arc<Mutex<HashMap<IpAddr, usize>>>,
    from: IpAddr,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(count) = all.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.from);
            }
        }
    }
}

impl Doors {
    async fn stand(self, socket: TcpListener, closed: watch::Receiver<()>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut closed = std::pin::pin!(until_closed(closed));
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = &mut closed => return,
            };
            match accepted {
                Ok((stream, from)) => self.open(stream, from, &places),
                // Of one connection, or for want of descriptors: then those there are have to end first.
                Err(error) => {
                    tracing::warn!(target: "tensorpost::hosts", "a connection cannot be taken: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn open(&self, stream: TcpStream, from: SocketAddr, places: &Arc<Semaphore>) {
        let (Some(stranger), Ok(place)) = (self.stranger(from.ip()), Arc::clone(places).try_acquire_owned())
        else {
            return self.refused.note(Kind::Flood, from, &"too many connections");
        };
        let (security, refused) = (self.security.clone(), Arc::clone(&self.refused));
        let until = Instant::now() + INTRODUCTION;
        let arrival = Arrival { from, security, place, stranger, refused, until };
        tokio::spawn(arrival.enter(stream, Arc::clone(&self.ways)));
    }

    fn stranger(&self, from: IpAddr) -> Option<Stranger> {
        let mut all = self.strangers.lock();
        let total: usize = all.values().sum();
        let own = all.get(&from).copied().unwrap_or(0);
        (total < MAX_STRANGERS && own < MAX_STRANGERS_OF_ONE).then(|| {
            all.insert(from, own + 1);
            Stranger { all: Arc::clone(&self.strangers), from }
        })
    }
}

/// A connection that nobody knows yet.
struct Arrival {
    from: SocketAddr,
    security: Security,
    place: OwnedSemaphorePermit,
    stranger: Stranger,
    refused: Arc<Refused>,
    until: Instant,
}

impl Arrival {
    /// Brings it where it belongs, by its first byte.
    async fn enter(self, mut stream: TcpStream, ways: Arc<Ways>) {
        let mut first = [0];
        let looked = timeout_at(self.until, stream.peek(&mut first)).await;
        // One that has ended, or broken, is refused with its handshake.
        if looked.is_err() {
            return self.refused.note(Kind::Key, self.from, &late(INTRODUCTION));
        }
        let way = ways.of(first[0]);
        if first[0] != LANE {
            return self.shake_hands(stream, way.ready.clone()).await;
        }
        let detached = match stream.read_exact(&mut first).await {
            Ok(_) => stream.into_std(),
            Err(error) => Err(error),
        };
        let ready = way.ready.clone();
        way.runtime.spawn(async move {
            // Its descriptor is known to the runtime of the thread that reads it.
            match detached.and_then(TcpStream::from_std) {
                Ok(stream) => self.shake_hands(stream, ready).await,
                Err(error) => self.refused.note(Kind::Garbage, self.from, &error),
            }
        });
    }

    async fn shake_hands(self, stream: TcpStream, ready: mpsc::Sender<io::Result<Io>>) {
        let Arrival { from, security, place, stranger, refused, until } = self;
        // A refusal is counted before its connection closes, so that whoever sees the end finds the count. `open` is that connection;
        // where it took too long, `shaking` has it.
        let mut shaking = std::pin::pin!(Io::accept(stream, from, &security, place));
        match timeout_at(until, shaking.as_mut()).await {
            Ok(Ok(io)) => {
                drop(stranger);
                // It fails where the listener ends.
                let _ = ready.send(Ok(io)).await;
            }
            Ok(Err((error, open))) => {
                refused.note(Kind::Key, from, &error);
                drop(open);
            }
            Err(_) => refused.note(Kind::Key, from, &late(INTRODUCTION)),
        }
    }
}
