//! Tensors of the device between two hosts: two programs of this machine, on one device, that are one node.
//!
//! The other host is this program again, with [`OTHER`] in its environment. On the host device its gateway
//! sends and takes all tensors by slots, as it does with those of a GPU.

use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tensorpost::device::DeviceId;
use tensorpost::hosts::Hosts;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::{ask, deliver, until, until_allocations_of};

use crate::device;
use crate::graphs::{SLOW, Steps, elements_from, expected};

/// Has this program be the other host.
const OTHER: &str = "TENSORPOST_TEST_HOST";

/// The budget of each process on its devices: less than a test sends in one direction.
const BUDGET: u64 = 512 << 20;

/// "Give them back, and say where they were."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Echoed)]
struct Echo(Vec<Tensor>);

#[derive(Serialize, Deserialize)]
struct Echoed {
    tensors: Vec<Tensor>,
    were_on: Vec<DeviceId>,
    pid: u32,
}

/// "Send it on to this one."
#[derive(Serialize, Deserialize, GpuMessage)]
struct PassOn {
    to: Address<Check>,
    check: Check,
}

/// "Is this the result of a chain of this many steps over the numbers from this one on?"
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Check {
    number: u32,
    steps: u32,
    tensor: Tensor,
}

/// "How many were right, and which were wrong?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Verdict)]
struct Tell;

#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    count: u32,
    wrong: Vec<String>,
}

/// "Make this many tensors, each of this many elements by this many steps, and send them there while the
/// device makes them."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u32)]
struct Make {
    to: Address<Check>,
    messages: u32,
    elements: usize,
    steps: u32,
    cycles: u64,
}

struct Echoer;

#[actor]
impl Echoer {
    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Echoer)
    }

    #[handler]
    fn echo(&mut self, Echo(tensors): Echo) -> Echoed {
        let were_on = tensors.iter().map(Tensor::device).collect();
        Echoed { tensors, were_on, pid: std::process::id() }
    }

    #[handler]
    fn pass_on(&mut self, PassOn { to, check }: PassOn) -> ResponseFuture<()> {
        Box::pin(async move { to.send(check).await.expect("it is accepted") })
    }
}

struct Checker {
    env: Env,
    count: u32,
    wrong: Vec<String>,
    next: u32,
}

#[actor]
impl Checker {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Checker { env: env.clone(), count: 0, wrong: Vec::new(), next: 0 })
    }

    #[handler]
    fn check(&mut self, check: Check) {
        if let Err(error) = self.look_at(&check) {
            self.wrong.push(format!("message {}: {error:#}", check.number));
        }
        self.count += 1;
    }

    #[handler]
    fn tell(&mut self, _: Tell) -> Verdict {
        Verdict { count: self.count, wrong: std::mem::take(&mut self.wrong) }
    }

    fn look_at(&mut self, Check { number, steps, tensor }: &Check) -> anyhow::Result<()> {
        // A maker that replaces another begins again.
        anyhow::ensure!([0, self.next].contains(number), "where {} comes next", self.next);
        self.next = number + 1;
        let stream = self.env.stream();
        anyhow::ensure!(tensor.device() == stream.device_id(), "it is on {}", tensor.device());
        let found = stream.download::<u32>(tensor)?;
        let wanted = elements_from(found.len(), *number);
        let wrong = wanted.iter().zip(&found).filter(|(from, found)| expected(**from, *steps) != **found);
        match wrong.count() {
            0 => Ok(()),
            wrong => anyhow::bail!("{wrong} of {} elements are wrong", found.len()),
        }
    }
}

struct Maker {
    env: Env,
}

#[actor]
impl Maker {
    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Maker { env: env.clone() })
    }

    /// How many were not ready yet when they were sent.
    #[handler]
    fn make(&mut self, make: Make) -> ResponseFuture<u32> {
        let Make { to, messages, elements, steps, cycles } = make;
        let mut chain = Steps::new(&self.env.stream()).expect("kernels that compile");
        Box::pin(async move {
            let mut late = 0;
            for number in 0..messages {
                let input = chain.counted(elements, number).expect("room");
                let tensor = chain.chain(&input, steps, cycles).expect("room");
                late += u32::from(tensor.status() == TensorStatus::Pending);
                to.send(Check { number, steps, tensor }).await.expect("it is accepted");
            }
            late
        })
    }
}

