//! Groups whose actors are on several hosts: a failure on one host ends the members on all hosts, and no next
//! life begins before the last member has ended.
//!
//! Each host supervises the members that live there, by their own policies. The group's *home*, the host
//! whose program made it, runs the rounds (`rounds.rs`). The hosts talk to each other through their
//! starters (`node/hosts/starter/groups.rs`). A member that roams (`roaming.rs`) counts as a member of the
//! host that it lives on. The loss of that host is a failure like any other, and the member's next life
//! belongs to the round that follows. A member that does not roam is given up with its host, and the group
//! with it. The home watches such members and so hears of their ends.
//!
//! **Invariants.** HOST-10: a next life of a group waits for its hosts' answers, or for the head's verdict on
//! a host that does not answer. WIRE-1: a host can fail only a group of which it was asked to start a member,
//! and can end only members of its own groups. A host that lies ends only actors that it could have ended in
//! other ways. MBX-2: the table of groups is bounded by the actors that run or are being started.
//!
//! **On a shutdown** nothing begins again, so nothing is sent. **On the loss** of the home the members'
//! workers end with it. **On the end** of a gateway the hosts send their messages again.

pub(super) mod rounds;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::ids::ActorId;
use crate::node::group::Group;
use crate::node::hosts::starter::{InGroup, OfGroup, Says, Speaker, Then};
use crate::node::limits::{MAX_GROUP_DELAY, MAX_NAME};
use crate::observe::log::Severity;
use crate::observe::text::shown;
use crate::transport::Watcher;
use crate::transport::lifecycle::{EndReason, Lifecycle};

use self::rounds::{Joined, RoundStep, Spread};
use super::super::node_state::NodeState;
use super::super::reply::Reply;
use super::super::restarts::{Restarts, Supervised};
use super::super::{NodeClosed, Supervisor, WorkerId};
use super::Hosts;
use super::steps::{ask, run, run_for};

/// The groups that are on several hosts.
#[derive(Default)]
pub(super) struct HostGroups {
    /// Groups of this host, by number.
    spread: HashMap<u64, (Group, Spread)>,
    /// Groups of other hosts, by home and number there.
    joined: HashMap<(u16, u64), JoinedGroup>,
    /// Counts the rounds of all groups of this host, so that a group that was forgotten and comes again
    /// continues the numbers.
    rounds: u64,
    /// The last round that each home has named here. A member that joins later belongs to no earlier round.
    heard: HashMap<u16, u64>,
    /// Replies to homes that wait until the members of a group have ended here.
    ending: Vec<(Group, Reply<Result<(), String>>)>,
    /// In a shutdown: the members of other hosts' groups.
    missed: HashSet<ActorId>,
    speaker: Speaker,
}

struct JoinedGroup {
    group: Group,
    joined: Joined,
    /// Members that are being started here.
    starting: usize,
}

/// Prepares the start of a member of a group on another host, and returns what that host must know.
/// Returns `None` if the group does not restart as one.
pub(in crate::node) fn starts_on(
    supervisor: &Supervisor,
    group: Option<&Group>,
    host: u16,
) -> Result<Option<InGroup>, NodeClosed> {
    let Some(group) = group.filter(|group| group.is_one()) else { return Ok(None) };
    let of = group.clone();
    let round = run_for(&supervisor.shared, move |hosts, _| hosts.starts_member(of, host))?;
    Ok(Some(InGroup { group: group.id(), name: group.name().to_owned(), round }))
}

/// Reports the result of that start: the member, if the group misses it when it ends.
pub(in crate::node) fn started_on(
    supervisor: &Supervisor,
    group: Option<&Group>,
    host: u16,
    member: Option<ActorId>,
) {
    if let Some(group) = group.filter(|group| group.is_one()) {
        let group = group.clone();
        // After the node's end nothing restarts.
        let _ = run(&supervisor.shared, move |hosts, node| {
            hosts.groups.started_member(node, &group, host, member);
        });
    }
}

