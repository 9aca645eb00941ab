//! Groups whose actors are on several hosts: all restart, wherever one fails, and whatever happens to its
//! host or to a gateway.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::{EndReason, SendFailure, Watch};
use tensorpost::hosts::Host;
use tensorpost::node::Group;
use tensorpost::prelude::*;
use tensorpost_core::os::PidFd;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::holder::{Check, End, Hold, Holder, How};
use tensorpost_tests::wait::deliver;

use crate::actors::Gatekeeper;
use crate::gateways::Dies;
use crate::{Other, head};

/// Restarts at once, as often as any test here needs.
const SOON: Restart = Restart::on_failure(50).backoff(Duration::from_millis(1), Duration::from_millis(5));

/// A member of a group, with the life in which it was last seen.
struct Member {
    actor: Spawned<Holder>,
    watch: Watch,
    pid: u32,
}

impl Member {
    fn on(node: &Node, host: &Host, group: &Group, policy: Restart) -> Self {
        let actor = node.spawn::<Holder>(()).on(host).group(group).restart(policy).start();
        let actor = actor.expect("an actor there");
        let watch = node.watch(&actor.address::<Hold>());
        let mut member = Member { actor, watch, pid: 0 };
        member.lives_again(node);
        member
    }

    /// Asks until it answers in another life than the last one.
    fn lives_again(&mut self, node: &Node) {
        loop {
            match node.block_on(self.actor.ask(Check)) {
                Ok(health) if health.pid != self.pid => return self.pid = health.pid,
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }

    fn kill(&self) {
        let process = Pid::from_raw(self.pid.cast_signed()).expect("a process");
        kill_process(process, Signal::KILL).expect("it is there");
    }

    fn panics(&self, node: &Node) {
        deliver(node, &self.actor.address(), End { how: How::Panic, door: None });
    }

    /// Its life has ended, and another follows.
    fn is_down(&mut self) -> EndReason {
        match self.watch.blocking_recv() {
            Some(Lifecycle::Down { reason, will_restart: true, .. }) => reason,
            event => panic!("{event:?}"),
        }
    }

    fn is_up(&mut self, life: u32) {
        let up = self.watch.blocking_recv();
        assert!(
            matches!(up, Some(Lifecycle::Up { incarnation, .. }) if incarnation == life),
            "{up:?}, {life}"
        );
    }

    /// It has ended with the others, or for a reason of its own, and lives again.
    fn restarts(&mut self, node: &Node, life: u32, is_cause: bool) {
        let why = self.is_down();
        assert_eq!(matches!(why, EndReason::Group(_)), !is_cause, "{why}");
        self.is_up(life);
        self.lives_again(node);
    }

    /// None of its lives follows; returns the reason.
    fn ends_for_good(mut self, node: &Node) -> String {
        let events: Vec<_> = std::iter::from_fn(|| self.watch.blocking_recv()).collect();
        assert!(events.last().is_some_and(Lifecycle::is_final), "{events:?}");
        let refused = node.block_on(self.actor.send(Hold::label(1))).expect_err("it is given up");
        assert!(matches!(refused.reason, SendFailure::GaveUp(_) | SendFailure::NoSuchActor), "{refused}");
        refused.to_string()
    }
}

/// DEATH-2. Also: failures of other members use up none of its restarts, and a member that has used its own
/// up ends all.
fn a_group_on_three_hosts_restarts_as_one_wherever_one_fails(builder: Builder) {
    let node = head(builder);
    let others = [Other::serving(&node), Other::serving(&node)];
    let hosts = node.hosts().expect("hosts");
    let group = node.group("shards", Strategy::OneForAll);
    let once = Restart::on_failure(1).backoff(Duration::from_millis(1), Duration::from_millis(1));
    let policies = [SOON, once, SOON];
    let mut members: Vec<_> =
        hosts.iter().zip(policies).map(|(host, policy)| Member::on(&node, host, &group, policy)).collect();
    let loose = node.group("loose", Strategy::OneForOne);
    let mut strangers = [&group, &loose].map(|_| Member::on(&node, &hosts[1], &loose, SOON));
    for (victim, life) in [0, 1, 2].into_iter().zip(1..) {
        match victim {
            1 => members[victim].panics(&node),
            _ => members[victim].kill(),
        }
        for (number, member) in members.iter_mut().enumerate() {
            member.restarts(&node, life, number == victim);
        }
    }
    strangers[0].kill();
    strangers[0].restarts(&node, 1, true);
    members[1].kill();
    for (number, member) in members.into_iter().enumerate() {
        let why = member.ends_for_good(&node);
        assert_eq!(
            why.contains("`shards` was given up") || why.contains("restarts with others"),
            number != 1,
            "{why}"
        );
    }
    for stranger in &mut strangers {
        assert_eq!(stranger.watch.try_recv(), None, "it is none of the group");
    }
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    others.into_iter().for_each(|mut other| other.ends());
}

/// A handler that does not end delays the end of its process, and so the next lives of all others, on the
/// other host too. The hosts' messages about that are lost with a gateway.
fn none_begins_before_the_last_has_ended_whichever_gateway_dies(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let group = node.group("pair", Strategy::OneForAll);
    let mut pair = [0, 1].map(|host: usize| Member::on(&node, &hosts[host], &group, SOON));
    for (slow, dies) in [(1, Dies::OF_AGENT), (0, Dies::OF_HEAD)] {
        let [quick, slow] = pair.get_disjoint_mut([1 - slow, slow]).expect("two");
        let (gate, last_life) = (Gate::new(), PidFd::open(slow.pid).expect("a process"));
        deliver(&node, &slow.actor.address(), Hold::at(1, &gate.door()));
        let arrival = gate.arrival();
        quick.kill();
        // From here on its host waits for the other, or says that it does.
        quick.is_down();
        dies.kill(&node, &other);
        quick.lives_again(&node);
        assert!(last_life.wait(Some(Duration::ZERO)).expect("a process"), "the last life of the other works");
        slow.lives_again(&node);
        // The test does not know which messages the dead gateways had heard.
        for member in [quick, slow] {
            member.watch = node.watch(&member.actor.address::<Hold>());
        }
        drop(arrival);
    }
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// A member that does not go on elsewhere is missing for good.
fn a_group_is_given_up_with_a_host_that_leaves(builder: Builder) {
    let node = head(builder);
    let mut first = Other::serving(&node);
    let mut second = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let group = node.group("shards", Strategy::OneForAll);
    let [here, leaves, there] = [0, 1, 2].map(|host: usize| Member::on(&node, &hosts[host], &group, SOON));
    // A member that has ended by itself, and one that never comes back, are not missed.
    let ended = Member::on(&node, &hosts[2], &group, SOON);
    deliver(&node, &ended.actor.address(), End { how: How::Stop, door: None });
    let mut watch = ended.watch;
    assert!(watch.blocking_recv().is_some_and(|event| event.is_final()));
    let never = Member::on(&node, &hosts[2], &group, Restart::never());
    never.kill();
    assert!({ never }.watch.blocking_recv().is_some_and(|event| event.is_final()));
    assert_eq!(
        [&here, &there].map(|member| node.block_on(member.actor.ask(Check)).expect("it lives").pid),
        [here.pid, there.pid]
    );
    // Nor do these go on without the others, wherever they are.
    let [roams, roams_there] =
        [1, 2].map(|host: usize| Member::on(&node, &hosts[host], &group, SOON.on_other_hosts()));
    first.terminate();
    for member in [here, there, roams, roams_there] {
        let why = member.ends_for_good(&node);
        assert!(why.contains("host 1 `other`") && why.contains("left"), "{why}");
    }
    leaves.ends_for_good(&node);
    first.ends();
    // The group goes on with others.
    let hosts = node.hosts().expect("hosts");
    let mut next = [0, 1].map(|host: usize| Member::on(&node, &hosts[host], &group, SOON));
    next[1].kill();
    next[1].restarts(&node, 1, true);
    next[0].restarts(&node, 1, false);
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    second.ends();
}

/// It restarts with the others, from each host on to the next, and at home; and the others restart with it.
fn one_that_goes_on_elsewhere_takes_its_group_along(builder: Builder) {
    let node = head(builder);
    let mut others = [Other::serving(&node), Other::serving(&node)];
    let hosts = node.hosts().expect("hosts");
    let group = node.group("shards", Strategy::OneForAll);
    let mut here = Member::on(&node, &hosts[0], &group, SOON);
    let mut roams = Member::on(&node, &hosts[1], &group, SOON.on_other_hosts());
    // The host with the fewest actors is another one.
    let _many = [(); 3].map(|()| node.spawn::<Gatekeeper>(()).start().expect("an actor here"));
    let mut life = 0;
    for (number, other) in others.iter_mut().enumerate() {
        // A handler delays the end of the other member, and so the next life of this one.
        let (gate, last_life) = (Gate::new(), PidFd::open(here.pid).expect("a process"));
        let arrival = (number == 0).then(|| {
            deliver(&node, &here.actor.address(), Hold::at(1, &gate.door()));
            gate.arrival()
        });
        other.terminate();
        life += 1;
        roams.restarts(&node, life, true);
        assert!(last_life.wait(Some(Duration::ZERO)).expect("a process"), "the last life of the other works");
        here.restarts(&node, life, false);
        drop(arrival);
        other.ends();
        let is_home = node.hosts().expect("hosts").len() == 1;
        assert_eq!(is_home, number == 1);
        // It works wherever it lives: one of the two fails, and then the other.
        here.kill();
        life += 1;
        here.restarts(&node, life, true);
        roams.restarts(&node, life, false);
        roams.panics(&node);
        life += 1;
        roams.restarts(&node, life, true);
        here.restarts(&node, life, false);
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_group_on_three_hosts_restarts_as_one_wherever_one_fails,
        none_begins_before_the_last_has_ended_whichever_gateway_dies,
        a_group_is_given_up_with_a_host_that_leaves,
        one_that_goes_on_elsewhere_takes_its_group_along,
    ]
}
