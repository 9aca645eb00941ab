//! Takes connections: TLS first, then gRPC for those who have shown the key.
//!
//! Until it has shown the key a connection has cost a socket, a place among [`MAX_STRANGERS`] and at most [`INTRODUCTION`]; past
//! those places, or past those of its address, it is closed at once. So strangers keep nobody out but each other.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::io::{Io, late};
use super::service::{Admission, Hosts, Peers};
use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::introduction::Introduction;
use crate::limits::{
    INTRODUCTION, LINK_SILENCE, MAX_CONNECTIONS, MAX_LANES, MAX_STRANGERS, MAX_STRANGERS_OF_ONE,
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
}

impl Listener {
    /// Listens at an address, in the present runtime of tokio. A head has an `admission` for those who join.
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
    ) -> io::Result<Self> {
        security.allows(at).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        let socket = TcpListener::bind(at).await?;
        let address = socket.local_addr()?;
        let (open, closed) = watch::channel(());
        let (ready, connections) = mpsc::channel(16);
        let doors = Doors { security, refused: Arc::clone(&refused), strangers: Arc::default() };
        tokio::spawn(doors.stand(socket, ready, closed.clone()));

        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::Serving).await;
        let hosts = Hosts { introduction, peers, refused, admission };
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(u32::from(MAX_LANES) + 8)
            .http2_keepalive_interval(Some(LINK_SILENCE))
            .http2_keepalive_timeout(Some(LINK_SILENCE))
            .add_service(health_service)
            .add_service(hosts)
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), until_closed(closed));
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(target: "tensorpost::hosts", %address, "the listener of this host ended: {error}");
            }
        });
        Ok(Listener { address, _open: open, health })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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
    async fn stand(
        self,
        socket: TcpListener,
        ready: mpsc::Sender<io::Result<Io>>,
        closed: watch::Receiver<()>,
    ) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut closed = std::pin::pin!(until_closed(closed));
        loop {
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = &mut closed => return,
            };
            match accepted {
                Ok((stream, from)) => self.open(stream, from, &places, &ready),
                // Of one connection, or for want of descriptors: then those there are have to end first.
                Err(error) => {
                    tracing::warn!(target: "tensorpost::hosts", "a connection cannot be taken: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn open(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        places: &Arc<Semaphore>,
        ready: &mpsc::Sender<io::Result<Io>>,
    ) {
        let (Some(stranger), Ok(place)) = (self.stranger(from.ip()), Arc::clone(places).try_acquire_owned())
        else {
            return self.refused.note(Kind::Flood, from, &"too many connections");
        };
        let (security, refused, ready) = (self.security.clone(), Arc::clone(&self.refused), ready.clone());
        tokio::spawn(shake_hands(stream, from, security, place, stranger, refused, ready));
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

async fn shake_hands(
    stream: TcpStream,
    from: SocketAddr,
    security: Security,
    place: OwnedSemaphorePermit,
    stranger: Stranger,
    refused: Arc<Refused>,
    ready: mpsc::Sender<io::Result<Io>>,
) {
    // A refusal is counted before its connection closes, so that whoever sees the end finds the count. `open` is that connection;
    // where it took too long, `shaking` has it.
    let mut shaking = std::pin::pin!(Io::accept(stream, from, &security, place));
    match tokio::time::timeout(INTRODUCTION, shaking.as_mut()).await {
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
