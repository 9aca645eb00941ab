//! The gRPC service of a host: a control stream and lanes, both in either direction.
//!
//! Connections that reach it have shown the key. The first two messages of a control stream are an
//! [introduction](Introduction) and a greeting. The first of a lane is the greeting of its connection,
//! without a resume. Each side has [`INTRODUCTION`] to send them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Code, Response, Status, Streaming};

use super::codec::{BytesCodec, Outgoing};
use super::lanes::{self, wire};
use super::peer::Peer;
use super::{io, pump};
use crate::frame::{Frame, Hello, decode, encode};
use crate::ids::HostId;
use crate::introduction::Introduction;
use crate::join::{Admitted, NotAdmitted, Request};
use crate::limits::{INTRODUCTION, MAX_FRAME, MAX_HOSTS};
use crate::refused::{Kind, Refused};
use crate::session::Violation;

/// The peers that may connect to this host.
#[derive(Debug, Default)]
pub struct Peers(Mutex<HashMap<HostId, Arc<Peer>>>);

impl Peers {
    /// Accepts connections of this peer from now on, in place of an earlier life of its host. Returns whether
    /// there is room.
    pub fn add(&self, peer: Arc<Peer>) -> bool {
        let host = peer.with(|session| session.peer().host);
        let mut all = self.0.lock();
        let room = all.len() < MAX_HOSTS || all.contains_key(&host);
        if room {
            all.insert(host, peer);
        }
        room
    }

    /// Accepts no more connections of this host.
    pub fn remove(&self, host: HostId) {
        self.0.lock().remove(&host);
    }

    fn get(&self, host: HostId) -> Option<Arc<Peer>> {
        self.0.lock().get(&host).cloned()
    }
}

pub(super) const CONTROL: &str = "/tensorpost.Hosts/Control";
pub(super) const JOIN: &str = "/tensorpost.Hosts/Join";

/// Admits hosts, on the head: takes the request and the address that it came from. It may begin to [accept
/// connections](Peers::add) of the host before it answers.
pub type Admission = dyn Fn(&Request, SocketAddr) -> Result<Admitted, NotAdmitted> + Send + Sync;

/// The state that all methods need.
#[derive(Clone)]
pub(super) struct HostService {
    pub(super) introduction: Arc<Introduction>,
    pub(super) peers: Arc<Peers>,
    pub(super) refused: Arc<Refused>,
    /// Set on the head.
    pub(super) admission: Option<Arc<Admission>>,
}

impl NamedService for HostService {
    const NAME: &'static str = "tensorpost.Hosts";
}

impl tower_service::Service<http::Request<Body>> for HostService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let hosts = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                CONTROL => {
                    let grpc = Grpc::new(BytesCodec(16 << 10)).max_decoding_message_size(MAX_FRAME);
                    { grpc }.streaming(Control(hosts), request).await
                }
                path if lanes::is_method(path) => match hosts.lane(request).await {
                    Ok(said) => wire::answer(said),
                    Err(status) => status.into_http(),
                },
                JOIN => {
                    let grpc = Grpc::new(BytesCodec(4 << 10)).max_decoding_message_size(MAX_FRAME);
                    { grpc }.streaming(Join(hosts), request).await
                }
                _ => Status::unimplemented("hosts have control streams and lanes").into_http(),
            })
        })
    }
}

type Answers = BoxStream<'static, Result<Outgoing, Status>>;

struct Control(HostService);
struct Join(HostService);

impl StreamingService<Bytes> for Control {
    type Response = Outgoing;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let hosts = self.0.clone();
        Box::pin(
            async move { hosts.control(from(request.extensions())?.address, request.into_inner()).await },
        )
    }
}

impl StreamingService<Bytes> for Join {
    type Response = Outgoing;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let hosts = self.0.clone();
        Box::pin(async move { hosts.join(from(request.extensions())?, request.into_inner()).await })
    }
}

fn from(said: &http::Extensions) -> Result<io::From, Status> {
    said.get().copied().ok_or_else(|| Status::internal("a connection without an address"))
}

impl HostService {
    /// Counts, logs and answers a refusal. The codes tell the other side whether to try again: see `dial.rs`.
    fn refuse(&self, kind: Kind, from: SocketAddr, why: &dyn std::fmt::Display) -> Status {
        self.refused.note(kind, from, why);
        let why = why.to_string();
        match kind {
            Kind::Build => Status::failed_precondition(why),
            Kind::Stranger => Status::permission_denied(why),
            Kind::Replayed => Status::aborted(why),
            _ => Status::invalid_argument(why),
        }
    }

    async fn first(&self, stream: &mut Streaming<Bytes>, from: SocketAddr) -> Result<Bytes, Status> {
        self.first_within(INTRODUCTION, stream.message(), from).await
    }

    pub(super) async fn first_within(
        &self,
        time: Duration,
        first: impl Future<Output = Result<Option<Bytes>, Status>>,
        from: SocketAddr,
    ) -> Result<Bytes, Status> {
        match tokio::time::timeout(time, first).await {
            Ok(Ok(Some(bytes))) => Ok(bytes),
            Ok(Ok(None)) => Err(self.refuse(Kind::Garbage, from, &"it ended before it said who it is")),
            // The message is longer than any may be.
            Ok(Err(status)) if status.code() == Code::OutOfRange => {
                Err(self.refuse(Kind::Garbage, from, &status.message().to_owned()))
            }
            Ok(Err(status)) => Err(self.not_heard(from, status.message())),
            Err(_) => Err(self.not_heard(from, "it did not say who it is in time")),
        }
    }

