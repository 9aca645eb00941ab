//! The figures, snapshots and reports of the other hosts, for watchers of the head. The head asks for them
//! only when somebody looks.
//!
//! The head asks all hosts' starters (`node/hosts/starter.rs`) at the same time, beside its own processes,
//! and waits for none longer than a deadline: a host that has not answered by then is named as silent. The
//! head asks it for another snapshot only after a moment. The answers are JSON, as in the console.
//!
//! **Invariants.** CON-1: on either host only a thread waits for which nobody else waits, and the processes
//! of a host are asked at most ten times a second, no matter how many hosts look. CON-3: each answer is
//! bounded. WIRE-1: a host may describe only its own actors, its texts are made plain, and parts that do not
//! fit are left out. HOST-1: numbers of processes are for people, and are unique only within one answer.
//!
//! **On the loss** of a host its ask fails, and it counts as silent until it is no member any more.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::all_traces;
use super::starter::{Roams, Show, ask_for, next_life};
use crate::ids::ActorId;
use crate::limits::{MAX_ACTORS, MAX_PROCESSES, MAX_SHOWN_HOLDERS};
use crate::node::NodeReport;
use crate::node::console::protocol::{HostFacts, WayFacts};
use crate::node::console::{ActorFacts, NodeSnapshot};
use crate::node::hosts::wait::wait_for;
use crate::node::limits::{
    HOST_LOOK_DEADLINE, HOST_METRICS_DEADLINE, HOST_WAITS_FOR_SUPERVISOR, MAX_ALL_HOSTS_FIGURES, MAX_ENDS,
    MAX_FAILURE_TEXT, MAX_HANGS, MAX_HOST_FIGURES, MAX_NAME, MAX_SHOWN_ACTORS, SILENT_HOST, SNAPSHOT_LASTS,
};
use crate::node::supervisor::hosts::{ask_for_hosts, waited_for};
use crate::node::supervisor::{NodeClosed, Shared, Supervisor, WorkerId, WorkerState};
use crate::observe::metrics::{ActorMetrics, Metrics};
use crate::observe::text::shown;
use crate::transport::Transport;
use crate::transport::gateway_messages::Host;
use crate::transport::lifecycle::GATEWAY;

/// The last snapshot that this host showed to other hosts.
#[derive(Default)]
pub(in crate::node) struct LastSnapshot(Mutex<Option<(Instant, Vec<u8>)>>);

/// Returns what this host shows. `Err` says why it shows nothing.
pub(in crate::node) fn show(
    supervisor: &Supervisor,
    what: Show,
    last: &LastSnapshot,
) -> Result<Vec<u8>, String> {
    let closed = |closed: NodeClosed| closed.to_string();
    // Only the head asks, and nobody asks the head: a request that reaches it from an agent is not from the
    // framework.
    let own = supervisor.shared().all_hosts.transport.get().and_then(Weak::upgrade);
    if own.is_some_and(|transport| transport.directory.host() == 0) {
        return Err("the head of a node shows itself to its own user alone".to_owned());
    }
    match what {
        Show::Look => {
            let mut last = last.0.lock();
            if let Some((_, snapshot)) = last.as_ref().filter(|(at, _)| at.elapsed() < SNAPSHOT_LASTS) {
                return Ok(snapshot.clone());
            }
            let snapshot = supervisor.shared().snapshot(HOST_WAITS_FOR_SUPERVISOR).map_err(closed)?;
            let snapshot = fitting(snapshot.ok_or("its supervisor does not answer")?)?;
            *last = Some((Instant::now(), snapshot.clone()));
            Ok(snapshot)
        }
        Show::TraceBegin(extent) => all_traces::begin(supervisor, extent),
        Show::TraceEnd(extent) => all_traces::end(supervisor, extent),
        Show::Metrics => as_json(&supervisor.metrics().map_err(closed)?),
        Show::Report => {
            let (restarts, hangs) = supervisor.report().map_err(closed)?;
            let (workers, silent) = (supervisor.workers(), Vec::new());
            as_json(&NodeReport { workers, restarts, hangs, silent })
        }
    }
}

