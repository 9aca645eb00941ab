//! A pipeline's reactions to errors and deaths, and the mistakes that it finds before it starts.

use tempfile::TempDir;
use tensorpost::node::Restart;
use tensorpost::pipeline::{ItemId, Mistake, PipelineError};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::{until, until_free};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn failing(fails: &[(u64, u32)]) -> Orders {
    Orders { fails: fails.iter().copied().collect(), ..Orders::default() }
}

fn without(count: u64, missing: &[u64]) -> Vec<u64> {
    (0..count).filter(|number| !missing.contains(number)).collect()
}

fn id(number: u64) -> ItemId {
    ItemId { source: 0, number }
}

/// A line whose stage follows orders.
fn line(orders: Orders, on_error: OnError, count: u64, file: &std::path::Path) -> Pipeline {
    let flow = Pipeline::new("line").source::<Count>(CountArgs::to(count));
    flow.stage::<Obey>(orders).on_error(on_error).sink::<WriteDown>(WriteDownArgs::to(file)).pipeline()
}

fn an_error_fails_the_pipeline_and_names_the_item(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("fails").source::<Count>(CountArgs::endless());
    let end = flow.stage::<Obey>(failing(&[(7, 1)])).sink::<WriteDown>(WriteDownArgs::to(&file));
    let error = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`Obey`") && text.contains("#7") && text.contains("told to fail on 7"), "{text}");
    let PipelineError::Failed { failure, report } = error else { panic!("{error}") };
    assert_eq!((failure.id, failure.attempts), (Some(id(7)), 1));
    assert_eq!(written(&file), without(7, &[]), "what had passed before was finished");
    assert_eq!(report.stage("WriteDown").unwrap().items_in, 7);
    until_free(&node);
}

fn skipped_items_are_named_and_the_rest_goes_on(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let pipeline = line(failing(&[(3, 1), (5, 1)]), OnError::Skip, 100, &file);
    let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
    assert_eq!(written(&file), without(100, &[3, 5]));
    let ids: Vec<_> = report.failures.iter().map(|failure| failure.id).collect();
    assert_eq!(ids, [Some(id(3)), Some(id(5))]);
    assert_eq!(report.stage("Obey").unwrap().skipped, 2);
}

fn a_skipped_item_leaves_no_hole_in_a_restored_order(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let orders = Orders { dawdles: true, ..failing(&[(0, 1), (31, 1), (32, 1)]) };
    let flow = Pipeline::new("skips").source::<Count>(CountArgs::to(400)).stage::<Obey>(orders);
    let flow = flow.replicas(2).ordered().on_error(OnError::Skip);
    node.run_pipeline(&flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline()).unwrap().wait().unwrap();
    assert_eq!(written(&file), without(400, &[0, 31, 32]));
}

fn a_retry_tries_the_item_again_so_often(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let orders = failing(&[(2, 2), (4, 1)]);
    let report = node.run_pipeline(&line(orders, OnError::Retry(2), 50, &file)).unwrap().wait().unwrap();
    assert_eq!(written(&file), without(50, &[]));
    assert_eq!(report.stage("Obey").unwrap().retries, 3);
    assert_eq!(report.failures, []);

    let orders = failing(&[(2, 3)]);
    let error = node.run_pipeline(&line(orders, OnError::Retry(2), 50, &file)).unwrap().wait().unwrap_err();
    let PipelineError::Failed { failure, .. } = error else { panic!("{error}") };
    assert_eq!((failure.id, failure.attempts), (Some(id(2)), 3));

    let other = folder.path().join("other");
    let orders = failing(&[(2, 3)]);
    let retry = OnError::RetryThenSkip(2);
    node.run_pipeline(&line(orders, retry, 50, &other)).unwrap().wait().unwrap();
    assert_eq!(written(&other), without(50, &[2]));
}

fn with_dead_letters(orders: Orders, on_error: OnError, good: &str, bad: &str) -> Pipeline {
    let flow = Pipeline::new("dead letters").source::<Count>(CountArgs::to(60));
    let (flow, dead) = flow.stage::<Obey>(orders).on_error(on_error).dead_letters();
    dead.map("why", |dead| {
        anyhow::ensure!(dead.why.contains("told to fail") && dead.stage == "Obey", "{dead:?}");
        Ok(dead.item)
    })
    .sink::<WriteDown>(WriteDownArgs::to(bad))
    .named("bad");
    flow.sink::<WriteDown>(WriteDownArgs::to(good)).pipeline()
}

