//! Processes that wait for actors of other hosts, with one gateway and with the next.

use super::*;
use crate::ids::DeviceId;
use crate::limits::MAX_ACTORS;
use crate::node::limits::MAX_REACHING;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).unwrap()
}

/// Makes a broker on host 3, with a gateway and two workers.
fn broker() -> Broker {
    let mut broker = Broker::default().with_neighbours(Box::<OtherHosts>::default());
    (0..4).for_each(|slot| drop(broker.joined(process(slot))));
    broker.roster.host = 3;
    HostActors::of(&mut broker).begin(process(1));
    broker
}

fn handle(broker: &mut Broker, from: u16, message: ToNode) -> Result<Vec<(ProcessId, String)>, Complaint> {
    let mut out = Vec::new();
    broker.handle(process(from), message, Vec::new(), &mut out)?;
    Ok(out.into_iter().map(|said| (said.to, shown(&said.message))).collect())
}

/// Returns a message as text, with the content of an envelope.
pub(super) fn shown(message: &FromNode) -> String {
    match message {
        FromNode::Neighbours(said) => format!("{:?}", ToGateway::open(said).unwrap()),
        other => format!("{other:?}"),
    }
}

/// Has the gateway `from` say something.
fn gateway_says(
    broker: &mut Broker,
    from: u16,
    said: FromGateway,
) -> Result<Vec<(ProcessId, String)>, Complaint> {
    let ToNode::Neighbours(envelope) = said.sealed() else { panic!("it is sealed") };
    let mut out = Vec::new();
    HostActors::of(broker).gateway_says(process(from), FromGateway::open(&envelope).unwrap(), &mut out)?;
    Ok(out.into_iter().map(|said| (said.to, shown(&said.message))).collect())
}

fn says(broker: &mut Broker, said: FromGateway) -> Vec<(ProcessId, String)> {
    gateway_says(broker, 1, said).unwrap()
}

const FAR: ActorId = ActorId((5 << 48) | 7);

#[test]
fn who_wants_an_actor_of_another_host_waits_until_its_mailbox_takes_messages() {
    let mut broker = broker();
    let asked = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
    assert!(asked[0].0 == process(1) && asked[0].1.contains("Reach"), "{asked:?}");
    // The second sender waits for the same answer, and so does a watcher.
    assert_eq!(handle(&mut broker, 3, ToNode::WantActor { actor: FAR }).unwrap(), []);
    assert_eq!(handle(&mut broker, 3, ToNode::Watch { ticket: 9, actor: FAR }).unwrap(), []);

    let placed = says(&mut broker, FromGateway::Reached { actor: FAR, capacity: 8 });
    assert!(placed.len() == 1 && placed[0].1.contains("Serve"), "{placed:?}");
    assert_eq!(says(&mut broker, FromGateway::Reached { actor: FAR, capacity: 8 }), [], "a second time");
    let told = says(&mut broker, FromGateway::Serving { actor: FAR });
    let at = |to: u16| told.iter().any(|(who, what)| *who == process(to) && what.contains("At(Location"));
    assert!(
        at(2) && at(3) && told.iter().any(|(_, what)| what.contains("ticket: 9, down: None")),
        "{told:?}"
    );
    assert_eq!(OtherHosts::of(&broker).reaching.len(), 0);

    // Its host is lost: all are told, watchers too, and then the mailbox closes.
    let why = Some(EndReason::OutOfReach("host 5 is lost".into()));
    let told = says(&mut broker, FromGateway::OutOfReach { actor: FAR, why });
    let found = |what: &str| told.iter().position(|(_, said)| said.contains(what)).expect(what);
    assert!(found("GaveUp(OutOfReach") < found("Lifecycle(GaveUp"), "{told:?}");
    assert!(found("Lifecycle(GaveUp") < found("Withdraw"), "{told:?}");
    let again = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
    assert!(again[0].1.contains("host 5 is lost"), "it is remembered: {again:?}");
}

