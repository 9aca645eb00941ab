//! Actors that go on on another host when their host leaves, and whose gateways end. For a host that is lost
//! see: `ends`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::actor::{AskError, AskFailure, EndReason, SendFailure, Watch};
use tensorpost::node::ActorError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until};

use crate::actors::{Bounce, Echo, Echoed, Echoer, Fail, Gatekeeper, Item, MayGo, Never, Placed, PlacedArgs};
use crate::gateways::{Dies, ask_again, was_lost};
use crate::{Other, find, head};

/// An actor that roams, as the head sees it.
pub(crate) struct Roamer<A: RemoteActor> {
    pub(crate) actor: Spawned<A>,
    pub(crate) watch: Watch,
}

impl<A: RemoteActor + actix::Handler<Echo>> Roamer<A> {
    fn new(node: &Node, actor: Spawned<A>) -> Self {
        let watch = node.watch(&actor.address::<Echo>());
        Roamer { actor, watch }
    }

    fn ask(&self, node: &Node) -> Echoed {
        let echoed = ask(node, &self.actor.address(), Echo::empty());
        assert_eq!(echoed.actor, self.actor.actor());
        echoed
    }

    /// Its next life begins, and the last one has ended for this reason. An ask waits meanwhile.
    fn goes_on(&mut self, node: &Node, life: u32, why: &str) -> Echoed {
        self.is_down(why);
        self.is_up(node, life)
    }

    /// Its last life has ended for this reason, and another follows.
    fn is_down(&mut self, why: &str) {
        let down = self.watch.blocking_recv().expect("an event");
        assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
        assert!(down.to_string().contains(why), "{down}");
    }

    /// Its next life begins, with this number.
    pub(crate) fn is_up(&mut self, node: &Node, life: u32) -> Echoed {
        let echoed = ask_again(node, &self.actor.address());
        assert_eq!(echoed.actor, self.actor.actor());
        let up = self.watch.blocking_recv().expect("an event");
        assert!(matches!(&up, Lifecycle::Up { incarnation, .. } if *incarnation == life), "{up}, {life}");
        echoed
    }
}

impl Roamer<Echoer> {
    /// The gateway of the head, which is its home, ends, and then the gateway of the host where it lives. It
    /// lives on there, and comes back there. `life` is the number of its next life.
    pub(crate) fn outlives_gateways(&mut self, node: &Node, there: &Other, life: u32) {
        for (dies, life) in [Dies::OF_HEAD, Dies::OF_AGENT].into_iter().zip(life..) {
            let before = self.ask(node);
            let mut under_way = self.actor.ask(Never);
            node.block_on(under_way.accepted()).expect("it is accepted");
            dies.kill(node, there);
            was_lost(node.block_on(under_way));
            let after = ask_again(node, &self.actor.address());
            assert_eq!((after.actor, after.pid), (before.actor, before.pid), "it is another life");
            assert_eq!(self.watch.try_recv(), None, "nothing has happened to it");
            deliver(node, &self.actor.address(), Fail);
            assert!(is_on(there, &self.goes_on(node, life, "as it was told")));
        }
    }
}

pub(crate) fn is_on(other: &Other, echoed: &Echoed) -> bool {
    other.processes().iter().any(|(pid, _)| pid.cast_unsigned() == echoed.pid)
}