    /// Handles a connection that broke or was silent before its introduction. It counts as garbage, but its
    /// cause may be honest: a slow machine or network. So the answer is no refusal, after which a host would
    /// give this one up for good.
    fn not_heard(&self, from: SocketAddr, why: &str) -> Status {
        self.refused.note(Kind::Garbage, from, &why);
        Status::unavailable(why)
    }

    fn greeting(&self, first: Bytes, from: SocketAddr) -> Result<Hello, Status> {
        match decode(first) {
            Ok(Frame::Hello(hello)) => Ok(hello),
            Ok(_) => Err(self.refuse(Kind::Garbage, from, &"it does not begin with a greeting")),
            Err(error) => Err(self.refuse(Kind::Garbage, from, &error)),
        }
    }

    fn peer(&self, hello: &Hello, from: SocketAddr) -> Result<Arc<Peer>, Status> {
        self.peers.get(hello.from.host).ok_or_else(|| {
            // This host may not have heard of the other one yet.
            let why = format!("{} is not of this node, or not known here yet", hello.from);
            self.refused.note(Kind::Stranger, from, &why);
            Status::not_found(why)
        })
    }

    async fn introduced(&self, stream: &mut Streaming<Bytes>, from: SocketAddr) -> Result<(), Status> {
        let introduction = self.first(stream, from).await?;
        let introduction =
            Introduction::decode(introduction).map_err(|error| self.refuse(Kind::Garbage, from, &error))?;
        self.introduction.check(&introduction).map_err(|differs| self.refuse(Kind::Build, from, &differs))
    }

    async fn join(self, who: io::From, mut stream: Streaming<Bytes>) -> Result<Response<Answers>, Status> {
        let from = who.address;
        self.introduced(&mut stream, from).await?;
        let request = Request::decode(&self.first(&mut stream, from).await?)
            .map_err(|error| self.refuse(Kind::Garbage, from, &error))?;
        // An agent was taken for a head: the name of the head is wrong.
        let agent =
            || self.refuse(Kind::Stranger, from, &"this host is an agent of a node, and not its head");
        let admission = self.admission.as_ref().ok_or_else(agent)?;
        let admitted = admission(&request, from).map_err(|why| self.refuse(Kind::Stranger, from, &why))?;
        if let Some(user) = who.user {
            let (host, name) = (admitted.you.host, &request.name);
            tracing::info!(target: "tensorpost::hosts", %from, "{host} ({name:?}) has joined without a key, as a process of user {user}");
        }
        let answer = Outgoing::from(admitted.encode());
        Ok(Response::new(pump::answers(stream::once(async move { answer }))))
    }

    async fn control(
        self,
        from: SocketAddr,
        mut stream: Streaming<Bytes>,
    ) -> Result<Response<Answers>, Status> {
        self.introduced(&mut stream, from).await?;
        let hello = self.greeting(self.first(&mut stream, from).await?, from)?;
        let peer = self.peer(&hello, from)?;
        let accepted = match peer.accept(&hello) {
            // It is told which gateway is here, and begins anew.
            Err(Violation::OtherGateway { .. }) => {
                let who = Outgoing::from(encode(&Frame::Hello(peer.introduce(&hello))));
                return Ok(Response::new(pump::answers(stream::once(async move { who }))));
            }
            accepted => accepted,
        };
        let (link, answer) = accepted.map_err(|violation| {
            if let Violation::NextGateway { .. } = violation {
                // An honest host asks again in a moment, when there is a session for its next gateway.
                return Status::unavailable(violation.to_string());
            }
            let kind = match violation {
                _ if violation.is_late() => Kind::Replayed,
                Violation::OtherSession { .. } => Kind::Stranger,
                _ => Kind::Forged,
            };
            self.refuse(kind, from, &violation)
        })?;
        let answer = Outgoing::from(encode(&Frame::Hello(answer)));
        tokio::spawn(pump::hear(Arc::clone(&peer), link, stream, from));
        let first = stream::once(async move { answer });
        Ok(Response::new(pump::answers(first.chain(pump::frames(peer, link)))))
    }

    async fn lane(self, request: http::Request<Body>) -> Result<BoxStream<'static, Outgoing>, Status> {
        let (from, method) = (from(request.extensions())?.address, request.uri().path().to_owned());
        let mut stream = wire::Incoming::new(request.into_body());
        let first = async { Ok(stream.message().await?.map(wire::Parts::into_bytes)) };
        let hello = self.greeting(self.first_within(INTRODUCTION, first, from).await?, from)?;
        let peer = self.peer(&hello, from)?;
        let link = peer.with(|session| session.lane(&hello)).map_err(|violation| {
            let kind = if violation.is_late() { Kind::Replayed } else { Kind::Stranger };
            self.refuse(kind, from, &violation)
        })?;
        // This is no refusal: the connection goes on without the lane.
        let none = || Status::unimplemented("this host was not told to use such a lane, or has none");
        let lane = peer.lanes().iter().find(|lane| lane.method() == method).ok_or_else(none)?;
        Ok(lane.begin(&peer, link, stream, from))
    }
}
