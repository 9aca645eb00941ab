//! The start of a gateway: its key, its listener, and how this host joins its node.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_hosts::ids::{Gateway, HostId, HostLife, Life};
use tensorpost_hosts::introduction::Introduction;
use tensorpost_hosts::join::{Member, Request, Roster, advertised};
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
use super::command::{Command, Newcomer, store_for};
use super::copiers::Copiers;
use super::roaming::Roaming;
use super::run::Gateway as Running;
use super::store::Store;
use super::to_node::failed;
use crate::limits::MAX_GATEWAY_WAITS;
use crate::tensor::DeviceStream;
use crate::transport::Transport;
use crate::transport::gateway_messages::{Beginning, GatewayState, Host, Nixl, Settings};
use crate::transport::works_until::WorksUntil;

/// This host, as one of the node.
pub(super) struct Node {
    pub(super) own: Member,
    /// The number of this gateway among those that this host has had.
    pub(super) gateway: Gateway,
    /// On the head only, as is `verdict`.
    pub(super) roster: Option<Arc<Roster>>,
    pub(super) verdict: Option<Arc<Mutex<Head>>>,
    /// On an agent: its record of the head's answers.
    pub(super) agent: Option<Arc<Mutex<Agent>>>,
    /// The page that all processes of this host read.
    pub(super) page: Arc<WorksUntil>,
    pub(super) peers: Arc<Peers>,
    /// The settings with which other hosts are dialled.
    pub(super) dial: Dial,
    /// Dropping it stops accepting connections.
    pub(super) listener: Option<Listener>,
    pub(super) copiers: Arc<Copiers>,
    ends: Ends,
}

/// The parts from which a peer of this host is made.
#[derive(Clone)]
struct Ends {
    to: UnboundedSender<Command>,
    refused: Arc<Refused>,
    copiers: Arc<Copiers>,
    /// NIXL, if it is used and was found.
    nixl: Option<Library>,
    lanes: u16,
}

impl Ends {
    /// Makes the peer of the first session with a host, and the memory of the messages between the two.
    fn peer(&self, session: Session, host: HostId, pulse: Pulse) -> (Arc<Peer>, Arc<Store>) {
        let store = store_for(host.0, 0, self.to.clone());
        let memory = Arc::clone(&store) as Arc<dyn Memory>;
        (Peer::with_nixl(session, memory, pulse, Arc::clone(&self.refused), self.nixl(&store)), store)
    }

    /// Returns what a peer with this memory needs for NIXL, if that is used.
    fn nixl(&self, store: &Arc<Store>) -> Option<NixlUse> {
        let nixl = self.nixl.as_ref()?;
        let arenas = DeviceArenas { store: Arc::clone(store), copiers: Arc::clone(&self.copiers) };
        Some(NixlUse { nixl: Arc::new(nixl.clone()), arenas: Arc::new(arenas), lanes: self.lanes })
    }
}

/// The head's knowledge of the other hosts.
#[derive(Clone)]
struct Supervision {
    roster: Arc<Roster>,
    verdict: Arc<Mutex<Head>>,
}

/// Runs the gateway on this thread until it has left the node.
pub(super) fn run(
    transport: &Arc<Transport>,
    beginning: Beginning,
    socket: Option<OwnedFd>,
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
            Ok(stream) => start(transport, &beginning, socket, stream, to).await,
            Err(why) => Err(why),
        };
        match started {
            Ok(gateway) => gateway.run(commands).await,
            Err(why) => failed(transport, why),
        }
    });
}

/// The parts that every way to start a gateway needs.
struct Begins<'a> {
    transport: &'a Arc<Transport>,
    settings: &'a Settings,
    gateway: Gateway,
    security: Security,
    introduction: Arc<Introduction>,
    peers: Arc<Peers>,
    ends: Ends,
    threads: Arc<LaneThreads>,
    page: Arc<WorksUntil>,
    stream: DeviceStream,
}