fn an_actor_goes_on_on_another_host_when_its_own_leaves(builder: Builder) {
    let node = head(builder);
    let (mut first, mut second) = (Other::serving(&node), Other::serving(&node));
    // This host has actors of its own, one of which sends to the actors that roam.
    let third = Other::start(&node);
    let hosts = node.hosts().expect("hosts");
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    let policy = |losses| Restart::on_failure(losses).on_other_hosts();
    let args = PlacedArgs { to: to.clone(), fails: false };
    let lens = node.spawn::<Placed>(args).on(&hosts[1]).name("lens").restart(policy(3));
    let mut lens = Roamer::new(&node, lens.start().expect("an actor there"));
    let relay = node.spawn::<Echoer>(()).on(&hosts[1]).restart(policy(3));
    let mut relay = Roamer::new(&node, relay.start().expect("an actor there"));
    let once = node.spawn::<Echoer>(()).on(&hosts[1]).name("once").restart(policy(1));
    let mut once = Roamer::new(&node, once.start().expect("an actor there"));
    let echo = find::<Bounce>(&node, "echo");
    // Messages go from the third host to the relay's host and back, several times.
    let bounce = |relay: &Roamer<Echoer>, items: &mut Channel<Item>| {
        let bounce = Bounce { left: 5, next: relay.actor.address(), after: echo.clone(), last: to.clone() };
        deliver(&node, &echo, bounce);
        assert_eq!(items.blocking_recv().expect("it comes").number, 0);
    };
    bounce(&relay, &mut items);
    let life = |lens: &Echoed, items: &mut Channel<Item>| {
        assert_eq!(lens.number, 1);
        items.blocking_recv().expect("it comes").number
    };
    assert!(is_on(&first, &lens.ask(&node)) && is_on(&first, &relay.ask(&node)));
    items.blocking_recv().expect("the lens has sent one");
    assert_eq!(find::<Echo>(&node, "lens"), lens.actor.address());
    let taken = node.spawn::<Echoer>(()).on(&hosts[2]).name("lens").restart(policy(1)).start();
    assert!(taken.expect_err("there is one").to_string().contains("lens"));

    // While its host is there, it comes back there.
    deliver(&node, &lens.actor.address(), Fail);
    let echoed = lens.goes_on(&node, 1, "as it was told");
    assert!(is_on(&first, &echoed) && life(&echoed, &mut items) == 1);

    // Its host leaves: the second is the one with the fewest actors.
    let here = [(); 4].map(|()| node.spawn::<Gatekeeper>(()).start().expect("an actor here"));
    first.terminate();
    let echoed = lens.goes_on(&node, 2, "host 1 `other`");
    assert!(is_on(&second, &echoed) && life(&echoed, &mut items) == 2);
    assert!(
        is_on(&second, &relay.goes_on(&node, 1, "has left")) && is_on(&second, &once.goes_on(&node, 1, ""))
    );
    assert_eq!(find::<Echo>(&node, "lens"), lens.actor.address());
    bounce(&relay, &mut items);
    first.ends();

    // Again it moves, to the third host, whose own actors have sent to it before; but not the actor whose
    // restarts are used up.
    second.terminate();
    let echoed = lens.goes_on(&node, 3, "host 2 `other`");
    assert!(is_on(&third, &echoed) && life(&echoed, &mut items) == 3);
    assert!(is_on(&third, &relay.goes_on(&node, 2, "has left")));
    bounce(&relay, &mut items);
    let gave_up = once.watch.blocking_recv().expect("an event");
    assert!(
        matches!(&gave_up, Lifecycle::GaveUp { .. }) && gave_up.to_string().contains("host 2"),
        "{gave_up}"
    );
    let refused = node.block_on(once.actor.send(Echo::empty())).expect_err("it is given up");
    assert!(matches!(&refused.reason, SendFailure::GaveUp(EndReason::OutOfReach(_))), "{refused:?}");
    assert!(node.lookup::<Echo>("once").is_err(), "its name is free");
    second.ends();

    // It comes home: from now on it is an actor like all others here.
    third.end();
    let echoed = lens.goes_on(&node, 4, "host 3");
    assert_eq!(life(&echoed, &mut items), 4);
    relay.goes_on(&node, 3, "host 3");
    deliver(&node, &lens.actor.address(), Fail);
    let again = lens.goes_on(&node, 5, "as it was told");
    assert!(again.pid != echoed.pid && life(&again, &mut items) == 5);
    assert_eq!(node.hosts().expect("hosts").len(), 1);
    drop((here, echo));
}

/// Returns the processes of workers with this name.
fn workers(other: &Other, name: &str) -> Vec<u32> {
    let found = other.processes().into_iter().filter(|(_, worker)| worker == name);
    found.map(|(pid, _)| pid.cast_unsigned()).collect()
}

/// HOST-10. A gateway ends while another host starts its next life. Nobody knows whether that has begun, and
/// it begins once.
fn a_next_life_begins_once_whichever_gateway_dies(builder: Builder) {
    let node = head(builder);
    let mut others = [(); 3].map(|()| Other::serving(&node));
    let hosts = node.hosts().expect("hosts");
    let here = node.spawn::<Gatekeeper>(()).start().expect("an actor here");
    let lens = node.spawn::<Echoer>(()).on(&hosts[1]).name("lens");
    let lens = lens.restart(Restart::on_failure(3).on_other_hosts()).start().expect("an actor there");
    let mut lens = Roamer::new(&node, lens);
    for (life, dies) in [(1, Dies::OF_HEAD), (2, Dies::OF_AGENT)] {
        let (leaves, next) = (life as usize - 1, life as usize);
        others[leaves].terminate();
        lens.is_down("has left");
        until("its next life is being begun", || !workers(&others[next], "lens").is_empty());
        dies.kill(&node, &others[next]);
        let echoed = lens.is_up(&node, life);
        let pids: Vec<_> = others[next..].iter().flat_map(|other| workers(other, "lens")).collect();
        assert_eq!(pids, [echoed.pid]);
        assert!(node.supervisor().workers().iter().all(|worker| worker.name != "lens"), "and one here");
        others[leaves].ends();
    }
    assert_eq!(find::<Echo>(&node, "lens"), lens.actor.address());
    drop(here);
}