/// Prepares the start of a member of another host's group here.
pub(in crate::node) fn joins_group(supervisor: &Supervisor, home: u16, group: InGroup) -> Group {
    let InGroup { group, name, round } = group;
    let group = Group::of_host(home, group, &shown(name, MAX_NAME));
    let of = group.clone();
    // After the node's end nothing restarts.
    let _ = run(&supervisor.shared, move |hosts, node| hosts.groups.joins_here(node, &of, round));
    group
}

/// Reports that this start is over, successful or not.
pub(in crate::node) fn has_joined(supervisor: &Supervisor, group: Group) {
    // After the node's end nothing restarts.
    let _ = run(&supervisor.shared, move |hosts, _| {
        if let Some(of) = hosts.groups.joined(&group) {
            of.starting = of.starting.saturating_sub(1);
        }
    });
}

/// Passes on another host's message about a group, and waits until it is handled.
pub(in crate::node) fn hear_of_group(
    supervisor: &Supervisor,
    host: u16,
    said: OfGroup,
) -> Result<Result<(), String>, NodeClosed> {
    ask(&supervisor.shared, move |hosts, node, reply| hosts.hear_of_group(node, host, said, reply))
}

/// Whether any actor here is in this group.
fn has_group(restarts: &Restarts, group: &Group) -> bool {
    restarts.supervised.values().any(|supervised| supervised.group.as_ref() == Some(group))
}

impl HostGroups {
    /// Whether next lives of a group must wait here.
    fn is_held(&self, group: &Group) -> bool {
        match group.home() {
            None => self.spread.get(&group.id()).is_some_and(|(_, spread)| spread.is_held()),
            Some(home) => self.joined.get(&(home, group.id())).is_some_and(|of| of.joined.is_held()),
        }
    }

    /// Returns a group of another host with members here.
    fn joined(&mut self, group: &Group) -> Option<&mut JoinedGroup> {
        self.joined.get_mut(&(group.home()?, group.id()))
    }

    /// Takes a host's report that a member of a group has failed there, whose life belonged to the round
    /// `begun`. Returns the group, if another round follows.
    fn hear_failure(&mut self, host: u16, id: u64, begun: u64, at: Instant) -> Result<Option<Group>, String> {
        // WIRE-1.
        let spread = self.spread.get_mut(&id).filter(|(_, spread)| spread.has(host));
        let (group, spread) =
            spread.ok_or_else(|| format!("host {host} has no member of such a group of this one"))?;
        Ok(spread.is_news(begun, at).then(|| group.clone()))
    }

    /// Takes an event of a member on another host that does not roam. Returns the group and the reason, if
    /// the group is given up.
    fn hear_event(&mut self, id: u64, event: &Lifecycle) -> Option<(Group, String)> {
        let (group, spread) = self.spread.get_mut(&id)?;
        // If its host leaves, the group hears of that separately. If nobody knows why the member ended, it is
        // no failure.
        let failed = match event.failure() {
            Some(EndReason::NodeStopped) => return None,
            Some(EndReason::Forgotten) | None => None,
            Some(reason) => Some(reason),
        };
        spread.members.remove(&event.actor())?;
        let why = format!("{} does not come back: {}", event.actor(), failed?);
        Some((group.clone(), why))
    }

    /// Begins a round of a group of this host.
    fn fails(&mut self, group: u64, at: Instant, why: String, gives_up: bool) {
        if let Some((_, spread)) = self.spread.get_mut(&group) {
            self.rounds += 1;
            spread.fails(self.rounds, at, why, gives_up);
        }
    }
}

impl Hosts {
    /// Handles another host's message about a group.
    fn hear_of_group(
        &mut self,
        node: &mut NodeState,
        host: u16,
        said: OfGroup,
        reply: Reply<Result<(), String>>,
    ) {
        let OfGroup { group, says } = said;
        match says {
            Says::Do { step, why, gives_up } => {
                self.home_says(node, (host, group), step, &why, gives_up, reply)
            }
            Says::Failed { begun, delay, why } => {
                reply.answer(self.failed_there(node, host, group, begun, Duration::from_millis(delay), &why));
            }
        }
    }

