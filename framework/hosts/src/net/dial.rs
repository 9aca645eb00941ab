//! Connects to a peer, and reconnects until its session is over.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream, StreamExt};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::codec::{BytesCodec, Outgoing};
use super::io::Io;
use super::lanes::{Lane, wire};
use super::peer::Peer;
use super::threads::LaneThreads;
use super::{CONNECTION_WINDOW, STREAM_WINDOW, pump, service};
use crate::frame::{Frame, Hello, decode, encode};
use crate::introduction::Introduction;
use crate::join::{Admitted, Request};
use crate::limits::{INTRODUCTION, LANE_FRAME, LINK_SILENCE, MAX_FRAME};
use crate::security::Security;
use crate::session::Link;
use crate::verdict::Moment;

/// The wait between two attempts, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The address of a peer, and how to reach it.
#[derive(Clone, Debug)]
pub struct Dial {
    /// `host:port`.
    pub to: String,
    /// How connections are secured.
    pub security: Security,
    /// This host's introduction.
    pub introduction: Arc<Introduction>,
    /// The number of connections for tensors, beside the one for everything else: 1 to
    /// [`MAX_LANES`](crate::limits::MAX_LANES).
    pub lanes: u16,
    /// The threads of the lanes.
    pub threads: Arc<LaneThreads>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum DialError {
    /// The host cannot be reached now: it makes sense to try again.
    #[error("{to} cannot be reached: {why}")]
    Unreachable { to: String, why: String },
    /// The other host refuses this one.
    #[error("{to} refuses this host: {why}")]
    Refused { to: String, why: String },
}

impl Dial {
    /// Keeps a peer connected until its session is over, or it refuses this host.
    ///
    /// # Errors
    /// The other host refuses: its program is another, or it has given this host up.
    pub async fn keep(&self, peer: &Arc<Peer>) -> Result<(), DialError> {
        let mut wait = BACKOFF.0;
        while !peer.is_over() {
            match self.connect(peer).await {
                Ok(link) => {
                    wait = BACKOFF.0;
                    peer.cut_of(link).await;
                }
                // Both sides end a session. If the other side was first, it refuses the attempt that was
                // under way.
                Err(DialError::Refused { .. }) if peer.is_over() => return Ok(()),
                Err(refused @ DialError::Refused { .. }) => return Err(refused),
                Err(error) => {
                    tracing::debug!(target: "tensorpost::hosts", "{error}; trying again in {wait:?}");
                    sleep(wait).await;
                    wait = (wait * 2).min(BACKOFF.1);
                }
            }
        }
        Ok(())
    }

