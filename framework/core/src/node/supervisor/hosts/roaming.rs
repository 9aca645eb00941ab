//! Actors that continue on another host when theirs is gone: where each lives, and its next lives.
//!
//! A program starts an actor on another host with a policy that allows it
//! ([`Restart::on_other_hosts`](crate::node::Restart)). The host of that program is the actor's *home*: it
//! gives the actor its id and its names, keeps its arguments, and knows on which host it lives. The starter
//! of that host starts the life, and the host supervises it, as any actor that is started from elsewhere;
//! its id comes from the home (a *guest*, `node/hosts/other_hosts/roaming.rs`). When the host is gone, the
//! home picks the host with the fewest actors and tells it to start the next life. That may be the home
//! itself, and then the actor stays there. So the hosts need no agreement: the home is lost only together
//! with its actors, because the hosts on which they live end all actors that were started for it.
//!
//! An address holds only the id. A process asks its node for an actor that roams, and the node of another
//! host asks the home through its gateway (`gateway/roaming.rs`). So addresses stay valid, and a name, which
//! is in the registry of the home, does not move at all.
//!
//! **Invariants.** HOST-10: the home asks for a next life only when the last one is over for certain. That is
//! so if its host was lost by the head's verdict, or has left with its actors stopped, or has answered that
//! it did not start it. If a host was asked and nobody knows whether it began the life, the actor counts as
//! living there until the host is gone. If a host was given up for another reason, the actor is given up too.
//! WIRE-1: the home believes only the host that the actor lives on. MBX-2: the number of actors that roam is
//! bounded, and so is the number of lives that are being begun.
//!
//! **Threads.** Each life that is being begun has a thread, because it waits for another host. **On a
//! shutdown** of this host no life begins. **On the end** of its gateway all lives go on, and the next
//! gateway is told where they are (`node/hosts/other_hosts/next_gateway.rs`); if none follows, they are out
//! of reach. If the gateway of either host ends during a start, the home asks the same host again, and that
//! host begins the life only once (`node/hosts/starter/repeated_starts.rs`).

mod life;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::ActorId;
use crate::limits::MAX_GONE_TOLD;
use crate::node::group::Group;
use crate::node::hosts::other_hosts::{HostActors, OtherHosts};
use crate::node::hosts::starter::{NextLife, Roams};
use crate::node::limits::{MAX_MOVES, MAX_ROAMING};
use crate::observe::log::Severity;
use crate::transport::gateway_messages::HostEnd;
use crate::transport::lifecycle::{EndReason, Lifecycle};

use self::life::{Follows, Life};
use super::super::node_state::NodeState;
use super::super::{NodeClosed, Shared, StartError, Supervisor};
use super::Hosts;
use super::steps::{run, run_for};

/// The actors that roam, whose home is this host and that do not live here.
#[derive(Default)]
pub(super) struct Roaming {
    roamers: HashMap<ActorId, Roamer>,
    /// Lives that are being begun.
    beginning: usize,
    /// Hosts that have left the node or were lost. A host's number is never used twice.
    gone: HashMap<u16, (HostEnd, String)>,
}

struct Roamer {
    made_of: Arc<Roams>,
    life: Life,
    /// Set if its group was given up: no other life follows.
    given_up: Option<String>,
}

impl Roaming {
    /// Whether an actor of this group roams.
    pub(super) fn has_of(&self, group: &Group) -> bool {
        self.roamers.values().any(|roamer| roamer.made_of.group.as_ref() == Some(group))
    }

    /// Whether a life of an actor of this group is being begun.
    pub(super) fn is_beginning_one_of(&self, group: &Group) -> bool {
        let mut all = self.roamers.values();
        all.any(|roamer| roamer.life.is_beginning() && roamer.made_of.group.as_ref() == Some(group))
    }
}