fn as_json(shown: &impl Serialize) -> Result<Vec<u8>, String> {
    let bytes = serde_json::to_vec(shown).map_err(|error| error.to_string())?;
    match bytes.len() {
        length if length > MAX_HOST_FIGURES => {
            Err(format!("its figures have {length} bytes, and {MAX_HOST_FIGURES} are the most"))
        }
        _ => Ok(bytes),
    }
}

/// Encodes a snapshot so that it fits an answer: it drops links first, and then actors, because a person
/// misses links least.
fn fitting(mut snapshot: NodeSnapshot) -> Result<Vec<u8>, String> {
    let mut fits = as_json(&snapshot);
    if fits.is_err() {
        snapshot.links.clear();
        fits = as_json(&snapshot);
    }
    while fits.is_err() && !snapshot.actors.is_empty() {
        let rest = snapshot.actors.len() / 2;
        snapshot.left_out += (snapshot.actors.len() - rest) as u64;
        snapshot.actors.truncate(rest);
        fits = as_json(&snapshot);
    }
    fits
}

/// A host that was asked.
pub(in crate::node) struct AskedHost(Host, BoxFuture<'static, Option<Vec<u8>>>);

impl Shared {
    /// Asks all other hosts, on the head; does not wait for them.
    pub(in crate::node) fn ask_hosts(&self, what: Show, deadline: Duration) -> Vec<AskedHost> {
        let transport = self.all_hosts.transport.get().and_then(Weak::upgrade);
        let Some(transport) = transport.filter(|transport| transport.directory.host() == 0) else {
            return Vec::new();
        };
        let asked = |host: Host| {
            let answer = ask_for(&transport, host.number, what, deadline).boxed();
            AskedHost(host, answer)
        };
        let others = self.hosts_within(deadline).into_iter().filter(|host| host.number != 0);
        let now = Instant::now();
        let mut silent = self.all_hosts.silent.lock();
        silent.retain(|_, until| now < *until);
        let asks = |host: Host| match what == Show::Look && silent.contains_key(&host.number) {
            true => AskedHost(host, std::future::ready(None).boxed()),
            false => asked(host),
        };
        others.map(asks).collect()
    }

    /// Returns the bytes that each host has answered in time; at most `each` bytes are taken from one, and
    /// `all` in total.
    pub(in crate::node) fn raw_answers(
        &self,
        asked: Vec<AskedHost>,
        each: usize,
        mut all: usize,
    ) -> Vec<(Host, Option<Vec<u8>>)> {
        if asked.is_empty() {
            return Vec::new();
        }
        let (hosts, answers): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|AskedHost(host, of)| (host, of)).unzip();
        let mut answers = wait_for(join_all(answers)).unwrap_or_default().into_iter();
        let answered = hosts.into_iter().map(|host| {
            let answer = answers.next().flatten().filter(|answer| answer.len() <= each);
            let answer = answer.filter(|answer| {
                let left = all.checked_sub(answer.len());
                all = left.unwrap_or(all);
                left.is_some()
            });
            (host, answer)
        });
        answered.collect()
    }

    /// Returns the decoded answer of each host that has answered in time, reduced to what it may say.
    fn answers<T: DeserializeOwned>(
        &self,
        asked: Vec<AskedHost>,
        bounded: fn(T, &Host) -> T,
    ) -> Vec<(Host, Option<T>)> {
        let answers = self.raw_answers(asked, MAX_HOST_FIGURES, MAX_ALL_HOSTS_FIGURES).into_iter();
        let answered = answers.map(|(host, json)| {
            let answer = json.and_then(|json| serde_json::from_slice(&json).ok());
            let answer = answer.map(|answer| bounded(answer, &host));
            (host, answer)
        });
        answered.collect()
    }

    /// As [`snapshot`](Self::snapshot), with the other hosts on the head.
    pub(crate) fn snapshot_of_all(&self, patience: Duration) -> Result<Option<NodeSnapshot>, NodeClosed> {
        let asked = self.ask_hosts(Show::Look, HOST_LOOK_DEADLINE);
        let Some(mut snapshot) = self.snapshot(patience)? else { return Ok(None) };
        let mut room = MAX_SHOWN_ACTORS.saturating_sub(snapshot.actors.len());
        for (host, answer) in self.answers(asked, bounded_snapshot) {
            if answer.is_none() {
                let mut silent = self.all_hosts.silent.lock();
                silent.entry(host.number).or_insert_with(|| Instant::now() + SILENT_HOST);
            }
            let answer = answer.map(|mut snapshot: NodeSnapshot| {
                snapshot.left_out =
                    snapshot.left_out.saturating_add(snapshot.actors.len().saturating_sub(room) as u64);
                snapshot.actors.truncate(room);
                room -= snapshot.actors.len();
                Box::new(snapshot)
            });
            snapshot.hosts.push(HostFacts { number: host.number, name: host.short(), snapshot: answer });
        }
        Ok(Some(snapshot))
    }
}