    /// Asks the head to admit this host, again and again until the deadline: a name may not be known yet, and
    /// the head not be up. Also returns the moment before the request, from which an
    /// [`Agent`](crate::verdict::Agent) counts.
    ///
    /// # Errors
    /// The head refuses, which is returned at once, or it was not reached in time.
    pub async fn join(&self, request: &Request, deadline: Duration) -> Result<(Admitted, Moment), DialError> {
        let mut wait = BACKOFF.0;
        let end = Instant::now() + deadline;
        let mut before = None;
        loop {
            let asked = Moment::now();
            let error = match timeout_at(end, self.ask_to_join(request)).await {
                Ok(Ok(admitted)) => return Ok((admitted, asked)),
                Ok(Err(refused @ DialError::Refused { .. })) => return Err(refused),
                Ok(Err(error)) => error,
                // The deadline cut this attempt, which says less than the one before it.
                Err(_) => before.take().unwrap_or_else(|| self.unreachable("it does not answer")),
            };
            if Instant::now() + wait >= end {
                let after = format!("{error}, after trying for {} s", deadline.as_secs_f32());
                return Err(DialError::Unreachable { to: self.to.clone(), why: after });
            }
            tracing::debug!(target: "tensorpost::hosts", "{error}; trying again in {wait:?}");
            before = Some(error);
            sleep(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    async fn ask_to_join(&self, request: &Request) -> Result<Admitted, DialError> {
        let (channel, _) = self.channel(false).await?;
        let said = stream::iter([self.introduction.encode(), request.encode()].map(Outgoing::from));
        let mut from = self.call(channel, service::JOIN, 4 << 10, MAX_FRAME, said).await?;
        let bytes = self.first(&mut from).await?;
        Admitted::decode(&bytes).map_err(|error| self.unreachable(error))
    }

    /// Waits for the first message of an answer.
    async fn first(&self, from: &mut Streaming<Bytes>) -> Result<Bytes, DialError> {
        let first = timeout(INTRODUCTION, from.message()).await;
        let first = first.map_err(|_| self.unreachable("it does not answer"))?;
        first.map_err(|status| self.status(&status))?.ok_or_else(|| self.unreachable("it hung up"))
    }

    /// Makes one connection: the control stream, then the lanes.
    ///
    /// # Errors
    /// No connection could be made.
    pub async fn connect(&self, peer: &Arc<Peer>) -> Result<Link, DialError> {
        let (channel, address) = self.channel(false).await?;
        let hello = peer.dial();
        // The frames after the greeting can follow only when it was answered.
        let (up, is_up) = tokio::sync::oneshot::channel();
        let greeting = [self.introduction.encode(), encode(&Frame::Hello(hello))].map(Outgoing::from);
        let frames = Arc::clone(peer);
        let rest = stream::once(is_up).flat_map(move |link| match link {
            Ok(link) => pump::frames(Arc::clone(&frames), link).boxed(),
            Err(_) => stream::empty().boxed(),
        });
        let sent = stream::iter(greeting).chain(rest);
        let mut from = self.call(channel, service::CONTROL, 16 << 10, MAX_FRAME, sent).await?;
        let Ok(Frame::Hello(answer)) = decode(self.first(&mut from).await?) else {
            return Err(self.unreachable("it does not answer with a greeting"));
        };
        let link = peer.answered(&answer).map_err(|violation| self.unreachable(violation))?;
        // The receiver exists as long as the call does.
        let _ = up.send(link);
        tokio::spawn(pump::hear(Arc::clone(peer), link, from, address));
        // By now both sides know each other's gateways.
        let hello = peer.lane_hello();
        // The lane that takes everything is the last to be offered a span, so it is made first.
        for lane in peer.lanes().iter().rev() {
            for _ in 0..lane.streams(self.lanes) {
                match self.stream(*lane, peer, link, &hello).await {
                    Ok(()) => {}
                    Err(error) if lane.is_needed() => {
                        peer.cut(link);
                        return Err(error);
                    }
                    Err(error) => {
                        let (to, method) = (&self.to, lane.method());
                        tracing::info!(target: "tensorpost::hosts", "tensors do not go to {to} by {method}: {error}");
                    }
                }
            }
        }
        Ok(link)
    }

    /// Makes a stream of a lane, on the thread where it stays.
    async fn stream(
        &self,
        lane: &'static dyn Lane,
        peer: &Arc<Peer>,
        link: Link,
        hello: &Hello,
    ) -> Result<(), DialError> {
        let (dial, peer) = (self.clone(), Arc::clone(peer));
        let greeting = Outgoing::from(encode(&Frame::Hello(hello.clone())));
        let making = self.threads.next().spawn(async move {
            let (channel, address) = dial.channel(true).await?;
            // The messages after the greeting can follow only when it was answered.
            let (up, is_up) = tokio::sync::oneshot::channel();
            let rest = stream::once(is_up).flat_map(|said| match said {
                Ok(said) => said,
                Err(_) => stream::empty().boxed(),
            });
            let sent = stream::once(async move { greeting }).chain(rest);
            let from = timeout(INTRODUCTION, wire::call(channel, lane.method(), sent.boxed())).await;
            let from = from.map_err(|_| dial.unreachable("it does not answer"))?;
            let from = from.map_err(|status| dial.status(&status))?;
            // The receiver exists as long as the call does.
            let _ = up.send(lane.begin(&peer, link, from, address));
            Ok(())
        });
        making.await.map_err(|_| self.unreachable("its lanes have no threads any more"))?
    }

    /// Sends these messages and nothing else. Returns the first message of the answer.
    #[cfg(test)]
    pub(super) async fn say(
        &self,
        method: &'static str,
        said: Vec<Bytes>,
    ) -> Result<Option<Bytes>, DialError> {
        let (channel, _) = self.channel(false).await?;
        let sent = stream::iter(said).map(Outgoing::from);
        let mut from = self.call(channel, method, 16 << 10, MAX_FRAME, sent).await?;
        from.message().await.map_err(|status| self.status(&status))
    }

    async fn call(
        &self,
        channel: Channel,
        method: &'static str,
        buffer: usize,
        most: usize,
        sent: impl Stream<Item = Outgoing> + Send + 'static,
    ) -> Result<Streaming<Bytes>, DialError> {
        let mut grpc = Grpc::new(channel).max_decoding_message_size(most);
        let call = async {
            grpc.ready().await.map_err(|error| self.unreachable(error))?;
            let path = PathAndQuery::from_static(method);
            let answer = grpc.streaming(tonic::Request::new(sent), path, BytesCodec(buffer)).await;
            answer.map(tonic::Response::into_inner).map_err(|status| self.status(&status))
        };
        timeout(INTRODUCTION, call).await.map_err(|_| self.unreachable("it does not answer"))?
    }

    async fn channel(&self, is_lane: bool) -> Result<(Channel, SocketAddr), DialError> {
        let io =
            Io::connect(&self.to, &self.security, is_lane).await.map_err(|error| self.unreachable(error))?;
        let address = io.peer();
        let endpoint = Endpoint::from_static("http://host")
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(LANE_FRAME)
            .http2_keep_alive_interval(LINK_SILENCE)
            .keep_alive_timeout(LINK_SILENCE);
        let once = Once(Arc::new(Mutex::new(Some(io))));
        let channel = endpoint.connect_with_connector(once).await.map_err(|error| self.unreachable(error))?;
        Ok((channel, address))
    }

    fn unreachable(&self, why: impl ToString) -> DialError {
        DialError::Unreachable { to: self.to.clone(), why: why.to_string() }
    }

    /// Translates the other side's status code: see `service.rs`.
    pub(super) fn status(&self, status: &Status) -> DialError {
        let (to, why) = (self.to.clone(), status.message().to_owned());
        match status.code() {
            Code::FailedPrecondition | Code::PermissionDenied | Code::InvalidArgument => {
                DialError::Refused { to, why }
            }
            _ => DialError::Unreachable { to, why },
        }
    }
}

/// Gives a channel its one connection. A second connection is a new attempt, which this file makes.
#[derive(Clone)]
struct Once(Arc<Mutex<Option<Io>>>);

impl tower_service::Service<http::Uri> for Once {
    type Response = TokioIo<Pin<Box<Io>>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let io = self.0.lock().take();
        Box::pin(async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection is broken");
            io.map(|io| TokioIo::new(Box::pin(io))).ok_or_else(gone)
        })
    }
}