/// The items of a pipeline, and the elements of each.
const ITEMS: u32 = 40;
const ELEMENTS: usize = 100_000;
/// The steps of its source, and of the stage behind it; each numbers its own from 0.
const MADE: u32 = 3;
const CHAINED: u32 = 2;

/// Returns the mistakes in the elements of an item over which these chains have gone, and the item to which
/// they belong instead.
fn differs(found: &[u32], number: u32, chains: &[u32]) -> Option<String> {
    let made = |number: u32, chains: &[u32]| -> Vec<u32> {
        let from = elements_from(ELEMENTS, number).into_iter();
        from.map(|element| chains.iter().fold(element, |value, steps| expected(value, *steps))).collect()
    };
    let wanted = made(number, chains);
    if found.len() != wanted.len() {
        return Some(format!("item {number} has {} elements instead of {}", found.len(), wanted.len()));
    }
    let wrong: Vec<usize> = (0..ELEMENTS).filter(|at| found[*at] != wanted[*at]).collect();
    let (first, last) = (*wrong.first()?, *wrong.last()?);
    // A wrong expectation is wrong for every element; wrong data seldom is.
    let what = |other: u32, chains: &[u32]| format!("of item {other} behind chains of {chains:?} steps");
    let one = chains.iter().sum::<u32>();
    let others =
        (0..ITEMS).flat_map(|other| (0..=chains.len()).map(move |so_far| (other, &chains[..so_far])));
    let mut of: Vec<_> = others
        .map(|(other, chains)| (what(other, chains), made(other, chains)))
        .chain([
            (what(number, &[one]), made(number, &[one])),
            ("of nobody: zeros".to_owned(), vec![0; ELEMENTS]),
        ])
        .map(|(what, made)| (wrong.iter().filter(|at| found[**at] == made[**at]).count(), what))
        .filter(|(as_there, _)| *as_there > 0)
        .collect();
    of.sort_unstable_by(|one, other| other.cmp(one));
    of.truncate(3);
    let some = first..(first + 4).min(ELEMENTS);
    Some(format!(
        "item {number} behind chains of {chains:?} steps: {} of {ELEMENTS} elements are wrong, from {first} to {last}, {:?} there instead \
         of {:?}; so many of them are those {of:?}",
        wrong.len(),
        &found[some.clone()],
        &wanted[some]
    ))
}

/// Tensors of the device that are sent while the device makes them.
struct Made {
    chain: Steps,
    numbers: std::ops::Range<u32>,
}

impl Source for Made {
    type Args = ();
    type Out = Check;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Made { chain: Steps::new(&env.stream())?, numbers: 0..ITEMS })
    }

    fn next(&mut self) -> anyhow::Result<Option<Check>> {
        let Some(number) = self.numbers.next() else { return Ok(None) };
        let input = self.chain.counted(ELEMENTS, number)?;
        Ok(Some(Check { number, steps: MADE, tensor: self.chain.chain(&input, MADE, SLOW)? }))
    }
}

/// Runs more steps on them, on its own device, in a worker of the program with this id.
struct Chained {
    env: Env,
    chain: Steps,
}

impl Stage for Chained {
    type Args = u32;
    type In = Check;
    type Out = Check;

    fn create(program: u32, env: &Env) -> anyhow::Result<Self> {
        let parent = std::os::unix::process::parent_id();
        anyhow::ensure!(parent == program, "it is a worker of {parent}, and not of {program}");
        Ok(Chained { env: env.clone(), chain: Steps::new(&env.stream())? })
    }

    fn process(
        &mut self,
        Check { number, steps, tensor }: Check,
        out: &mut Out<Check>,
    ) -> anyhow::Result<()> {
        let stream = self.env.stream();
        anyhow::ensure!(tensor.device() == stream.device_id(), "item {number} came on {}", tensor.device());
        let made = self.chain.chain(&tensor, CHAINED, SLOW)?;
        if number % 2 == 1 {
            // The items that came. The other items leave while the device is still at work.
            let wrong = differs(&stream.download::<u32>(&tensor)?, number, &[MADE]);
            anyhow::ensure!(
                wrong.is_none(),
                "what the source sent came wrong: {}",
                wrong.unwrap_or_default()
            );
        }
        out.emit(Check { number, steps: steps + CHAINED, tensor: made });
        Ok(())
    }
}

