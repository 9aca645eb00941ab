//! Addresses in messages, in arguments and under names, from everywhere to everywhere.

use std::collections::{HashMap, HashSet};

use actix::fut::wrap_future;
use tensorpost::actor::{ActorId, LookupError, RegisterError};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, numbers, until, until_free};

/// "Who are you?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Card)]
struct Who;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    pid: u32,
    actor: ActorId,
    name: String,
    itself: Address<Who>,
    friends: Vec<Address<Who>>,
}

/// "Ask this one for me", along a chain of others if there are any.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Card, String>)]
struct AskFor {
    whom: Whom,
    through: Vec<Address<AskFor>>,
}

#[derive(Clone, Serialize, Deserialize)]
enum Whom {
    This(Address<Who>),
    Friend(usize),
    Named(String),
    You,
}

/// "Take one more name." The reply is the reason for a failure.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(), String>)]
struct TakeName(String);

/// "Say hello to `to`", with a way to answer.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Hello {
    to: Option<Address<Hello>>,
    from: Option<Address<Hello>>,
    card: Option<Card>,
    tensor: Option<Tensor>,
}

struct Person {
    env: Env,
    friends: Vec<Address<Who>>,
}

#[derive(Default, Serialize, Deserialize)]
struct PersonArgs {
    friends: Vec<Address<Who>>,
    by_name: HashMap<String, Option<Address<Who>>>,
    /// The actor tells it at once, from `create`.
    tell: Option<Address<Hello>>,
    door: Option<Door>,
}

impl Actor for Person {
    type Context = Context<Self>;
}

impl RemoteActor for Person {
    type Args = PersonArgs;

    fn create(args: PersonArgs, env: &Env) -> anyhow::Result<Self> {
        let mut person = Person { env: env.clone(), friends: args.friends };
        let mut named: Vec<_> = args.by_name.into_iter().collect();
        named.sort_by(|one, other| one.0.cmp(&other.0));
        person.friends.extend(named.into_iter().filter_map(|(_, friend)| friend));
        if let Some(door) = args.door {
            door.pass()?;
        }
        if let Some(to) = args.tell {
            let hello =
                Hello { to: None, from: Some(env.address()), card: Some(person.card()), tensor: None };
            let sent = to.send(hello);
            actix::spawn(async move { sent.await.unwrap() });
        }
        Ok(person)
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Who>().message::<AskFor>().message::<TakeName>().message::<Hello>();
    }
}

impl Person {
    fn card(&self) -> Card {
        Card {
            pid: std::process::id(),
            actor: self.env.actor(),
            name: self.env.name().to_owned(),
            itself: self.env.address(),
            friends: self.friends.clone(),
        }
    }
}

impl Handler<Who> for Person {
    type Result = MessageResult<Who>;

    fn handle(&mut self, _: Who, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.card())
    }
}

impl Handler<AskFor> for Person {
    type Result = ResponseFuture<Result<Card, String>>;

    fn handle(&mut self, mut message: AskFor, _: &mut Context<Self>) -> Self::Result {
        if !message.through.is_empty() {
            let next = message.through.remove(0);
            return Box::pin(async move { next.ask(message).await.map_err(|error| error.to_string())? });
        }
        let env = self.env.clone();
        let card = self.card();
        Box::pin(async move {
            let whom = match message.whom {
                Whom::This(address) => address,
                Whom::Friend(index) => card.friends[index].clone(),
                Whom::Named(name) => env.lookup(&name).await.map_err(|error| error.to_string())?,
                Whom::You => return Ok(card),
            };
            whom.ask(Who).await.map_err(|error| error.to_string())
        })
    }
}

impl Handler<TakeName> for Person {
    type Result = ResponseFuture<Result<(), String>>;

    fn handle(&mut self, TakeName(name): TakeName, _: &mut Context<Self>) -> Self::Result {
        let env = self.env.clone();
        Box::pin(async move { env.register(&name).await.map_err(|error| error.to_string()) })
    }
}

impl Handler<Hello> for Person {
    type Result = ();

    fn handle(&mut self, mut hello: Hello, ctx: &mut Context<Self>) {
        let to = hello.to.take().or(hello.from.take());
        if let Some(to) = to {
            hello.from = Some(self.env.address());
            hello.card = Some(self.card());
            let sent = to.send(hello);
            ctx.spawn(wrap_future(async move { sent.await.unwrap() }));
        }
    }
}

type SpawnedPerson = tensorpost::node::Spawned<Person>;

fn person(node: &Node, args: PersonArgs) -> SpawnedPerson {
    node.spawn::<Person>(args).start().unwrap()
}

