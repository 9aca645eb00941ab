//! Messages that go past the queue, to handlers elsewhere.

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{Actor, Context};
use parking_lot::Mutex;

use super::*;
use crate::actor::raw::{RawAnswer, RawSink, TakesRaw};
use crate::message::raw::RawMessage;
use crate::testing::Cluster;
use crate::transport::lifecycle::RestartWhen;

/// Keeps the last byte of each body.
#[derive(Default)]
struct Kept(Mutex<Vec<u8>>);

impl RawSink for Kept {
    fn put(&self, message: RawMessage, answer: RawAnswer) {
        self.0.lock().extend(message.body.last());
        drop(answer);
    }
}

#[derive(Default)]
struct RawActor(Arc<Kept>);

impl Actor for RawActor {
    type Context = Context<Self>;
}

impl RemoteActor for RawActor {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.raw();
    }
}

impl TakesRaw for RawActor {
    fn sink(&self) -> Arc<dyn RawSink> {
        Arc::clone(&self.0) as _
    }
}

/// ORDER-1: envelopes that the actor's task has taken out of the queue and not opened come before new ones.
#[test]
fn nothing_goes_past_what_is_to_be_handled_first() {
    let cluster = Cluster::new(2);
    let (to, _placeholder) = cluster.inbox::<u8>(1, 16);
    let transport = cluster.transport(1);
    let env = Env {
        transport: Arc::clone(transport),
        stream: cluster.stream(1).clone(),
        name: "raw".to_owned(),
        actor: to.actor,
        location: to.location,
        life: 0,
        tally: Arc::default(),
        comes_back: false,
    };
    let receive = Receive::new(&env.stream, None, transport).expect("the host is there");
    let how = How { own_thread: false, restarts: RestartWhen::Never };
    let inbox = ActorInbox::<RawActor>::new(&env, receive, how);
    transport.serve_at(to.location.index, inbox.clone()).expect("its place is there");
    let kept = Arc::new(Kept::default());
    let handled = || std::mem::take(&mut *kept.0.lock());
    let queued = || inbox.queue.lock().envelopes.len();
    let come = |number: u8| {
        cluster.send(0, &to, number);
        cluster.run_until_idle();
    };
    // Nobody knows the sink of the actor's messages yet.
    come(1);
    assert_eq!((handled(), queued()), (vec![], 1));
    inbox.handed_off.sink(|| Arc::clone(&kept) as _);
    come(2);
    assert_eq!((handled(), queued()), (vec![], 2), "the first one has not been handled");
    // The task takes both envelopes out.
    let mut taken = VecDeque::new();
    inbox.take_queued(&mut inbox.queue.lock(), &mut taken);
    come(3);
    assert_eq!((handled(), queued()), (vec![], 1), "two are being handled");
    inbox.take_queued(&mut inbox.queue.lock(), &mut VecDeque::new());
    drop(taken);
    inbox.opening.store(false, Ordering::Release);
    // From here on there is nothing to wait for.
    come(4);
    come(5);
    assert_eq!((handled(), queued()), (vec![4, 5], 0));
    // Once a graceful stop was asked for, messages go through the queue.
    let _stopped = inbox.close();
    come(6);
    assert_eq!((handled(), queued()), (vec![], 1));
    inbox.shut(false);
    come(7);
    assert_eq!((handled(), queued()), (vec![], 0));
}