// MBX-2.
#[test]
fn one_that_nobody_uses_gives_its_place_to_another_and_is_heard_of_where_it_is_watched() {
    let mut broker = broker();
    let far = |number: usize| ActorId((5 << 48) | number as u64);
    let reach = |broker: &mut Broker, actor| {
        let asked = handle(broker, 2, ToNode::WantActor { actor }).unwrap();
        assert!(asked.len() == 1 && asked[0].1.contains("Reach"), "{asked:?}");
        says(broker, FromGateway::Reached { actor, capacity: 8 })
    };
    for number in 0..MAX_ACTORS {
        assert!(reach(&mut broker, far(number))[0].1.contains("Serve"));
        says(&mut broker, FromGateway::Serving { actor: far(number) });
    }
    handle(&mut broker, 3, ToNode::Watch { ticket: 1, actor: far(1) }).unwrap();
    for next in [MAX_ACTORS, MAX_ACTORS + 1] {
        let told = reach(&mut broker, far(next));
        assert!(told.len() == 1 && told[0].1.contains("MakeRoom"), "{told:?}");
    }
    for (rests, told) in [(0, false), (1, true)] {
        let said = says(&mut broker, FromGateway::Rests { actor: far(rests) });
        let at = |what: &str| said.iter().position(|(_, said)| said.contains(what)).expect(what);
        assert_eq!(said.iter().filter(|(_, what)| what.contains("Unplaced")).count(), 4);
        assert!(at("Unplaced") < at("Rested") && at("Rested") < at("Serve"), "{said:?}");
        assert!(said[at("Rested")].1.contains(&format!("told: {told}")), "{said:?}");
        says(&mut broker, FromGateway::Serving { actor: far(MAX_ACTORS + rests) });
    }
    assert_eq!(says(&mut broker, FromGateway::Rests { actor: far(0) }), [], "a second time");
    assert_eq!(OtherHosts::of(&broker).reaching.len() + OtherHosts::of(&broker).placeless.len(), 0);

    // Only watchers hear the events of an actor that rests.
    let down = |actor| Lifecycle::Down { actor, reason: EndReason::Exit(1), will_restart: true };
    assert_eq!(says(&mut broker, FromGateway::Lifecycle(down(far(0)))), []);
    assert_eq!(says(&mut broker, FromGateway::Lifecycle(down(far(1))))[0].0, process(3));
    let gone = |actor| FromGateway::OutOfReach { actor, why: Some(EndReason::Exit(2)) };
    let told = says(&mut broker, gone(far(1)));
    assert!(told.len() == 1 && told[0].0 == process(3) && told[0].1.contains("GaveUp"), "{told:?}");
    // An actor that has ended makes room, too.
    assert!(reach(&mut broker, far(700))[0].1.contains("MakeRoom"));
    let told = says(&mut broker, gone(far(2)));
    let last = told.iter().rev().take(2).map(|(_, said)| said.as_str()).collect::<Vec<_>>();
    assert!(last[0].contains("Serve") && last[1].contains("Withdraw"), "{told:?}");
    // Its address is asked for again.
    assert!(reach(&mut broker, far(0))[0].1.contains("MakeRoom"));
    assert_eq!((OtherHosts::of(&broker).reaching.len(), OtherHosts::of(&broker).placeless.len()), (2, 1));
}

// WIRE-1.
#[test]
fn nobody_else_speaks_as_the_gateway_and_its_own_actors_are_no_others() {
    let mut broker = broker();
    let said = FromGateway::OutOfReach { actor: FAR, why: None };
    let sealed = handle(&mut broker, 2, said.sealed());
    assert!(matches!(sealed, Err(Complaint::NotTheGateway)));
    assert!(matches!(gateway_says(&mut broker, 2, said), Err(Complaint::NotTheGateway)));
    let own = ActorId((3 << 48) | 1);
    let answer = handle(&mut broker, 2, ToNode::WantActor { actor: own }).unwrap();
    assert!(answer[0].0 == process(2) && answer[0].1.contains("Nowhere"), "{answer:?}");
    handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
    let told = says(&mut broker, FromGateway::Reached { actor: FAR, capacity: MAX_MAILBOX + 1 });
    assert!(told.iter().any(|(to, what)| *to == process(2) && what.contains("GaveUp")), "{told:?}");
    assert_eq!(handle(&mut broker, 1, ToNode::Lookup { ticket: 1, name: "x".into() }).unwrap().len(), 1);
}

