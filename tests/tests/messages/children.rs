//! Actors that actors start, and starts that are awaited.

use std::time::Duration;

use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, block_on, deliver, until};

/// "Who are you?" The reply is the process id, the label, and the number of the life.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u32, String, u32))]
struct Who;

/// "Panic."
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Fall;

/// "Stop."
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Leave;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<f32>)]
struct Read(#[tensor(dtype = f32)] Tensor);

struct Child {
    env: Env,
    is_ready: bool,
}

impl Actor for Child {
    type Context = Context<Self>;
}

impl RemoteActor for Child {
    /// An error of `create`, if there is to be one, and bytes that only fill the request.
    type Args = (Option<String>, Vec<u8>);

    fn create((error, _): Self::Args, env: &Env) -> anyhow::Result<Self> {
        match error {
            None => Ok(Child { env: env.clone(), is_ready: false }),
            Some(error) => anyhow::bail!(error),
        }
    }

    async fn prepare(&mut self, _: &Env) -> anyhow::Result<()> {
        self.is_ready = true;
        Ok(())
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Who>().message::<Fall>().message::<Read>().message::<Leave>();
    }
}

impl Handler<Who> for Child {
    type Result = MessageResult<Who>;

    fn handle(&mut self, _: Who, _: &mut Context<Self>) -> Self::Result {
        assert!(self.is_ready, "it takes messages when it is ready");
        MessageResult((std::process::id(), self.env.name().to_owned(), self.env.incarnation()))
    }
}

impl Handler<Fall> for Child {
    type Result = ();

    fn handle(&mut self, _: Fall, _: &mut Context<Self>) {
        panic!("it was told to fall");
    }
}

impl Handler<Leave> for Child {
    type Result = ();

    fn handle(&mut self, _: Leave, context: &mut Context<Self>) {
        context.stop();
    }
}

impl Handler<Read> for Child {
    type Result = MessageResult<Read>;

    fn handle(&mut self, Read(tensor): Read, _: &mut Context<Self>) -> Self::Result {
        MessageResult(tensor.to_vec().expect("numbers"))
    }
}

/// An order to a parent.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<(Address<Who>, Address<Fall>, Address<Read>, u32), String>)]
enum Start {
    /// Starts a child in a worker of its own.
    New(Option<String>),
    /// Starts one in the parent's worker.
    Here,
    /// Starts one in the worker of the last child.
    Beside,
    /// Starts one in a worker with this id, by a child's settings.
    In(tensorpost::node::WorkerId),
    /// Starts one whose `create` fails.
    Failing(String),
    /// Starts one with this many bytes of arguments.
    Long(usize),
    /// Starts one of this number, with this many bytes of arguments. It comes back. A worker gets 25 of them,
    /// because it has 30 clocks.
    Kept(u32, usize),
    /// Waits for a start in the handler itself.
    Blocking,
}

struct Parent {
    env: Env,
    last: std::rc::Rc<std::cell::Cell<Option<tensorpost::node::WorkerId>>>,
}

impl Actor for Parent {
    type Context = Context<Self>;
}

impl RemoteActor for Parent {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Parent { env: env.clone(), last: Default::default() })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Start>();
    }
}

impl Handler<Start> for Parent {
    type Result = ResponseFuture<Result<(Address<Who>, Address<Fall>, Address<Read>, u32), String>>;

    fn handle(&mut self, start: Start, _: &mut Context<Self>) -> Self::Result {
        let (env, last) = (self.env.clone(), self.last.clone());
        let args = match &start {
            Start::Failing(error) => (Some(error.clone()), Vec::new()),
            Start::Long(bytes) | Start::Kept(_, bytes) => (None, vec![7; *bytes]),
            _ => (None, Vec::new()),
        };
        if matches!(start, Start::Blocking) {
            let spawn = env.spawn::<Child>(args);
            let started = block_on(spawn.into_future());
            return Box::pin(std::future::ready(
                started.map(|_| unreachable!()).map_err(|error| error.to_string()),
            ));
        }
        Box::pin(async move {
            let spawn = env.spawn::<Child>(args);
            let spawn = match start {
                Start::New(Some(name)) => spawn.name(name).restart(Restart::on_failure(3)),
                Start::Here => spawn.here().label("here"),
                Start::Kept(number, _) => {
                    let spawn = spawn.name(format!("kept {number}")).restart(Restart::on_failure(3));
                    match last.get().filter(|_| number % 25 != 0) {
                        Some(worker) => spawn.worker(worker),
                        None => spawn,
                    }
                }
                Start::Beside => spawn.worker(last.get().expect("there is a child")),
                Start::In(worker) => spawn.worker(worker),
                _ => spawn,
            };
            let child = spawn.await.map_err(|error| error.to_string())?;
            last.set(Some(child.worker()));
            Ok((child.address(), child.address(), child.address(), std::process::id()))
        })
    }
}

fn an_actor_starts_actors_where_it_says(builder: Builder) {
    let node = builder.start().unwrap();
    let parent = node.spawn::<Parent>(()).start().unwrap();
    let (who, _, read, parents) = ask(&node, &parent.address(), Start::New(None)).unwrap();
    let (childs, label, _) = ask(&node, &who, Who);
    assert_eq!(label, "Child");
    assert!(childs != parents && childs != std::process::id());
    // Tensors go to it as to any actor.
    let numbers = node.host_stream().unwrap().from_slice(&[2], &[1.5_f32, 2.5]).unwrap().freeze();
    assert_eq!(ask(&node, &read, Read(numbers)), [1.5, 2.5]);
    let (beside, ..) = ask(&node, &parent.address(), Start::Beside).unwrap();
    assert_eq!(ask(&node, &beside, Who).0, childs);
    let (here, ..) = ask(&node, &parent.address(), Start::Here).unwrap();
    assert_eq!(ask(&node, &here, Who), (parents, "here".to_owned(), 0));
    // Its end is not theirs.
    node.supervisor().kill_worker(parent.worker());
    node.supervisor().await_end(parent.worker());
    assert_eq!(ask(&node, &who, Who).0, childs);
}

