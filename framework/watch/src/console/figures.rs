//! Figures from two snapshots of a node: rates and times of the last interval. `top` and the live page show
//! them.

use std::time::Duration;

use serde::Serialize;
use tensorpost_core::api::message::{MAX_GRANTED, MAX_TENSORS};
use tensorpost_core::api::watch::{Change, MAX_FORWARDED, per_second};

use super::{ActorFacts, HostFacts, LinkFacts, NodeSnapshot, PoolFacts, ProcessState, SentReport};
use crate::draw::printable;

/// Everything that `top` shows. In the JSON form, times are in seconds and sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The node.
    pub node: NodeFigures,
    /// Its actors.
    pub actors: Vec<ActorFigures>,
    /// Its processes, its own first.
    pub processes: Vec<ProcessFigures>,
    /// Their memory, by process and device.
    pub memory: Vec<MemoryFigures>,
    /// The links between them.
    pub links: Vec<LinkFigures>,
    /// Hangs that lasted longer than the node's limit.
    pub hangs: Vec<String>,
    /// How many actors are left out, because a snapshot is bounded.
    pub left_out: u64,
    /// On the head: the other hosts whose figures are in it, by number and name.
    pub hosts: Vec<String>,
    /// Other hosts that did not answer in time.
    pub silent_hosts: Vec<String>,
}

/// The node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeFigures {
    /// Its process id.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// For how long it has run.
    pub up: f64,
    /// Whether it shuts down.
    pub stopping: bool,
    /// Whether it traces.
    pub tracing: bool,
    /// The length of the interval of the rates.
    pub interval: f64,
    /// Handler calls of all actors per second.
    pub messages_per_second: f64,
    /// Bytes that processes have lent to each other.
    pub in_flight: u64,
}

/// An actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorFigures {
    /// The number and name of its host, if it is another one.
    pub host: Option<String>,
    /// Its name.
    pub name: String,
    /// The name of its process.
    pub process: String,
    /// The process id of that process.
    pub pid: u32,
    /// Its device: `host`, or the beginning of a GPU's UUID.
    pub device: Option<String>,
    /// Its state, together with its process's.
    pub state: ProcessState,
    /// How often its process, or an actor in it, was restarted.
    pub restarts: u32,
    /// All handler calls so far.
    pub handled: Option<u64>,
    /// Messages per second in the interval.
    pub messages_per_second: Option<f64>,
    /// The median time of the interval's handler calls.
    pub p50: Option<f64>,
    /// The 99th percentile of these times.
    pub p99: Option<f64>,
    /// The share of the interval in handlers, 0 to 1.
    pub busy: Option<f64>,
    /// Messages that wait for it, or that it handles now.
    pub queued: Option<u64>,
    /// How many messages each sending process may have in its mailbox.
    pub capacity: u32,
    /// How long its stream stood in waits in the interval, if the device tells.
    pub waited: Option<f64>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessFigures {
    /// The number and name of its host, if it is another one.
    pub host: Option<String>,
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its state.
    pub state: ProcessState,
    /// How often it, or an actor in it, was restarted.
    pub restarts: u32,
    /// The reason of the last restart.
    pub last_end: Option<String>,
    /// Messages delivered and not finished.
    pub open: Option<usize>,
    /// Host memory that it has in use.
    pub resident: Option<u64>,
    /// Memory of GPUs that it has in use, its context too, if that is known.
    pub gpu_memory: Option<u64>,
    /// The share of the time in which its kernels ran, 0 to 1 for each GPU, if that is known.
    pub gpu_busy: Option<f64>,
    /// Messages that no actor took.
    pub dead_letters: Option<u64>,
    /// Frames that were malformed or forged.
    pub rejected: Option<u64>,
}

/// The memory of a process on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryFigures {
    /// The number and name of its host, if it is another one.
    pub host: Option<String>,
    /// The process that owns it.
    pub process: String,
    /// The device.
    pub device: String,
    /// The bytes that it may take.
    pub budget: u64,
    /// The bytes that it takes.
    pub chunks: u64,
    /// The bytes that anybody holds.
    pub held: u64,
    /// The number of tensors that these bytes are in.
    pub tensors: u64,
    /// The bytes that other processes have leases on.
    pub in_flight: u64,
    /// Bytes that are released, but whose last use has not passed.
    pub quarantined: u64,
    /// The holders, the largest first.
    pub holders: Vec<HolderFigures>,
    /// How many holders are not in the list.
    pub more_holders: u64,
}

