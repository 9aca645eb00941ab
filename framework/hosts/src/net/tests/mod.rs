//! Two hosts on loopback, and the strangers that connect to them.

mod flood;
mod joining;
mod lanes;
mod links;
mod memory;
mod nixl;
mod refusals;
mod relay;
mod renewals;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use self::memory::Buffers;
use super::*;
use crate::ids::{ActorId, HostId, HostLife, Life, Seq};
use crate::introduction::{Build, Introduction, PROTOCOL};
use crate::nixl::NixlUse;
use crate::refused::Refused;
use crate::security::Security;
use crate::session::{Bounds, Event, OnDevice, PostError, Session, To};

fn who(host: u16) -> HostLife {
    HostLife { host: HostId(host), life: Life(u64::from(host) + 70) }
}

fn actor(host: u16, number: u64) -> ActorId {
    ActorId::new(HostId(host), number).expect("a small number")
}

fn introduction() -> Introduction {
    Introduction {
        protocol: PROTOCOL,
        version: "1".to_owned(),
        build: Build::Program([3; 32]),
        arguments: Vec::new(),
    }
}

fn secured(folder: &Path, name: &str, secret: [u8; 32]) -> Security {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, secret).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    Security::key_file(&path).expect("a key")
}

/// A gateway of a test: a session with another host, and its memory.
struct Gateway {
    own: u16,
    peer: Arc<Peer>,
    memory: Arc<Buffers>,
    refused: Arc<Refused>,
}

impl Gateway {
    fn new(own: u16, other: u16) -> Self {
        Self::pulsing(own, other, Pulse::Link(LinkPulse::default()))
    }

    fn pulsing(own: u16, other: u16, pulse: Pulse) -> Self {
        Self::with(own, other, pulse, Bounds::default(), |_| None)
    }

    fn with(
        own: u16,
        other: u16,
        pulse: Pulse,
        bounds: Bounds,
        nixl: impl FnOnce(&Arc<Buffers>) -> Option<NixlUse>,
    ) -> Self {
        let memory = Arc::new(Buffers::default());
        let (refused, nixl) = (Arc::new(Refused::default()), nixl(&memory));
        let session = Session::new(who(own), who(other), bounds);
        let lent = Arc::clone(&memory) as Arc<dyn Memory>;
        let peer = Peer::with_nixl(session, lent, pulse, Arc::clone(&refused), nixl);
        Gateway { own, peer, memory, refused }
    }

    fn serve(&self, number: u64, capacity: u32) {
        self.peer.with(|session| session.serve(actor(self.own, number), capacity)).expect("a mailbox");
    }

    /// Listens for its peer.
    async fn listen(&self, security: &Security) -> Listener {
        let peers = Arc::new(Peers::default());
        assert!(peers.add(Arc::clone(&self.peer)));
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let refused = Arc::clone(&self.refused);
        Listener::start(at, security.clone(), Arc::new(introduction()), peers, refused, None, &threads())
            .await
            .expect("a port")
    }

    fn post(&self, to: To, head: Bytes, spans: &[Bytes]) -> Result<Seq, PostError> {
        let lengths = spans.iter().map(|span| span.len() as u64).collect();
        self.peer.with(|session| {
            let posted = session.post(to, head, lengths)?;
            // Lent before a lane can ask for it.
            if !spans.is_empty() {
                self.memory.lend(posted.post, spans.to_vec());
            }
            Ok(posted.post)
        })
    }

    /// Returns the next event, after handling its memory.
    async fn next(&self) -> Option<Event> {
        loop {
            match self.peer.next().await? {
                Happened::Event(event) => {
                    match &event {
                        Event::Arriving { post, message } => self.memory.expect(*post, &message.spans),
                        Event::Released { post, .. } => self.memory.released(*post),
                        _ => {}
                    }
                    return Some(event);
                }
                Happened::Log { .. } | Happened::Clock(_) => {}
                Happened::Ended(_) | Happened::Renewed(..) => return None,
            }
        }
    }
}

/// Returns the threads of all tests. Lanes end with their threads, and not with the dialling host.
fn threads() -> Arc<LaneThreads> {
    static THREADS: LazyLock<Arc<LaneThreads>> =
        LazyLock::new(|| LaneThreads::start(2).expect("two threads"));
    Arc::clone(&THREADS)
}

fn dial(to: SocketAddr, security: &Security, lanes: u16) -> Dial {
    let introduction = Arc::new(introduction());
    Dial { to: to.to_string(), security: security.clone(), introduction, lanes, threads: threads() }
}