#[test]
fn who_asks_for_the_starter_before_there_is_one_waits() {
    let mut broker = broker();
    let (actor, _) = broker.roster.reserve(ProcessId::NODE, 8).unwrap();
    broker.roster.started(actor);
    assert_eq!(actor, starter_of(3));
    assert_eq!(says(&mut broker, FromGateway::WantLocal { actor }), []);
    let mut out = Vec::new();
    HostActors::of(&mut broker).serve_hosts(&mut out);
    let told: Vec<_> = out.iter().map(|said| shown(&said.message)).collect();
    assert!(told.len() == 1 && told[0].contains("Local") && told[0].contains("At("), "{told:?}");
    let at_once = says(&mut broker, FromGateway::WantLocal { actor });
    assert!(at_once.len() == 1 && at_once[0].1.contains("At("), "{at_once:?}");
    assert_eq!(OtherHosts::of(&broker).load(&broker.roster), 0, "it is in no worker");
    broker.roster.reserve(process(2), 8).unwrap();
    assert_eq!(OtherHosts::of(&broker).load(&broker.roster), 1);
}

#[test]
fn the_gateway_is_told_where_tensors_belong() {
    let mut broker = broker();
    // The first actor is the starter.
    broker.roster.reserve(ProcessId::NODE, 8).unwrap();
    let gpus = [DeviceId([1; 16]), DeviceId([2; 16])];
    for (process_at, receive_on, works_on, belong) in [
        (2, None, gpus[0], Some(gpus[0])),
        (2, Some(gpus[1]), gpus[0], Some(gpus[1])),
        (3, Some(DeviceId::HOST), gpus[1], Some(DeviceId::HOST)),
        (3, None, DeviceId::HOST, None),
    ] {
        let (actor, _) = broker.roster.reserve(process(process_at), 8).unwrap();
        broker.roster.works_on(actor, receive_on, works_on);
        let told = says(&mut broker, FromGateway::WantLocal { actor });
        assert!(told[0].1.contains(&format!("device: {belong:?}")), "{told:?}");
    }
    // The gateway hears which GPU an asking process works on, so that answers can go there.
    let told = handle(&mut broker, 3, ToNode::WantActor { actor: FAR }).unwrap();
    assert!(told.iter().all(|(_, what)| !what.contains("Uses")), "it works on none: {told:?}");
    let told = handle(&mut broker, 2, ToNode::WantActor { actor: FAR }).unwrap();
    assert!(told[0].0 == process(1) && told[0].1.contains("Uses"), "{told:?}");
}

// MBX-2.
#[test]
fn what_waits_is_bounded_and_ends_with_the_gateway() {
    let mut broker = broker();
    let want = |broker: &mut Broker, from, actor| handle(broker, from, ToNode::WantActor { actor }).unwrap();
    let actor = |number: usize| ActorId((5 << 48) | number as u64);
    for number in 0..MAX_WANTED {
        // The gateway is asked for a bounded number, and the others wait.
        let told = want(&mut broker, 2, actor(number));
        assert_eq!(told.len(), usize::from(number < MAX_REACHING), "{number}: {told:?}");
    }
    let more = want(&mut broker, 2, actor(MAX_WANTED));
    assert!(more[0].1.contains("as many as one process may"), "{more:?}");
    // Neither another process nor another host has to wait for these.
    assert!(want(&mut broker, 3, ActorId(6 << 48))[0].1.contains("Reach"));
    assert!(want(&mut broker, 3, actor(MAX_WANTED)).is_empty());
    // One actor has a place, one has ended: two others have their turn, and the process may wait for two
    // more.
    let reached = |told: Vec<(ProcessId, String)>| {
        told.into_iter().filter(|(to, said)| *to == process(1) && said.contains("Reach")).count()
    };
    assert_eq!(reached(says(&mut broker, FromGateway::Reached { actor: actor(0), capacity: 8 })), 0);
    assert_eq!(reached(says(&mut broker, FromGateway::Serving { actor: actor(0) })), 1);
    assert_eq!(reached(says(&mut broker, FromGateway::OutOfReach { actor: actor(1), why: None })), 1);
    for number in [1, 2] {
        assert!(want(&mut broker, 2, actor(MAX_WANTED + number)).is_empty());
    }
    assert!(want(&mut broker, 2, actor(MAX_WANTED + 3))[0].1.contains("as many as one process may"));
    let lookup = ToNode::Lookup { ticket: 4, name: "far".into() };
    assert!(handle(&mut broker, 3, lookup).unwrap()[0].1.contains("Find"));

    let mut out = Vec::new();
    broker.left(process(1), &mut out);
    let told = |to: u16, what: &str| {
        let count = |said: &&Delivery| said.to == process(to) && shown(&said.message).contains(what);
        out.iter().filter(count).count()
    };
    assert!(told(2, "the gateway of this host has ended") >= MAX_WANTED);
    assert_eq!(told(3, "Found { ticket: 4, found: None }"), 1);
    assert!(OtherHosts::of(&broker).reaching.len() == 0 && OtherHosts::of(&broker).lookups.is_empty());
    let after = handle(&mut broker, 2, ToNode::Watch { ticket: 1, actor: FAR }).unwrap();
    assert!(matches!(&after[..], [(_, said)] if said.contains("GaveUp")), "{after:?}");
}

