//! Actors that go on on another host when theirs leaves. Where it is lost: `ends`.

use std::time::Duration;

use tensorpost::actor::{EndReason, SendFailure, Watch};
use tensorpost::node::ActorError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until};

use crate::actors::{Bounce, Echo, Echoed, Echoer, Fail, Gatekeeper, Item, Placed, PlacedArgs};
use crate::{Other, find, head};

/// An actor that roams, as the head sees it.
struct Roamer<A: RemoteActor> {
    actor: Spawned<A>,
    watch: Watch,
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

    /// Its next life begins, and the last one has ended for this reason. Who asks meanwhile waits.
    fn goes_on(&mut self, node: &Node, life: u32, why: &str) -> Echoed {
        let down = self.watch.blocking_recv().expect("an event");
        assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
        assert!(down.to_string().contains(why), "{down}");
        let echoed = self.ask(node);
        let up = self.watch.blocking_recv().expect("an event");
        assert!(matches!(&up, Lifecycle::Up { incarnation, .. } if *incarnation == life), "{up}, {life}");
        echoed
    }
}

fn is_on(other: &Other, echoed: &Echoed) -> bool {
    other.processes().iter().any(|(pid, _)| pid.cast_unsigned() == echoed.pid)
}

fn an_actor_goes_on_on_another_host_when_its_own_leaves(builder: Builder) {
    let node = head(builder);
    let (mut first, mut second) = (Other::serving(&node), Other::serving(&node));
    // It has actors of its own, of which one sends to those that roam.
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
    // From the third host to where the relay lives, and back, some times.
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

    // Where its host is there, it comes back there.
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

    // And again, to the third, whose own actors have sent to it before; but for one whose restarts are used up.
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

    // Home: from now on it is an actor as all others here.
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

/// One that has ended by itself, or used up what its host restarts it after, stays ended.
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
            // Its policy does not let it.
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
        an_actor_that_has_ended_does_not_go_on_elsewhere,
    ]
}