pub(super) async fn start(
    transport: &Arc<Transport>,
    beginning: &Beginning,
    socket: Option<OwnedFd>,
    stream: DeviceStream,
    to: UnboundedSender<Command>,
) -> Result<Running, String> {
    // Everything that can fail without the network comes first, so that a wrong setting is reported before
    // this host listens or joins.
    let settings = &beginning.settings;
    let security = match &settings.key_file {
        Some(path) => Security::key_file(path),
        None => Security::from_environment(),
    };
    let security = security.map_err(|error| error.to_string())?;
    let introduction = Introduction::of_this_process(settings.build_name.as_deref());
    let introduction =
        Arc::new(introduction.map_err(|error| format!("this host cannot introduce itself: {error}"))?);
    let lanes = settings.lanes.clamp(1, MAX_LANES);
    let threads =
        LaneThreads::start(lanes).map_err(|error| format!("there are no threads for its lanes: {error}"))?;
    let page = WorksUntil::create();
    let page = page.map_err(|error| format!("its workers cannot be told when to end: {error}"))?;
    let (nixl, copiers) = (nixl(settings.nixl, &security), Copiers::new(transport));
    let ends = Ends { to, refused: Arc::default(), copiers, nixl, lanes };
    let (gateway, peers) = (Gateway(beginning.gateway), Arc::default());
    let begins =
        Begins { transport, settings, gateway, security, introduction, peers, ends, threads, page, stream };
    match (&beginning.left, settings.is_head) {
        (None, true) => begins.head().await,
        (None, false) => begins.agent().await,
        (Some(left), is_head) => begins.again(left, is_head, socket).await,
    }
}

