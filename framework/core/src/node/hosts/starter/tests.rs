use futures_util::FutureExt;

use super::*;
use crate::actor::{Address, AskError, NewActor};
use crate::ids::DeviceId;
use crate::message::raw::{RawMessage, RawReply};
use crate::node::restart::Restart;
use crate::node::supervisor::hosts::Guest;
use crate::testing::Cluster;
use crate::transport::AskFailure;
use crate::transport::gateway_messages::from_host;

const NODE: usize = 0;
const GATEWAY: usize = 1;
const WORKER: usize = 2;

type Answered = Result<RawReply, Box<AskError<RawMessage>>>;

/// Makes a starter in the node's process of host 0, whose node has ended.
fn starter_in(cluster: &Cluster) -> (Arc<Starter>, u16) {
    let starter = Arc::new(Starter {
        actor: starter_of(0),
        gateway: Arc::new(Mutex::new(Some(cluster.process(GATEWAY)))),
        local: LocalCredits::new(DEFAULT_MAILBOX),
        supervisor: Weak::new(),
        starts: Arc::default(),
        shows: Arc::default(),
        passes: Arc::default(),
        groups: Arc::default(),
        last_snapshot: Arc::default(),
    });
    let served = Arc::clone(&starter);
    let index = cluster.transport(NODE).serve(|_| served).expect("its first");
    cluster.connect();
    (starter, index)
}

/// Sends a request from a process, in the name of host 7.
fn ask(cluster: &Cluster, from: usize, index: u16, request: &Request) -> crate::actor::Ask<RawMessage> {
    let location = Location { process: cluster.process(NODE), index, capacity: 4 };
    let transport = Arc::clone(cluster.transport(from));
    let to = Address::<RawMessage>::new(transport, starter_of(0), location);
    let body = from_host(7, &codec::encode(request, Vec::new()).expect("no tensors").body);
    let raw = RawMessage { key: message_key::<Request>(), body, tensors: Vec::new() };
    to.with_key(raw.key).ask(raw)
}

fn answer(cluster: &Cluster, mut asked: crate::actor::Ask<RawMessage>) -> Answered {
    loop {
        cluster.run_until_idle();
        // The answer comes from another thread.
        if let Some(answer) = (&mut asked).now_or_never() {
            return answer.map_err(Box::new);
        }
        std::thread::yield_now();
    }
}

fn read(answer: Answered) -> Answer {
    let RawReply::Value { body, .. } = answer.expect("it is heard") else { panic!("no answer") };
    codec::decode::<Answer>(&body, Vec::new(), None).expect("an answer")
}

/// HOST-10. The answer was lost with a gateway, and the actor is still being started.
#[test]
fn who_asks_again_for_a_life_that_is_being_started_has_its_answer() {
    let cluster = Cluster::new(2);
    let (starter, index) = starter_in(&cluster);
    let start = |number| {
        let guest = Guest { actor: ActorId::roaming(7, number), life: 3 };
        let worker = NewWorker { name: String::new(), streams: 1, interpreter: None, gpu_budget: None };
        let actor = NewActor {
            name: None,
            label: None,
            type_name: "Lens".to_owned(),
            type_key: 7,
            args: Vec::new(),
            device: DeviceId::HOST,
            receive_on: None,
            own_thread: false,
            capacity: 1,
            takes: None,
        };
        let restart = Restart::on_failure(1);
        let to_start =
            ToStart { worker: StartIn::New(worker), restart, actor, guest: Some(guest), group: None };
        Request::Start(Box::new(to_start))
    };
    let actor = ActorId::roaming(7, 1);
    starter.starts.lock().guests.insert(actor, Vec::new());
    let mut again = ask(&cluster, GATEWAY, index, &start(1));
    // A request for another actor does not join it.
    assert!(matches!(read(answer(&cluster, ask(&cluster, GATEWAY, index, &start(2)))), Answer::No(_)));
    while starter.starts.lock().guests[&actor].is_empty() {
        cluster.run_until_idle();
        std::thread::yield_now();
    }
    assert!((&mut again).now_or_never().is_none(), "nobody knows yet");
    repeated_starts::begun(&starter.starts, Some(actor), &Answer::Worker(9));
    assert!(matches!(read(answer(&cluster, again)), Answer::Worker(9)));
    assert!(starter.starts.lock().guests.is_empty());
}

// WIRE-1.
#[test]
fn nobody_but_the_gateway_has_anything_started() {
    let cluster = Cluster::new(3);
    let (_, index) = starter_in(&cluster);
    let ask = |from| answer(&cluster, ask(&cluster, from, index, &Request::Load));
    let refused = ask(WORKER).expect_err("a worker asks");
    assert!(matches!(*refused, AskError::NoReply(AskFailure::Refused(Refusal::NoSuchActor))), "{refused}");
    // Nor does the node's own process use it: it starts actors directly.
    assert!(ask(NODE).is_err());
    let answer = read(ask(GATEWAY));
    assert!(matches!(&answer, Answer::No(why) if why.contains("shut down")), "{answer:?}");
}
