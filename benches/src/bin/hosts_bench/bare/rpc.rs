//! gRPC by tonic, with messages that are bytes, and mutual TLS where there is a configuration. Each end of a
//! connection has a thread and a runtime.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc as GrpcServer, NamedService, StreamingService};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Response, Status, Streaming};

use super::PIECE;

const ECHO: &str = "/bench.Bare/Echo";
const SINK: &str = "/bench.Bare/Sink";
/// The same as the framework's.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

trait Both: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Both for T {}

struct Io(Pin<Box<dyn Both>>);

impl Connected for Io {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

/// A codec for messages of about this many bytes.
#[derive(Clone, Copy)]
struct Plain(usize);

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(item.len());
        to.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.0, self.0)
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.0, self.0)
    }
}

#[derive(Clone)]
struct Bare;

impl NamedService for Bare {
    const NAME: &'static str = "bench.Bare";
}

impl tower_service::Service<http::Request<Body>> for Bare {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path() {
                ECHO => GrpcServer::new(Plain(1 << 10)).streaming(Echo, request).await,
                SINK => GrpcServer::new(Plain(PIECE)).streaming(Drain, request).await,
                _ => Status::unimplemented("echo or sink").into_http(),
            })
        })
    }
}

type Answers = BoxStream<'static, Result<Bytes, Status>>;

/// A service that sends every message back.
struct Echo;

impl StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(request.into_inner().boxed())) })
    }
}

/// A service that gives one answer, behind all messages.
struct Drain;

impl StreamingService<Bytes> for Drain {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let mut from = request.into_inner();
            let answer = async move {
                while from.message().await?.is_some() {}
                Ok(Bytes::from_static(b"all"))
            };
            Ok(Response::new(stream::once(answer).boxed()))
        })
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn socket(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

/// Runs the other side of a connection, until it ends.
pub(super) fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let stream = socket(stream)?;
        let io = match tls {
            None => Io(Box::pin(stream)),
            Some(config) => Io(Box::pin(TlsAcceptor::from(config).accept(stream).await?)),
        };
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .add_service(Bare);
        // The thread stays until the program ends, and is idle once the connection has ended.
        let incoming = stream::once(async { Ok::<_, io::Error>(io) }).chain(stream::pending());
        Ok(server.serve_with_incoming(incoming).await?)
    })
}

async fn channel(stream: TcpStream, tls: Option<Arc<ClientConfig>>) -> anyhow::Result<Channel> {
    let stream = socket(stream)?;
    let io = match tls {
        None => Io(Box::pin(stream)),
        Some(config) => {
            let name = ServerName::try_from("bare")?;
            Io(Box::pin(TlsConnector::from(config).connect(name, stream).await?))
        }
    };
    let endpoint = Endpoint::from_static("http://bare")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    Ok(endpoint.connect_with_connector(Once(Arc::new(Mutex::new(Some(io))))).await?)
}

async fn call(
    channel: Channel,
    method: &'static str,
    buffer: usize,
    sent: impl Stream<Item = Bytes> + Send + 'static,
) -> anyhow::Result<Streaming<Bytes>> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await?;
    let path = PathAndQuery::from_static(method);
    Ok(grpc.streaming(tonic::Request::new(sent), path, Plain(buffer)).await?.into_inner())
}

pub(super) fn trips(
    stream: TcpStream,
    tls: Option<Arc<ClientConfig>>,
    count: u64,
    bytes: usize,
) -> anyhow::Result<Vec<u64>> {
    runtime()?.block_on(async {
        let (to, sent) = mpsc::channel(1);
        let mut from = call(channel(stream, tls).await?, ECHO, 1 << 10, ReceiverStream::new(sent)).await?;
        let message = Bytes::from(vec![7; bytes]);
        let mut took = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let since = Instant::now();
            to.send(message.clone()).await?;
            let back = from.message().await?;
            anyhow::ensure!(back.is_some_and(|back| back.len() == bytes), "another message came back");
            took.push(since.elapsed().as_nanos() as u64 / 2);
        }
        Ok(took)
    })
}

pub(super) fn pour(
    stream: TcpStream,
    tls: Option<Arc<ClientConfig>>,
    count: u64,
    bytes: usize,
) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let message = Bytes::from(vec![7; bytes]);
        let sent = stream::iter(0..count).map(move |_| message.clone());
        let mut from = call(channel(stream, tls).await?, SINK, bytes.max(16 << 10), sent).await?;
        anyhow::ensure!(from.message().await?.is_some(), "not all was read");
        Ok(())
    })
}

/// Gives a channel its one connection.
#[derive(Clone)]
struct Once(Arc<Mutex<Option<Io>>>);

impl tower_service::Service<http::Uri> for Once {
    type Response = TokioIo<Io>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let io = self.0.lock().ok().and_then(|mut io| io.take());
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection is broken");
        Box::pin(async move { io.map(TokioIo::new).ok_or_else(gone) })
    }
}
