//! From a pipeline to actors: with backpressure, with the reply as a result, and with a name for each item
//! that a death took.

use tempfile::TempDir;
use tensorpost::pipeline::PipelineError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::{Door, Gate};
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, WriteDown, WriteDownArgs, written, written_sorted,
};
use tensorpost_tests::wait::block_on;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// An actor that is independent of pipelines: it writes its items down, and knows how to double.
struct Tally {
    args: TallyArgs,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct TallyArgs {
    file: std::path::PathBuf,
    /// A number at which it waits at a door.
    door: Option<(u64, Door)>,
    /// A number on which its process dies in its first life.
    dies_on: Option<u64>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct Double(u64);

impl Actor for Tally {
    type Context = Context<Self>;
}

impl RemoteActor for Tally {
    type Args = TallyArgs;

    fn create(mut args: TallyArgs, env: &Env) -> anyhow::Result<Self> {
        args.dies_on = args.dies_on.filter(|_| env.incarnation() == 0);
        Ok(Tally { args })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Numbered>().message::<Double>();
    }
}

impl Handler<Numbered> for Tally {
    type Result = ();

    fn handle(&mut self, item: Numbered, _: &mut Context<Self>) {
        if let Some((at, door)) = &self.args.door
            && *at == item.number
        {
            door.pass().expect("the gate is there");
        }
        if self.args.dies_on == Some(item.number) {
            std::process::abort();
        }
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.args.file);
        writeln!(file.expect("a file"), "{}", item.number).expect("room for a line");
    }
}

impl Handler<Double> for Tally {
    type Result = MessageResult<Double>;

    fn handle(&mut self, Double(number): Double, _: &mut Context<Self>) -> Self::Result {
        MessageResult(2 * number)
    }
}

/// Asks one actor for the double of an item, and sends the item to another too.
struct Consult(Address<Double>, Address<Numbered>);

impl Stage for Consult {
    type Args = (Address<Double>, Address<Numbered>);
    type In = Numbered;
    type Out = Numbered;

    fn create((double, note): Self::Args, _: &Env) -> anyhow::Result<Self> {
        Ok(Consult(double, note))
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        let plain = |number| Numbered { number, tensor: None };
        out.emit(plain(item.number));
        out.ask(&self.0, Double(item.number), move |double| [plain(double)]);
        out.send(&self.1, plain(item.number));
        out.emit(plain(item.number + 1000));
        Ok(())
    }
}

/// Blocks its thread until the program has answered, which would stand still in a worker.
struct Block(Address<Double>);

impl Sink for Block {
    type Args = Address<Double>;
    type In = Numbered;

    fn create(to: Address<Double>, _: &Env) -> anyhow::Result<Self> {
        Ok(Block(to))
    }

    fn consume(&mut self, item: Numbered) -> anyhow::Result<()> {
        block_on(self.0.ask(Double(item.number)))?;
        Ok(())
    }
}

/// The program's own mailbox is as good as an actor's; all items come, in order, and the report counts them.
fn a_flow_ends_in_a_channel_of_the_program(builder: Builder) {
    let node = builder.start().unwrap();
    let (address, mut arriving) = node.channel::<Numbered>().unwrap();
    let end = Pipeline::new("out").source::<Count>(CountArgs::to(500)).sink_to(&address).named("program");
    let running = node.run_pipeline(&end.pipeline()).unwrap();
    for number in 0..500 {
        let item = arriving.blocking_recv().unwrap();
        assert_eq!(item.number, number);
        assert_eq!(item.tensor.unwrap().to_vec::<u32>().unwrap()[0], number as u32);
    }
    let report = running.wait().unwrap();
    assert_eq!(report.stage("program").unwrap().items_in, 500, "{report}");
    assert!(report.is_complete(), "{report}");
}

/// A slow actor slows the source down: an endless source makes only as many items as fit into the mailboxes.
fn an_actor_that_is_slow_slows_the_source_down(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("tally");
    let args = TallyArgs { file: file.clone(), door: Some((0, gate.door())), ..TallyArgs::default() };
    let tally = node.spawn::<Tally>(args).mailbox(2).start().unwrap();
    let end = Pipeline::new("held").source::<Count>(CountArgs::endless()).sink_to(&tally.address());
    let running = node.run_pipeline(&end.pipeline()).unwrap();
    let held = gate.arrival();
    running.cancel();
    held.open();
    let report = running.wait().unwrap();
    let made = report.stage("Count").unwrap().items_out;
    // Room is in the actor's mailbox, the stage's, and in the hands of each.
    assert!((1..=2 + 8 + 4).contains(&made), "{report}");
    assert_eq!(written(&file), (0..made).collect::<Vec<_>>());
}

/// Results and replies keep their places among each other.
fn a_reply_becomes_a_result(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let files = ["tally", "out"].map(|name| folder.path().join(name));
    let tally = node.spawn::<Tally>(TallyArgs { file: files[0].clone(), ..TallyArgs::default() });
    let tally = tally.start().unwrap();
    let flow = Pipeline::new("ask").source::<Count>(CountArgs::to(100));
    let flow = flow.stage::<Consult>((tally.address(), tally.address()));
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&files[1]));
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    let expected: Vec<_> = (0..100).flat_map(|number| [number, 2 * number, number + 1000]).collect();
    assert_eq!(written(&files[1]), expected);
    assert_eq!(written(&files[0]), (0..100).collect::<Vec<_>>());
    assert_eq!(report.stage("Consult").unwrap().items_out, 300, "{report}");
}