/// Makes an id for an actor that starts on another host and may continue on a third.
pub(in crate::node) fn reserve_roaming(supervisor: &Supervisor) -> Result<ActorId, StartError> {
    run_for(&supervisor.shared, |_, node| reserve(node))?
}

/// Reports that the first life of an actor that roams has begun.
pub(in crate::node) fn note_roaming(supervisor: &Supervisor, actor: ActorId, host: u16, made_of: Roams) {
    // After the node's end nobody comes back.
    let _ = run(&supervisor.shared, move |hosts, node| hosts.roams(node, actor, host, made_of));
}

/// Reports that the first life could not begin.
pub(in crate::node) fn forget_roaming(supervisor: &Supervisor, actor: ActorId) {
    // After the node's end nobody has to be told.
    let _ = run(&supervisor.shared, move |hosts, node| hosts.roaming.end_roamer(node, actor, None));
}

fn reserve(node: &mut NodeState) -> Result<ActorId, StartError> {
    match (&node.stopping, OtherHosts::of(&node.broker).roaming_count()) {
        (Some(_), _) => Err(NodeClosed::ShuttingDown.into()),
        (None, MAX_ROAMING..) => Err(StartError::TooManyRoam),
        (None, _) => Ok(HostActors::of(&mut node.broker).roaming_actor()),
    }
}

impl Hosts {
    /// Notes that the first life of an actor has begun on `host`.
    fn roams(&mut self, node: &mut NodeState, actor: ActorId, host: u16, made_of: Roams) {
        let life = Life::first(made_of.restart, host);
        let roamer = Roamer { made_of: Arc::new(made_of), life, given_up: None };
        self.roaming.roamers.insert(actor, roamer);
        self.lives_on(node, actor, host);
    }

    /// Notes that an actor that roams lives on `host` from now on. That host may be gone by now.
    fn lives_on(&mut self, node: &mut NodeState, actor: ActorId, host: u16) {
        if let Some((how, why)) = self.roaming.gone.get(&host).cloned() {
            return self.life_lost(node, actor, host, how, why);
        }
        node.with_broker(|broker, told| HostActors::of(broker).lives_on(actor, Some(host), told));
    }

    /// Handles the actors of a host that has left the node or was lost: they continue elsewhere.
    pub(super) fn roamers_lost(&mut self, node: &mut NodeState, host: u16, how: HostEnd, why: String) {
        let there = self.roaming.roamers.iter().filter(|(_, roamer)| roamer.life.is_on(host));
        let mut there: Vec<_> = there.map(|(actor, _)| *actor).collect();
        there.sort();
        self.roaming.gone.insert(host, (how, why.clone()));
        there.into_iter().for_each(|actor| self.life_lost(node, actor, host, how, why.clone()));
    }

    fn life_lost(&mut self, node: &mut NodeState, actor: ActorId, host: u16, how: HostEnd, why: String) {
        if node.stopping.is_some() {
            return self.roaming.end_roamer(node, actor, Some(EndReason::OutOfReach(why)));
        }
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let follows = roamer.life.host_gone(host, how, why, Instant::now());
        self.follows(node, actor, follows);
    }