fn dead_letters_go_to_whom_takes_them(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for (name, on_error, fails) in [("once", OnError::Fail, 1), ("retried", OnError::Retry(2), 3)] {
        let [good, bad] = ["good", "bad"].map(|end| folder.path().join(format!("{name} {end}")));
        let orders = failing(&[(8, fails), (9, fails)]);
        let pipeline =
            with_dead_letters(orders, on_error, &good.display().to_string(), &bad.display().to_string());
        let report = node.run_pipeline(&pipeline).unwrap().wait().unwrap();
        assert_eq!(written(good), without(60, &[8, 9]));
        assert_eq!(written(bad), [8, 9]);
        assert_eq!(report.stage("Obey").unwrap().dead_letters, 2);
    }
}

fn a_source_can_fail_and_go_on(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("source").source::<Count>(CountArgs { fails: vec![5], ..CountArgs::to(20) });
    let end = flow.on_error(OnError::Skip).sink::<WriteDown>(WriteDownArgs::to(&file));
    let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
    assert_eq!(written(&file), without(20, &[]));
    assert_eq!(report.failures.len(), 1);
}

/// The stage's process dies with some items in its hands; the report names them, and only them.
fn a_death_fails_the_pipeline_and_names_what_was_lost(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for panics in [false, true] {
        let file = folder.path().join(format!("out {panics}"));
        let orders = match panics {
            true => Orders { panics: Some(20), ..Orders::default() },
            false => Orders { dies: Some(20), ..Orders::default() },
        };
        let flow = Pipeline::new("dies").source::<Count>(CountArgs::endless());
        let end = flow.stage::<Obey>(orders).sink::<WriteDown>(WriteDownArgs::to(&file));
        let error = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap_err();
        let PipelineError::Died { stage, report, .. } = &error else { panic!("{error}") };
        assert_eq!(stage, "Obey");
        assert!(!panics || error.to_string().contains("panicked: told to panic on 20"), "{error}");
        assert!(report.lost.iter().any(|lost| lost.id == id(20) && lost.stage == "Obey"), "{report}");
        let made = report.stage("Count").unwrap().items_out.max(1 + report.lost.last().unwrap().id.number);
        let mut all = written(&file);
        assert_eq!(all, without(all.len() as u64, &[]), "what came out was in order");
        all.extend(report.lost.iter().map(|lost| lost.id.number));
        all.sort_unstable();
        all.dedup();
        // The source goes on until it is told. If the source was told late, more was lost than a report
        // names; the rest is counted.
        if report.lost.len() as u64 == report.lost_count {
            assert_eq!(all, without(made, &[]), "every item came out or is named: {report}");
        } else {
            assert!(report.lost_count > 1024, "{report}");
            assert_eq!(all, without(all.len() as u64, &[]), "the first that were lost are named: {report}");
        }
        assert!(error.to_string().contains("lost"), "{error}");
    }
}

/// A replica dies; the others do its work, and nothing is lost.
fn at_least_once_sends_again_what_a_dead_replica_had(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let (file, mark) = (folder.path().join("out"), folder.path().join("mark"));
    let flow = Pipeline::new("again").source::<Count>(CountArgs::to(500)).stage::<Obey>(Orders::default());
    let sink = WriteDownArgs { dies_once: Some((100, mark)), at_once: true, ..WriteDownArgs::to(&file) };
    let end = flow.sink::<WriteDown>(sink).replicas(2);
    let report = node.run_pipeline(&end.pipeline().at_least_once(64)).unwrap().wait().unwrap();
    assert_eq!((report.deaths.len(), report.lost_count), (1, 0), "{report}");
    assert!(report.stage("Obey").unwrap().resent >= 1, "{report}");
    assert_eq!(distinct(&file), without(500, &[]));
}

fn distinct(file: &std::path::Path) -> Vec<u64> {
    let mut numbers = written_sorted(file);
    numbers.dedup();
    numbers
}

