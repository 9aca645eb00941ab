//! The actors in the tests of nodes on two hosts.

use tensorpost::actor::{ActorId, MAX_MAILBOX};
use tensorpost::prelude::*;
use tensorpost_tests::wait::numbers;

/// "Give all of it back, with a description as you see it."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Echoed)]
pub(crate) struct Echo {
    pub(crate) number: u64,
    pub(crate) words: Vec<String>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) bytes: Vec<u8>,
}

impl Echo {
    /// Makes number 1 without tensors and addresses.
    pub(crate) fn empty() -> Self {
        Echo { number: 1, words: Vec::new(), tensors: Vec::new(), bytes: Vec::new() }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Echoed {
    pub(crate) pid: u32,
    pub(crate) actor: ActorId,
    pub(crate) number: u64,
    pub(crate) words: Vec<String>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) bytes: Vec<u8>,
}

/// "Send your items to this one": an address in a message.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct PassOn {
    pub(crate) to: Address<Item>,
    pub(crate) items: u32,
}

#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Item {
    pub(crate) number: u32,
    pub(crate) tensor: Tensor,
}

/// "Take this, in order." The last one logs how it went.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Count {
    pub(crate) number: u32,
    pub(crate) tensor: Tensor,
}

/// "How many have come, and were they all as they should be?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, Vec<String>))]
pub(crate) struct HowMany;

/// "Take nothing until this one lets you."
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Hold(pub(crate) Address<MayGo>);

/// "May I go on?" Answered once there was an [`Open`].
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub(crate) struct MayGo;

#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Open;

/// "Send this many at once there, open the gate, and report what went wrong."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
pub(crate) struct Flood {
    pub(crate) to: Lie,
    pub(crate) gate: Address<Open>,
    pub(crate) items: u32,
}

/// "Have it flood the mailbox, with an address that says that there is room for all of it."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
pub(crate) struct HaveFlooded {
    pub(crate) via: Address<Flood>,
    pub(crate) to: Address<Count>,
    pub(crate) gate: Address<Open>,
    pub(crate) items: u32,
}

/// "Send one to each of these at once, and the next when all are accepted; report what went wrong."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<String>)]
pub(crate) struct Spread {
    pub(crate) to: Vec<Address<Count>>,
    pub(crate) from: u32,
    pub(crate) rounds: u32,
}

/// An address that is written as if its mailbox took more.
pub(crate) struct Lie(pub(crate) Address<Count>);

impl Serialize for Lie {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = serde_json::to_value(&self.0).map_err(serde::ser::Error::custom)?;
        let place = |what| &written[1][what];
        (&written[0], (place("process"), place("index"), MAX_MAILBOX)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lie {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Address::deserialize(deserializer).map(Lie)
    }
}

/// "Hand it on to the next, after a while; the last says so."
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Bounce {
    pub(crate) left: u32,
    pub(crate) next: Address<Bounce>,
    pub(crate) after: Address<Bounce>,
    pub(crate) last: Address<Item>,
}

/// "Fail."
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct Fail;

/// "Log this, this many times." Answered when the lines are logged.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = ())]
pub(crate) struct Say {
    pub(crate) text: String,
    pub(crate) times: u32,
}

/// Never answered.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
pub(crate) struct Never;

/// A part of a tensor.
#[derive(Serialize, Deserialize, GpuMessage)]
pub(crate) struct HasPart {
    pub(crate) part: TensorPart,
}

pub(crate) struct Echoer(pub(crate) Env);

impl Actor for Echoer {
    type Context = Context<Self>;
}

impl RemoteActor for Echoer {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Echoer(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Echo>().message::<PassOn>().message::<Fail>().message::<Never>().message::<HasPart>();
        on.message::<Spread>()
            .message::<Flood>()
            .message::<HaveFlooded>()
            .message::<Bounce>()
            .message::<Say>();
    }
}

impl Handler<Echo> for Echoer {
    type Result = MessageResult<Echo>;

    fn handle(&mut self, echo: Echo, _: &mut Context<Self>) -> Self::Result {
        let Echo { number, words, tensors, bytes } = echo;
        let (pid, actor) = (std::process::id(), self.0.actor());
        MessageResult(Echoed { pid, actor, number, words, tensors, bytes })
    }
}

impl Handler<PassOn> for Echoer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, PassOn { to, items }: PassOn, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            for number in 0..items {
                let tensor = numbers(&stream, number, 100);
                to.send(Item { number, tensor }).await.expect("it is accepted");
            }
        })
    }
}

impl Handler<Flood> for Echoer {
    type Result = ResponseFuture<Vec<String>>;

    fn handle(&mut self, Flood { to: Lie(to), gate, items }: Flood, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            // The call itself makes the first attempt of each send.
            let sends: Vec<_> = (0..items)
                .map(|number| to.send(Count { number, tensor: numbers(&stream, number, 10) }))
                .collect();
            gate.send(Open).await.expect("the gate is there");
            let sent = futures_util::future::join_all(sends).await;
            sent.into_iter().filter_map(|sent| sent.err().map(|error| error.to_string())).collect()
        })
    }
}

impl Handler<Spread> for Echoer {
    type Result = ResponseFuture<Vec<String>>;

    fn handle(&mut self, Spread { to, from, rounds }: Spread, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            let mut wrong = Vec::new();
            for number in from..from + rounds {
                let send =
                    |to: &Address<Count>| to.send(Count { number, tensor: numbers(&stream, number, 5) });
                let sent = futures_util::future::join_all(to.iter().map(send)).await;
                wrong.extend(sent.into_iter().filter_map(|sent| sent.err().map(|error| error.to_string())));
            }
            wrong
        })
    }
}