    fn follows(&mut self, node: &mut NodeState, actor: ActorId, follows: Follows) {
        let Some(roamer) = self.roaming.roamers.get(&actor) else { return };
        let name = roamer.made_of.actor.shown_as();
        let group = roamer.made_of.group.clone();
        match (follows, roamer.given_up.clone()) {
            (Follows::Nothing, _) => {}
            (Follows::Lives(host), _) => self.lives_on(node, actor, host),
            (Follows::Next(..) | Follows::End(_), Some(why)) => {
                self.roaming.end_roamer(node, actor, Some(EndReason::Group(why)));
            }
            (Follows::Next(reason, delay), None) => {
                let text = format!("{actor} `{name}` goes on on another host in {delay:?}: {reason}");
                node.journal.node(Severity::Warn, None, text);
                let why = reason.to_string();
                let event = Lifecycle::Down { actor, reason, will_restart: true };
                node.with_broker(|broker, told| {
                    // First its place goes, then the event: a watcher that hears it and sends waits for the
                    // next life (DEATH-2).
                    HostActors::of(broker).lives_on(actor, None, told);
                    broker.tell(&event, told);
                });
                if let Some(group) = group {
                    self.group_failed(node, &group, Instant::now() + delay, &why, false);
                }
            }
            (Follows::End(reason), None) => {
                if let Some(reason) = reason.as_ref().filter(|reason| reason.is_failure()) {
                    let text =
                        format!("{actor} `{name}` ended, and does not go on on another host: {reason}");
                    node.journal.node(Severity::Error, None, text);
                }
                let failed = reason.as_ref().filter(|reason| reason.is_failure()).map(ToString::to_string);
                self.roaming.end_roamer(node, actor, reason);
                if let Some((group, why)) = group.zip(failed) {
                    self.group_failed(node, &group, Instant::now(), &why, true);
                }
            }
        }
    }

    /// Handles a host's report that an actor has ended there.
    pub(super) fn roamer_ended(
        &mut self,
        node: &mut NodeState,
        actor: ActorId,
        host: u16,
        why: Option<EndReason>,
    ) {
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let follows = roamer.life.ended_on(host, why);
        self.follows(node, actor, follows);
    }

    /// Returns when the next life is due, unless too many are being begun.
    pub(super) fn next_roaming(&self) -> Option<Instant> {
        let may_begin = |roamer: &&Roamer| !self.groups.is_group_held(roamer.made_of.group.as_ref());
        let due = self.roaming.roamers.values().filter(may_begin).filter_map(|roamer| roamer.life.due());
        due.min().filter(|_| self.roaming.beginning < MAX_MOVES)
    }

    /// Begins the lives that are due.
    pub(super) fn begin_lives(&mut self, node: &mut NodeState) {
        while let Some(at) = self.next_roaming().filter(|at| *at <= Instant::now()) {
            let is_next = |(_, roamer): &(&ActorId, &Roamer)| {
                roamer.life.due() == Some(at) && !self.groups.is_group_held(roamer.made_of.group.as_ref())
            };
            let Some(next) = self.roaming.roamers.iter().find(is_next).map(|(actor, _)| *actor) else {
                return;
            };
            let Some((actor, roamer)) = self.roaming.roamers.get_mut(&next).map(|of| (&next, of)) else {
                return;
            };
            let (actor, life, made_of) = (*actor, roamer.life.begin(), Arc::clone(&roamer.made_of));
            self.roaming.beginning += 1;
            let shared = Arc::clone(&node.shared);
            let begin = move || begin(&shared, actor, life, &made_of);
            let thread = std::thread::Builder::new().name("tp-move".to_owned()).spawn(begin);
            if let Err(error) = thread {
                let why = format!("the node has no thread to start it with: {error}");
                self.life_began(node, actor, NextLife::Failed(why));
            }
        }
    }

