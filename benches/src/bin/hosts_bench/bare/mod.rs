//! The bare parts: the cost of the same bytes over TCP, and over gRPC with TLS and without, between two
//! processes.
//!
//! The other process is this program again; it listens at three ports, and serves each connection on a thread
//! of its own. This process does so too: with as many connections as the framework has lanes.

pub(crate) mod rpc;
pub(crate) mod tcp;

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tensorpost_hosts::security::Security;

use crate::hosts::Key;
use crate::network::{Link, Network};

/// Names the key file, and marks the process as the other one.
const SERVES: &str = "HOSTS_BENCH_BARE";

/// The address at which it listens, instead of loopback.
const LISTENS: &str = "HOSTS_BENCH_BARE_AT";

/// Bytes that are written at once: as many as a piece of the framework has.
pub(crate) const PIECE: usize = tensorpost_hosts::limits::PIECE_BYTES as usize;

/// The protocols between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Rpc,
    Tls,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Tcp, Kind::Rpc, Kind::Tls];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Tcp => "bare TCP",
            Kind::Rpc => "bare tonic",
            Kind::Tls => "bare tonic, mutual TLS",
        }
    }
}

/// The other process. It ends when its standard input does.
pub(crate) struct Bare {
    child: Child,
    stdin: Option<ChildStdin>,
    at: IpAddr,
    ports: [u16; 3],
    _link: Option<Link>,
    security: Security,
}

/// Serves until standard input ends, where this process was started for that.
pub(crate) fn serve_if_bare() -> anyhow::Result<bool> {
    let Some(key) = std::env::var_os(SERVES) else { return Ok(false) };
    let security = Security::key_file(key.as_ref())?;
    let at = std::env::var(LISTENS).unwrap_or("127.0.0.1".to_owned());
    let mut ports = Vec::new();
    for kind in Kind::ALL {
        let listener = TcpListener::bind((at.as_str(), 0))?;
        ports.push(listener.local_addr()?.port().to_string());
        let security = security.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let security = security.clone();
                thread::spawn(move || {
                    let served = match kind {
                        Kind::Tcp => tcp::serve(stream),
                        Kind::Rpc => rpc::serve(stream, None),
                        Kind::Tls => rpc::serve(stream, security.server()),
                    };
                    if let Err(error) = served {
                        eprintln!("{}: {error:#}", kind.name());
                    }
                });
            }
        });
    }
    println!("{}", ports.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(true)
}

impl Bare {
    /// Starts it over loopback.
    pub(crate) fn start(key: &Key) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.env(SERVES, key.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().context("the bare parts do not start")?;
        Self::begun(key, child, Ipv4Addr::LOCALHOST.into(), None)
    }

    /// Starts it over a link of this many bits a second.
    pub(crate) fn over_a_link(network: &mut Network, rate: &str, key: &Key) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Only this process reaches its namespace.
        command.env(SERVES, key.path()).env(LISTENS, "0.0.0.0");
        let (child, link) = network.start(|_| command);
        link.limit(rate).map_err(anyhow::Error::msg)?;
        Self::begun(key, child, link.there().parse()?, Some(link))
    }

    fn begun(key: &Key, mut child: Child, at: IpAddr, link: Option<Link>) -> anyhow::Result<Self> {
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut line = String::new();
        BufReader::new(stdout.context("no output")?).read_line(&mut line)?;
        let ports: Vec<u16> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let ports = ports.try_into().map_err(|_| anyhow::anyhow!("the bare parts said {line:?}"))?;
        Ok(Bare { child, stdin, at, ports, _link: link, security: Security::key_file(key.path())? })
    }

    fn connect(&self, kind: Kind) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(SocketAddr::from((self.at, self.ports[kind as usize])))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn client(&self, kind: Kind) -> Option<std::sync::Arc<tokio_rustls::rustls::ClientConfig>> {
        self.security.client().map(|(config, _)| config).filter(|_| kind == Kind::Tls)
    }

    /// Returns half of each round trip of a message of this many bytes, in nanoseconds.
    pub(crate) fn trips(&self, kind: Kind, count: u64, bytes: usize) -> anyhow::Result<Vec<u64>> {
        let stream = self.connect(kind)?;
        match kind {
            Kind::Tcp => tcp::trips(stream, count, bytes),
            Kind::Rpc | Kind::Tls => rpc::trips(stream, self.client(kind), count, bytes),
        }
    }

    /// Returns the time that this many messages of this many bytes take, in equal shares over this many
    /// connections.
    pub(crate) fn pour(
        &self,
        kind: Kind,
        connections: u64,
        count: u64,
        bytes: usize,
    ) -> anyhow::Result<Duration> {
        let streams = (0..connections).map(|_| self.connect(kind)).collect::<Result<Vec<_>, _>>()?;
        let since = Instant::now();
        let threads = streams.into_iter().map(|stream| {
            let (client, count) = (self.client(kind), count / connections);
            thread::spawn(move || match kind {
                Kind::Tcp => tcp::pour(stream, count, bytes),
                Kind::Rpc | Kind::Tls => rpc::pour(stream, client, count, bytes),
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().map_err(|_| anyhow::anyhow!("{} panicked", kind.name()))??;
        }
        Ok(since.elapsed())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