impl Begins<'_> {
    /// Starts the head of a new node.
    async fn head(self) -> Result<Running, String> {
        let own = HostLife { host: HostId::HEAD, life: draw()? };
        let at = to_listen_at(&self.settings.head, PORT).await?;
        let supervision = Supervision { roster: Arc::new(Roster::new(own)), verdict: Arc::default() };
        let listener = self.listen(at, Some(self.admission(own, &supervision))).await?;
        let address = advertised(self.settings.advertise.as_deref(), listener.address());
        let own = Member { who: own, name: self.settings.name.clone(), address };
        Ok(self.of_head(own, supervision, listener))
    }

    /// Joins as an agent.
    async fn agent(self) -> Result<Running, String> {
        let settings = self.settings;
        let life = draw()?;
        let listener = self.listen_as_agent().await?;
        // A host that listens at one address is reached there alone, whichever address the head sees.
        let at = listener.address();
        let one_address = (!at.ip().is_unspecified()).then(|| at.to_string());
        let request = Request {
            life,
            name: settings.name.clone(),
            port: at.port(),
            advertise: settings.advertise.clone().or(one_address),
        };
        let to_head = self.dial(with_port(&settings.head, PORT));
        let deadline = Duration::from_millis(settings.join_deadline);
        let (admitted, asked) = to_head.join(&request, deadline).await.map_err(|error| error.to_string())?;
        let address = advertised(settings.advertise.as_deref(), listener.address());
        let own = Member { who: admitted.you, name: settings.name.clone(), address };
        let head = Member { who: admitted.head, name: String::new(), address: to_head.to.clone() };
        let mut gateway = self.of_agent(own, Agent::new(asked), listener);
        for member in std::iter::once(head).chain(admitted.others) {
            gateway.begin_with(member);
        }
        Ok(gateway)
    }

    /// Replaces this host's last gateway, which has ended, with what the node kept of it.
    async fn again(
        self,
        left: &GatewayState,
        is_head: bool,
        socket: Option<OwnedFd>,
    ) -> Result<Running, String> {
        let socket = socket.ok_or("the socket of the gateway before did not come along")?;
        let member = |(host, life): &(Host, u64)| Member {
            who: HostLife { host: HostId(host.number), life: Life(*life) },
            name: host.name.clone(),
            address: host.address.clone(),
        };
        let (own, others): (Vec<_>, Vec<_>) =
            left.members.iter().map(member).partition(|member| member.who.host.0 == left.number);
        let own = own.into_iter().next().ok_or("nobody knows which host it is of")?;
        let mut gateway = if is_head {
            let roster = Arc::new(Roster::resuming(own.who, others.clone(), left.last));
            let supervision = Supervision { roster, verdict: Arc::default() };
            self.page.set_last(left.last);
            // HOST-10: the grace counts from now, which is later than when each host was last heard.
            let now = Moment::now();
            others.iter().for_each(|other| supervision.verdict.lock().joined(other.who.host, now));
            let admission = self.admission(own.who, &supervision);
            let listener = self.listen_on(socket, Some(admission)).await?;
            self.of_head(own, supervision, listener)
        } else {
            let agent = Agent::resuming(Moment::since_boot(Duration::from_nanos(left.works_until)));
            let listener = self.listen_on(socket, None).await?;
            self.of_agent(own, agent, listener)
        };
        gateway.roaming = Roaming::resuming(&left.gone);
        others.into_iter().for_each(|other| gateway.begin_with(other));
        Ok(gateway)
    }

    fn of_head(
        self,
        own: Member,
        Supervision { roster, verdict }: Supervision,
        listener: Listener,
    ) -> Running {
        tokio::spawn(watch_agents(Arc::clone(&verdict), self.ends.to.clone()));
        let (roster, verdict) = (Some(roster), Some(verdict));
        self.gateway(own, listener, |node| Node { roster, verdict, ..node })
    }

    fn of_agent(self, own: Member, agent: Agent, listener: Listener) -> Running {
        let told = Arc::clone(&self.page);
        let agent = agent.telling(move |until| told.set(until.after_boot()));
        let agent = Arc::new(Mutex::new(agent));
        tokio::spawn(watch_head(Arc::clone(&agent), self.ends.to.clone()));
        self.gateway(own, listener, |node| Node { agent: Some(agent), ..node })
    }

    fn gateway(self, own: Member, listener: Listener, of: impl FnOnce(Node) -> Node) -> Running {
        let dial = self.dial(String::new());
        let Begins { transport, gateway, peers, ends, page, stream, .. } = self;
        let (to, copiers) = (ends.to.clone(), Arc::clone(&ends.copiers));
        let node = of(Node {
            own,
            gateway,
            roster: None,
            verdict: None,
            agent: None,
            page,
            peers,
            dial,
            listener: Some(listener),
            copiers,
            ends,
        });
        Running::new(transport, stream, node, to)
    }

    fn dial(&self, to: String) -> Dial {
        Dial {
            to,
            security: self.security.clone(),
            introduction: Arc::clone(&self.introduction),
            lanes: self.ends.lanes,
            threads: Arc::clone(&self.threads),
        }
    }

    /// Listens where the settings say, or else at every address that this host may use, and if it can at the
    /// common port.
    async fn listen_as_agent(&self) -> Result<Listener, String> {
        let settings = self.settings;
        let everywhere = everywhere(0);
        let at = match &settings.bind {
            Some(at) => to_listen_at(at, 0).await?,
            None if self.security.allows(everywhere).is_ok() => everywhere,
            // HOST-12: without a key only loopback is used.
            None => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        };
        if at.port() == 0 && settings.port != 0 && !is_here(&settings.head).await {
            // Another program of this machine may have the port.
            let mut usual = at;
            usual.set_port(settings.port);
            if let Ok(listener) = self.listen(usual, None).await {
                return Ok(listener);
            }
        }
        self.listen(at, None).await
    }

    async fn listen(&self, at: SocketAddr, admission: Option<Arc<Admission>>) -> Result<Listener, String> {
        let (security, introduction) = (self.security.clone(), Arc::clone(&self.introduction));
        let (peers, refused) = (Arc::clone(&self.peers), Arc::clone(&self.ends.refused));
        let listener =
            Listener::start(at, security, introduction, peers, refused, admission, &self.threads).await;
        listener.map_err(|error| format!("{at} cannot be listened at: {error}"))
    }

    async fn listen_on(
        &self,
        socket: OwnedFd,
        admission: Option<Arc<Admission>>,
    ) -> Result<Listener, String> {
        let (security, introduction) = (self.security.clone(), Arc::clone(&self.introduction));
        let (peers, refused) = (Arc::clone(&self.peers), Arc::clone(&self.ends.refused));
        let listener =
            Listener::on(socket.into(), security, introduction, peers, refused, admission, &self.threads)
                .await;
        listener.map_err(|error| format!("the socket of the gateway before cannot be used: {error}"))
    }

    /// Returns the function by which the head admits hosts.
    fn admission(&self, own: HostLife, supervision: &Supervision) -> Arc<Admission> {
        let Supervision { roster, verdict } = supervision.clone();
        let (peers, ends) = (Arc::clone(&self.peers), self.ends.clone());
        let (page, gateway) = (Arc::clone(&self.page), self.gateway);
        Arc::new(move |request: &Request, from: SocketAddr| {
            let (admitted, new) = roster.admit(request, from)?;
            if new {
                let host = admitted.you.host;
                // Recorded before the host is heard, so that no later gateway gives its number out again.
                page.set_last(page.last().max(host.0));
                // Entered before its first beat can arrive.
                verdict.lock().joined(host, Moment::now());
                let peer = (admitted.you, Gateway::UNKNOWN);
                let session = Session::of_gateways((own, gateway), peer, Bounds::default());
                let pulse = Pulse::Head(Arc::clone(&verdict), host);
                let (peer, store) = ends.peer(session, host, pulse);
                // There is room: the roster has the same bound.
                peers.add(Arc::clone(&peer));
                let address = request.address(from);
                let member = Member { who: admitted.you, name: request.name.clone(), address };
                let _ = ends.to.send(Command::Joined(Box::new(Newcomer { member, peer, store })));
            }
            Ok(admitted)
        })
    }
}