/// Nobody sends to them, and the gateways that knew of them have ended. Their home hears of their ends, and
/// their names are free.
fn the_end_of_an_actor_on_another_host_is_heard_whichever_gateway_dies(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    // Some end before their host hears of the watcher, and some end later.
    for (dies, waits) in
        [(Dies::OF_HEAD, false), (Dies::OF_AGENT, false), (Dies::OF_HEAD, true), (Dies::OF_AGENT, true)]
    {
        let policy = Restart::on_failure(1).on_other_hosts();
        let quiet = node.spawn::<Gatekeeper>(()).on(&hosts[1]).name("quiet").restart(policy);
        let quiet = quiet.start().expect("its name is free");
        let mut watch = node.watch(&quiet.address::<MayGo>());
        dies.kill(&node, &other);
        if waits {
            // The gateways that follow report it.
            assert!(node.lookup::<Echo>("nobody").is_err());
        }
        until("its end is heard", || {
            for worker in workers(&other, "quiet") {
                let process = Pid::from_raw(worker.cast_signed()).expect("a process");
                // The process may have ended just now.
                let _ = kill_process(process, Signal::KILL);
            }
            std::iter::from_fn(|| watch.try_recv()).any(|event| event.is_final())
        });
        until("its name is free", || node.lookup::<MayGo>("quiet").is_err());
    }
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// It is also reached from a third host, which had sent to it at its old place, and with another gateway of
/// its home.
fn one_that_goes_on_at_its_home_is_reached_from_all_hosts(builder: Builder) {
    let node = head(builder);
    let mut first = Other::serving(&node);
    // This host has more actors than the head.
    let third = Other::start(&node);
    let hosts = node.hosts().expect("hosts");
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    let policy = Restart::on_failure(3).on_other_hosts();
    let relay = node.spawn::<Echoer>(()).on(&hosts[1]).restart(policy).start().expect("an actor there");
    let mut relay = Roamer::new(&node, relay);
    let echo = find::<Bounce>(&node, "echo");
    let bounce = |relay: &Roamer<Echoer>, items: &mut Channel<Item>| {
        let bounce = Bounce { left: 5, next: relay.actor.address(), after: echo.clone(), last: to.clone() };
        deliver(&node, &echo, bounce);
        assert_eq!(items.blocking_recv().expect("it comes").number, 0);
    };
    bounce(&relay, &mut items);
    first.terminate();
    let here = relay.goes_on(&node, 1, "has left");
    assert!(!is_on(&third, &here));
    bounce(&relay, &mut items);
    first.ends();
    Dies::OF_HEAD.kill(&node, &third);
    assert_eq!(ask_again(&node, &relay.actor.address()).pid, here.pid);
    ask_again(&node, &find::<Echo>(&node, "echo"));
    bounce(&relay, &mut items);

    // It ends with a process of this host, and not with a gateway.
    let mut open = relay.actor.ask(Never);
    node.block_on(open.accepted()).expect("it is accepted");
    kill_process(Pid::from_raw(here.pid.cast_signed()).expect("a process"), Signal::KILL)
        .expect("it is there");
    let lost = node.block_on(open).expect_err("its process has ended");
    assert!(matches!(&lost, AskError::NoReply(AskFailure::ProcessExited(_))), "{lost:?}");
    relay.goes_on(&node, 2, "");
    bounce(&relay, &mut items);
    third.end();
}

/// An actor that has ended by itself, or used up the restarts of its host, stays ended.
fn an_actor_that_has_ended_does_not_go_on_elsewhere(builder: Builder) {
    let node = head(builder);
    let mut first = Other::serving(&node);
    let mut second = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let policy = Restart::on_failure(0).on_other_hosts();
    let fails = node.spawn::<Echoer>(()).on(&hosts[1]).name("fails").restart(policy);
    let fails = Roamer::new(&node, fails.start().expect("an actor there"));
    let stays = node.spawn::<Echoer>(()).on(&hosts[1]).restart(Restart::on_failure(3));
    let stays = Roamer::new(&node, stays.start().expect("an actor there"));
    for mut roamer in [fails, stays] {
        if roamer.actor.actor().0 >> 48 == 0 {
            deliver(&node, &roamer.actor.address(), Fail);
        } else {
            // Its policy does not let it go on.
            first.terminate();
            first.ends();
        }
        let last = roamer.watch.blocking_recv().expect("an event");
        assert!(last.is_final(), "{last}");
        assert_eq!(roamer.watch.blocking_recv(), None);
    }
    until("its name is free", || node.lookup::<Echo>("fails").is_err());
    let device = node.spawn::<Echoer>(()).on(&hosts[2]).receive_on(Device::host());
    device.restart(Restart::on_failure(1).on_other_hosts()).start().expect("all hosts have that device");
    let fails = PlacedArgs { to: node.channel::<Item>().expect("a channel").0, fails: true };
    let failed = node
        .spawn::<Placed>(fails)
        .on(&hosts[2])
        .name("fails")
        .restart(Restart::on_failure(1).on_other_hosts());
    let failed = failed.start().expect_err("it cannot be made");
    assert!(
        matches!(&failed, ActorError::Elsewhere { .. }) && failed.to_string().contains("no such lens"),
        "{failed}"
    );
    assert!(node.lookup::<Echo>("fails").is_err(), "nobody has it");
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    second.ends();
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        an_actor_goes_on_on_another_host_when_its_own_leaves,
        a_next_life_begins_once_whichever_gateway_dies,
        the_end_of_an_actor_on_another_host_is_heard_whichever_gateway_dies,
        one_that_goes_on_at_its_home_is_reached_from_all_hosts,
        an_actor_that_has_ended_does_not_go_on_elsewhere,
    ]
}