    fn starts_member(&mut self, group: Group, host: u16) -> u64 {
        let (roaming, rounds) = (&self.roaming, self.groups.rounds);
        // MBX-2: keep only groups that have members elsewhere, or are about to get some.
        self.groups.spread.retain(|_, (of, spread)| {
            let is_used = !spread.members.is_empty() || spread.starting > 0 || spread.is_held();
            is_used || roaming.has_of(of)
        });
        let new = || Spread::new(rounds, Instant::now());
        let (_, spread) = self.groups.spread.entry(group.id()).or_insert_with(|| (group, new()));
        spread.starting += 1;
        spread.add(host)
    }

    /// Ends the members on other hosts of `groups`, which restart because of a failure here; the groups
    /// `given_up` among them do not come back. The group `but_for` is told by the caller.
    pub(super) fn groups_fail_but(
        &mut self,
        node: &mut NodeState,
        groups: &[Group],
        given_up: &[Group],
        delay: Duration,
        why: &str,
        but_for: Option<&Group>,
    ) {
        if node.stopping.is_some() {
            return;
        }
        for group in groups.iter().filter(|group| Some(*group) != but_for) {
            let gives_up = given_up.contains(group);
            match group.home() {
                None => self.spread_fails(node, group, Instant::now() + delay, why, gives_up),
                // If a group is given up, the home hears of it by the ends of its members.
                Some(home) if !gives_up => self.groups.tell_home(node, home, group, delay, why),
                Some(_) => {}
            }
        }
    }

    /// Begins a round of a group of this host on the other hosts. The caller ends its members here.
    fn spread_fails(&mut self, node: &mut NodeState, group: &Group, at: Instant, why: &str, gives_up: bool) {
        if !self.groups.spread.contains_key(&group.id()) {
            return; // all of it is here
        }
        self.groups.fails(group.id(), at, why.to_owned(), gives_up);
        if gives_up {
            if let Some((_, spread)) = self.groups.spread.get_mut(&group.id()) {
                spread.members.clear();
            }
            self.roaming.give_up_roamers_of(node, group, why);
        }
        self.groups.say_steps(node, group.id());
    }

    fn host_did(
        &mut self,
        node: &mut NodeState,
        id: u64,
        host: u16,
        step: RoundStep,
        result: Result<(), String>,
    ) {
        let Some((group, spread)) = self.groups.spread.get_mut(&id) else { return };
        if let Err(error) = &result
            && self.members.iter().any(|member| member.number == host)
        {
            let text = format!("group `{}` is not waited for on host {host}: {error}", group.name());
            node.journal.node(Severity::Warn, None, text);
        }
        // A host that fails to answer counts as done, so that it holds nobody up. If it is lost,
        // `groups_lost` handles that.
        spread.did(host, step);
        self.groups.say_steps(node, id);
    }

    /// Handles another host's report that a member has failed there.
    fn failed_there(
        &mut self,
        node: &mut NodeState,
        host: u16,
        id: u64,
        begun: u64,
        delay: Duration,
        why: &str,
    ) -> Result<(), String> {
        let at = Instant::now() + delay.min(MAX_GROUP_DELAY);
        if let Some(group) = self.groups.hear_failure(host, id, begun, at)? {
            self.group_failed(node, &group, at, &format!("on host {host}: {why}"), false);
        }
        Ok(())
    }

    /// Ends all members of a group of this host, because a member has failed elsewhere, or its host was lost.
    /// They come back together, unless the group is given up.
    pub(super) fn group_failed(
        &mut self,
        node: &mut NodeState,
        group: &Group,
        at: Instant,
        why: &str,
        gives_up: bool,
    ) {
        if node.stopping.is_some() {
            return;
        }
        let what = if gives_up { "is given up" } else { "restarts on all its hosts" };
        node.journal.node(Severity::Warn, None, format!("group `{}` {what}: {why}", group.name()));
        self.end_members_here(node, group, at, why, gives_up);
        self.spread_fails(node, group, at, why, gives_up);
    }