fn draw() -> Result<Life, String> {
    Life::draw().ok_or_else(|| "the system has no random numbers".to_owned())
}

/// Loads NIXL, if it is wanted and installed.
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
    /// Returns the number of this host.
    pub(super) fn number(&self) -> u16 {
        self.own.who.host.0
    }

    /// Returns the page and the listening socket, which outlive this gateway.
    pub(super) fn outlives_gateway(&self) -> std::io::Result<(OwnedFd, OwnedFd)> {
        let listener = self.listener.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        Ok((self.page.export()?, listener.socket().try_clone_to_owned()?))
    }

    /// Returns the counter of beats for a connection to a host.
    pub(super) fn pulse(&self, host: HostId) -> Pulse {
        match (&self.verdict, &self.agent) {
            (Some(verdict), _) => Pulse::Head(Arc::clone(verdict), host),
            (None, Some(agent)) if host == HostId::HEAD => Pulse::Agent(Arc::clone(agent)),
            (None, Some(agent)) => Pulse::Link(LinkPulse::of_agent(Arc::clone(agent))),
            (None, None) => Pulse::Link(LinkPulse::default()),
        }
    }

    /// Returns what a host's next peer needs for NIXL, made as for the first.
    pub(super) fn nixl(&self, store: &Arc<Store>) -> Option<NixlUse> {
        self.ends.nixl(store)
    }

    /// Makes the session with this gateway of a host.
    pub(super) fn session(&self, member: &Member, gateway: Gateway) -> Session {
        Session::of_gateways((self.own.who, self.gateway), (member.who, gateway), Bounds::default())
    }

    /// Makes a peer for a host, and the memory of the messages between the two.
    fn peer(&self, member: &Member) -> (Arc<Peer>, Arc<Store>) {
        let session = self.session(member, Gateway::UNKNOWN);
        let (peer, store) = self.ends.peer(session, member.who.host, self.pulse(member.who.host));
        if self.gateway > Gateway::FIRST {
            peer.resumes_log();
        }
        (peer, store)
    }

    /// Connects a peer to its host: of two hosts, the one that joined later dials, and the other waits for
    /// its connections. Returns whether there is room for the peer.
    pub(super) fn connect(
        &self,
        member: &Member,
        session: u64,
        peer: &Arc<Peer>,
        to: &UnboundedSender<Command>,
    ) -> bool {
        let (host, own) = (member.who.host, self.own.who.host);
        if host > own {
            return self.peers.add(Arc::clone(peer));
        }
        let dial = Dial { to: member.address.clone(), ..self.dial.clone() };
        let (keeping, gateway) = (Arc::clone(peer), to.clone());
        tokio::spawn(async move {
            if let Err(error) = dial.keep(&keeping).await {
                let refused = Command::Refused { host: host.0, session, why: error.to_string() };
                let _ = gateway.send(refused);
            }
        });
        true
    }
}

