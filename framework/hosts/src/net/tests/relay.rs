//! A relay that stands between two hosts, and breaks their connections. The tests of nodes on two hosts
//! (`tests/tests/hosts`) use it too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The treatment of passing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// Each chunk waits this long.
    Slow(Duration),
    /// Nothing passes, and neither side is told.
    HalfOpen,
    /// The connection ends, with a reset or in order.
    Cut {
        reset: bool,
    },
}

pub(super) struct Relay {
    pub(super) address: SocketAddr,
    /// The weather of each connection that was made.
    connections: Arc<Mutex<Vec<watch::Sender<Weather>>>>,
}

impl Relay {
    pub(super) async fn start(to: SocketAddr) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let connections: Arc<Mutex<Vec<watch::Sender<Weather>>>> = Arc::default();
        let made = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((from, _)) = socket.accept().await {
                let (weather, seen) = watch::channel(Weather::Fair);
                made.lock().push(weather);
                tokio::spawn(async move {
                    let Ok(to) = TcpStream::connect(to).await else { return };
                    pass(from, to, seen).await;
                });
            }
        });
        Relay { address, connections }
    }

    /// Waits until this many connections live.
    pub(super) async fn until_made(&self, count: usize) {
        while self.live() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn live(&self) -> usize {
        let mut all = self.connections.lock();
        all.retain(|connection| !connection.is_closed());
        all.len()
    }

    /// Changes the weather of one live connection, chosen by a number, or of all.
    pub(super) fn change(&self, which: Option<u64>, weather: Weather) {
        let len = self.live() as u64;
        for (index, connection) in self.connections.lock().iter().enumerate() {
            if which.is_none_or(|which| which % len.max(1) == index as u64) {
                // An error means that the connection has ended.
                let _ = connection.send(weather);
            }
        }
    }
}

async fn pass(from: TcpStream, to: TcpStream, mut weather: watch::Receiver<Weather>) {
    let (mut from_read, mut from_write) = from.into_split();
    let (mut to_read, mut to_write) = to.into_split();
    let there = copy(&mut from_read, &mut to_write, weather.clone());
    let back = copy(&mut to_read, &mut from_write, weather.clone());
    let cut = weather.wait_for(|weather| matches!(weather, Weather::Cut { .. }));
    let reset = tokio::select! {
        _ = there => false,
        _ = back => false,
        cut = cut => matches!(cut.as_deref(), Ok(Weather::Cut { reset: true })),
    };
    if reset {
        let whole = from_read.reunite(from_write).ok().zip(to_read.reunite(to_write).ok());
        let (from, to) = whole.expect("the halves belong together");
        // A socket that is closed with this sends a reset.
        from.set_zero_linger().and_then(|()| to.set_zero_linger()).expect("sockets");
    }
}

async fn copy(
    from: &mut tokio::net::tcp::OwnedReadHalf,
    to: &mut tokio::net::tcp::OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let now = *weather.borrow_and_update();
        match now {
            Weather::Slow(time) => tokio::time::sleep(time).await,
            // The bytes that were read are lost, as in a network that went away.
            Weather::HalfOpen => {
                let _ = weather.wait_for(|weather| matches!(weather, Weather::Cut { .. })).await;
                return Ok(());
            }
            Weather::Fair | Weather::Cut { .. } => {}
        }
        to.write_all(&buffer[..read]).await?;
    }
}
