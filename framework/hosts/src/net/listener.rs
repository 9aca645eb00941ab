//! Accepts connections: TLS first, then gRPC once they have shown the key.
//!
//! Until it has shown the key, a connection costs a socket, a [place](super::strangers) and at most
//! [`INTRODUCTION`]. With a key file it takes no time of any thread but that of the [doors](super::acceptor).
//! So strangers keep out nobody but each other.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout_at;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use super::acceptor::{Doors, Guest};
use super::io::{From, Io, late};
use super::service::{Admission, HostService, Peers};
use super::threads::LaneThreads;
use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::introduction::Introduction;
use crate::limits::{ACCEPT_BACKLOG, INTRODUCTION, LANE_FRAME, LINK_SILENCE, MAX_CONNECTIONS, MAX_LANES};
use crate::refused::{Kind, Refused};
use crate::security::Security;

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    /// Dropping it ends the tasks.
    _open: watch::Sender<()>,
    _doors: Doors,
    /// See [`socket`](Self::socket).
    outlives: OwnedFd,
}

impl Listener {
    /// Listens at an address, in the present runtime of tokio; lanes run in `threads`. A head has an
    /// `admission` for hosts that join.
    ///
    /// # Errors
    /// The address cannot be used, or must not be used without a key (HOST-12).
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
        Self::on(bind(at)?, security, introduction, peers, refused, admission, threads).await
    }

    /// Does the same as [`start`](Self::start), with a socket that listens already: that of the gateway
    /// before. Connections made meanwhile wait in it.
    ///
    /// # Errors
    /// See [`start`](Self::start).
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
        rustix::net::listen(&socket, ACCEPT_BACKLOG)?;
        // For `socket`: the doors own the other descriptor.
        let outlives = OwnedFd::from(socket.try_clone()?);
        let address = at;
        if security.server().is_none() {
            let user = rustix::process::geteuid().as_raw();
            tracing::info!(target: "tensorpost::hosts", %address,
                "there is no key: this host takes and makes connections within this machine alone, with processes of user {user} and root");
        }
        let (open, closed) = watch::channel(());
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::Serving).await;
        let hosts = HostService { introduction, peers, refused: Arc::clone(&refused), admission };
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
        // The servers start before the doors, which pass connections to them.
        let messages = serve(&Handle::current());
        let lanes = threads.all().map(serve).collect();
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (next, admitting) = (AtomicUsize::new(0), (security.clone(), Arc::clone(&refused)));
        let ways = Arc::new(Ways { messages, lanes, next, security, refused, places });
        let doors = Doors::open(socket, admitting.0, admitting.1, move |guest| ways.admit(guest))?;
        Ok(Listener { address, _open: open, _doors: doors, outlives })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the socket, for a listener that follows this one. While some process holds the socket,
    /// connections are not refused.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.outlives.as_fd()
    }
}

/// Binds a socket that listens. The address `[::]` stands for those of IPv4, too, whatever the system's
/// default is.
fn bind(at: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if at.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(ACCEPT_BACKLOG.cast_unsigned())?.into_std()
}

async fn until_closed(mut closed: watch::Receiver<()>) {
    // Nothing is ever sent: the loop ends with the sender.
    while closed.changed().await.is_ok() {}
}

/// The runtimes that serve connections.
struct Ways {
    messages: Way,
    /// One way for each lane thread.
    lanes: Vec<Way>,
    next: AtomicUsize,
    security: Security,
    refused: Arc<Refused>,
    /// One permit for each connection that has shown the key.
    places: Arc<Semaphore>,
}

#[derive(Clone)]
struct Way {
    runtime: Handle,
    /// Passes on connections that have shown the key.
    ready: mpsc::Sender<io::Result<Io>>,
}

impl Ways {
    fn of(&self, is_lane: bool) -> &Way {
        let lane = || self.lanes.get(self.next.fetch_add(1, Relaxed) % self.lanes.len().max(1));
        is_lane.then(lane).flatten().unwrap_or(&self.messages)
    }
}

impl Ways {
    /// Moves a connection to the thread that will serve it, which serves it once it has shown the key.
    fn admit(self: &Arc<Self>, guest: Guest) {
        let (way, all) = (self.of(guest.is_lane), Arc::clone(self));
        let ready = way.ready.clone();
        way.runtime.spawn(async move { all.shake_hands(guest, ready).await });
    }

    async fn shake_hands(&self, guest: Guest, ready: mpsc::Sender<io::Result<Io>>) {
        let Guest { stream, from, user, mut place, until, .. } = guest;
        // Registered with the runtime of the thread that will read it.
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return self.refused.note(Kind::Garbage, from, &error),
        };
        // A refusal is counted before its connection closes, so that code which sees the end finds the count.
        // `open` is that connection; after a timeout `shaking` holds it.
        let mut shaking = std::pin::pin!(Io::accept(stream, From { address: from, user }, &self.security));
        match place.within(timeout_at(until.into(), shaking.as_mut())).await {
            Some(Ok(Ok(io))) => match Arc::clone(&self.places).try_acquire_owned() {
                Ok(among_all) => {
                    place.shows_key();
                    // An error means that the listener ends.
                    let _ = ready.send(Ok(io.at(among_all))).await;
                }
                Err(_) => {
                    let why = format!("{MAX_CONNECTIONS} connections have shown the key, and no more may");
                    self.refused.note(Kind::Flood, from, &why)
                }
            },
            Some(Ok(Err((error, open)))) => {
                self.refused.note(Kind::Key, from, &error);
                drop(open);
            }
            Some(Err(_)) => self.refused.note(Kind::Key, from, &late(INTRODUCTION)),
            None => {
                self.refused.note(Kind::Flood, from, &"others who have not shown the key have come after it")
            }
        }
    }
}