impl Supervisor {
    /// As [`metrics`](Self::metrics), with the other hosts on the head.
    pub(crate) fn metrics_of_all(&self) -> Result<Metrics, NodeClosed> {
        let shared = self.shared();
        let asked = shared.ask_hosts(Show::Metrics, HOST_METRICS_DEADLINE);
        let mut metrics = self.metrics()?;
        for (host, answer) in shared.answers::<Metrics>(asked, bounded_metrics) {
            match answer {
                Some(of) => {
                    metrics.processes.extend(of.processes);
                    metrics.silent.extend(of.silent);
                }
                None => metrics.silent.push(format!("host {}", host.short())),
            }
        }
        Ok(metrics)
    }

    /// Returns what has gone wrong so far, on the head also on the other hosts.
    pub(crate) fn report_of_all(&self) -> Result<NodeReport, NodeClosed> {
        let shared = self.shared();
        let asked = shared.ask_hosts(Show::Report, HOST_LOOK_DEADLINE);
        let (restarts, hangs) = self.report()?;
        let mut report = NodeReport { workers: self.workers(), restarts, hangs, silent: Vec::new() };
        for (host, answer) in shared.answers::<NodeReport>(asked, bounded_report) {
            match answer {
                Some(of) => {
                    report.workers.extend(of.workers);
                    report.restarts.extend(of.restarts);
                    report.hangs.extend(of.hangs);
                }
                None => report.silent.push(format!("host {}", host.short())),
            }
        }
        Ok(report)
    }
}

fn plain(text: &mut String, limit: usize) {
    *text = shown(std::mem::take(text), limit);
}

/// Whether a host may show an actor: its own, or a roaming one, which is shown where it lives.
fn may_live_on(actor: ActorId, host: &Host) -> bool {
    actor.host() == host.number || actor.roams()
}

/// WIRE-1: makes the metrics of an actor of this host plain. Returns whether they can be shown.
fn plain_actor(actor: &mut ActorMetrics, host: &Host) -> bool {
    plain(&mut actor.name, MAX_NAME);
    may_live_on(actor.actor, host) && actor.handler.is_sound()
}

fn bounded_metrics(mut metrics: Metrics, host: &Host) -> Metrics {
    metrics.processes.truncate(MAX_PROCESSES);
    for of in &mut metrics.processes {
        plain(&mut of.name, MAX_NAME);
        of.host = Some(host.short());
        of.metrics.actors.truncate(MAX_ACTORS);
        of.metrics.actors.retain_mut(|actor| plain_actor(actor, host));
    }
    metrics.silent.truncate(MAX_PROCESSES);
    for name in &mut metrics.silent {
        plain(name, MAX_NAME);
        *name = format!("{name} on {}", host.short());
    }
    metrics
}