fn the_node_supervises_an_actors_actors(builder: Builder) {
    let node = builder.start().unwrap();
    let parent = node.spawn::<Parent>(()).start().unwrap();
    let (who, fall, ..) = ask(&node, &parent.address(), Start::New(Some("child".into()))).unwrap();
    assert_eq!(ask(&node, &who, Who).2, 0);
    deliver(&node, &fall, Fall);
    until("it is back", || node.block_on(who.ask(Who)).is_ok_and(|(_, _, life)| life == 1));
    let found = node.lookup::<Who>("child").unwrap();
    assert_eq!(node.block_on(found.ask(Who)).unwrap().1, "child");
    let taken = ask(&node, &parent.address(), Start::New(Some("child".into()))).unwrap_err();
    assert!(taken.contains("child"), "{taken}");
    // The worker that was started for it ends again.
    until("only the parent's and the child's workers are left", || {
        let running = |state| matches!(state, tensorpost::node::WorkerState::Running);
        node.workers().into_iter().filter(|worker| running(worker.state.clone())).count() == 2
    });
    // So does the child's, with the child.
    deliver(&node, &node.lookup::<Leave>("child").unwrap(), Leave);
    until("only the parent's worker is left", || {
        let running = |state| matches!(state, tensorpost::node::WorkerState::Running);
        node.workers().into_iter().filter(|worker| running(worker.state.clone())).count() == 1
    });
}

fn a_start_that_fails_says_why(builder: Builder) {
    let node = builder.start().unwrap();
    let parent = node.spawn::<Parent>(()).start().unwrap();
    let failing = Start::Failing("no lens".into());
    let why = ask(&node, &parent.address(), failing).map(|_| ()).unwrap_err();
    assert!(why.contains("no lens") && why.contains("Child"), "{why}");
    // Its own worker is one that it may name.
    assert!(ask(&node, &parent.address(), Start::In(parent.worker())).is_ok());
}

fn a_worker_of_others_is_not_an_actors_to_fill(builder: Builder) {
    let node = builder.start().unwrap();
    let parent = node.spawn::<Parent>(()).start().unwrap();
    let other = node.spawn::<Child>((None, Vec::new())).start().unwrap();
    let why = ask(&node, &parent.address(), Start::In(other.worker())).map(|_| ()).unwrap_err();
    assert!(why.contains("was not started for an actor of this worker"), "{why}");
    let why = ask(&node, &parent.address(), Start::Long(2 << 20)).map(|_| ()).unwrap_err();
    assert!(why.contains("65536"), "{why}");
    let why = ask(&node, &parent.address(), Start::Blocking).map(|_| ()).unwrap_err();
    assert!(why.contains("await it"), "{why}");
    assert!(ask(&node, &parent.address(), Start::Long(1000)).is_ok());
}

/// MBX-2: the node keeps the arguments of actors that come back, to a bound.
fn what_the_node_keeps_for_a_worker_is_bounded_until_its_actors_end(builder: Builder) {
    let node = builder.start().unwrap();
    let parent = node.spawn::<Parent>(()).start().unwrap();
    let start = |number| ask(&node, &parent.address(), Start::Kept(number, 60_000)).map(drop);
    let refused = |number| start(number).err().map(|why| (number, why));
    let (number, why) = (0..).find_map(refused).unwrap();
    assert!(why.contains("8388608") && why.contains("have some end"), "after {number}: {why}");
    assert!((100..140).contains(&number), "{number}");
    // Another worker has a bound of its own.
    let other = node.spawn::<Parent>(()).start().unwrap();
    ask(&node, &other.address(), Start::Kept(1000, 60_000)).unwrap();
    // One that stops does not come back.
    deliver(&node, &node.lookup::<Leave>("kept 0").unwrap(), Leave);
    until("there is room for one more", || start(number).is_ok());
    assert!(start(number + 1).is_err());
}

fn a_start_is_awaited_in_async_code(builder: Builder) {
    let node = builder.start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // The runtime's one thread goes on meanwhile.
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        let mut start = std::pin::pin!(node.spawn::<Child>((None, Vec::new())).into_future());
        let mut ticked = 0;
        let child = loop {
            tokio::select! {
                child = &mut start => break child.unwrap(),
                _ = ticks.tick() => ticked += 1,
            }
        };
        assert!(ticked > 1, "{ticked}");
        assert_eq!(child.ask(Who).await.unwrap().2, 0);
        // Calls that block for the node's answer alone are allowed here too.
        node.register("it", &child.address::<Who>()).unwrap();
        for _ in 0..300 {
            // More often than a task of tokio may go on without a pause.
            assert_eq!(node.lookup::<Who>("it").unwrap().actor(), child.actor());
        }
        let (numbers, mut channel) = node.channel::<Fall>().unwrap();
        for _ in 0..100 {
            numbers.send(Fall).await.unwrap();
        }
        for _ in 0..100 {
            channel.blocking_recv().unwrap();
        }
        let failed = node.spawn::<Child>((Some("no lens".into()), Vec::new())).await.unwrap_err();
        assert!(failed.to_string().contains("no lens"), "{failed}");
    });
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        an_actor_starts_actors_where_it_says,
        the_node_supervises_an_actors_actors,
        a_start_that_fails_says_why,
        a_worker_of_others_is_not_an_actors_to_fill,
        what_the_node_keeps_for_a_worker_is_bounded_until_its_actors_end,
        a_start_is_awaited_in_async_code,
    ]
}