// HOST-3, DEATH-2.
#[test]
fn what_stands_in_the_places_of_a_gateway_rests_and_the_next_is_asked_for_all() {
    let mut broker = broker();
    let [placed, waited_for, watched] = [7, 8, 9].map(|number| ActorId((5 << 48) | number));
    handle(&mut broker, 2, ToNode::WantActor { actor: placed }).unwrap();
    says(&mut broker, FromGateway::Reached { actor: placed, capacity: 8 });
    says(&mut broker, FromGateway::Serving { actor: placed });
    handle(&mut broker, 3, ToNode::Watch { ticket: 1, actor: placed }).unwrap();
    handle(&mut broker, 2, ToNode::WantActor { actor: waited_for }).unwrap();
    let lookup = ToNode::Lookup { ticket: 4, name: "far".into() };
    handle(&mut broker, 3, lookup).unwrap();
    // The first actor is the starter.
    broker.roster.reserve(ProcessId::NODE, 8).unwrap();
    let (own, _) = broker.roster.reserve(process(2), 8).unwrap();

    let mut out = Vec::new();
    HostActors::of(&mut broker).gateway_follows(process(1), &mut out);
    broker.left(process(1), &mut out);
    let said: Vec<_> = out.iter().map(|said| (said.to, shown(&said.message))).collect();
    let first = |what: &str, to: u16| {
        said.iter().position(|(who, said)| *who == process(to) && said.contains(what)).expect(what)
    };
    for to in [0, 2, 3] {
        assert!(first("Unplaced", to) < first("Exited", to), "{said:?}");
    }
    let gave_up = |what: &str| said.iter().any(|(_, said)| said.contains(what));
    assert!(!gave_up("GaveUp") && !gave_up("Found") && !gave_up("Lifecycle"), "{said:?}");
    // Between the two gateways processes that ask have to wait.
    assert_eq!(handle(&mut broker, 2, ToNode::WantActor { actor: placed }).unwrap(), []);
    assert_eq!(handle(&mut broker, 2, ToNode::Watch { ticket: 2, actor: watched }).unwrap(), []);

    drop(broker.joined(process(4)));
    let mut out = Vec::new();
    HostActors::of(&mut broker).gateway_goes_on(process(4), &mut out);
    let asked: Vec<_> = out.iter().map(|said| shown(&said.message)).collect();
    let count = |what: &str| asked.iter().filter(|said| said.contains(what)).count();
    assert_eq!((count("Reach"), count("Watch"), count("Find")), (1, 1, 1), "{asked:?}");
    let reached =
        asked.iter().find(|said| said.contains("Reach")).map(|said| said.matches("ActorId").count());
    assert_eq!(reached, Some(3), "{asked:?}");

    // A process gets the first gateway's messages before the second one's.
    let want = |broker: &mut Broker| gateway_says(broker, 4, FromGateway::WantLocal { actor: own }).unwrap();
    assert_eq!(want(&mut broker), []);
    assert_eq!(handle(&mut broker, 3, ToNode::Drained { process: process(1) }).unwrap(), []);
    let told = handle(&mut broker, 2, ToNode::Drained { process: process(1) }).unwrap();
    assert!(told.len() == 1 && told[0].0 == process(4) && told[0].1.contains("Local"), "{told:?}");
    assert_eq!(want(&mut broker).len(), 1);
    // No other process speaks as the gateway, nor does the one that has ended.
    let said = FromGateway::OutOfReach { actor: placed, why: None };
    assert!(matches!(gateway_says(&mut broker, 1, said), Err(Complaint::NotTheGateway)));

    // No gateway follows: all are told.
    let mut out = Vec::new();
    broker.left(process(4), &mut out);
    let told = out.iter().filter(|said| shown(&said.message).contains("GaveUp")).count();
    assert!(told >= 3, "{out:?}");
}
