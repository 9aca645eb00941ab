//! The gateway's beginning: its key, its listener, and how this host becomes one of its node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_hosts::ids::{HostId, HostLife, Life};
use tensorpost_hosts::introduction::Introduction;
use tensorpost_hosts::join::{Member, Request, Roster};
use tensorpost_hosts::limits::{BEAT, MAX_LANES, PORT};
use tensorpost_hosts::net::{Admission, Dial, LaneThreads, LinkPulse, Listener, Memory, Peer, Peers, Pulse};
use tensorpost_hosts::nixl::{Library, NixlUse};
use tensorpost_hosts::refused::Refused;
use tensorpost_hosts::security::Security;
use tensorpost_hosts::session::{Bounds, Session};
use tensorpost_hosts::verdict::{Agent, Head, Moment};
use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use super::arenas::DeviceArenas;
use super::copiers::Copiers;
use super::run::Gateway;
use super::store::Store;
use super::{Command, Newcomer, failed};
use crate::limits::MAX_GATEWAY_WAITS;
use crate::tensor::DeviceStream;
use crate::transport::Transport;
use crate::transport::hosts::{Nixl, Settings};
use crate::transport::works_until::WorksUntil;

/// This host among the others.
pub(super) struct Node {
    pub(super) own: Member,
    /// On the head.
    pub(super) roster: Option<Arc<Roster>>,
    pub(super) verdict: Option<Arc<Mutex<Head>>>,
    /// On an agent.
    pub(super) heartbeat: Option<Heartbeat>,
    pub(super) peers: Arc<Peers>,
    /// How others are dialled.
    pub(super) dial: Dial,
    /// Dropped, it takes no connections any more.
    pub(super) listener: Option<Listener>,
    pub(super) copiers: Arc<Copiers>,
    ends: Ends,
}

/// What a peer of this host is made with.
#[derive(Clone)]
struct Ends {
    to: UnboundedSender<Command>,
    refused: Arc<Refused>,
    copiers: Arc<Copiers>,
    /// Where it is used, and there.
    nixl: Option<Library>,
    lanes: u16,
}

impl Ends {
    /// A peer, and the memory of what goes between the two.
    fn peer(&self, own: HostLife, other: HostLife, pulse: Pulse) -> (Arc<Peer>, Arc<Store>) {
        let store = Arc::new(Store::new(other.host.0, self.to.clone()));
        let session = Session::new(own, other, Bounds::default());
        let memory = Arc::clone(&store) as Arc<dyn Memory>;
        let using = self.nixl.as_ref().map(|nixl| NixlUse {
            nixl: Arc::new(nixl.clone()),
            arenas: Arc::new(DeviceArenas { store: Arc::clone(&store), copiers: Arc::clone(&self.copiers) }),
            lanes: self.lanes,
        });
        (Peer::with_nixl(session, memory, pulse, Arc::clone(&self.refused), using), store)
    }
}

/// What an agent knows of its head, and until when its workers may work.
pub(super) struct Heartbeat {
    agent: Arc<Mutex<Agent>>,
    /// What all processes of this host look at.
    pub(super) works_until: Arc<WorksUntil>,
}

/// Runs the gateway on this thread, until it has left.
pub(super) fn run(
    transport: &Arc<Transport>,
    settings: Settings,
    to: UnboundedSender<Command>,
    commands: UnboundedReceiver<Command>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_GATEWAY_WAITS)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(transport, format!("there is no runtime for its gateway: {error}")),
    };
    runtime.block_on(async {
        let stream = transport.pool_for(crate::ids::DeviceId::HOST).map_err(|error| error.to_string());
        let stream = stream.and_then(|pool| {
            DeviceStream::new(pool, Arc::clone(transport.domain())).map_err(|error| error.to_string())
        });
        let started = match stream {
            Ok(stream) => start(transport, &settings, stream, to).await,
            Err(why) => Err(why),
        };
        match started {
            Ok(gateway) => gateway.run(commands).await,
            Err(why) => failed(transport, why),
        }
    });
}

