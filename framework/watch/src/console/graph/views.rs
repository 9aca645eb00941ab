//! The graph of all hosts, made from the snapshot of each host.
//!
//! A message to an actor of another host goes to a place in the sender's own gateway, and the other host's
//! gateway sends it on. So the link to that place gives the edge, which is drawn to the actor at its own
//! host, known by its id. A gateway's own links carry other hosts' messages, and are drawn only if one of
//! these hosts shows nothing.
//!
//! **Invariants.** WIRE-1: a host shows only messages from its own processes, to any receiver, and at most
//! [`MAX_HOST_EDGES`] edges: the busiest. Its claims about places in its gateway change only its own edges.

use std::collections::{HashMap, HashSet};

use tensorpost_core::api::actor::ActorId;
use tensorpost_core::api::node::ProcessId;
use tensorpost_core::api::watch::GATEWAY;

use super::{Graph, GraphEdge, GraphNode};
use crate::console::{ActorFacts, HostFacts, NodeSnapshot, ProcessState, SentReport};
use crate::draw::printable;
use crate::limits::{MAX_ALL_HOSTS_EDGES, MAX_HOST_EDGES};

/// The snapshot of one host.
struct View<'a> {
    number: u16,
    /// Its number and name, if it is another host than the one that was asked.
    host: Option<&'a str>,
    snapshot: &'a NodeSnapshot,
    earlier: Option<&'a NodeSnapshot>,
    /// The actor at each place of its processes, and the capacity of its mailbox.
    places: HashMap<(ProcessId, u16), (ActorId, u32)>,
    /// The actor that stands for its process, if the process has exactly one.
    senders: HashMap<ProcessId, Option<ActorId>>,
    gateways: HashSet<ProcessId>,
}

/// The messages from a process to an actor.
struct Sent {
    from: ProcessId,
    to: ActorId,
    capacity: u32,
    report: SentReport,
    /// The count in the earlier snapshot; `None` if it is not known.
    before: Option<u64>,
}

impl<'a> View<'a> {
    /// Makes the view of a host. `joins`: there are other hosts, and the mailboxes in its gateway are for
    /// their actors.
    fn new(
        host: Option<&'a HostFacts>,
        snapshot: &'a NodeSnapshot,
        earlier: Option<&'a NodeSnapshot>,
        joins: bool,
    ) -> Self {
        let number = host.map_or(0, |host| host.number);
        let is_gateway = |process: &ProcessId| joins && snapshot.process(*process) == GATEWAY;
        let gateways: HashSet<_> =
            snapshot.processes.iter().map(|of| of.process).filter(is_gateway).collect();
        let mut view = View {
            number,
            host: host.map(|host| host.name.as_str()),
            snapshot,
            earlier,
            places: places(snapshot),
            senders: HashMap::new(),
            gateways,
        };
        for actor in snapshot.actors.iter().filter(|actor| view.is_its_own(actor)).collect::<Vec<_>>() {
            let of = view.senders.entry(actor.process);
            of.and_modify(|only| *only = None).or_insert(Some(actor.actor));
        }
        view
    }

    /// Whether an actor lives there, and does not only have a mailbox in the gateway.
    fn is_its_own(&self, actor: &ActorFacts) -> bool {
        let is_of_another = actor.actor.roams() || actor.actor.host() != self.number;
        !(is_of_another && self.gateways.contains(&actor.process))
    }

    fn name(&self) -> Option<String> {
        self.host.map(printable)
    }

    /// Returns the messages of its processes. `all`: those that its gateway passes on, too.
    fn sent(&self, all: bool) -> Vec<Sent> {
        let then = self.earlier.map(places);
        let from_it = |from: &ProcessId| all || !self.gateways.contains(from);
        let links = self.snapshot.links.iter().filter(|of| from_it(&of.from));
        let sent = links.flat_map(|of| {
            let (then, from, peer) = (&then, of.from, of.link.peer);
            of.link.sent.iter().flatten().filter_map(move |report| {
                // A receiver that has ended meanwhile is not shown.
                let (to, capacity) = *self.places.get(&(peer, report.index))?;
                // A place in a gateway may have been another actor's at the earlier time.
                let was_it = then.as_ref().is_some_and(|then| {
                    then.get(&(peer, report.index)).is_none_or(|(before, _)| *before == to)
                });
                let before = self.earlier.filter(|_| was_it);
                let before = before.and_then(|earlier| sent_before(earlier, from, peer, report.index));
                Some(Sent { from, to, capacity, report: *report, before })
            })
        });
        sent.collect()
    }