    /// Ends the members of a group here, and the workers that restart with them.
    fn end_members_here(
        &mut self,
        node: &mut NodeState,
        group: &Group,
        at: Instant,
        why: &str,
        gives_up: bool,
    ) {
        let (groups, workers) = node.who_restarts_with(vec![group.clone()], None);
        let mut told = Vec::new();
        let given_up = if gives_up { vec![group.clone()] } else { Vec::new() };
        node.give_up_groups(&given_up, None, &why, &mut Default::default(), &mut told);
        let delay = at.saturating_duration_since(Instant::now());
        self.groups_fail_but(node, &groups, &[], delay, why, Some(group));
        node.end_together(workers, at, why, false);
        node.deliver(told);
    }

    /// Takes the step that the home of a group asks for.
    fn home_says(
        &mut self,
        node: &mut NodeState,
        (home, id): (u16, u64),
        step: RoundStep,
        why: &str,
        gives_up: bool,
        reply: Reply<Result<(), String>>,
    ) {
        let round = match step {
            RoundStep::End(round) | RoundStep::Begin(round) => round,
        };
        let heard = self.groups.heard.entry(home).or_default();
        *heard = round.max(*heard);
        let joined = self.groups.joined.get_mut(&(home, id));
        let ended = joined.and_then(|of| match step {
            RoundStep::Begin(round) => {
                of.joined.begin(round);
                None
            }
            // A repeated request is answered too, when all have ended.
            RoundStep::End(round) => Some((of.group.clone(), of.joined.end(round))),
        });
        let Some((group, is_news)) = ended else {
            reply.answer(Ok(()));
            return;
        };
        if is_news {
            self.end_members_here(node, &group, Instant::now(), why, gives_up);
        }
        self.groups.ending.push((group, reply));
    }

    fn member_event(&mut self, node: &mut NodeState, id: u64, event: &Lifecycle) {
        if let Some((group, why)) = self.groups.hear_event(id, event) {
            self.group_failed(node, &group, Instant::now(), &why, true);
        }
    }

    /// Handles a host that has left the node: groups no longer wait for it. A group is given up if one of its
    /// actors lived there and does not continue elsewhere.
    pub(super) fn groups_lost(&mut self, node: &mut NodeState, host: u16, why: &str) {
        let mut given_up = Vec::new();
        for (group, spread) in self.groups.spread.values_mut() {
            spread.without(host);
            let before = spread.members.len();
            spread.members.retain(|_, on| *on != host);
            if spread.members.len() < before {
                given_up.push(group.clone());
            }
        }
        given_up.sort_by_key(Group::id);
        for group in given_up {
            self.group_failed(node, &group, Instant::now(), why, true);
        }
        self.groups.joined.retain(|(home, _), _| *home != host);
        self.groups.heard.remove(&host);
    }

    /// Answers homes whose members have ended here, and begins the next lives of groups whose members have
    /// all ended.
    pub(super) fn advance_groups(&mut self, node: &mut NodeState) {
        let ends: Vec<_> =
            self.groups.ending.iter().map(|(group, _)| self.groups.ends_here(node, group)).collect();
        let mut ends = ends.into_iter();
        for (_, reply) in self.groups.ending.extract_if(.., |_| ends.next() == Some(false)) {
            reply.answer(Ok(()));
        }
        let now = Instant::now();
        let is_due = |spread: &Spread| spread.has_ended() && spread.at().is_some_and(|at| at <= now);
        let due = self.groups.spread.values().filter(|(_, spread)| is_due(spread)).map(|(group, _)| group);
        let due: Vec<_> = due
            .filter(|group| !self.groups.ends_here(node, group) && !self.roaming.is_beginning_one_of(group))
            .map(Group::id)
            .collect();
        for id in due {
            if let Some((_, spread)) = self.groups.spread.get_mut(&id) {
                spread.begin();
            }
            self.groups.say_steps(node, id);
        }
    }
}