async fn start(
    transport: &Arc<Transport>,
    settings: &Settings,
    stream: DeviceStream,
    to: UnboundedSender<Command>,
) -> Result<Gateway, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let security = match &settings.key_file {
        Some(path) => Security::key_file(path),
        None => Security::from_environment(),
    };
    let security = security.map_err(|error| text(&error))?;
    let introduction = Introduction::of_this_process(settings.build_name.as_deref());
    let introduction =
        Arc::new(introduction.map_err(|error| format!("this program cannot be read: {error}"))?);
    let life = Life::draw().ok_or("the system has no random numbers")?;
    let (peers, refused) = (Arc::new(Peers::default()), Arc::new(Refused::default()));
    let lanes = settings.lanes.clamp(1, MAX_LANES);
    let copiers = Copiers::new(transport);
    let nixl = nixl(settings.nixl, &security);
    let ends =
        Ends { to: to.clone(), refused: Arc::clone(&refused), copiers: Arc::clone(&copiers), nixl, lanes };
    let threads =
        LaneThreads::start(lanes).map_err(|error| format!("there are no threads for its lanes: {error}"))?;
    let dial = |to: String| Dial {
        to,
        security: security.clone(),
        introduction: Arc::clone(&introduction),
        lanes,
        threads: Arc::clone(&threads),
    };
    let listen = |at: SocketAddr, admission: Option<Arc<Admission>>| {
        let (introduction, peers) = (Arc::clone(&introduction), Arc::clone(&peers));
        let (security, refused, threads) = (security.clone(), Arc::clone(&refused), Arc::clone(&threads));
        async move {
            let listener =
                Listener::start(at, security, introduction, peers, refused, admission, &threads).await;
            listener.map_err(|error| format!("{at} cannot be listened at: {error}"))
        }
    };
    let name = settings.name.clone();
    if settings.is_head {
        let own = HostLife { host: HostId::HEAD, life };
        let at = resolve(&settings.head).await?;
        let roster = Arc::new(Roster::new(own));
        let verdict = Arc::new(Mutex::new(Head::default()));
        let admission = admission(own, &roster, &verdict, &peers, &ends);
        let listener = listen(at, Some(admission)).await?;
        tokio::spawn(watch_agents(Arc::clone(&verdict), to.clone()));
        let address = advertised(settings.advertise.as_deref(), listener.address());
        let own = Member { who: own, name, address };
        let node = Node {
            own,
            roster: Some(roster),
            verdict: Some(verdict),
            heartbeat: None,
            peers,
            dial: dial(String::new()),
            listener: Some(listener),
            copiers,
            ends,
        };
        return Ok(Gateway::new(transport, stream, node, to));
    }
    // Without a key nothing but this machine's loopback is used (HOST-12); with one, whatever the head can reach.
    let any =
        if security.allows(SocketAddr::from(([0, 0, 0, 0], 0))).is_ok() { [0; 4] } else { [127, 0, 0, 1] };
    let port = if is_here(&settings.head).await { 0 } else { settings.port };
    let listener = match listen(SocketAddr::from((any, port)), None).await {
        // Another program of this machine has it.
        Err(_) if port != 0 => listen(SocketAddr::from((any, 0)), None).await?,
        listener => listener?,
    };
    let request = Request {
        life,
        name: name.clone(),
        port: listener.address().port(),
        advertise: settings.advertise.clone(),
    };
    let to_head = dial(with_port(&settings.head));
    let deadline = Duration::from_millis(settings.join_deadline);
    let (admitted, asked) = to_head.join(&request, deadline).await.map_err(|error| error.to_string())?;
    let works_until = WorksUntil::create();
    let works_until =
        works_until.map_err(|error| format!("its workers cannot be told when to end: {error}"))?;
    let told = Arc::clone(&works_until);
    let agent = Agent::new(asked).telling(move |until| told.set(until.after_boot()));
    let agent = Arc::new(Mutex::new(agent));
    tokio::spawn(watch_head(Arc::clone(&agent), to.clone()));
    let address = advertised(settings.advertise.as_deref(), listener.address());
    let own = Member { who: admitted.you, name, address };
    let head = Member { who: admitted.head, name: String::new(), address: to_head.to.clone() };
    let node = Node {
        own,
        roster: None,
        verdict: None,
        heartbeat: Some(Heartbeat { agent: Arc::clone(&agent), works_until }),
        peers,
        dial: to_head,
        listener: Some(listener),
        copiers,
        ends,
    };
    node.dial_host(head, Pulse::Agent(agent), &to);
    for other in admitted.others {
        node.dial_host(other, node.link_pulse(), &to);
    }
    Ok(Gateway::new(transport, stream, node, to))
}

/// NIXL, where it is to be used and is there.
fn nixl(setting: Nixl, security: &Security) -> Option<Library> {
    if setting == Nixl::Off {
        return None;
    }
    match Library::load() {
        Ok(nixl) => {
            // HOST-12.
            let is_open = security.allows(SocketAddr::from(([0; 4], 0))).is_ok();
            let nixl = if is_open { nixl } else { nixl.on_loopback() };
            tracing::info!(
                ?nixl,
                "tensors in GPU memory go by NIXL where it is faster; what goes so is not encrypted"
            );
            Some(nixl)
        }
        Err(error) => {
            tracing::warn!("tensors go to other hosts by gRPC, and not by NIXL: {error}");
            None
        }
    }
}

impl Node {
    /// That of another agent.
    fn link_pulse(&self) -> Pulse {
        let of_agent = |heartbeat: &Heartbeat| LinkPulse::of_agent(Arc::clone(&heartbeat.agent));
        Pulse::Link(self.heartbeat.as_ref().map(of_agent).unwrap_or_default())
    }

