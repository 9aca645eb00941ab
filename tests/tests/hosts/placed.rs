//! Actors that a program starts on another host, and hosts that run only such actors.

use std::time::Duration;

use tensorpost::hosts::{Anywhere, Hosts};
use tensorpost::node::{ActorError, Spawn};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until};

use crate::actors::{Echo, Echoer, Fail, Gatekeeper, Item, Placed, PlacedArgs};
use crate::{BUILD, Other, find, head};

/// Runs the other host: it has the actors that the head starts here, and no others.
pub(crate) fn serve() -> ! {
    let hosts = Hosts::from_environment().expect("variables that make sense").expect("a head");
    let hosts = hosts.name("other").build_name(BUILD).agents_serve();
    let node = Node::builder().hosts(hosts).start().expect("it joins");
    unreachable!("an agent came back from its start, with {:?}", node.hosts());
}

fn host_of<A: RemoteActor>(spawned: &Spawned<A>) -> u64 {
    spawned.actor().0 >> 48
}

fn an_actor_on_another_host_is_supervised_there_and_watched_here(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let (to, mut items) = node.channel::<Item>().expect("a channel");
    let args = |fails| PlacedArgs { to: to.clone(), fails };
    let lens = node.spawn::<Placed>(args(false)).on(&hosts[1]).name("lens");
    let lens = lens.restart(Restart::on_failure(3)).start().expect("an actor on the other host");
    assert_eq!(host_of(&lens), 1);
    assert!(lens.worker().to_string().ends_with(" of host 1"), "{}", lens.worker());
    assert!(node.supervisor().worker(lens.worker()).is_none(), "it is no worker of this host");
    assert_eq!(find::<Echo>(&node, "lens"), lens.address());

    // It works, and comes back there.
    let mut watch = node.watch(&lens.address::<Echo>());
    let before = ask(&node, &lens.address(), Echo::empty());
    assert_eq!(items.blocking_recv().expect("it comes").number, 0);
    deliver(&node, &lens.address(), Fail);
    let down = watch.blocking_recv().expect("an event");
    assert!(matches!(&down, Lifecycle::Down { will_restart: true, .. }), "{down}");
    let up = watch.blocking_recv().expect("an event");
    assert!(matches!(&up, Lifecycle::Up { incarnation: 1, .. }), "{up}");
    let after = ask(&node, &lens.address(), Echo::empty());
    assert_eq!(items.blocking_recv().expect("it comes").number, 1);
    assert!(before.pid != after.pid && before.actor == after.actor);

    // An error there names the host.
    let refused = |spawn: Spawn<'_, Placed>| spawn.on(&hosts[1]).start().expect_err("it cannot start");
    let failed = refused(node.spawn(args(true)));
    let text = failed.to_string();
    assert!(matches!(failed, ActorError::Elsewhere { .. }), "{failed:?}");
    assert!(text.contains("on host 1 `other`") && text.contains("there is no such lens"), "{text}");
    let taken = refused(node.spawn(args(false)).name("lens")).to_string();
    assert!(taken.contains("on host 1 `other`") && taken.contains("lens"), "{taken}");

    // Two actors are in one worker there. A worker of this host cannot have an actor there.
    let beside =
        node.spawn::<Echoer>(()).on(&hosts[1]).worker(lens.worker()).start().expect("beside the lens");
    let also = node.spawn::<Echoer>(()).worker(lens.worker()).start().expect("there too");
    let pids = [&beside, &also].map(|actor| ask(&node, &actor.address(), Echo::empty()).pid);
    assert_eq!(pids, [after.pid; 2]);
    let here = node.worker("here").expect("a worker");
    let elsewhere = refused(node.spawn(args(false)).worker(here));
    assert!(matches!(elsewhere, ActorError::StaysHere { .. }), "{elsewhere:?}");
    assert!(elsewhere.to_string().contains("its worker is of another host"), "{elsewhere}");

    // The head ends, and the other host with it.
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

fn anywhere_is_where_the_fewest_actors_are(builder: Builder) {
    let node = head(builder);
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let here = node.spawn::<Gatekeeper>(()).on(&hosts[0]).start().expect("an actor here");
    assert_eq!(host_of(&here), 0);
    // Where two hosts have equally many actors, the first is taken.
    let anywhere = [(); 3].map(|()| node.spawn::<Echoer>(()).on(Anywhere).start().expect("an actor"));
    assert_eq!(anywhere.each_ref().map(host_of), [1, 0, 1]);
    let last = ask(&node, &anywhere[2].address(), Echo::empty());
    assert_eq!(last.actor, anywhere[2].actor());

    // The other host is asked to end, as its own supervisor would ask it.
    other.terminate();
    other.ends();
    until("it is gone", || node.hosts().expect("hosts").len() == 1);
    let gone = node.spawn::<Echoer>(()).on(&hosts[1]).start().expect_err("its host is gone");
    assert!(matches!(&gone, ActorError::Elsewhere { .. }) && gone.to_string().contains("host 1"), "{gone}");
    let left = node.spawn::<Echoer>(()).on(Anywhere).start().expect("an actor");
    assert_eq!(host_of(&left), 0);
}

/// A host is asked for its devices. For a GPU see: `gpu_suite`.
fn a_device_of_another_host_is_asked_for_and_one_that_it_lacks_named(builder: Builder) {
    let node = head(builder);
    let mut other = Other::without_gpus(&node);
    let hosts = node.hosts().expect("hosts");
    let memory = node.device_on(&hosts[1], "host").expect("each host has that");
    assert_eq!(memory, Device::host());
    let there = node.spawn::<Echoer>(()).on(&hosts[1]).device(memory).start().expect("an actor there");
    assert_eq!(ask(&node, &there.address(), Echo::empty()).actor, there.actor());
    for (device, why) in
        [("cuda:1", "CUDA"), ("gpu\u{1b}[2J", "write `host`, `cuda:0`"), ("GPU-7", "`GPU-7`")]
    {
        let refused = node.device_on(&hosts[1], device).expect_err("it has none");
        let text = refused.to_string();
        assert!(matches!(refused, ActorError::Elsewhere { .. }), "{refused:?}");
        assert!(text.contains("host 1 `other`") && text.contains(why), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    let here = node.device_on(&hosts[0], "cuda:4096").expect_err("nobody has so many");
    assert!(here.to_string().contains("host 0 `first`"), "{here}");
    other.terminate();
    other.ends();
    until("it is gone", || node.hosts().expect("hosts").len() == 1);
    let gone = node.device_on(&hosts[1], "host").expect_err("its host is gone");
    assert!(gone.to_string().contains("host 1"), "{gone}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        an_actor_on_another_host_is_supervised_there_and_watched_here,
        anywhere_is_where_the_fewest_actors_are,
        a_device_of_another_host_is_asked_for_and_one_that_it_lacks_named,
    ]
}