impl Running {
    /// Adds a host that is of the node already, or has just joined.
    pub(super) fn begin_with(&mut self, member: Member) {
        let (peer, store) = self.node.peer(&member);
        if self.node.connect(&member, 0, &peer, &self.to) {
            self.add(Newcomer { member, peer, store });
        }
    }
}

/// On the head, reports hosts that were not heard for too long.
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
        // A host that joins meanwhile cannot be lost sooner than many beats from now.
        sleep(next.map_or(BEAT, |next| next.since(Moment::now()).clamp(BEAT / 16, BEAT))).await;
    }
}

/// On an agent, reports when the head has not answered for too long.
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

fn with_port(address: &str, port: u16) -> String {
    let bare = address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
    match address.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) if bare => format!("{address}:{port}"),
        Err(_) => address.to_owned(),
    }
}

/// Returns every address of this machine: those of IPv6, too, if the system has it.
fn everywhere(port: u16) -> SocketAddr {
    match std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
        Err(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
    }
}

/// Returns the address for `host[:port]`, or for `:port`.
async fn to_listen_at(address: &str, port: u16) -> Result<SocketAddr, String> {
    if let Some(Ok(port)) = address.strip_prefix(':').map(str::parse::<u16>) {
        return Ok(everywhere(port));
    }
    let address = with_port(address, port);
    let found = lookup_host(&address).await.map(|mut found| found.next());
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(format!("{address} has no address to listen at")),
        Err(error) => Err(format!("{address} cannot be listened at: {error}")),
    }
}

/// Returns whether the head is on this machine. If so, the common port belongs to the head, which may bind it
/// later than this host would.
async fn is_here(head: &str) -> bool {
    // A name that cannot be resolved yet is another machine's.
    let Ok(mut found) = lookup_host(with_port(head, PORT)).await else { return false };
    found.any(|at| std::net::TcpListener::bind((at.ip(), 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_listens_at_one_address_or_at_all() {
        for (said, at) in [
            ("::1", "[::1]:7117"),
            ("[::1]:80", "[::1]:80"),
            ("127.0.0.1", "127.0.0.1:7117"),
            ("[::]", "[::]:7117"),
        ] {
            assert_eq!(to_listen_at(said, PORT).await.map(|at| at.to_string()), Ok(at.to_owned()));
        }
        let all = to_listen_at(":80", PORT).await.expect("every machine has addresses");
        assert!(all.ip().is_unspecified() && all.port() == 80);
        // A socket of this family may be made, and where it is of IPv6, it serves IPv4 too.
        assert_eq!(all.is_ipv6(), std::net::TcpListener::bind("[::]:0").is_ok());
    }
}