/// DEATH-2: it comes back and goes on with new items; the items that it had are named.
fn a_stage_that_is_restarted_goes_on_and_its_losses_are_named(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for replicas in [1, 3] {
        let [file, mark] = ["out", "mark"].map(|name| folder.path().join(format!("{name} {replicas}")));
        let orders = Orders { dies_once: Some((50, mark)), ..Orders::default() };
        let flow = Pipeline::new("restarts").source::<Count>(CountArgs::to(400)).stage::<Obey>(orders);
        let flow = flow.replicas(replicas).ordered().restart(Restart::on_failure(2));
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let report = node.run_pipeline(&end.pipeline()).unwrap().wait().unwrap();
        assert!(
            matches!(&report.deaths[..], [death] if death.restarted && death.stage == "Obey"),
            "{report}"
        );
        let lost: Vec<_> = report.lost.iter().map(|lost| lost.id.number).collect();
        assert!(lost.contains(&50), "{report}");
        assert_eq!(distinct(&file), without(400, &lost));
        assert!(written(&file).is_sorted(), "{:?}", written(&file));
    }
}

fn at_least_once_with_restarts_loses_nothing(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let [file, mark, other] = ["out", "mark", "other"].map(|name| folder.path().join(name));
    let orders = Orders { dies_once: Some((50, mark)), ..Orders::default() };
    let flow = Pipeline::new("both").source::<Count>(CountArgs::to(300)).stage::<Obey>(orders);
    let flow = flow.restart(Restart::on_failure(2));
    let sink = WriteDownArgs { dies_once: Some((299, other)), at_once: true, ..WriteDownArgs::to(&file) };
    let end = flow.sink::<WriteDown>(sink).restart(Restart::on_failure(2));
    let report = node.run_pipeline(&end.pipeline().at_least_once(32)).unwrap().wait().unwrap();
    assert_eq!((report.deaths.len(), report.lost_count), (2, 0), "{report}");
    assert_eq!(distinct(&file), without(300, &[]));
}

fn restarts_that_are_used_up_fail_the_pipeline(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let orders = Orders { dies: Some(5), ..Orders::default() };
    let flow = Pipeline::new("used up").source::<Count>(CountArgs::endless()).stage::<Obey>(orders);
    let flow = flow.restart(Restart::on_failure(1));
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    // The item that kills is sent again, and kills again.
    let error = node.run_pipeline(&end.pipeline().at_least_once(8)).unwrap().wait().unwrap_err();
    let PipelineError::Died { stage, report, .. } = &error else { panic!("{error}") };
    assert_eq!((stage.as_str(), report.deaths.len()), ("Obey", 2), "{report}");
    assert!(report.lost.iter().any(|lost| lost.id == id(5)), "{report}");
}

/// Each panic is one death, as with the end of a process; the last one too.
fn panics_that_use_restarts_up_are_counted_once_each(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for beside in [false, true] {
        let orders = Orders { panics: Some(5), ..Orders::default() };
        let flow = Pipeline::new("used up").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(orders).restart(Restart::on_failure(2));
        // Another actor shares the process, which goes on then.
        let sink = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
        let end = if beside { sink.beside() } else { sink };
        let error = node.run_pipeline(&end.pipeline().at_least_once(8)).unwrap().wait().unwrap_err();
        let PipelineError::Died { stage, report, .. } = &error else { panic!("{error}") };
        let restarted: Vec<_> = report.deaths.iter().map(|death| death.restarted).collect();
        assert_eq!((stage.as_str(), restarted), ("Obey", vec![true, true, false]), "{report}");
        for death in &report.deaths {
            assert!(death.why.contains("told to panic on 5"), "{report}");
        }
    }
}

/// An item counts as under way until the sink is done with it, however many stages are in between.
fn at_least_once_bounds_what_is_not_acknowledged(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let file = folder.path().join("out");
    let flow = Pipeline::new("bound").source::<Count>(CountArgs::to(100)).stage::<Obey>(Orders::default());
    let sink = WriteDownArgs { door: Some((0, gate.door())), ..WriteDownArgs::to(&file) };
    let end = flow.sink::<WriteDown>(sink);
    let (pipeline, items) = watch(end.pipeline().at_least_once(5));
    let running = node.run_pipeline(&pipeline).unwrap();
    let held = gate.arrival();
    until("the source is held up", || (items("Count"), items("Obey")) == (5, 5));
    held.open();
    let report = running.wait().unwrap();
    assert_eq!(written(&file), without(100, &[]));
    assert_eq!(report.lost_count, 0);
}

/// A stage that cannot be made.
struct Refuse<T>(std::marker::PhantomData<T>);
/// A type parameter for it.
struct Once;

impl<T: 'static> Stage for Refuse<T> {
    type Args = ();
    type In = Numbered;
    type Out = Numbered;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        anyhow::bail!("it does not want to")
    }

    fn process(&mut self, item: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        out.emit(item);
        Ok(())
    }
}

