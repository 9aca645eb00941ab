//! Names that are unique in a node of several hosts.

use std::time::Duration;

use tensorpost::actor::RegisterError;
use tensorpost::node::{ActorError, Spawn};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until};

use crate::actors::{Echo, Echoer, Fail};
use crate::{Other, find, head};

/// "Register yourself under this name." The reply is the reason for a failure.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(), String>)]
pub(crate) struct Take(pub(crate) String);

pub(crate) struct Clerk(Env);

impl Actor for Clerk {
    type Context = Context<Self>;
}

impl RemoteActor for Clerk {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Clerk(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Take>();
    }
}

impl Handler<Take> for Clerk {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, Take(name): Take, _: &mut Context<Self>) -> Self::Result {
        let env = self.0.clone();
        Box::pin(async move { env.register(&name).await.map_err(|error| error.to_string()) })
    }
}

fn refused(spawn: Spawn<'_, Echoer>) -> String {
    let error = spawn.start().expect_err("the name is taken");
    assert!(matches!(error, ActorError::Start(_) | ActorError::Elsewhere { .. }), "{error:?}");
    error.to_string()
}

fn a_name_that_another_host_has_is_refused_with_its_number(builder: Builder) {
    let node = head(builder);
    let other = Other::start(&node);
    let mut serving = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    // The head, and a third host, want a name of the second.
    let here = refused(node.spawn::<Echoer>(()).name("echo"));
    assert!(here.contains("`echo` belongs to an actor on host 1"), "{here}");
    let there = refused(node.spawn::<Echoer>(()).name("echo").on(&hosts[2]));
    assert!(there.contains("`echo` belongs to an actor on host 1"), "{there}");
    // The other hosts want a name of the head.
    let lens = node.spawn::<Echoer>(()).name("lens").start().expect("the name is free");
    let there = refused(node.spawn::<Echoer>(()).name("lens").on(&hosts[2]));
    assert!(there.contains("`lens` belongs to an actor on host 0"), "{there}");
    // A running actor that registers itself gets the same error.
    let clerk = node.spawn::<Clerk>(()).on(&hosts[2]).start().expect("an actor there");
    for (name, host) in [("echo", 1), ("lens", 0)] {
        let why = ask(&node, &clerk.address(), Take(name.to_owned())).expect_err("it is taken");
        assert!(why.contains(&format!("an actor on host {host} has it")), "{why}");
    }
    assert_eq!(ask(&node, &clerk.address(), Take("desk".to_owned())), Ok(()));
    let registered = node.register("desk", &lens.address::<Echo>());
    assert_eq!(registered, Err(RegisterError::Elsewhere { name: "desk".to_owned(), host: 2 }));

    // An actor that ends gives its name back, and that is known before its end is.
    let mut watch = node.watch(&find::<Echo>(&node, "echo"));
    deliver(&node, &find::<Fail>(&node, "echo"), Fail);
    assert!(watch.blocking_recv().expect("an event").is_final());
    let again = node.spawn::<Echoer>(()).name("echo").start().expect("the name is free");
    assert_eq!(ask(&node, &find::<Echo>(&node, "echo"), Echo::empty()).actor, again.actor());
    // So does a host that leaves.
    serving.terminate();
    serving.ends();
    until("it is gone", || node.hosts().expect("hosts").len() == 2);
    assert_eq!(node.register("desk", &lens.address::<Echo>()), Ok(()));
    other.end();
}

/// The head decides: of the hosts that want a name at the same instant one has it.
fn of_hosts_that_want_a_name_at_once_one_has_it(builder: Builder) {
    const NAMES: usize = 100;
    let node = head(builder);
    let mut others = [Other::serving(&node), Other::serving(&node)];
    let hosts = node.hosts().expect("hosts");
    let clerks =
        [0, 1, 2].map(|host| node.spawn::<Clerk>(()).on(&hosts[host]).start().expect("an actor there"));
    let takes = (0..NAMES).flat_map(|number| {
        clerks.iter().map(move |clerk| clerk.address().ask(Take(format!("name {number}"))))
    });
    let taken = node.block_on(futures_util::future::join_all(takes.collect::<Vec<_>>()));
    let mut had = [0; 3];
    for takes in taken.chunks(3) {
        let takes: Vec<_> = takes.iter().map(|take| take.as_ref().expect("an answer")).collect();
        let [winner] = (0..3).filter(|host| takes[*host].is_ok()).collect::<Vec<_>>()[..] else {
            panic!("not one of them has it: {takes:?}");
        };
        had[winner] += 1;
        for why in takes.iter().filter_map(|take| take.as_ref().err()) {
            assert!(why.contains(&format!("an actor on host {winner} has it")), "{why}");
        }
    }
    assert_eq!(had.iter().sum::<usize>(), NAMES);
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    others.iter_mut().for_each(Other::ends);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_name_that_another_host_has_is_refused_with_its_number,
        of_hosts_that_want_a_name_at_once_one_has_it,
    ]
}