/// The actor comes back. With at-most-once delivery the items that it had are named, and the rest arrives;
/// with at-least-once delivery all arrive.
fn what_an_actor_had_when_it_died_is_named_or_sent_again(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for again in [false, true] {
        let file = folder.path().join(format!("tally-{again}"));
        let args = TallyArgs { file: file.clone(), dies_on: Some(20), ..TallyArgs::default() };
        let tally = node.spawn::<Tally>(args).mailbox(4).restart(Restart::on_failure(3)).start().unwrap();
        let end = Pipeline::new("deadly").source::<Count>(CountArgs::to(100)).sink_to(&tally.address());
        let pipeline = end.pipeline();
        let pipeline = if again { pipeline.at_least_once(16) } else { pipeline };
        let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
        let mut arrived = written_sorted(&file);
        if again {
            arrived.dedup();
            assert_eq!((arrived, report.lost_count), ((0..100).collect(), 0), "{report}");
        } else {
            let named: Vec<_> = report.lost.iter().map(|lost| lost.id.number).collect();
            assert!(named.contains(&20) && report.lost_unexplained == 0, "{report}");
            // An item that it had just finished may be named too.
            let missing: Vec<_> = (0..100).filter(|number| !arrived.contains(number)).collect();
            assert!(missing.iter().all(|number| named.contains(number)), "{missing:?}: {report}");
        }
    }
}

/// Nobody takes items there any more: that is an error of the stage, and not a loss with each item.
fn an_actor_that_is_gone_for_good_fails_the_pipeline(builder: Builder) {
    let node = builder.start().unwrap();
    let (address, arriving) = node.channel::<Numbered>().unwrap();
    drop(arriving);
    let end = Pipeline::new("gone").source::<Count>(CountArgs::endless()).sink_to(&address).named("program");
    let error = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap_err();
    assert!(matches!(error, PipelineError::Failed { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("`program` failed on item #0") && text.contains("no such actor"), "{text}");
}

/// Without the refusal it would stand still: its thread is the one that would read the reply.
fn blocking_in_a_stage_is_refused_and_the_error_names_the_way(builder: Builder) {
    let node = builder.start().unwrap();
    let (address, _arriving) = node.channel::<Double>().unwrap();
    let end = Pipeline::new("blocks").source::<Count>(CountArgs::to(3)).sink::<Block>(address);
    let error = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("`Block` failed on item #0") && error.contains("out."), "{error}");
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_flow_ends_in_a_channel_of_the_program,
        an_actor_that_is_slow_slows_the_source_down,
        a_reply_becomes_a_result,
        what_an_actor_had_when_it_died_is_named_or_sent_again,
        an_actor_that_is_gone_for_good_fails_the_pipeline,
        blocking_in_a_stage_is_refused_and_the_error_names_the_way,
    ]
}