/// Checks that both chains have gone over each element.
struct LookedAt {
    env: Env,
}

impl Sink for LookedAt {
    type Args = ();
    type In = Check;

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(LookedAt { env: env.clone() })
    }

    fn consume(&mut self, Check { number, steps, tensor }: Check) -> anyhow::Result<()> {
        let stream = self.env.stream();
        anyhow::ensure!(
            tensor.device() == stream.device_id(),
            "item {number} came back on {}",
            tensor.device()
        );
        anyhow::ensure!(steps == MADE + CHAINED, "item {number} has gone through {steps} steps");
        let wrong = differs(&stream.download::<u32>(&tensor)?, number, &[MADE, CHAINED]);
        anyhow::ensure!(wrong.is_none(), "what the stage sent came wrong: {}", wrong.unwrap_or_default());
        Ok(())
    }
}

/// Becomes the other host, if this process was started as it: an agent with one actor of each kind, until its
/// standard input ends.
pub(crate) fn be_the_other() -> bool {
    if std::env::var_os(OTHER).is_none() {
        return false;
    }
    let hosts = Hosts::from_environment().expect("variables that make sense").expect("a head");
    let builder = Node::builder().gpu_budget(BUDGET).hosts(hosts.name("other").lanes(4));
    let node = builder.start().expect("it joins");
    let (device, _) = device();
    let echo = node.spawn::<Echoer>(()).device(device.clone()).name("echo").start().expect("an actor");
    let checker = node.spawn::<Checker>(()).device(device.clone()).name("checker").mailbox(2);
    let checker = checker.start().expect("an actor");
    let maker = node.spawn::<Maker>(()).device(device).name("maker").start().expect("an actor");
    let end = async {
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        drop(ended.await);
    };
    let report = node.run_until_ctrl_c_or(end, Duration::from_secs(20)).expect("it shuts down");
    drop((echo, checker, maker));
    std::process::exit(i32::from(!report.is_clean()));
}

