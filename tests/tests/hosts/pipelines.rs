//! Pipelines with stages on another host.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tensorpost::hosts::Anywhere;
use tensorpost::pipeline::{On, PipelineError, Report};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::until;

use crate::{Other, head};

pub(crate) fn program(builder: Builder) -> Builder {
    let builder = builder.source::<Count>().stage::<Obey>().sink::<WriteDown>();
    builder.pipeline(&parents(Path::new("")))
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Written down before the node starts, because it has a closure: its workers write it down too.
fn parents(file: &Path) -> Pipeline {
    let flow = Pipeline::new("parents").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(20) });
    let parent = |mut item: Numbered| {
        item.number = rustix::process::getppid().map_or(0, |node| node.as_raw_nonzero().get()) as u64;
        Ok(item)
    };
    let flow = flow.map("parent", parent).on(On::HostNamed("other".to_owned()));
    flow.sink::<WriteDown>(WriteDownArgs::to(file)).pipeline()
}

fn run(node: &Node, pipeline: &Pipeline) -> Report {
    node.run_pipeline(pipeline).expect("it starts").wait().expect("it runs")
}

fn all(count: u64) -> Vec<u64> {
    (0..count).collect()
}

/// There and back, and from one of the others to the other; the sink checks each element of what comes.
fn a_line_over_three_hosts_delivers_all_in_order(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let (file, parents_file) = (folder.path().join("out"), folder.path().join("parents"));
    // They may join while it starts.
    let (pipeline, other) = (parents(&parents_file), Other::serving(&node));
    run(&node, &pipeline);
    assert_eq!(written(&parents_file), vec![u64::from(other.id()); 20], "it ran on the other host");

    let third = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let flow = Pipeline::new("line").source::<Count>(CountArgs { elements: 5000, ..CountArgs::to(300) });
    let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).named("there");
    let flow = flow.on(&hosts[1]).replicas(3).ordered().mailbox(1);
    let flow = flow.stage::<Obey>(Orders::default()).named("farther").on(&hosts[2]);
    let flow = flow.stage::<Obey>(Orders::default()).named("with it").beside();
    let flow = flow.stage::<Obey>(Orders { dawdles: true, ..Orders::default() }).named("back").replicas(2);
    let end = flow.ordered().sink::<WriteDown>(WriteDownArgs::to(&file)).on(&hosts[0]);
    let described = end.pipeline().describe().to_string();
    assert!(
        described.contains("on host 1 `other`") && described.contains("on host 2 `other`"),
        "{described}"
    );
    let report = run(&node, &end.pipeline());
    assert_eq!(written(&file), all(300), "{report}");
    assert!(report.is_complete(), "{report}");
    for stage in ["there", "farther", "with it", "back"] {
        let stage = report.stage(stage).expect("a stage");
        assert_eq!((stage.items_in, stage.items_out, stage.errors), (300, 300, 0), "{report}");
    }
    // The node goes on, and nothing of it is left anywhere.
    until("the workers have ended", || other.workers().is_empty() && third.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
}

fn a_stage_comes_back_on_its_host(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    for again in [false, true] {
        let file = folder.path().join(format!("{again}"));
        let died = folder.path().join(format!("{again} died"));
        let flow = Pipeline::new("dies").source::<Count>(CountArgs::to(200));
        let orders = Orders { dies_once: Some((50, died.clone())), ..Orders::default() };
        let flow = flow.stage::<Obey>(orders).on(&hosts[1]).restart(Restart::on_failure(1));
        let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline();
        let pipeline = if again { pipeline.at_least_once(16) } else { pipeline };
        let report = run(&node, &pipeline);
        assert!(died.exists());
        let [death] = &report.deaths[..] else { panic!("{report}") };
        assert!(death.restarted && death.stage == "Obey" && death.why.contains("host 1 `other`"), "{report}");
        let mut all_there = written_sorted(&file);
        if !again {
            assert!(report.lost_count > 0, "{report}");
            all_there.extend(report.lost.iter().map(|lost| lost.id.number));
        }
        all_there.sort_unstable();
        all_there.dedup();
        assert_eq!((all_there, report.lost_unexplained), (all(200), 0), "{report}");
    }
    until("the workers have ended", || other.workers().is_empty());
}

/// As on one host: each end is one death, and only the last is final.
fn restarts_that_are_used_up_on_another_host_are_counted(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let _other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let orders = Orders { dies: Some(5), ..Orders::default() };
    // The next life is asked before it dies.
    let policy = Restart::on_failure(1).backoff(Duration::from_millis(500), Duration::from_millis(500));
    let flow = Pipeline::new("used up").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(orders).on(&hosts[1]).restart(policy);
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    let running = node.run_pipeline(&end.pipeline().at_least_once(8)).expect("it starts");
    let error = running.wait().expect_err("its restarts are used up");
    let PipelineError::Died { stage, why, report, .. } = error else { panic!("{error}") };
    assert!(stage == "Obey" && why.contains("host 1 `other`"), "{why}");
    let restarted: Vec<_> = report.deaths.iter().map(|death| death.restarted).collect();
    assert_eq!(restarted, [true, false], "{report}");
    assert!(report.deaths.iter().all(|death| death.why.contains("host 1 `other`")), "{report}");
}