/// The part of a memory that one process holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HolderFigures {
    /// The process.
    pub process: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The number of tensors that these bytes are in.
    pub tensors: u64,
    /// The age of the oldest of them.
    pub oldest: f64,
}

/// The link from one process to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkFigures {
    /// The number and name of its host, if it is another one.
    pub host: Option<String>,
    /// The sending process.
    pub from: String,
    /// The other one.
    pub to: String,
    /// Whether both have connected and neither has given it up.
    pub open: bool,
    /// Messages so far. `None`: a sender had it locked at that moment.
    pub messages: Option<u64>,
    /// Messages per second in the interval.
    pub messages_per_second: Option<f64>,
    /// Replies that wait for room.
    pub replies_waiting: Option<u64>,
    /// Leases on memory of the sender that the other has.
    pub lent: u64,
    /// The part that the sender lent it directly.
    pub granted: u64,
    /// How many leases the sender may lend directly.
    pub may_be_granted: u64,
}

impl LinkFigures {
    /// Returns how many tensors of the sender the other process keeps, and how many it may, if a message to
    /// it may wait for that: one of the sender's, or one with tensors that others forward.
    pub fn at_limit(&self) -> Option<(u64, u64)> {
        // Each forwarded lease needs room for its hold and for its release (LEASE-2).
        let of_others = (self.lent, MAX_FORWARDED as u64, 2 * MAX_TENSORS as u64);
        let all = [(self.granted, self.may_be_granted, MAX_TENSORS as u64), of_others];
        let near = all.into_iter().find(|(kept, most, more)| kept.saturating_add(*more) > *most);
        near.map(|(kept, most, _)| (kept, most))
    }
}

impl Figures {
    /// Makes the figures of `now`, with the changes since `earlier`. Other hosts are included, each by its
    /// own clock.
    pub fn between(earlier: &NodeSnapshot, now: &NodeSnapshot) -> Figures {
        let mut figures = Self::of_one(earlier, now);
        for host in &now.hosts {
            let name = printable(&host.name);
            let Some(snapshot) = &host.snapshot else {
                figures.silent_hosts.push(name);
                continue;
            };
            let before = earlier.of_host(host.number).unwrap_or(snapshot);
            figures.add(Self::of_one(before, snapshot), name);
        }
        figures
    }

    fn add(&mut self, of: Figures, host: String) {
        let here = || Some(host.clone());
        self.actors.extend(of.actors.into_iter().map(|of| ActorFigures { host: here(), ..of }));
        self.processes.extend(of.processes.into_iter().map(|of| ProcessFigures { host: here(), ..of }));
        self.memory.extend(of.memory.into_iter().map(|of| MemoryFigures { host: here(), ..of }));
        self.links.extend(of.links.into_iter().map(|of| LinkFigures { host: here(), ..of }));
        self.hangs.extend(of.hangs.into_iter().map(|hang| format!("host {host}: {hang}")));
        self.left_out = self.left_out.saturating_add(of.left_out);
        self.node.messages_per_second += of.node.messages_per_second;
        self.node.in_flight = self.node.in_flight.saturating_add(of.node.in_flight);
        self.hosts.push(host);
    }