    /// A peer for this host, and the memory of what goes between the two.
    fn peer(&self, member: &Member, pulse: Pulse) -> (Arc<Peer>, Arc<Store>) {
        self.ends.peer(self.own.who, member.who, pulse)
    }

    /// Connects to a host, and keeps connected.
    fn dial_host(&self, member: Member, pulse: Pulse, to: &UnboundedSender<Command>) {
        let (peer, store) = self.peer(&member, pulse);
        let dial = Dial { to: member.address.clone(), ..self.dial.clone() };
        let (host, keeping, gateway) = (member.who.host.0, Arc::clone(&peer), to.clone());
        tokio::spawn(async move {
            if let Err(error) = dial.keep(&keeping).await {
                let _ = gateway.send(Command::Refused { host, why: error.to_string() });
            }
        });
        let _ = to.send(Command::Joined(Box::new(Newcomer { member, peer, store })));
    }

    /// Takes connections of a host that the head has told of, and that dials this one.
    pub(super) fn expect_host(&self, member: Member, to: &UnboundedSender<Command>) {
        let (peer, store) = self.peer(&member, self.link_pulse());
        if self.peers.add(Arc::clone(&peer)) {
            let _ = to.send(Command::Joined(Box::new(Newcomer { member, peer, store })));
        }
    }
}

/// How the head takes hosts in.
fn admission(
    own: HostLife,
    roster: &Arc<Roster>,
    verdict: &Arc<Mutex<Head>>,
    peers: &Arc<Peers>,
    ends: &Ends,
) -> Arc<Admission> {
    let (roster, verdict) = (Arc::clone(roster), Arc::clone(verdict));
    let (peers, ends) = (Arc::clone(peers), ends.clone());
    Arc::new(move |request: &Request, from: SocketAddr| {
        let (admitted, new) = roster.admit(request, from)?;
        if new {
            let host = admitted.you.host;
            // Before it can be heard.
            verdict.lock().joined(host, Moment::now());
            let (peer, store) = ends.peer(own, admitted.you, Pulse::Head(Arc::clone(&verdict), host));
            // There is room: the roster is as large.
            peers.add(Arc::clone(&peer));
            let address = request.address(from);
            let member = Member { who: admitted.you, name: request.name.clone(), address };
            let _ = ends.to.send(Command::Joined(Box::new(Newcomer { member, peer, store })));
        }
        Ok(admitted)
    })
}

/// On the head: tells of hosts that were not heard for too long.
async fn watch_agents(verdict: Arc<Mutex<Head>>, to: UnboundedSender<Command>) {
    loop {
        let (lost, next) = {
            let mut head = verdict.lock();
            (head.verdicts(Moment::now()), head.next_look())
        };
        for host in lost {
            let _ = to.send(Command::Verdict(host.0));
        }
        if to.is_closed() {
            return;
        }
        // A host may join meanwhile, whose verdict cannot come sooner than many beats.
        sleep(next.map_or(BEAT, |next| next.since(Moment::now()).clamp(BEAT / 16, BEAT))).await;
    }
}

/// On an agent: tells when the head has not answered for too long.
async fn watch_head(beats: Arc<Mutex<Agent>>, to: UnboundedSender<Command>) {
    loop {
        let (over, left) = {
            let (mut beats, now) = (beats.lock(), Moment::now());
            (beats.is_over(now), beats.works_until().since(now))
        };
        if over || to.is_closed() {
            let _ = to.send(Command::CutOff);
            return;
        }
        sleep(left.clamp(BEAT / 16, BEAT)).await;
    }
}

fn with_port(head: &str) -> String {
    let bare = head.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
    if bare { format!("{head}:{PORT}") } else { head.to_owned() }
}

async fn resolve(address: &str) -> Result<SocketAddr, String> {
    let address = with_port(address);
    let found = lookup_host(&address).await.map(|mut found| found.next());
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(format!("{address} has no address to listen at")),
        Err(error) => Err(format!("{address} cannot be listened at: {error}")),
    }
}

/// Whether the head is on this machine: then the port of all hosts is its own, and it may come later than this one.
async fn is_here(head: &str) -> bool {
    // A name that is not known yet is another machine's.
    let Ok(mut found) = lookup_host(with_port(head)).await else { return false };
    found.any(|at| std::net::TcpListener::bind((at.ip(), 0)).is_ok())
}

fn advertised(said: Option<&str>, listens: SocketAddr) -> String {
    match said {
        None => listens.to_string(),
        Some(said) => match said.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", listens.port()),
            None => said.to_owned(),
        },
    }
}

/// The hosts of a node by their numbers.
pub(super) type ByNumber<T> = BTreeMap<u16, T>;