    /// Returns the seconds between the two snapshots.
    fn interval(&self) -> Option<f64> {
        self.earlier.map(|earlier| self.snapshot.at.saturating_sub(earlier.at) as f64 / 1e9)
    }
}

/// Returns the actor at each place.
fn places(snapshot: &NodeSnapshot) -> HashMap<(ProcessId, u16), (ActorId, u32)> {
    let ways = snapshot.ways.iter().map(|way| ((way.process, way.index), (way.actor, way.capacity)));
    let actors = snapshot.actors.iter().map(|of| ((of.process, of.index), (of.actor, of.capacity)));
    ways.chain(actors).collect()
}

/// Returns the count of messages in the earlier snapshot; `None` if it is not known.
fn sent_before(earlier: &NodeSnapshot, from: ProcessId, to: ProcessId, index: u16) -> Option<u64> {
    let Some(link) = earlier.link(from, to) else { return Some(0) };
    let count =
        |sent: &Vec<SentReport>| sent.iter().find(|sent| sent.index == index).map_or(0, |sent| sent.sent);
    link.link.sent.as_ref().map(count)
}

/// See [`Graph::of`].
pub(super) fn joined(earlier: Option<&NodeSnapshot>, now: &NodeSnapshot) -> Graph {
    let joins = !now.hosts.is_empty();
    let mut views = vec![View::new(None, now, earlier, joins)];
    for host in &now.hosts {
        let Some(snapshot) = &host.snapshot else { continue };
        // A host that was silent then has no rates.
        let before = earlier.map(|earlier| earlier.of_host(host.number).unwrap_or(snapshot));
        views.push(View::new(Some(host), snapshot, before, true));
    }
    let mut drawing = Drawing { graph: Graph::default(), ids: HashSet::new(), hosts: &now.hosts };
    views.iter().for_each(|view| drawing.actors(view));
    let all = views.len() <= now.hosts.len();
    views.iter().for_each(|view| drawing.edges(view, all));
    drawing.graph
}

struct Drawing<'a> {
    graph: Graph,
    ids: HashSet<String>,
    hosts: &'a [HostFacts],
}

impl Drawing<'_> {
    fn node(&mut self, node: GraphNode) {
        if self.ids.insert(node.id.clone()) {
            self.graph.nodes.push(node);
        }
    }

    fn actors(&mut self, view: &View<'_>) {
        for actor in view.snapshot.actors.iter().filter(|actor| view.is_its_own(actor)) {
            self.node(GraphNode {
                id: actor_id(actor.actor),
                name: printable(&actor.name),
                host: view.name(),
                process: printable(view.snapshot.process(actor.process)),
                device: actor.metrics.as_ref().map(|metrics| NodeSnapshot::device(metrics.device)),
                state: actor.state,
            });
        }
    }

    /// Adds the edges of a host. `all`: those of its gateway, too.
    fn edges(&mut self, view: &View<'_>, all: bool) {
        let mut sent = view.sent(all);
        // No host takes the share of another.
        let most = MAX_HOST_EDGES.min(MAX_ALL_HOSTS_EDGES / self.hosts.len().max(1));
        if view.host.is_some() && sent.len() > most {
            sent.sort_by_key(|sent| std::cmp::Reverse(sent.report.sent));
            self.graph.left_out = self.graph.left_out.saturating_add((sent.len() - most) as u64);
            sent.truncate(most);
        }
        let interval = view.interval();
        for Sent { from, to, capacity, report, before } in sent {
            // If a sender had the link locked then, the rate is not known.
            let rate = |interval: f64| {
                before.map_or(0.0, |before| report.sent.saturating_sub(before) as f64 / interval)
            };
            let edge = GraphEdge {
                from: self.sender(view, from),
                to: self.receiver(to),
                messages: report.sent,
                messages_per_second: interval.filter(|interval| *interval > 0.0).map(rate),
                waiting: report.sent.saturating_sub(report.done),
                capacity,
            };
            self.graph.edges.push(edge);
        }
    }

    /// Returns the node that stands for a sending process, and adds it if there is none.
    fn sender(&mut self, view: &View<'_>, process: ProcessId) -> String {
        if let Some(Some(only)) = view.senders.get(&process) {
            return actor_id(*only);
        }
        let slot = process.slot();
        let id = if view.number == 0 { format!("p{slot}") } else { format!("h{}p{slot}", view.number) };
        let name = printable(view.snapshot.process(process));
        let state = view.snapshot.facts_of(process).map_or(ProcessState::Ended, |facts| facts.state);
        self.node(GraphNode {
            id: id.clone(),
            name: name.clone(),
            host: view.name(),
            process: name,
            device: None,
            state,
        });
        id
    }

    /// Returns the node that stands for an actor, and adds it if its host shows none.
    fn receiver(&mut self, actor: ActorId) -> String {
        let id = actor_id(actor);
        let host = self.hosts.iter().find(|host| host.number == actor.host() && !actor.roams());
        self.node(GraphNode {
            id: id.clone(),
            name: actor.to_string(),
            host: host.map(|host| printable(&host.name)),
            process: String::new(),
            device: None,
            state: ProcessState::Silent,
        });
        id
    }
}