impl HostGroups {
    /// Takes the result of a report to the home of a group.
    fn home_was_told(&mut self, node: &mut NodeState, group: &Group, result: Result<(), String>) {
        // The home knows no such member, or cannot be reached any more.
        if let (Err(error), Some(of)) = (result, self.joined(group)) {
            of.joined.is_alone();
            let text = format!("group `{}` does not restart with other hosts: {error}", group.name());
            node.journal.node(Severity::Warn, None, text);
        }
    }

    /// Whether a worker's next life waits for other hosts.
    pub(super) fn is_worker_held(&self, node: &NodeState, worker: WorkerId) -> bool {
        if self.spread.is_empty() && self.joined.is_empty() {
            return false;
        }
        let all = node.restarts.supervised.values().filter(|supervised| supervised.worker == worker);
        all.filter_map(|supervised| supervised.group.as_ref()).any(|group| self.is_held(group))
    }

    /// Whether the next life of an actor that roams waits for other hosts.
    pub(super) fn is_group_held(&self, group: Option<&Group>) -> bool {
        group.is_some_and(|group| self.is_held(group))
    }

    fn started_member(&mut self, node: &NodeState, group: &Group, host: u16, member: Option<ActorId>) {
        let Some((_, spread)) = self.spread.get_mut(&group.id()) else { return };
        spread.starting = spread.starting.saturating_sub(1);
        let Some(actor) = member else { return };
        spread.members.insert(actor, host);
        let Some(transport) = node.shared.all_hosts.transport.get().and_then(Weak::upgrade) else { return };
        let (id, shared) = (group.id(), Arc::downgrade(&node.shared));
        let tell = move |event: &Lifecycle, _: bool| {
            if event.is_final()
                && let Some(shared) = shared.upgrade()
            {
                let event = event.clone();
                // After the node's end nothing restarts.
                let _ = run(&shared, move |hosts, node| hosts.member_event(node, id, &event));
            }
            true
        };
        transport.watch(actor, Watcher { name: Some(("group", actor)), tell: Box::new(tell) });
    }

    fn joins_here(&mut self, node: &NodeState, group: &Group, round: u64) {
        let Some(home) = group.home() else { return };
        let restarts = &node.restarts;
        // MBX-2.
        self.joined.retain(|_, of| of.starting > 0 || of.joined.is_held() || has_group(restarts, &of.group));
        // Messages of the home that came before this start concern earlier members.
        let round = self.heard.get(&home).map_or(round, |heard| round.max(*heard));
        let new = || JoinedGroup { group: group.clone(), joined: Joined::new(round), starting: 0 };
        self.joined.entry((home, group.id())).or_insert_with(new).starting += 1;
    }

    fn tell_home(&mut self, node: &NodeState, home: u16, group: &Group, delay: Duration, why: &str) {
        let Some(begun) = self.joined(group).and_then(|of| of.joined.fails()) else { return };
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let said = OfGroup { group: group.id(), says: Says::Failed { begun, delay, why: why.to_owned() } };
        let group = group.clone();
        self.say(node, home, said, move |hosts, node, result| {
            hosts.groups.home_was_told(node, &group, result);
        });
    }

    fn say(
        &mut self,
        node: &NodeState,
        host: u16,
        said: OfGroup,
        then: impl FnOnce(&mut Hosts, &mut NodeState, Result<(), String>) + Send + 'static,
    ) {
        let Some(transport) = node.shared.all_hosts.transport.get() else { return };
        let shared = Arc::downgrade(&node.shared);
        let then: Then = Box::new(move |result| {
            if let Some(shared) = shared.upgrade() {
                // After the node's end nothing restarts.
                let _ = run(&shared, move |hosts, node| then(hosts, node, result));
            }
        });
        self.speaker.say(transport, host, said, then);
    }

    /// Asks hosts for the steps that they have not taken yet.
    fn say_steps(&mut self, node: &NodeState, id: u64) {
        while let Some((_, spread)) = self.spread.get_mut(&id)
            && let Some((host, step)) = spread.next_ask()
        {
            let (why, gives_up) = (spread.why().to_owned(), spread.gives_up());
            let said = OfGroup { group: id, says: Says::Do { step, why, gives_up } };
            self.say(node, host, said, move |hosts, node, result| {
                hosts.host_did(node, id, host, step, result);
            });
        }
    }