fn everybody_reaches_everybody_in_both_directions(builder: Builder) {
    let node = builder.start().unwrap();
    let worker = node.worker("two").unwrap();
    let people = [
        person(&node, PersonArgs::default()),
        node.spawn::<Person>(PersonArgs::default()).worker(worker).start().unwrap(),
        node.spawn::<Person>(PersonArgs::default()).worker(worker).own_thread().start().unwrap(),
        person(&node, PersonArgs::default()),
    ];
    let mut pids = HashSet::new();
    for asker in &people {
        for asked in &people {
            if asker.actor() == asked.actor() {
                continue;
            }
            let whom = Whom::This(asked.address());
            let card = ask(&node, &asker.address(), AskFor { whom, through: vec![] }).unwrap();
            assert_eq!(card.actor, asked.actor());
            assert_eq!(card.itself, asked.address());
            pids.insert(card.pid);
        }
    }
    assert_eq!(pids.len(), 3);
    // A chain through all of them and back to the first.
    let through = people.iter().skip(1).chain(&people[..1]).map(SpawnedPerson::address).collect();
    let asked = ask(&node, &people[0].address(), AskFor { whom: Whom::You, through }).unwrap();
    assert_eq!(asked.actor, people[0].actor());
}

fn addresses_travel_in_arguments_at_any_depth(builder: Builder) {
    let node = builder.start().unwrap();
    let first = person(&node, PersonArgs::default());
    let second = person(&node, PersonArgs { friends: vec![first.address()], ..PersonArgs::default() });
    let by_name = HashMap::from([
        ("a".into(), Some(first.address())),
        ("b".into(), None),
        ("c".into(), Some(second.address())),
    ]);
    let third = person(&node, PersonArgs { by_name, ..PersonArgs::default() });
    for (index, expected) in [(0, &first), (1, &second)] {
        let message = AskFor { whom: Whom::Friend(index), through: vec![] };
        assert_eq!(ask(&node, &third.address(), message).unwrap().actor, expected.actor());
    }
    // This address came in a reply, and belongs to an actor with which this process never exchanged a
    // message.
    let friends = ask(&node, &third.address(), Who).friends;
    assert_eq!(ask(&node, &friends[1], Who).friends, [first.address()]);
}

fn addresses_are_equal_when_they_lead_to_the_same_actor(builder: Builder) {
    let node = builder.start().unwrap();
    let (one, other) = (person(&node, PersonArgs::default()), person(&node, PersonArgs::default()));
    let came = ask(&node, &one.address(), Who).itself;
    assert_eq!(came, one.address());
    assert_ne!(came, other.address());
    assert_eq!(came.actor(), one.actor());
    #[expect(clippy::mutable_key_type, reason = "its hash is the actor's number, which never changes")]
    let set: HashSet<Address<Who>> =
        [came, one.address(), other.address(), one.address::<Who>().clone()].into_iter().collect();
    assert_eq!(set.len(), 2);
    assert_eq!(ask(&node, &one.address(), Who).actor, one.actor());
}

fn an_actor_sends_its_own_address_already_from_create(builder: Builder) {
    let node = builder.start().unwrap();
    let (home, mut hellos) = node.channel::<Hello>().unwrap();
    let args = || PersonArgs { tell: Some(home.clone()), ..PersonArgs::default() };
    for own_thread in [false, true] {
        let spawn = node.spawn::<Person>(args());
        let spawned = if own_thread { spawn.own_thread() } else { spawn }.start().unwrap();
        let hello = hellos.blocking_recv().unwrap();
        let from = hello.from.unwrap();
        assert_eq!(from, spawned.address());
        assert_eq!(hello.card.unwrap().actor, spawned.actor());
        // And it can be answered.
        let tensor = Some(numbers(&node.host_stream().unwrap(), 5, 3));
        deliver(&node, &from, Hello { to: Some(home.clone()), from: None, card: None, tensor });
        let answer = hellos.blocking_recv().unwrap();
        assert_eq!(answer.tensor.unwrap().to_vec::<u32>().unwrap(), [5, 6, 7]);
    }
    until_free(&node);
}

fn two_workers_that_greet_each_other_at_once_both_arrive(builder: Builder) {
    let node = builder.start().unwrap();
    let (home, mut hellos) = node.channel::<Hello>().unwrap();
    for _ in 0..4 {
        let (one, other) = (person(&node, PersonArgs::default()), person(&node, PersonArgs::default()));
        // Each says hello to the other over a link that is made from both ends; each answers home.
        let to = |one: &SpawnedPerson| Some(one.address());
        let hello = |to| Hello {
            to,
            from: None,
            card: None,
            tensor: Some(numbers(&node.host_stream().unwrap(), 0, 2)),
        };
        deliver(&node, &one.address(), hello(to(&other)));
        deliver(&node, &other.address(), hello(to(&one)));
        // The two now play ping-pong for ever; ask both, through each other, in the middle of it.
        for (asker, asked) in [(&one, &other), (&other, &one)] {
            let message = AskFor { whom: Whom::This(asked.address()), through: vec![] };
            assert_eq!(ask(&node, &asker.address(), message).unwrap().actor, asked.actor());
        }
        node.supervisor().kill_worker(one.worker());
        node.supervisor().await_end(one.worker());
        node.supervisor().kill_worker(other.worker());
    }
    deliver(&node, &home, Hello { to: None, from: None, card: None, tensor: None });
    assert!(hellos.blocking_recv().unwrap().card.is_none());
}