    fn of_one(earlier: &NodeSnapshot, now: &NodeSnapshot) -> Figures {
        let interval = now.at.saturating_sub(earlier.at) as f64 / 1e9;
        // An actor of another host has a mailbox in this host's gateway, and its figures on its own host.
        let is_shown = |actor: &&ActorFacts| {
            // An actor that roams has its figures on the host where it lives.
            let lives_on = |host: &HostFacts, snapshot: &NodeSnapshot| match actor.actor.roams() {
                true => snapshot.actors.iter().any(|there| there.actor == actor.actor),
                false => host.number == actor.actor.host(),
            };
            let shows =
                |host: &HostFacts| host.snapshot.as_ref().is_some_and(|snapshot| lives_on(host, snapshot));
            !now.hosts.iter().any(shows)
        };
        let actors = now.actors.iter().filter(is_shown);
        let actors: Vec<_> = actors.map(|actor| actor_figures(earlier, now, actor, interval)).collect();
        let processes = now.processes.iter().map(|process| ProcessFigures {
            host: None,
            name: printable(&process.name),
            pid: process.pid,
            state: process.state,
            restarts: process.restarts,
            last_end: process.last_end.as_deref().map(printable),
            open: process.metrics.as_ref().map(|metrics| metrics.open),
            resident: process.metrics.as_ref().map(|metrics| metrics.resident_bytes),
            gpu_memory: process.gpu.and_then(|gpu| gpu.bytes),
            gpu_busy: process.gpu.and_then(|gpu| gpu.busy).map(|percent| f64::from(percent) / 100.0),
            dead_letters: process.metrics.as_ref().map(|metrics| metrics.dead_letters),
            rejected: process.metrics.as_ref().map(|metrics| metrics.rejected),
        });
        let memory: Vec<_> = now.pools.iter().map(|of| memory_figures(now, of)).collect();
        Figures {
            node: NodeFigures {
                pid: now.node.pid,
                program: printable(&now.node.program),
                up: now.node.up.as_secs_f64(),
                stopping: now.node.stopping,
                tracing: now.node.tracing,
                interval,
                // The sum of no floats is -0.0.
                messages_per_second: 0.0
                    + actors.iter().filter_map(|actor| actor.messages_per_second).sum::<f64>(),
                in_flight: memory.iter().fold(0, |sum: u64, pool| sum.saturating_add(pool.in_flight)),
            },
            processes: processes.collect(),
            memory,
            links: now.links.iter().map(|of| link_figures(earlier, now, of, interval)).collect(),
            hangs: now.hangs.iter().map(|hang| hang.text.clone()).collect(),
            left_out: now.left_out,
            hosts: Vec::new(),
            silent_hosts: Vec::new(),
            actors,
        }
    }
}

fn actor_figures(
    earlier: &NodeSnapshot,
    now: &NodeSnapshot,
    actor: &ActorFacts,
    interval: f64,
) -> ActorFigures {
    let process = now.facts_of(actor.process);
    let metrics = actor.metrics.as_ref();
    let before = earlier.same(actor).and_then(|known| known.metrics.as_ref());
    let change = metrics.map(|metrics| metrics.since(before, interval));
    let change = change.as_ref();
    let seconds = |time: fn(&Change) -> Option<Duration>| Some(time(change?)?.as_secs_f64());
    ActorFigures {
        host: None,
        name: printable(&actor.name),
        process: printable(now.process(actor.process)),
        pid: process.map_or(0, |process| process.pid),
        device: metrics.map(|of| NodeSnapshot::device(of.device)),
        state: actor.state,
        restarts: process.map_or(0, |process| process.restarts),
        handled: metrics.map(|of| of.handled),
        messages_per_second: change.map(|of| of.rate),
        p50: seconds(|of| of.p50),
        p99: seconds(|of| of.p99),
        busy: change.map(|of| of.busy),
        queued: now.waiting(actor),
        capacity: actor.capacity,
        waited: seconds(|of| of.waited),
    }
}

fn memory_figures(now: &NodeSnapshot, of: &PoolFacts) -> MemoryFigures {
    let holders = of.pool.holders.iter().map(|holder| HolderFigures {
        process: printable(now.process(holder.process)),
        bytes: holder.bytes,
        tensors: holder.tensors,
        oldest: holder.oldest.as_secs_f64(),
    });
    MemoryFigures {
        host: None,
        process: printable(now.process(of.owner)),
        device: NodeSnapshot::device(of.pool.device),
        budget: of.pool.budget,
        chunks: of.pool.chunks,
        held: of.pool.held,
        tensors: of.pool.tensors,
        in_flight: of.pool.in_flight,
        quarantined: of.pool.quarantined,
        holders: holders.collect(),
        more_holders: of.pool.more_holders,
    }
}

