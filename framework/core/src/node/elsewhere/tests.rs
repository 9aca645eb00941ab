use futures_util::FutureExt;

use super::*;
use crate::actor::AskError;
use crate::message::raw::{RawMessage, RawReply};
use crate::testing::Cluster;
use crate::transport::AskFailure;
use crate::transport::hosts::from_host;

// WIRE-1.
#[test]
fn nobody_but_the_gateway_has_anything_started() {
    let cluster = Cluster::new(3);
    let (node, gateway, worker) = (0, 1, 2);
    let actor = starter_of(0);
    let starter = Arc::new(Starter {
        actor,
        gateway: Arc::new(Mutex::new(Some(cluster.process(gateway)))),
        local: LocalCredits::new(DEFAULT_MAILBOX),
        supervisor: Weak::new(),
        starts: Arc::default(),
        shows: Arc::default(),
        passes: Arc::default(),
        last_look: Arc::default(),
    });
    let index = cluster.transport(node).serve(|_| starter).expect("its first");
    cluster.connect();
    let ask = |from: usize| {
        let location = Location { process: cluster.process(node), index, capacity: 4 };
        let to = Address::<RawMessage>::new(Arc::clone(cluster.transport(from)), actor, location, true);
        let body = from_host(7, &rmp_serde::to_vec(&Request::Load).expect("no tensors"));
        let raw = RawMessage { key: message_key::<Request>(), body, tensors: Vec::new() };
        let mut asked = to.with_key(raw.key).ask(raw);
        loop {
            cluster.run_until_idle();
            // The answer comes from another thread.
            if let Some(answer) = (&mut asked).now_or_never() {
                return answer.map_err(Box::new);
            }
            std::thread::yield_now();
        }
    };
    let refused = ask(worker).expect_err("a worker asks");
    assert!(matches!(*refused, AskError::NoReply(AskFailure::Refused(Refusal::NoSuchActor))), "{refused}");
    // And from the node's own process, which does it by itself.
    assert!(ask(node).is_err());
    let answer = ask(gateway).expect("it is heard");
    let RawReply::Value { body, .. } = answer else { panic!("no answer") };
    let answer = codec::decode::<Answer>(&body, Vec::new(), None).expect("an answer");
    assert!(matches!(&answer, Answer::No(why) if why.contains("shut down")), "{answer:?}");
}