fn a_source_on_another_host_is_cancelled_and_killed(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    for kills in [false, true] {
        let file = folder.path().join(format!("{kills}"));
        let flow = Pipeline::new("endless").source::<Count>(CountArgs::endless()).on(&hosts[1]);
        // Two here and two there.
        let flow = flow.stage::<Obey>(Orders::default()).on(Anywhere).replicas(3);
        let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
        let running = node.run_pipeline(&pipeline).expect("it starts");
        until("items come", || items("WriteDown") > 100);
        assert_eq!(other.workers().len(), 2, "{:?}", other.workers());
        if kills {
            running.kill();
            let error = running.wait().expect_err("it was killed");
            assert!(matches!(error, PipelineError::Killed { .. }), "{error}");
        } else {
            running.cancel();
            let report = running.wait().expect("a report");
            assert!(report.cancelled && report.is_complete(), "{report}");
            let count = report.stage("WriteDown").expect("a stage").items_in;
            assert_eq!(written_sorted(&file), all(count));
        }
        until("the workers have ended", || other.workers().is_empty());
    }
}

fn what_cannot_be_on_another_host_is_refused(builder: Builder) {
    let node = head(builder);
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let stage = || {
        let flow = Pipeline::new("refused").source::<Count>(CountArgs::to(1));
        flow.stage::<Obey>(Orders::default()).on(&hosts[1])
    };
    let sink = || WriteDownArgs::to("");
    let refused = [
        (stage().replicas_up_to(3).sink::<WriteDown>(sink()), "say it with `replicas(..)`"),
        (stage().autoscale(1..=3).sink::<WriteDown>(sink()), "say it with `replicas(..)`"),
        (stage().restart(Restart::on_failure(1)).spares(1).sink::<WriteDown>(sink()), "leave `spares` out"),
        (stage().sink::<WriteDown>(sink()).beside().on(&hosts[0]), "leave `on` or `beside` out"),
        (stage().sink::<WriteDown>(sink()).beside().on("cuda:0"), "whose GPUs cannot be named here"),
    ];
    for (end, why) in refused {
        let error = node.run_pipeline(&end.pipeline()).expect_err("it is refused");
        assert!(matches!(error, PipelineError::Graph { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // One that fails to start leaves nothing.
    let flow = Pipeline::new("fails").source::<Count>(CountArgs::to(1));
    let flow = flow.stage::<Obey>(Orders::default()).on(On::HostNumber(1));
    let gone = tensorpost::hosts::Host { number: 7, ..hosts[1].clone() };
    let end = flow.sink::<WriteDown>(sink()).on(&gone);
    let error = node.run_pipeline(&end.pipeline()).expect_err("there is no such host");
    assert!(error.to_string().contains("host 7 `other`"), "{error}");
    assert!(other.workers().is_empty());
    // And on a node that is alone.
    let alone = crate::program(Node::builder()).start().expect("a node");
    let error =
        alone.run_pipeline(&stage().sink::<WriteDown>(sink()).pipeline()).expect_err("it has one host");
    assert!(error.to_string().contains("Node::builder().hosts(..)"), "{error}");
}

/// With a policy and without one: no life of the stage can begin on a host that is lost. At least once, its other replicas go on.
fn the_loss_of_a_host_ends_a_pipeline_with_its_name_or_costs_its_replicas(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let goes_on = [Restart::never(), Restart::on_failure(5)].map(|policy| {
        let flow = Pipeline::new("again").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(Orders::default()).on(Anywhere).replicas(4).restart(policy);
        let file = folder.path().join(format!("again {}", policy == Restart::never()));
        let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
        let running = node.run_pipeline(&pipeline.at_least_once(16)).expect("it starts");
        until("items come", || items("WriteDown") > 10);
        (running, items, file)
    });
    // Of the first, whose source and sink are here, half; of the second more.
    assert_eq!(other.workers().len(), 2 + 3);
    let running = [Restart::never(), Restart::on_failure(5)].map(|policy| {
        let flow = Pipeline::new("lost").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(Orders::default()).on(&hosts[1]).restart(policy);
        let file = folder.path().join(format!("{}", policy == Restart::never()));
        let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(file)).pipeline());
        let running = node.run_pipeline(&pipeline).expect("it starts");
        until("items come", || items("WriteDown") > 10);
        running
    });
    other.kill();
    for running in running {
        let error = running.wait().expect_err("its host is lost");
        let PipelineError::Died { stage, why, report, .. } = error else { panic!("{error}") };
        assert!(stage == "Obey" && why.contains("host 1 `other`"), "{why}");
        assert!(report.stage("WriteDown").expect("a stage").items_in > 10, "{report}");
        assert!(matches!(&report.deaths[..], [death] if !death.restarted), "{report}");
    }
    for (running, items, file) in goes_on {
        let before = items("WriteDown");
        until("it goes on", || items("WriteDown") > before + 100);
        running.cancel();
        let report = running.wait().expect("the other replicas are there");
        assert!(report.deaths.iter().all(|death| death.why.contains("host 1 `other`")), "{report}");
        assert!(report.deaths.iter().all(|death| !death.restarted), "{report}");
        assert!((2..=3).contains(&report.deaths.len()) && report.is_complete(), "each once: {report}");
        let mut distinct = written_sorted(&file);
        distinct.dedup();
        assert_eq!(distinct, all(report.stage("Count").expect("the source").items_out), "{report}");
    }
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
}

pub(crate) fn cases() -> Vec<Case> {
    let cases = cases![
        a_line_over_three_hosts_delivers_all_in_order,
        a_stage_comes_back_on_its_host,
        restarts_that_are_used_up_on_another_host_are_counted,
        a_source_on_another_host_is_cancelled_and_killed,
        what_cannot_be_on_another_host_is_refused,
        the_loss_of_a_host_ends_a_pipeline_with_its_name_or_costs_its_replicas,
    ];
    // The verdict on a host takes 15 s, on an idle machine.
    cases.into_iter().map(|case| case.within(harness::DEADLINE * 3)).collect()
}