    /// Whether a worker with a member of this group is still ending with the others.
    fn ends_here(&self, node: &NodeState, group: &Group) -> bool {
        let of = node.restarts.workers_in(std::slice::from_ref(group));
        node.workers.iter().any(|worker| worker.group_restart.is_some() && of.contains(&worker.id))
    }

    /// Returns when the next lives of groups whose members have all ended are due.
    pub(super) fn next_group(&self) -> Option<Instant> {
        let now = Instant::now();
        let spread = self.spread.values().map(|(_, spread)| spread);
        // Until all have ended only an event can help.
        spread
            .filter(|spread| spread.has_ended())
            .filter_map(|spread| spread.at())
            .filter(|at| *at > now)
            .min()
    }

    /// In a shutdown: whether an actor here belongs to a group of another host.
    pub(super) fn is_for_another_host(&self, actor: ActorId) -> bool {
        self.missed.contains(&actor)
    }
}

impl HostGroups {
    /// Remembers the members of other hosts' groups, because nothing is supervised in a shutdown.
    pub(super) fn shuts_down(&mut self, supervised: &HashMap<ActorId, Supervised>) {
        let of_others = |of: &Supervised| of.group.as_ref().is_some_and(|group| group.home().is_some());
        let missed = supervised.iter().filter(|(_, of)| of_others(of));
        self.missed = missed.map(|(actor, _)| *actor).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::group::Strategy;

    // WIRE-1.
    #[test]
    fn a_host_without_a_member_fails_no_group_and_one_failure_is_one_round() {
        let (mut groups, now) = (HostGroups::default(), Instant::now());
        let group = Group::new("shards", Strategy::OneForAll);
        let id = group.id();
        assert!(groups.hear_failure(1, id, 0, now).is_err(), "it is on one host");
        groups.spread.insert(id, (group.clone(), Spread::new(groups.rounds, now)));
        groups.spread.get_mut(&id).expect("it is there").1.add(1);
        for (host, id) in [(2, id), (1, id + 1)] {
            assert!(groups.hear_failure(host, id, u64::MAX, now).is_err(), "{host}");
        }
        assert_eq!(groups.hear_failure(1, id, 0, now), Ok(Some(group.clone())));
        groups.fails(id, now, String::new(), false);
        assert!(groups.is_held(&group));
        // The host reported before it heard of the round, or reports again.
        assert_eq!(groups.hear_failure(1, id, 0, now), Ok(None));
        // A group with the same number on another host is another group.
        assert!(!groups.is_held(&Group::of_host(1, id, "shards")));
    }

    #[test]
    fn a_member_that_is_given_up_takes_the_group_along_and_one_that_ends_does_not() {
        let mut groups = HostGroups::default();
        let group = Group::new("shards", Strategy::OneForAll);
        let mut spread = Spread::new(0, Instant::now());
        let actors = [1, 2, 3, 4].map(|number| ActorId::numbered(1, number));
        spread.members.extend(actors.map(|actor| (actor, 1)));
        groups.spread.insert(group.id(), (group.clone(), spread));
        let mut hear = |actor, reason, will_restart| {
            groups.hear_event(group.id(), &Lifecycle::Down { actor, reason, will_restart })
        };
        assert_eq!(hear(actors[0], EndReason::Normal, false), None);
        assert_eq!(hear(actors[1], EndReason::Forgotten, false), None);
        // Its host leaves, and it stays a member until the host has left.
        assert_eq!(hear(actors[2], EndReason::NodeStopped, false), None);
        let given_up = hear(actors[3], EndReason::Exit(3), false).expect("it does not come back");
        assert!(given_up.0 == group && given_up.1.contains("exit status: 3"), "{}", given_up.1);
        assert_eq!(hear(actors[3], EndReason::Exit(3), false), None, "once");
        let left: Vec<_> = groups.spread[&group.id()].1.members.keys().copied().collect();
        assert_eq!(left, [actors[2]]);
    }
}
