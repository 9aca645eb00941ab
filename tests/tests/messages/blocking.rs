//! Plain code that blocks on the runtime: it is refused where it would stand still for ever, and allowed
//! where another thread reads.

use std::future::ready;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tensorpost::node::ActorError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::block_on;

const LONG: Duration = Duration::from_secs(30);

/// "Twice as much, please."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Double(u64);

#[derive(Default, RemoteActor)]
#[remote_actor(handles(Double))]
struct Doubles;

impl Handler<Double> for Doubles {
    type Result = u64;

    fn handle(&mut self, Double(number): Double, _: &mut Context<Self>) -> u64 {
        2 * number
    }
}

/// "Ask, and block until the answer is there." The reply is the answer, or the error.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<u64, String>)]
struct Block;

/// The same for a name that nobody has, so that the node has to be asked.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(), String>)]
struct LookUp;

/// "Ask, and answer later."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Await;

#[derive(RemoteActor)]
#[remote_actor(handles(Block, LookUp, Await), args = (Address<Double>, bool), create = Asks::new)]
struct Asks {
    doubles: Address<Double>,
    env: Env,
}

impl Asks {
    fn new((doubles, at_once): (Address<Double>, bool), env: &Env) -> anyhow::Result<Self> {
        if at_once {
            block_on(doubles.ask(Double(1)))?;
        }
        Ok(Asks { doubles, env: env.clone() })
    }
}

impl Handler<Block> for Asks {
    type Result = Result<u64, String>;

    fn handle(&mut self, _: Block, _: &mut Context<Self>) -> Self::Result {
        block_on(self.doubles.ask(Double(21))).map_err(|error| error.to_string())
    }
}

impl Handler<LookUp> for Asks {
    type Result = Result<(), String>;

    fn handle(&mut self, _: LookUp, _: &mut Context<Self>) -> Self::Result {
        let found = block_on(self.env.lookup::<Double>("nobody"));
        found.map(drop).map_err(|error| error.to_string())
    }
}

impl Handler<Await> for Asks {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, _: Await, _: &mut Context<Self>) -> Self::Result {
        let asked = self.doubles.ask(Double(21));
        Box::pin(async move { asked.await.unwrap_or_default() })
    }
}

/// Checks whether the answers are there at once, and goes on in its context if not.
struct Polls(Address<Double>);

impl Actor for Polls {
    type Context = Context<Self>;
}

impl RemoteActor for Polls {
    type Args = Address<Double>;

    fn create(doubles: Address<Double>, _: &Env) -> anyhow::Result<Self> {
        Ok(Polls(doubles))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Await>().polls();
    }
}

impl Handler<Await> for Polls {
    type Result = ResponseFuture<u64>;

    fn handle(&mut self, _: Await, _: &mut Context<Self>) -> Self::Result {
        // `FuturesUnordered` polls its parts with wakers of its own, as a blocking caller would.
        let asked: FuturesUnordered<_> =
            [20, 1].map(|number| self.0.ask(Double(number))).into_iter().collect();
        let mut sum =
            asked.map(Result::unwrap_or_default).fold(0, |sum, reply| ready(sum + reply)).boxed_local();
        assert_eq!((&mut sum).now_or_never(), None, "the answer comes from another process");
        sum
    }
}

fn a_handler_may_poll_what_it_hands_on(builder: Builder) {
    let node = builder.start().unwrap();
    let doubles = node.spawn::<Doubles>(()).start().unwrap();
    let polls = node.spawn::<Polls>(doubles.address()).start().unwrap();
    assert_eq!(node.block_on(polls.ask(Await).timeout(LONG)).unwrap(), 42);
}

fn blocking_in_a_handler_is_refused_and_the_error_names_the_way(builder: Builder) {
    let node = builder.start().unwrap();
    let doubles = node.spawn::<Doubles>(()).start().unwrap();
    let asks = node.spawn::<Asks>((doubles.address(), false)).start().unwrap();
    let error = node.block_on(asks.ask(Block).timeout(LONG)).unwrap().unwrap_err();
    assert!(error.contains("ResponseFuture"), "{error}");
    let error = node.block_on(asks.ask(LookUp).timeout(LONG)).unwrap().unwrap_err();
    assert!(error.contains("look `nobody` up before"), "{error}");
    // The actor goes on, and this way works.
    assert_eq!(node.block_on(asks.ask(Await).timeout(LONG)).unwrap(), 42);
}

fn blocking_in_create_is_refused(builder: Builder) {
    let node = builder.start().unwrap();
    let doubles = node.spawn::<Doubles>(()).start().unwrap();
    let error = node.spawn::<Asks>((doubles.address(), true)).start().unwrap_err();
    assert!(matches!(error, ActorError::Start(_)) && error.to_string().contains("`prepare`"), "{error}");
}

/// The worker's reader is on another thread, which hears of the ask at once.
fn an_actor_on_a_thread_of_its_own_may_block(builder: Builder) {
    let node = builder.start().unwrap();
    let doubles = node.spawn::<Doubles>(()).start().unwrap();
    let asks = node.spawn::<Asks>((doubles.address(), true)).own_thread().start().unwrap();
    assert_eq!(node.block_on(asks.ask(Block).timeout(LONG)).unwrap(), Ok(42));
    let error = node.block_on(asks.ask(LookUp).timeout(LONG)).unwrap().unwrap_err();
    assert!(error.contains("no actor is registered"), "{error}");
}

/// A web server has a runtime of its own, and some programs have none.
fn an_ask_may_be_awaited_anywhere(builder: Builder) {
    let node = builder.start().unwrap();
    let doubles = node.spawn::<Doubles>(()).start().unwrap();
    let servers: Vec<_> = (0..4_u64)
        .map(|number| {
            let doubles = doubles.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let asked = async move {
                    // One ask runs as a task of that runtime, and one has a deadline by its clock.
                    let task = tokio::spawn(doubles.ask(Double(number)));
                    task.await.unwrap().unwrap() + doubles.ask(Double(number)).timeout(LONG).await.unwrap()
                };
                runtime.block_on(asked)
            })
        })
        .collect();
    let answers: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
    assert_eq!(answers, [0, 4, 8, 12]);
    assert_eq!(block_on(doubles.ask(Double(3))).unwrap(), 6, "without any runtime");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        blocking_in_a_handler_is_refused_and_the_error_names_the_way,
        blocking_in_create_is_refused,
        a_handler_may_poll_what_it_hands_on,
        an_actor_on_a_thread_of_its_own_may_block,
        an_ask_may_be_awaited_anywhere,
    ]
}