    fn life_began(&mut self, node: &mut NodeState, actor: ActorId, next: NextLife) {
        self.roaming.beginning = self.roaming.beginning.saturating_sub(1);
        let Some(roamer) = self.roaming.roamers.get_mut(&actor) else { return };
        let (life, name) = (roamer.life.number(), roamer.made_of.actor.shown_as().to_owned());
        let (roamer_group, given_up) = (roamer.made_of.group.clone(), roamer.given_up.is_some());
        let (is_here, is_up_on) = match next {
            NextLife::Here => (true, None),
            NextLife::On(host) => (false, Some(host)),
            NextLife::Failed(_) | NextLife::Unknown(_) => (false, None),
        };
        let follows = roamer.life.begun(next, Instant::now());
        self.follows(node, actor, follows);
        if is_here {
            self.roaming.roamers.remove(&actor);
            node.journal.node(Severity::Info, None, format!("{actor} `{name}` goes on on this host"));
        }
        // It began while the others of its group were ending.
        let group = roamer_group.filter(|group| self.groups.is_group_held(Some(group)));
        if let Some(group) = group.filter(|_| is_here || is_up_on.is_some()) {
            let why = format!("{actor} `{name}` began before the others had ended");
            self.group_failed(node, &group, Instant::now(), &why, given_up);
        }
        let lives_on = |host: &u16| self.roaming.roamers.get(&actor).is_some_and(|of| of.life.is_on(*host));
        if let Some(host) = is_up_on.filter(lives_on) {
            node.journal.node(Severity::Info, None, format!("{actor} `{name}` goes on on host {host}"));
            let event = Lifecycle::Up { actor, incarnation: life };
            node.with_broker(|broker, told| broker.tell(&event, told));
        }
    }
}

impl Roaming {
    /// Gives up all roaming actors of a group, for the reason `why`. Those that live somewhere end there; the
    /// others get no next life.
    pub(super) fn give_up_roamers_of(&mut self, node: &mut NodeState, group: &Group, why: &str) {
        let why = format!("its group `{}` was given up: {why}", group.name());
        let mut between = Vec::new();
        for (actor, roamer) in &mut self.roamers {
            if roamer.made_of.group.as_ref() == Some(group) {
                roamer.given_up = Some(why.clone());
                between.extend(roamer.life.due().map(|_| *actor));
            }
        }
        between.sort();
        between
            .into_iter()
            .for_each(|actor| self.end_roamer(node, actor, Some(EndReason::Group(why.clone()))));
    }

    /// Ends an actor for good: frees its names, and tells everybody that waits for it.
    fn end_roamer(&mut self, node: &mut NodeState, actor: ActorId, why: Option<EndReason>) {
        self.roamers.remove(&actor);
        if OtherHosts::of(&node.broker).is_home_of(actor) {
            node.with_broker(|broker, told| HostActors::of(broker).lost_on_other_host(actor, why, told));
        }
    }

    /// Notes that the actor's host has begun another life of it there.
    pub(super) fn roamer_is_up(&mut self, actor: ActorId, life: u32) {
        if let Some(roamer) = self.roamers.get_mut(&actor) {
            roamer.life.came_back(life);
        }
    }

    /// Returns how hosts have left the node, for the next gateway. If there are more than [`MAX_GONE_TOLD`],
    /// it returns those that joined last.
    pub(super) fn hosts_gone(&self) -> Vec<(u16, HostEnd)> {
        let mut gone: Vec<_> = self.gone.iter().map(|(host, (how, _))| (*host, *how)).collect();
        gone.sort_by_key(|(host, _)| std::cmp::Reverse(*host));
        gone.truncate(MAX_GONE_TOLD);
        gone
    }

    /// Forgets all roaming actors, because the other hosts are out of reach for good.
    pub(super) fn forget_roamers(&mut self) {
        self.roamers.clear(); // the broker tells
    }

    /// Ends the actors without a life now, because this host shuts down and no life begins any more.
    pub(super) fn end_roaming(&mut self, node: &mut NodeState) {
        let away = self.roamers.iter().filter(|(_, roamer)| roamer.life.is_away());
        let away: Vec<_> = away.map(|(actor, _)| *actor).collect();
        away.into_iter().for_each(|actor| self.end_roamer(node, actor, Some(EndReason::NodeStopped)));
    }
}

/// Begins a life on some host, and reports the outcome.
fn begin(shared: &Shared, actor: ActorId, life: u32, made_of: &Roams) {
    let begin = shared.all_hosts.begin_life.get();
    let Some(next) = begin.and_then(|begin| begin(actor, life, made_of)) else { return };
    // After the node's end nobody comes back.
    let _ = run(shared, move |hosts, node| hosts.life_began(node, actor, next));
}