fn actor_id(actor: ActorId) -> String {
    format!("a{}", actor.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{LinkFacts, LinkReport, WayFacts, sample};

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).expect("there is such a slot")
    }

    /// Makes a host whose first actor has sent `sent` messages to actor 2 of host `to`, through the gateway
    /// in slot 3, and others to its own actor 2.
    fn view(number: u16, to: u16, at: u64, sent: u64) -> NodeSnapshot {
        let mut snapshot = sample::snapshot(at, [sent, 0]);
        snapshot.actors.iter_mut().for_each(|of| of.actor = ActorId::numbered(number, of.actor.0));
        let mut gateway = snapshot.processes[2].clone();
        (gateway.process, gateway.name) = (process(3), GATEWAY.to_owned());
        snapshot.processes.push(gateway);
        let way = WayFacts { actor: ActorId::numbered(to, 2), process: process(3), index: 7, capacity: 5 };
        if number == 0 {
            let WayFacts { actor, process, index, capacity } = way;
            let (name, state) = ("inbox of gateway".to_owned(), ProcessState::Running);
            snapshot.actors.push(ActorFacts { actor, name, process, index, capacity, state, metrics: None });
        } else {
            snapshot.ways.push(way);
        }
        let link = |from: u16, peer: u16, index: u16, sent: u64| LinkFacts {
            from: process(from),
            link: LinkReport {
                peer: process(peer),
                open: true,
                sent: Some(vec![SentReport { index, sent, done: sent - 1 }]),
                replies_waiting: Some(0),
                lent: 0,
                granted: 0,
            },
        };
        // Messages of the other host come out of the gateway.
        snapshot.links.extend([link(1, 3, 7, sent), link(3, 2, 0, 40)]);
        snapshot
    }

    fn all(at: u64, sent: [u64; 2]) -> NodeSnapshot {
        let mut snapshot = view(0, 1, at, sent[0]);
        let mut there = Box::new(view(1, 0, 9 * at, sent[1]));
        // A roaming actor of the head, which lives on the other host.
        let roams = ActorId::roaming(0, 50);
        for (number, snapshot) in [&mut snapshot, &mut *there].into_iter().enumerate() {
            let mut actor = snapshot.actors[0].clone();
            (actor.actor, actor.index) = (roams, 9);
            actor.process = if number == 0 { process(3) } else { process(2) };
            actor.metrics = actor.metrics.filter(|_| number == 1);
            snapshot.actors.push(actor);
        }
        snapshot.hosts.push(HostFacts { number: 1, name: "1 left".to_owned(), snapshot: Some(there) });
        snapshot
    }

    fn edge(graph: &Graph, from: ActorId, to: ActorId) -> &GraphEdge {
        let is_it = |edge: &&GraphEdge| edge.from == actor_id(from) && edge.to == actor_id(to);
        graph.edges.iter().find(is_it).expect("there is one")
    }

    #[test]
    fn what_goes_between_hosts_goes_from_actor_to_actor() {
        let earlier = all(1_000_000_000, [10, 30]);
        let graph = Graph::of(Some(&earlier), &all(2_000_000_000, [110, 120]));
        let actor = ActorId::numbered;
        let ids = [actor(0, 1), actor(0, 2), actor(1, 1), actor(1, 2), ActorId::roaming(0, 50)].map(actor_id);
        assert_eq!(graph.nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>(), ids);
        let hosts: Vec<_> = graph.nodes.iter().map(|node| node.host.as_deref()).collect();
        assert_eq!(hosts, [None, None, Some("1 left"), Some("1 left"), Some("1 left")]);
        // Two edges within the hosts, and two between them.
        assert_eq!(graph.edges.len(), 4);
        let there = edge(&graph, actor(0, 1), actor(1, 2));
        assert_eq!((there.messages, there.waiting, there.capacity), (110, 1, 5));
        assert_eq!(there.messages_per_second, Some(100.0));
        // The rate is by its own clock.
        assert_eq!(edge(&graph, actor(1, 1), actor(0, 2)).messages_per_second, Some(10.0));

        // A host that shows nothing: its messages come from the gateway, and the ids tell which actors are
        // its own.
        let mut silent = all(2_000_000_000, [110, 120]);
        silent.hosts[0].snapshot = None;
        let graph = Graph::of(None, &silent);
        let node = |id: &str| graph.nodes.iter().find(|node| node.id == id).expect("it is there");
        assert_eq!(node(&actor_id(actor(1, 2))).host.as_deref(), Some("1 left"));
        assert_eq!(node("p3").name, GATEWAY);
        assert!(graph.edges.iter().any(|edge| edge.from == "p3" && edge.to == actor_id(actor(0, 2))));
    }

    /// A place in a gateway was another actor's before: messages to that one do not count.
    #[test]
    fn a_place_that_is_another_actors_now_has_no_rate() {
        let mut earlier = all(1_000_000_000, [10, 30]);
        earlier.actors[2].actor = ActorId::numbered(1, 9);
        let graph = Graph::of(Some(&earlier), &all(2_000_000_000, [110, 120]));
        let there = edge(&graph, ActorId::numbered(0, 1), ActorId::numbered(1, 2));
        assert_eq!(there.messages_per_second, Some(0.0));
    }

    // WIRE-1.
    #[test]
    fn a_host_that_shows_too_much_loses_its_own_and_the_picture_is_soon_drawn() {
        let honest = Graph::of(None, &all(0, [5, 5]));
        let mut snapshot = all(0, [5, 5]);
        let there = snapshot.hosts[0].snapshot.as_mut().expect("it has answered");
        let link = there.links.pop().expect("there is one");
        for from in 10..200 {
            let mut link = link.clone();
            link.from = process(from);
            link.link.sent = Some(vec![SentReport { index: 0, sent: 1_000, done: 0 }; 20]);
            there.links.push(link);
        }
        // It claims the head's actor for a place of its own.
        let stolen = ActorId::numbered(0, 1);
        there.ways.push(WayFacts { actor: stolen, process: process(2), index: 9, capacity: 1 });
        let graph = Graph::of(None, &snapshot);
        assert_eq!(graph.edges.iter().filter(|edge| edge.from.starts_with("h1p")).count(), MAX_HOST_EDGES);
        assert!(graph.left_out > 3_000);
        let of_head = |graph: &Graph| {
            let is_of_head = |edge: &&GraphEdge| honest.nodes[..2].iter().any(|node| node.id == edge.from);
            graph.edges.iter().filter(is_of_head).cloned().collect::<Vec<_>>()
        };
        assert_eq!(of_head(&graph), of_head(&honest));
        assert_eq!(graph.svg().matches("<rect").count(), graph.nodes.len());
    }
}