fn names_are_found_from_everywhere(builder: Builder) {
    let node = builder.start().unwrap();
    let named = node.spawn::<Person>(PersonArgs::default()).name("ada").start().unwrap();
    let other = person(&node, PersonArgs::default());
    assert_eq!(ask(&node, &named.address(), Who).name, "ada");
    let found: Address<Who> = node.lookup("ada").unwrap();
    assert_eq!(ask(&node, &found, Who).actor, named.actor());
    let ask_for = |name: &str| AskFor { whom: Whom::Named(name.into()), through: vec![] };
    let ada = ask(&node, &other.address(), ask_for("ada")).unwrap();
    assert_eq!(ada.actor, named.actor());
    // More names, taken by the node and by the actor itself.
    node.register("countess", &named.address::<Who>()).unwrap();
    ask(&node, &other.address(), TakeName("babbage".into())).unwrap();
    assert_eq!(node.lookup::<Who>("countess").unwrap(), named.address());
    assert_eq!(ask(&node, &named.address(), ask_for("babbage")).unwrap().actor, other.actor());
    // A channel of the node can have a name too.
    let (home, mut hellos) = node.channel::<Hello>().unwrap();
    node.register("home", &home).unwrap();
    let to = node.lookup::<Hello>("home").unwrap();
    assert_eq!(to, home);
    deliver(&node, &named.address(), Hello { to: Some(to), from: None, card: None, tensor: None });
    assert_eq!(hellos.blocking_recv().unwrap().card.unwrap().actor, named.actor());
}

fn unknown_and_taken_names_are_errors_that_name_them(builder: Builder) {
    let node = builder.start().unwrap();
    let ada = node.spawn::<Person>(PersonArgs::default()).name("ada").start().unwrap();
    let other = person(&node, PersonArgs::default());
    let error = node.lookup::<Who>("bob").unwrap_err();
    assert_eq!(error, LookupError::Unknown("bob".into()));
    assert!(error.to_string().contains("no actor is registered under `bob`"));
    let message = AskFor { whom: Whom::Named("bob".into()), through: vec![] };
    assert!(ask(&node, &other.address(), message).unwrap_err().contains("`bob`"));
    let error = node.register("ada", &other.address::<Who>()).unwrap_err();
    assert_eq!(error, RegisterError::Taken("ada".into()));
    assert!(ask(&node, &other.address(), TakeName("ada".into())).unwrap_err().contains("`ada`"));
    let error = node.spawn::<Person>(PersonArgs::default()).name("ada").start().unwrap_err();
    assert!(error.to_string().contains("the name `ada` belongs to"), "{error}");
    // A name ends with its actor; then it is free.
    node.supervisor().kill_worker(ada.worker());
    node.supervisor().await_end(ada.worker());
    until("the name is free", || node.lookup::<Who>("ada").is_err());
    let heir = node.spawn::<Person>(PersonArgs::default()).name("ada").start().unwrap();
    assert_eq!(node.lookup::<Who>("ada").unwrap(), heir.address());
    assert!(node.lookup::<Who>("").is_err());
    assert!(node.register(&"x".repeat(300), &heir.address::<Who>()).is_err());
}

/// A message that is sent to an actor while its `create` runs is handled after `create`.
fn an_actor_is_found_by_name_only_when_it_takes_messages(builder: Builder) {
    let node = builder.start().unwrap();
    let gate = Gate::new();
    std::thread::scope(|scope| {
        let args = PersonArgs { door: Some(gate.door()), ..PersonArgs::default() };
        let node = &node;
        let starting = scope.spawn(move || node.spawn::<Person>(args).name("slow").start().unwrap());
        let arrival = gate.arrival();
        match node.lookup::<Who>("slow") {
            Err(error) => assert_eq!(error, LookupError::Unknown("slow".into())),
            Ok(address) => {
                let asked = address.ask(Who);
                arrival.open();
                assert_eq!(node.block_on(asked).unwrap().name, "slow");
                starting.join().unwrap();
                return;
            }
        }
        arrival.open();
        let slow = starting.join().unwrap();
        assert_eq!(node.lookup::<Who>("slow").unwrap(), slow.address());
    });
}

/// Outside of a message an address cannot be read, and the error says so.
fn an_address_is_nothing_to_a_file(builder: Builder) {
    let node = builder.start().unwrap();
    let ada = person(&node, PersonArgs::default());
    let bytes = rmp_serde::to_vec(&ada.address::<Who>()).unwrap();
    let error = rmp_serde::from_slice::<Address<Who>>(&bytes).unwrap_err();
    assert!(error.to_string().contains("an Address can only be read from a message"), "{error}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        everybody_reaches_everybody_in_both_directions,
        addresses_travel_in_arguments_at_any_depth,
        addresses_are_equal_when_they_lead_to_the_same_actor,
        an_actor_sends_its_own_address_already_from_create,
        two_workers_that_greet_each_other_at_once_both_arrive,
        names_are_found_from_everywhere,
        unknown_and_taken_names_are_errors_that_name_them,
        an_actor_is_found_by_name_only_when_it_takes_messages,
        an_address_is_nothing_to_a_file,
    ]
}