fn what_does_not_start_is_called_by_its_stage(builder: Builder) {
    fn start<T: 'static>(node: &Node) -> String {
        let flow = Pipeline::new("refused").source::<Count>(CountArgs::to(1));
        let end = flow.stage::<Refuse<T>>(()).named("picky").sink::<WriteDown>(WriteDownArgs::default());
        node.run_pipeline(&end.pipeline()).unwrap_err().to_string()
    }
    let node = builder.start().unwrap();
    let refused = start::<Once>(&node);
    assert!(refused.contains("stage `picky`") && refused.contains("`Refuse`"), "{refused}");
    assert!(refused.contains("it does not want to") && !refused.contains("::"), "{refused}");
}

fn mistakes(pipeline: &Pipeline) -> Vec<Mistake> {
    match pipeline.check() {
        Err(PipelineError::Graph { mistakes, .. }) => mistakes,
        other => panic!("{other:?}"),
    }
}

/// This case starts no node at all.
fn mistakes_are_found_before_a_process_starts(_: Builder) {
    let empty = Pipeline::new("empty");
    assert!(matches!(mistakes(&empty)[..], [Mistake::NoSource]));
    assert!(matches!(empty.start(), Err(PipelineError::Graph { .. })));

    let open = Pipeline::new("open");
    let flow = open.source::<Count>(CountArgs::to(1)).stage::<Obey>(Orders::default());
    assert!(matches!(&mistakes(&open)[..], [Mistake::Unconnected { stage, .. }] if stage == "Obey"));
    let (left, _right) = flow.split(|item: &Numbered| item.number > 1);
    left.sink::<WriteDown>(WriteDownArgs::default());
    let [Mistake::Unconnected { what, .. }] = &mistakes(&open)[..] else { panic!("{:?}", mistakes(&open)) };
    assert!(what.contains("branch 1"), "{what}");

    let wrong = Pipeline::new("wrong");
    let flow = wrong.source::<Count>(CountArgs::to(1)).named("same").on("cuda:4095");
    let flow = flow.stage::<Obey>(Orders::default()).named("same").replicas(0);
    flow.sink::<WriteDown>(WriteDownArgs::default()).mailbox(0).replicas(2).to_all().ordered();
    let found = mistakes(&wrong);
    let named = |what: fn(&Mistake) -> bool| found.iter().filter(|mistake| what(mistake)).count();
    assert_eq!(named(|mistake| matches!(mistake, Mistake::DuplicateName { .. })), 1, "{found:?}");
    assert_eq!(named(|mistake| matches!(mistake, Mistake::Device { .. })), 1, "{found:?}");
    assert_eq!(named(|mistake| matches!(mistake, Mistake::OutOfRange { .. })), 2, "{found:?}");
    assert_eq!(named(|mistake| matches!(mistake, Mistake::Conflict { .. })), 1, "{found:?}");
    let text = wrong.check().unwrap_err().to_string();
    for name in ["`same`", "cuda:4095", "replicas = 0", "mailbox = 0", "`WriteDown`"] {
        assert!(text.contains(name), "{text}");
    }

    let loops = Pipeline::new("unbounded");
    let flow = loops.source::<Count>(CountArgs::to(1));
    let flow = flow.iterate(0, |flow| flow.stage::<Obey>(Orders::default()), |_| false);
    flow.sink::<WriteDown>(WriteDownArgs::default());
    assert!(matches!(&mistakes(&loops)[..], [Mistake::OutOfRange { what: "bound", .. }]));
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        an_error_fails_the_pipeline_and_names_the_item,
        skipped_items_are_named_and_the_rest_goes_on,
        a_skipped_item_leaves_no_hole_in_a_restored_order,
        a_retry_tries_the_item_again_so_often,
        dead_letters_go_to_whom_takes_them,
        a_source_can_fail_and_go_on,
        a_death_fails_the_pipeline_and_names_what_was_lost,
        at_least_once_sends_again_what_a_dead_replica_had,
        a_stage_that_is_restarted_goes_on_and_its_losses_are_named,
        at_least_once_with_restarts_loses_nothing,
        restarts_that_are_used_up_fail_the_pipeline,
        panics_that_use_restarts_up_are_counted_once_each,
        at_least_once_bounds_what_is_not_acknowledged,
        what_does_not_start_is_called_by_its_stage,
        mistakes_are_found_before_a_process_starts,
    ]
}