fn bounded_snapshot(mut snapshot: NodeSnapshot, host: &Host) -> NodeSnapshot {
    // A host shows only itself.
    snapshot.hosts = Vec::new();
    plain(&mut snapshot.node.program, MAX_NAME);
    snapshot.processes.truncate(MAX_PROCESSES);
    for of in &mut snapshot.processes {
        plain(&mut of.name, MAX_NAME);
        of.last_end.iter_mut().for_each(|end| plain(end, MAX_FAILURE_TEXT));
        if let Some(metrics) = &mut of.metrics {
            metrics.actors = Vec::new();
        }
    }
    // Other hosts' actors that it sends to are shown by their own hosts. Here they only map the places in its
    // gateway to actors.
    let gateways: Vec<_> =
        snapshot.processes.iter().filter(|of| of.name == GATEWAY).map(|of| of.process).collect();
    let is_its_own = |actor: &ActorFacts| {
        let is_way = actor.actor.roams() && actor.metrics.is_none() && gateways.contains(&actor.process);
        may_live_on(actor.actor, host) && !is_way
    };
    let (own, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut snapshot.actors).into_iter().partition(is_its_own);
    snapshot.actors = own;
    let ways =
        others.into_iter().take(MAX_ACTORS).map(|ActorFacts { actor, process, index, capacity, .. }| {
            WayFacts { actor, process, index, capacity }
        });
    snapshot.ways = ways.collect();
    snapshot.actors.truncate(MAX_SHOWN_ACTORS);
    for actor in &mut snapshot.actors {
        plain(&mut actor.name, MAX_NAME);
        let is_its_own =
            |metrics: &mut ActorMetrics| metrics.actor == actor.actor && plain_actor(metrics, host);
        actor.metrics =
            actor.metrics.take().and_then(|mut metrics| is_its_own(&mut metrics).then_some(metrics));
    }
    snapshot.pools.iter_mut().for_each(|of| of.pool.holders.truncate(MAX_SHOWN_HOLDERS));
    snapshot.hangs.truncate(MAX_HANGS);
    for hang in &mut snapshot.hangs {
        plain(&mut hang.name, MAX_NAME);
        plain(&mut hang.text, MAX_FAILURE_TEXT);
    }
    snapshot.standing.truncate(MAX_HANGS);
    snapshot.standing.iter_mut().for_each(|line| plain(line, MAX_FAILURE_TEXT));
    snapshot
}

fn bounded_report(mut report: NodeReport, host: &Host) -> NodeReport {
    let theirs = |worker: WorkerId| WorkerId::of_host(host.number, worker.0);
    let text = |text| shown(text, MAX_FAILURE_TEXT);
    report.workers.truncate(MAX_PROCESSES);
    for of in &mut report.workers {
        plain(&mut of.name, MAX_NAME);
        of.worker = theirs(of.worker);
        of.last_end = of.last_end.take().map(|end| end.with_text(text));
        of.state = match std::mem::replace(&mut of.state, WorkerState::Ending) {
            WorkerState::Spare { of, ready } => WorkerState::Spare { of: theirs(of), ready },
            WorkerState::Restarting { reason } => WorkerState::Restarting { reason: reason.with_text(text) },
            WorkerState::Exited { exit, why } => WorkerState::Exited { exit, why: why.map(text) },
            plain @ (WorkerState::Starting | WorkerState::Running | WorkerState::Ending) => plain,
        };
    }
    report.restarts.truncate(MAX_PROCESSES);
    for of in &mut report.restarts {
        plain(&mut of.name, MAX_NAME);
        of.worker = theirs(of.worker);
        of.ends.truncate(MAX_ENDS);
        of.ends = std::mem::take(&mut of.ends).into_iter().map(|end| end.with_text(text)).collect();
    }
    report.hangs.truncate(MAX_HANGS);
    for hang in &mut report.hangs {
        plain(&mut hang.name, MAX_NAME);
        hang.hang.names(|name| plain(name, MAX_NAME));
        hang.worker = hang.worker.map(theirs);
        hang.host = Some(host.short());
    }
    report
}

/// Gives the node's transport to the threads that ask other hosts.
pub(in crate::node) fn set(supervisor: &Arc<Supervisor>, transport: &Arc<Transport>) {
    let shared = supervisor.shared();
    // A host joins its node only once.
    let weak = Arc::downgrade(supervisor);
    let begin_life = move |actor: ActorId, life: u32, made_of: &Roams| {
        let supervisor = weak.upgrade()?;
        Some(next_life(&supervisor, actor, life, made_of))
    };
    let _ = shared.all_hosts.begin_life.set(Box::new(begin_life));
    let _ = shared.all_hosts.transport.set(Arc::downgrade(transport));
}

