//! The first message is like all others, an actor is found for the types that it handles, and a panic becomes
//! the cause with its own words.

use std::time::{Duration, Instant};

use tensorpost::actor::LookupError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

#[derive(Debug, Serialize, Deserialize, GpuMessage)]
struct Other(u64);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Total;

/// A message that is handled behind a door.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
struct Stand(Door);

/// "Look this name up for both types." The reply describes the two results.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (bool, Option<String>))]
struct LookUp(String);

/// "How many are at this place of an empty list?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Index(usize, bool);

#[derive(Default)]
struct Sum(u64);

#[actor]
impl Sum {
    #[handler]
    fn number(&mut self, Number(n): Number) {
        self.0 += n;
    }

    #[handler]
    fn total(&mut self, _: Total) -> u64 {
        self.0
    }

    #[handler]
    fn stand(&mut self, Stand(door): Stand) {
        door.pass().expect("the gate is there");
    }
}

struct Looks(Env);

impl Actor for Looks {
    type Context = Context<Self>;
}

impl RemoteActor for Looks {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Looks(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<LookUp>().message::<Index>();
    }
}

impl Handler<LookUp> for Looks {
    type Result = ResponseFuture<(bool, Option<String>)>;

    fn handle(&mut self, LookUp(name): LookUp, _: &mut Context<Self>) -> Self::Result {
        let env = self.0.clone();
        Box::pin(async move {
            let right = env.lookup::<Number>(&name).await.is_ok();
            (right, env.registry().lookup::<Other>(&name).await.err().map(|error| error.to_string()))
        })
    }
}

impl Handler<Index> for Looks {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, Index(at, now): Index, _: &mut Context<Self>) -> Self::Result {
        let none: Vec<u64> = Vec::new();
        if now {
            return Box::pin(std::future::ready(none[at]));
        }
        Box::pin(async move { none[at] })
    }
}

fn the_first_message_goes_at_once(builder: Builder) {
    let node = builder.start().unwrap();
    for n in 1..=8 {
        let sum = node.spawn::<Sum>(()).name(format!("sum {n}")).start().unwrap();
        sum.try_send(Number(n)).unwrap();
        assert_eq!(node.block_on(sum.ask(Total)).unwrap(), n);
    }
}

/// Each finds room, so each goes with its call; a send that is dropped while it waits for room never goes.
fn sends_that_are_dropped_unpolled_go_where_there_is_room(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let sum = node.spawn::<Sum>(()).mailbox(4).start().unwrap();
    for n in [1, 10, 100] {
        drop(sum.send(Number(n)));
    }
    assert_eq!(node.block_on(sum.ask(Total)).unwrap(), 111);
    let stands = sum.ask(Stand(gate.door()));
    let at_the_door = gate.arrival();
    for n in [1000, 1000, 1000, 1_000_000, 1_000_000] {
        drop(sum.send(Number(n)));
    }
    at_the_door.open();
    node.block_on(stands).unwrap();
    assert_eq!(node.block_on(sum.ask(Total)).unwrap(), 3111);
}

/// Nobody can be woken for it, and nobody else waits for it.
fn an_ask_that_nobody_polls_holds_no_shutdown_up(builder: Builder) {
    let (node, gate) = (builder.start().unwrap(), Gate::new());
    let sum = node.spawn::<Sum>(()).mailbox(1).start().unwrap();
    let stands = sum.ask(Stand(gate.door()));
    let waits = sum.ask(Total);
    gate.pass_one();
    let since = Instant::now();
    drop(node);
    // Its deadline is 10 s.
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    drop((stands, waits));
}

fn an_actor_is_found_for_the_types_that_it_handles_alone(builder: Builder) {
    let node = builder.start().unwrap();
    let _sum = node.spawn::<Sum>(()).name("sum").start().unwrap();
    let looks = node.spawn::<Looks>(()).start().unwrap();
    let (address, _channel) = node.channel::<Number>().unwrap();
    node.register("numbers", &address).unwrap();
    for name in ["sum", "numbers"] {
        assert!(node.lookup::<Number>(name).is_ok());
        let error = node.lookup::<Other>(name).unwrap_err();
        assert!(matches!(error, LookupError::Unhandled { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("`{name}`")) && text.contains("does not handle Other"), "{text}");
        assert_eq!(node.block_on(looks.ask(LookUp(name.to_owned()))).unwrap(), (true, Some(text)));
    }
    assert!(node.lookup::<Total>("sum").is_ok() && node.lookup::<Total>("numbers").is_err());
}

fn a_panic_is_the_cause_in_its_words(builder: Builder) {
    let node = builder.start().unwrap();
    for now in [true, false] {
        let looks = node.spawn::<Looks>(()).start().unwrap();
        let error = node.block_on(looks.ask(Index(7, now))).unwrap_err().to_string();
        assert!(error.contains("panicked: index out of bounds: the len is 0 but the index is 7"), "{error}");
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_first_message_goes_at_once,
        sends_that_are_dropped_unpolled_go_where_there_is_room,
        an_ask_that_nobody_polls_holds_no_shutdown_up,
        an_actor_is_found_for_the_types_that_it_handles_alone,
        a_panic_is_the_cause_in_its_words,
    ]
}