impl Handler<HaveFlooded> for Echoer {
    type Result = ResponseFuture<Vec<String>>;

    fn handle(&mut self, have: HaveFlooded, _: &mut Context<Self>) -> Self::Result {
        let HaveFlooded { via, to, gate, items } = have;
        Box::pin(async move { via.ask(Flood { to: Lie(to), gate, items }).await.expect("an answer") })
    }
}

impl Handler<Bounce> for Echoer {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, bounce: Bounce, _: &mut Context<Self>) -> Self::Result {
        let stream = self.0.stream();
        Box::pin(async move {
            // It takes this long, as a working actor does.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let Bounce { left, next, after, last } = bounce;
            if left == 0 {
                return last.send(Item { number: 0, tensor: numbers(&stream, 0, 10) }).await.expect("room");
            }
            let on = Bounce { left: left - 1, next: after, after: next.clone(), last };
            next.send(on).await.expect("it is there");
        })
    }
}

impl Handler<Say> for Echoer {
    type Result = MessageResult<Say>;

    fn handle(&mut self, Say { text, times }: Say, _: &mut Context<Self>) -> Self::Result {
        (0..times).for_each(|number| tracing::warn!(number, "{text}"));
        MessageResult(())
    }
}

impl Handler<Fail> for Echoer {
    type Result = ();

    fn handle(&mut self, _: Fail, _: &mut Context<Self>) {
        panic!("as it was told");
    }
}

impl Handler<Never> for Echoer {
    type Result = ResponseFuture<u32>;

    fn handle(&mut self, _: Never, _: &mut Context<Self>) -> Self::Result {
        Box::pin(std::future::pending())
    }
}

impl Handler<HasPart> for Echoer {
    type Result = ();

    fn handle(&mut self, _: HasPart, _: &mut Context<Self>) {}
}

/// The arguments of an actor that the program of another host starts, with an address of that host.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlacedArgs {
    pub(crate) to: Address<Item>,
    pub(crate) fails: bool,
}

/// Answers as an [`Echoer`], and sends an item to the address in its arguments.
pub(crate) struct Placed {
    env: Env,
    to: Address<Item>,
}

impl Actor for Placed {
    type Context = Context<Self>;
}

impl RemoteActor for Placed {
    type Args = PlacedArgs;

    fn create(args: PlacedArgs, env: &Env) -> anyhow::Result<Self> {
        anyhow::ensure!(!args.fails, "there is no such lens");
        Ok(Placed { env: env.clone(), to: args.to })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Echo>().message::<Fail>();
    }
}

impl Handler<Echo> for Placed {
    type Result = ResponseFuture<Echoed>;

    fn handle(&mut self, echo: Echo, _: &mut Context<Self>) -> Self::Result {
        let Echo { number, words, tensors, bytes } = echo;
        let (to, env) = (self.to.clone(), self.env.clone());
        Box::pin(async move {
            let item = Item { number: env.incarnation(), tensor: numbers(&env.stream(), 3, 5) };
            to.send(item).await.expect("it is accepted");
            Echoed { pid: std::process::id(), actor: env.actor(), number, words, tensors, bytes }
        })
    }
}

impl Handler<Fail> for Placed {
    type Result = ();

    fn handle(&mut self, _: Fail, _: &mut Context<Self>) {
        panic!("as it was told");
    }
}

/// Takes its messages in its own time.
#[derive(Default)]
pub(crate) struct Counter {
    pub(crate) count: u32,
    pub(crate) wrong: Vec<String>,
}

impl Actor for Counter {
    type Context = Context<Self>;
}

impl RemoteActor for Counter {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Counter::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Count>().message::<HowMany>().message::<Hold>();
    }
}

impl Handler<Count> for Counter {
    type Result = ();

    fn handle(&mut self, Count { number, tensor }: Count, _: &mut Context<Self>) {
        let should: Vec<u32> = (number..).take(tensor.len()).collect();
        let found = tensor.to_vec::<u32>().unwrap_or_default();
        if number != self.count || found != should {
            self.wrong.push(format!("message {number} where {} comes next", self.count));
        }
        self.count += 1;
    }
}

impl Handler<HowMany> for Counter {
    type Result = MessageResult<HowMany>;

    fn handle(&mut self, _: HowMany, _: &mut Context<Self>) -> Self::Result {
        MessageResult((self.count, std::mem::take(&mut self.wrong)))
    }
}

impl Handler<Hold> for Counter {
    type Result = ();

    fn handle(&mut self, Hold(gate): Hold, ctx: &mut Context<Self>) {
        // The request goes through the other host, while this mailbox stands still.
        ctx.wait(actix::fut::wrap_future(async move { gate.ask(MayGo).await.expect("it opens") }));
    }
}

/// Keeps each asker waiting.
#[derive(Default)]
pub(crate) struct Gatekeeper {
    pub(crate) waiting: Vec<tokio::sync::oneshot::Sender<()>>,
    pub(crate) open: bool,
}

impl Actor for Gatekeeper {
    type Context = Context<Self>;
}

impl RemoteActor for Gatekeeper {
    type Args = ();

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Gatekeeper::default())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<MayGo>().message::<Open>();
    }
}

impl Handler<MayGo> for Gatekeeper {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: MayGo, _: &mut Context<Self>) -> Self::Result {
        let (go, gone) = tokio::sync::oneshot::channel();
        if !self.open {
            self.waiting.push(go);
        }
        // It ends with the sender.
        Box::pin(async { drop(gone.await) })
    }
}

impl Handler<Open> for Gatekeeper {
    type Result = ();

    fn handle(&mut self, _: Open, _: &mut Context<Self>) {
        self.open = true;
        self.waiting.clear();
    }
}
