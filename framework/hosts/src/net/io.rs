//! Connections: TCP, with TLS if there is a key.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::transport::server::Connected;

use super::{LANE, MESSAGES};
use crate::limits::LINK_SILENCE;
use crate::security::Security;

trait Both: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Both for T {}

/// A connection whose other end has shown the key, if there is one.
pub(super) struct Io {
    inner: Pin<Box<dyn Both>>,
    peer: From,
    /// Its place among the connections of a listener.
    _place: Option<OwnedSemaphorePermit>,
}

/// The other end, attached to requests.
#[derive(Clone, Copy)]
pub(super) struct From {
    pub(super) address: SocketAddr,
    /// The user of its process, if there is no key.
    pub(super) user: Option<u32>,
}

/// Sets the options of a connection. Unacknowledged bytes end it after this time, not after the system's
/// fifteen minutes.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let timeout = LINK_SILENCE.as_millis() as u32;
    rustix::net::sockopt::set_tcp_user_timeout(stream, timeout).map_err(io::Error::from)
}

impl Io {
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer.address
    }

    /// Holds this place from now on.
    pub(super) fn at(self, place: OwnedSemaphorePermit) -> Self {
        Io { _place: Some(place), ..self }
    }

    /// Accepts a connection. An error returns the connection too, so that the caller decides when it closes.
    pub(super) async fn accept(
        stream: TcpStream,
        peer: From,
        security: &Security,
    ) -> Result<Self, (io::Error, TcpStream)> {
        if let Err(error) = prepare(&stream) {
            return Err((error, stream));
        }
        let inner: Pin<Box<dyn Both>> = match security.server() {
            None => Box::pin(stream),
            Some(config) => Box::pin(TlsAcceptor::from(config).accept(stream).into_fallible().await?),
        };
        Ok(Io { inner, peer, _place: None })
    }

    /// Connects to `host:port`, at the first of its addresses that answers.
    pub(super) async fn connect(to: &str, security: &Security, is_lane: bool) -> io::Result<Self> {
        let mut last = None;
        for address in tokio::net::lookup_host(to).await? {
            security
                .allows(address)
                .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
            match Self::connect_at(to, address, security, is_lane).await {
                Ok(connected) => return Ok(connected),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{to} has no address"))))
    }

    async fn connect_at(
        to: &str,
        address: SocketAddr,
        security: &Security,
        is_lane: bool,
    ) -> io::Result<Self> {
        let mut stream = connect(address).await?;
        // Checked before anything is sent.
        security.believes(address).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        prepare(&stream)?;
        stream.write_all(&opening(security, is_lane)?).await?;
        let inner: Pin<Box<dyn Both>> = match security.client() {
            None => Box::pin(stream),
            Some((config, named)) => {
                let host = to.rsplit_once(':').map_or(to, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = match ServerName::try_from(host) {
                    Ok(name) => name,
                    // The name does not matter if the key identifies the other end.
                    Err(_) if !named => ServerName::from(address.ip()),
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
                };
                let connector = TlsConnector::from(Arc::clone(&config));
                Box::pin(within(LINK_SILENCE, connector.connect(name, stream)).await?)
            }
        };
        Ok(Io { inner, peer: From { address, user: None }, _place: None })
    }
}

/// Connects as the system does, but retries sooner. If more connect than a listener accepts, it loses the
/// first packet, and the system waits a second before it tries again.
async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let mut patience = LINK_SILENCE / 16;
    loop {
        match within(patience, TcpStream::connect(to)).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && patience < LINK_SILENCE / 2 => {
                patience *= 2
            }
            done => return done,
        }
    }
}

/// Makes the first bytes of a connection, before TLS.
fn opening(security: &Security, is_lane: bool) -> io::Result<Vec<u8>> {
    let Some(prover) = security.prover() else { return Ok(if is_lane { vec![LANE] } else { Vec::new() }) };
    let mark = if is_lane { LANE } else { MESSAGES };
    let proof = prover.prove(mark).ok_or_else(|| io::Error::other("the system has no random numbers"))?;
    Ok([&[mark], &proof[..]].concat())
}

async fn within<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(time, work).await.map_err(|_| late(time))?
}

pub(super) fn late(time: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no answer for {} s", time.as_secs()))
}

impl Connected for Io {
    type ConnectInfo = From;

    fn connect_info(&self) -> From {
        self.peer
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.inner.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.as_mut().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