fn link_figures(earlier: &NodeSnapshot, now: &NodeSnapshot, of: &LinkFacts, interval: f64) -> LinkFigures {
    let all = |sent: &Vec<SentReport>| sent.iter().fold(0, |sum: u64, to| sum.saturating_add(to.sent));
    let messages = of.link.sent.as_ref().map(all);
    let before = earlier.link(of.from, of.link.peer);
    // A link that is new has sent all its messages since; a link that was locked then has no rate.
    let before = before.map_or(Some(0), |before| before.link.sent.as_ref().map(all));
    let since = messages.zip(before).map(|(now, before)| now.saturating_sub(before));
    LinkFigures {
        host: None,
        from: printable(now.process(of.from)),
        to: printable(now.process(of.link.peer)),
        open: of.link.open,
        messages,
        messages_per_second: since.map(|since| per_second(since as f64, interval)),
        replies_waiting: of.link.replies_waiting,
        lent: of.link.lent,
        granted: of.link.granted,
        may_be_granted: MAX_GRANTED as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpost_core::api::actor::ActorId;

    use crate::console::sample;

    #[test]
    fn a_process_is_at_its_limit_by_what_it_was_granted_and_by_what_others_forwarded() {
        let (granted, forwarded) = (MAX_GRANTED as u64, MAX_FORWARDED as u64);
        let mut snapshot = sample::snapshot(0, [0, 0]);
        let mut at_limit = |granted, lent| {
            (snapshot.links[0].link.granted, snapshot.links[0].link.lent) = (granted, lent);
            Figures::between(&snapshot, &snapshot).links[0].at_limit()
        };
        assert_eq!(at_limit(granted / 2, forwarded / 2), None);
        assert_eq!(at_limit(granted, granted), Some((granted, granted)));
        assert_eq!(at_limit(0, forwarded), Some((forwarded, forwarded)));
        // A worker that lies about it (WIRE-1).
        assert_eq!(at_limit(u64::MAX, u64::MAX), Some((u64::MAX, granted)));
    }

    #[test]
    fn figures_of_all_hosts_are_in_one_each_by_its_own_clock() {
        let host = |number: u16, snapshot: Option<NodeSnapshot>| {
            let snapshot = snapshot.map(|mut snapshot| {
                snapshot.actors.iter_mut().for_each(|of| of.actor = ActorId::numbered(number, of.actor.0));
                Box::new(snapshot)
            });
            HostFacts { number, name: format!("{number} left"), snapshot }
        };
        let (mut earlier, mut now) =
            (sample::snapshot(0, [100, 20]), sample::snapshot(1_000_000_000, [200, 20]));
        // Its machine has run for longer, and its interval was two seconds.
        earlier.hosts = vec![host(1, Some(sample::snapshot(70_000_000_000, [10, 0]))), host(2, None)];
        now.hosts = vec![host(1, Some(sample::snapshot(72_000_000_000, [30, 0]))), host(2, None)];
        // Two mailboxes in this host's gateway: for an actor of that host, and for one of a host that does
        // not answer.
        let of = |number| ActorFacts {
            actor: ActorId::numbered(number, 1),
            metrics: None,
            ..now.actors[0].clone()
        };
        let proxies = [of(1), of(2)];
        now.actors.extend(proxies);
        let figures = Figures::between(&earlier, &now);
        let hosts: Vec<_> = figures.actors.iter().map(|of| of.host.as_deref()).collect();
        assert_eq!(hosts, [None, None, None, Some("1 left"), Some("1 left")]);
        let rates: Vec<_> = figures.actors.iter().map(|of| of.messages_per_second).collect();
        assert_eq!(rates, [Some(100.0), Some(0.0), None, Some(10.0), Some(0.0)]);
        assert_eq!(figures.node.messages_per_second, 110.0);
        assert_eq!(
            (figures.hosts, figures.silent_hosts),
            (vec!["1 left".to_owned()], vec!["2 left".to_owned()])
        );
        let of_host = |host: &Option<String>| host.as_deref() == Some("1 left");
        assert_eq!(figures.processes.iter().filter(|of| of_host(&of.host)).count(), 3);
        assert_eq!(figures.memory.iter().filter(|of| of_host(&of.host)).count(), 1);
        assert_eq!(figures.links.iter().filter(|of| of_host(&of.host)).count(), 1);
    }
}