impl Shared {
    /// Returns the hosts of the node; none if the supervisor does not answer in time.
    fn hosts_within(&self, patience: Duration) -> Vec<Host> {
        let (reply, answer) = waited_for();
        match ask_for_hosts(self, reply) {
            Ok(()) => answer.recv_timeout(patience).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ActorId;
    use crate::node::console::sample;

    fn host() -> Host {
        Host { number: 3, name: "left".to_owned(), address: "a:1".to_owned() }
    }

    // WIRE-1: a host shows only its own actors, and no text that moves a cursor.
    #[test]
    fn what_another_host_shows_is_bounded_plain_and_its_own() {
        let odd = "x\n\u{1b}[2J".repeat(10_000);
        let mut snapshot = sample::snapshot(0, [5, 7]);
        snapshot.actors[0].actor = ActorId::numbered(3, 9);
        snapshot.actors[0].name = odd.clone();
        if let Some(metrics) = &mut snapshot.actors[0].metrics {
            metrics.actor = ActorId::numbered(3, 9);
        }
        snapshot.processes[1].name = odd.clone();
        snapshot.node.program = odd.clone();
        snapshot.hosts.push(HostFacts {
            number: 4,
            name: odd.clone(),
            snapshot: Some(Box::new(snapshot.clone())),
        });
        let is_plain = |text: &str| text.len() <= MAX_NAME && !text.contains('\u{1b}');
        let bounded = bounded_snapshot(snapshot.clone(), &host());
        assert_eq!(bounded.actors.len(), 1, "the other is of the head");
        assert_eq!(bounded.ways.iter().map(|way| way.actor).collect::<Vec<_>>(), [snapshot.actors[1].actor]);
        assert!(bounded.actors[0].metrics.is_some() && is_plain(&bounded.actors[0].name));
        assert!(is_plain(&bounded.processes[1].name) && is_plain(&bounded.node.program));
        assert!(bounded.hosts.is_empty());
        // A roaming actor lives where its figures are, and not where its mailbox in a gateway is.
        let mut in_gateway = snapshot.clone();
        in_gateway.actors[0].actor = ActorId::roaming(3, 9);
        in_gateway.actors[0].metrics = None;
        in_gateway.processes[1].name = GATEWAY.to_owned();
        let bounded_too = bounded_snapshot(in_gateway, &host());
        assert_eq!((bounded_too.actors.len(), bounded_too.ways.len()), (0, 2));
        // Counts of one actor under another's id.
        if let Some(metrics) = &mut snapshot.actors[0].metrics {
            metrics.actor = ActorId::numbered(3, 10);
        }
        assert!(bounded_snapshot(snapshot, &host()).actors[0].metrics.is_none());

        let mut metrics = crate::observe::metrics::tests::metrics(0, 5);
        metrics.silent = vec![odd];
        let of_the_head = bounded_metrics(metrics.clone(), &host());
        assert_eq!(of_the_head.processes[0].host.as_deref(), Some("3 left"));
        assert!(of_the_head.processes[0].metrics.actors.is_empty(), "they say that they are the head's");
        assert!(of_the_head.silent[0].ends_with(" on 3 left") && !of_the_head.silent[0].contains('\u{1b}'));
        metrics.processes[0].metrics.actors[0].actor = ActorId::numbered(3, 1);
        assert_eq!(bounded_metrics(metrics, &host()).processes[0].metrics.actors.len(), 1);
    }

    // CON-3.
    #[test]
    fn a_look_that_is_too_long_loses_links_and_then_actors() {
        let mut snapshot = sample::snapshot(0, [5, 7]);
        snapshot.links = vec![snapshot.links[0].clone(); MAX_HOST_FIGURES / 50];
        let read = |json: Vec<u8>| serde_json::from_slice::<NodeSnapshot>(&json).expect("a look");
        let shown = read(fitting(snapshot.clone()).expect("it fits"));
        assert!(shown.links.is_empty() && shown.actors == snapshot.actors);
        snapshot.actors[0].name = "x".repeat(1000);
        snapshot.actors = vec![snapshot.actors[0].clone(); MAX_HOST_FIGURES / 500];
        let all = snapshot.actors.len();
        let shown = read(fitting(snapshot).expect("it fits"));
        assert!(!shown.actors.is_empty() && shown.actors.len() + shown.left_out as usize == all);
    }
}