/// The other host, as the tests see it. Dropping it kills the host.
struct Other {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Other {
    fn start(head: &Node) -> Self {
        let mut command = Command::new("/proc/self/exe");
        // Hosts compare their arguments.
        command.args(std::env::args_os().skip(1));
        command.env(OTHER, "1").env("TENSORPOST_HEAD", &head.hosts().expect("hosts")[0].address);
        if !device().1 {
            command.env("TENSORPOST_TESTING_STAGE_HOST", "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        let stdin = child.stdin.take();
        let hosts = head.await_hosts(2, Duration::from_secs(30)).expect("hosts");
        let other = Other { child, stdin };
        assert_eq!(hosts.len(), 2, "it did not join");
        other
    }

    /// Tells it to end, and waits until it has ended in order.
    fn end(mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A head and another host, and a stream of the device in the head's program.
fn two_hosts(builder: Builder) -> (Node, Other, DeviceStream) {
    let builder = builder.gpu_budget(BUDGET).hosts(Hosts::head("127.0.0.1:0").name("first").lanes(4));
    let node = builder.start().expect("a head");
    let other = Other::start(&node);
    let stream = node.stream(&device().0).expect("the device");
    (node, other, stream)
}

/// Returns an actor of the other host, once it is there.
fn find<M: GpuMessage>(node: &Node, name: &str) -> Address<M> {
    let mut found = None;
    until(&format!("`{name}` is there"), || {
        found = node.block_on(node.registry().lookup(name)).ok();
        found.is_some()
    });
    found.expect("it was seen")
}

/// Waits until nobody holds memory of the head's program on the device any more.
fn until_free(node: &Node, stream: &DeviceStream) {
    let transport = node.transport();
    until_allocations_of(stream.pool(), 0, || {
        transport.poll(&mut Default::default());
    });
}

/// Asks with tensors, and checks the ones that come back.
fn echoed(node: &Node, stream: &DeviceStream, echo: &Address<Echo>, tensors: Vec<Tensor>) {
    let (device, is_gpu) = device();
    let look = |tensors: &[Tensor]| -> Vec<_> {
        let all = tensors.iter();
        all.map(|t| (t.dtype(), t.shape().to_vec(), stream.download_bytes(t).expect("its bytes"))).collect()
    };
    let sent = look(&tensors);
    let Echoed { tensors: came, were_on, pid } = ask(node, echo, Echo(tensors));
    assert_ne!(pid, std::process::id());
    assert!(were_on.iter().all(|on| *on == device.id()), "they were on {were_on:?} there");
    for tensor in &came {
        assert_eq!(tensor.device() != DeviceId::HOST, is_gpu, "it came back on {}", tensor.device());
        // The memory is the gateway's, not this program's.
        assert_ne!(tensor.lease().owner(), stream.clocked().domain().own());
    }
    assert!(look(&came) == sent, "{:?}", sent.iter().map(|(_, shape, _)| shape).collect::<Vec<_>>());
}

fn numbers(stream: &DeviceStream, elements: usize, first: u32) -> Tensor {
    let numbers: Vec<u32> = (first..).take(elements).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    stream.from_slice(&[elements], &numbers).expect("room").freeze()
}

/// Tensors go both ways, in more bytes than any pool has; views and slices arrive as the elements that they
/// show.
fn tensors_of_the_device_go_there_and_back_to_the_bit(builder: Builder) {
    let (node, other, stream) = two_hosts(builder);
    let echo = find::<Echo>(&node, "echo");
    let large = if device().1 { 64 << 20 } else { 3 << 20 };
    for (round, bytes) in [4 << 10, 1 << 20, large].into_iter().cycle().take(30).enumerate() {
        echoed(&node, &stream, &echo, vec![numbers(&stream, bytes / 4, round as u32)]);
    }
    let whole = numbers(&stream, 700_001, 3);
    let matrix = numbers(&stream, 600, 5).view(&[20, 30]).expect("a matrix");
    let tensors = vec![
        whole.slice(0, 100..65_636).expect("some of it"),
        matrix.permute(&[1, 0]).expect("transposed"),
        matrix.slice(1, 3..9).expect("some columns"),
        whole.clone(),
        stream.zeros(DType::F64, &[0, 3]).expect("nothing").freeze(),
        stream.from_slice(&[], &[-1.5_f64]).expect("a number").freeze(),
        numbers(&stream, 1, 9).broadcast_to(&[4, 1]).expect("four times"),
    ];
    drop((whole, matrix));
    echoed(&node, &stream, &echo, tensors.clone());
    echoed(&node, &stream, &echo, tensors);
    until_free(&node, &stream);
    other.end();
}

/// To the other host and on from there, back to this one.
fn a_tensor_of_the_device_is_passed_on_from_host_to_host(builder: Builder) {
    let (node, other, stream) = two_hosts(builder);
    let checker = node.spawn::<Checker>(()).device(device().0).mailbox(2).start().expect("an actor");
    let pass_on = find::<PassOn>(&node, "echo");
    let mut chain = Steps::new(&stream).expect("kernels that compile");
    for number in 0..20 {
        let input = chain.counted(100_000, number).expect("room");
        let tensor = chain.chain(&input, 3, SLOW).expect("room");
        let check = Check { number, steps: 3, tensor };
        deliver(&node, &pass_on, PassOn { to: checker.address(), check });
    }
    until("all have come", || {
        let verdict = ask(&node, &checker.address(), Tell);
        assert_eq!(verdict.wrong, Vec::<String>::new());
        verdict.count == 20
    });
    until_free(&node, &stream);
    other.end();
}

/// CLOCK-1 between hosts: a tensor that is sent while the device makes it is right.
fn what_a_kernel_still_writes_leaves_when_it_is_there(builder: Builder) {
    let (node, other, _) = two_hosts(builder);
    let (elements, messages) = if device().1 { (4 << 20, 60) } else { (100_000, 20) };
    let here = node.spawn::<Checker>(()).device(device().0).mailbox(2).start().expect("an actor");
    let maker = node.spawn::<Maker>(()).device(device().0).start().expect("an actor");
    let (there, far_maker) = (find::<Check>(&node, "checker"), find::<Make>(&node, "maker"));
    let make = |to: &Address<Check>| Make { to: to.clone(), messages, elements, steps: 20, cycles: SLOW };
    let both =
        futures_util::future::join(maker.address().ask(make(&there)), far_maker.ask(make(&here.address())));
    let (late, far_late) = node.block_on(both);
    let (late, far_late) = (late.expect("it makes them"), far_late.expect("it makes them"));
    println!("{late} and {far_late} of {messages} were sent before they were there");
    assert!(late > 0 && far_late > 0, "the device was never at work when a message left");
    for checker in [here.address::<Tell>(), find::<Tell>(&node, "checker")] {
        until("all have come", || {
            let verdict = ask(&node, &checker, Tell);
            assert_eq!(verdict.wrong, Vec::<String>::new());
            verdict.count == messages
        });
    }
    other.end();
}

/// LEASE-4, DEATH-3, HOST-6: tensors that it had finished may arrive, and are right; the others do not
/// arrive.
fn a_sender_that_is_killed_while_its_tensors_are_copied_costs_its_own_messages(builder: Builder) {
    let (node, other, stream) = two_hosts(builder);
    let elements = if device().1 { 4 << 20 } else { 500_000 };
    let (checker, tell) = (find::<Check>(&node, "checker"), find::<Tell>(&node, "checker"));
    let echo = find::<Echo>(&node, "echo");
    for round in 1..=4 {
        let maker = node.spawn::<Maker>(()).device(device().0).start().expect("an actor");
        let before = ask(&node, &tell, Tell).count;
        let make = Make { to: checker.clone(), messages: 10_000, elements, steps: 8, cycles: SLOW };
        let mut making = maker.address::<Make>().ask(make);
        node.block_on(making.accepted()).expect("it is there");
        until("some have come", || ask(&node, &tell, Tell).count >= before + round);
        node.supervisor().kill_worker(maker.worker());
        assert!(node.block_on(making).is_err(), "it was killed");
        let verdict = ask(&node, &tell, Tell);
        assert_eq!(verdict.wrong, Vec::<String>::new());
        // The others' go on.
        echoed(&node, &stream, &echo, vec![numbers(&stream, 300_000, round)]);
    }
    // This comes behind the items of the last round that still arrived.
    let last = Check { number: 0, steps: 0, tensor: elements_as_tensor(&stream) };
    deliver(&node, &checker, last);
    assert_eq!(ask(&node, &tell, Tell).wrong, Vec::<String>::new());
    until_free(&node, &stream);
    other.end();
}

/// A stage is on a device that its host knows by this name, and gets tensors there; so does the sink behind
/// it, here.
fn a_stage_works_on_the_device_of_another_host(builder: Builder) {
    let (node, other, _) = two_hosts(builder);
    let hosts = node.hosts().expect("hosts");
    let name = std::env::var("TENSORPOST_DEVICE").unwrap_or_else(|_| "host".to_owned());
    let flow = Pipeline::new("there and back").source::<Made>(()).on(device().0);
    let flow = flow.stage::<Chained>(other.child.id()).on((&hosts[1], name.as_str()));
    let pipeline = flow.sink::<LookedAt>(()).on(device().0).pipeline();
    let running = node.run_pipeline(&pipeline).unwrap_or_else(|error| panic!("it does not start: {error}"));
    let report = running.wait().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.stage("LookedAt").expect("the sink").items_in, u64::from(ITEMS), "{report}");
    assert!(report.is_complete(), "{report}");
    other.end();
}

fn elements_as_tensor(stream: &DeviceStream) -> Tensor {
    stream.from_slice(&[1000], &elements_from(1000, 0)).expect("room").freeze()
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        tensors_of_the_device_go_there_and_back_to_the_bit,
        a_tensor_of_the_device_is_passed_on_from_host_to_host,
        what_a_kernel_still_writes_leaves_when_it_is_there,
        a_sender_that_is_killed_while_its_tensors_are_copied_costs_its_own_messages,
        a_stage_works_on_the_device_of_another_host,
    ]
}
