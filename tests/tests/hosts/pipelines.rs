//! Pipelines with stages on another host.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use tempfile::TempDir;
use tensorpost::hosts::Anywhere;
use tensorpost::pipeline::{PipelineError, Report, StageLocation};
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, WriteDown, WriteDownArgs, watch, written, written_sorted,
};
use tensorpost_tests::wait::{ask, stop, until};
use tensorpost_tests::want::pid_of;

use crate::actors::{Echo, Echoer};
use crate::gateways::{Dies, gateway_of};
use crate::relay::{Relay, Weather};
use crate::{Other, address, head};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The pipeline is declared before the node starts, because it has a closure: the node's workers declare it
/// too.
fn parents(file: &Path) -> Pipeline {
    let flow = Pipeline::new("parents").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(20) });
    let parent = |mut item: Numbered| {
        item.number = rustix::process::getppid().map_or(0, |node| node.as_raw_nonzero().get()) as u64;
        Ok(item)
    };
    let flow = flow.map("parent", parent).on(StageLocation::HostNamed("other".to_owned()));
    flow.sink::<WriteDown>(WriteDownArgs::to(file)).pipeline()
}

fn run(node: &Node, pipeline: &Pipeline) -> Report {
    node.run_pipeline(pipeline).expect("it starts").wait().expect("it runs")
}

fn all(count: u64) -> Vec<u64> {
    (0..count).collect()
}

/// Items go there and back, and from one of the others to the other; the sink checks each element.
fn a_line_over_three_hosts_delivers_all_in_order(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let (file, parents_file) = (folder.path().join("out"), folder.path().join("parents"));
    // The hosts may join while the pipeline starts.
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
    // The node goes on, and nothing of the pipeline is left anywhere.
    until("the workers have ended", || other.workers().is_empty() && third.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
}

/// The next host joins only as another goes, so there are never more of them.
fn a_host_that_takes_the_place_of_another_is_found(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let file = folder.path().join("out");
    let mut first = Other::serving(&node);
    let started = || {
        let flow = Pipeline::new("second").source::<Count>(CountArgs { elements: 0, ..CountArgs::to(20) });
        let flow = flow.stage::<Obey>(Orders::default()).on(StageLocation::HostNumber(2));
        run(&node, &flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    };
    let seen = node.hosts().expect("hosts");
    assert_eq!(seen.len(), 2);
    // It serves by now, and so hears that it has to end.
    let echo = node.spawn::<Echoer>(()).on(&seen[1]).start().expect("an actor there");
    ask(&node, &echo.address(), Echo::empty());
    let (waits, waited) = channel();
    let mut second = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A pipeline that waits for a host makes this call.
            let supervisor = node.supervisor();
            let wait = |seen| supervisor.await_other_hosts(seen, Duration::from_secs(60)).expect("hosts");
            let alone = wait(seen);
            waits.send(alone.len()).expect("it is awaited");
            waits.send(wait(alone).len()).expect("it is awaited");
        });
        let pipeline = scope.spawn(started);
        first.terminate();
        first.ends();
        let next = || waited.recv_timeout(Duration::from_secs(20)).expect("it was told");
        assert_eq!(next(), 1, "the first has gone");
        let second = Other::serving(&node);
        assert_eq!(next(), 2, "the second has joined");
        let since = Instant::now();
        pipeline.join().expect("it was found");
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
        second
    });
    assert_eq!(written_sorted(&file), all(20));
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    second.ends();
}

/// On the host device, which every host has; `gpu_suite` tests GPUs.
fn a_stage_works_on_a_device_of_another_host(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let (other, file) = (Other::serving(&node), folder.path().join("out"));
    let hosts = node.hosts().expect("hosts");
    let flow = Pipeline::new("line").source::<Count>(CountArgs { elements: 5000, ..CountArgs::to(100) });
    let flow = flow.stage::<Obey>(Orders::default()).on((&hosts[1], "host"));
    let flow = flow.stage::<Obey>(Orders::default()).named("beside").beside().on((&hosts[1], "host"));
    let flow = flow.stage::<Obey>(Orders::default()).named("named");
    let flow = flow.on((StageLocation::HostNamed("other".to_owned()), "host"));
    let flow =
        flow.stage::<Obey>(Orders::default()).named("any").on((Anywhere, "host")).replicas(2).ordered();
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    let described = end.pipeline().describe().to_string();
    for on in ["host of host 1 `other`", "host of host `other`", "host of any host"] {
        assert!(described.contains(on), "no {on} in {described}");
    }
    let report = run(&node, &end.pipeline());
    assert_eq!(written(&file), all(100), "{report}");
    until("the workers have ended", || other.workers().is_empty());
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
    // The node ends before the other host, for which it would wait.
    drop(node);
}

/// The death is reported sooner than its last items come, because they are large.
fn what_a_stage_had_sent_before_it_died_comes_before_the_word_of_its_end(builder: Builder) {
    const SENT: u64 = 12;

    let (node, folder) = (head(builder), folder());
    let to = address(&node).parse().expect("an address");
    let (started, relay_at) = channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    // Each of the relay's reads takes this long, so tensors take longer than messages that go beside them.
    let slowing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let relay = Relay::start(to).await;
            started.send(relay.address).expect("somebody waits");
            relay.change(None, Weather::Slow(Duration::from_millis(5)));
            let _ = ended.await;
        });
    });
    let relay_at = relay_at.recv().expect("it starts");
    let mut other = Other::serving_at(&node, &relay_at.to_string());
    let mut third = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    // The items go to the head, within the host, to a third host, and from the head.
    for [dies_on, sink_on] in [[1, 0], [1, 1], [1, 2], [0, 1]] {
        let file = folder.path().join(format!("{dies_on} {sink_on}"));
        let counts = CountArgs { elements: 100_000, ..CountArgs::to(100) };
        let flow = Pipeline::new("dies").source::<Count>(counts).on(&hosts[dies_on]);
        let orders = Orders { dies: Some(SENT), ..Orders::default() };
        let flow = flow.stage::<Obey>(orders).on(&hosts[dies_on]);
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).mailbox(64).on(&hosts[sink_on]);
        let running = node.run_pipeline(&end.pipeline()).expect("it starts");
        let error = running.wait().expect_err("a stage has died for good");
        let PipelineError::Died { report, .. } = error else { panic!("{error}") };
        assert_eq!(written_sorted(&file), all(SENT), "from {dies_on} to {sink_on}: {report}");
        assert_eq!(report.lost_unexplained, 0, "{report}");
    }
    until("the workers have ended", || other.workers().is_empty() && third.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    [&mut other, &mut third].into_iter().for_each(Other::ends);
    drop(end);
    slowing.join().expect("it went well");
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
    // The node ends before the other host, for which it would wait.
    drop(node);
}

fn a_source_on_another_host_is_cancelled_and_killed(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    for kills in [false, true] {
        let file = folder.path().join(format!("{kills}"));
        let flow = Pipeline::new("endless").source::<Count>(CountArgs::endless()).on(&hosts[1]);
        // Two replicas are here and two there.
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
    // The node ends before the other host, for which it would wait.
    drop(node);
}

/// Items on their way are lost with a gateway, and named, or made again; and the run ends.
fn a_run_ends_whichever_gateway_dies_and_nothing_is_lost_in_silence(builder: Builder) {
    const ITEMS: u64 = 4_000;

    let (node, folder) = (head(builder), folder());
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    for (dies, again) in [(Dies::OF_AGENT, false), (Dies::OF_HEAD, true)] {
        let file = folder.path().join(format!("{again}"));
        let pipeline = Pipeline::new("line");
        let pipeline = if again { pipeline.at_least_once(64) } else { pipeline };
        let flow = pipeline.source::<Count>(CountArgs { elements: 0, ..CountArgs::to(ITEMS) });
        let flow = flow.stage::<Obey>(Orders::default()).on(&hosts[1]);
        let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
        let running = node.run_pipeline(&pipeline).expect("it starts");
        until("items come", || items("WriteDown") > 100);
        dies.kill(&node, &other);
        let report = match running.wait() {
            Ok(report) => report,
            Err(PipelineError::Incomplete { report }) if !again => *report,
            Err(error) => panic!("{error}"),
        };
        let mut came = written_sorted(&file);
        let with_doubles = came.len();
        came.dedup();
        // An item that is named as lost may have been handled. Only items that are made again may come twice.
        assert!(again || came.len() == with_doubles, "{} of {with_doubles}", came.len());
        assert!(came.len() as u64 + report.lost_count >= ITEMS, "{}: {report}", came.len());
        assert!(!again || report.is_complete() && came == all(ITEMS), "{report}");
    }
    until("the workers have ended", || other.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// The order to stop is lost with a gateway that stands still. It is sent again before the source is asked
/// again to run.
fn a_source_hears_that_it_is_cancelled_though_a_gateway_dies(builder: Builder) {
    let (node, folder) = (head(builder), folder());
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let file = folder.path().join("endless");
    let flow = Pipeline::new("endless").source::<Count>(CountArgs::endless()).on(&hosts[1]);
    let (pipeline, items) = watch(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    let running = node.run_pipeline(&pipeline).expect("it starts");
    until("items come", || items("WriteDown") > 100);
    stop(other.gateway().as_raw_pid().cast_unsigned());
    running.cancel();
    // No event tells when the order has been sent. If it is sent later, it goes to the next gateway.
    std::thread::sleep(Duration::from_millis(200));
    Dies::OF_AGENT.kill(&node, &other);
    let report = match running.wait() {
        Ok(report) => report,
        Err(PipelineError::Incomplete { report }) => *report,
        Err(error) => panic!("{error}"),
    };
    assert!(report.cancelled, "{report}");
    until("the workers have ended", || other.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
}

/// The last message of a run is lost with a gateway that stands still. It is sent again.
fn who_is_told_that_a_run_is_over_hears_it_though_a_gateway_dies(builder: Builder) {
    let (node, folder, gate) = (head(builder), folder(), Gate::new());
    let mut other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let files = ["there", "here"].map(|name| folder.path().join(name));
    let [there, here] = &files;
    let flow = Pipeline::new("both").source::<Count>(CountArgs::to(20)).named("there").on(&hosts[1]);
    let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(there)).named("of there").pipeline();
    let flow = pipeline.source::<Count>(CountArgs::to(20));
    let door = Some((WriteDownArgs::AT_ITS_END, gate.door()));
    let end = flow.sink::<WriteDown>(WriteDownArgs { door, ..WriteDownArgs::to(here) });
    let running = node.run_pipeline(&end.pipeline()).expect("it starts");
    let arrival = gate.arrival();
    until("all has come from there", || written_sorted(there) == all(20));
    // No event tells when that source has said that it is done. If it says so later, it is asked again.
    std::thread::sleep(Duration::from_millis(200));
    let gateway = gateway_of(&node);
    stop(gateway);
    arrival.open();
    let report = running.wait().expect("a report");
    assert!(report.is_complete() && files.iter().all(|file| written(file) == all(20)), "{report}");
    // On a busy machine the gateway may have been replaced by now, because it stands still.
    let _ = kill_process(pid_of(gateway).expect("a process"), Signal::KILL);
    until("the worker has ended", || other.workers().is_empty());
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
    other.ends();
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
        (stage().sink::<WriteDown>(sink()).beside().on(&hosts[0]), "leave `on` or `beside` out"),
        (stage().sink::<WriteDown>(sink()).beside().on("cuda:0"), "names a device of this one"),
    ];
    let device = |on: StageLocation| stage().on(on).sink::<WriteDown>(sink());
    let not_hosts = [
        StageLocation::from(("host", "host")),
        StageLocation::from((StageLocation::from((&hosts[1], "host")), "host")),
    ];
    let not_hosts = not_hosts.map(|on| (device(on), "the first has to be a host"));
    for (end, why) in refused.into_iter().chain(not_hosts) {
        let error = node.run_pipeline(&end.pipeline()).expect_err("it is refused");
        assert!(matches!(error, PipelineError::Graph { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // A pipeline that fails to start leaves nothing.
    let flow = Pipeline::new("fails").source::<Count>(CountArgs::to(1));
    let flow = flow.stage::<Obey>(Orders::default()).on(StageLocation::HostNumber(1));
    let gone = tensorpost::hosts::Host { number: 7, ..hosts[1].clone() };
    let end = flow.sink::<WriteDown>(sink()).on(&gone);
    let error = node.run_pipeline(&end.pipeline()).expect_err("there is no such host");
    assert!(error.to_string().contains("host 7 `other`"), "{error}");
    assert!(other.workers().is_empty());
    // Nor does one whose host lacks the device.
    let error = node.run_pipeline(&device(StageLocation::from((&hosts[1], "cuda:1000"))).pipeline());
    let error = error.expect_err("nobody has so many").to_string();
    assert!(error.contains("on host 1 `other`") && error.contains("`cuda:1000`"), "{error}");
    assert!(other.workers().is_empty());
    // Nor does one on a node that is alone.
    let alone = Node::builder().start().expect("a node");
    let error =
        alone.run_pipeline(&stage().sink::<WriteDown>(sink()).pipeline()).expect_err("it has one host");
    assert!(error.to_string().contains("Node::builder().hosts(..)"), "{error}");
    // The node ends before the other host, for which it would wait.
    drop(node);
}

/// With a policy and without one, no life of the stage can begin on a host that is lost. With at-least-once
/// delivery its other replicas go on.
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
    // The other host has half of the first stage's replicas, because that pipeline's source and sink are
    // here, and more of the second's.
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
        // No policy helps against that.
        let text = error.to_string();
        let helps = "; host 1 is not of the node any more, and `.restart(..)` begins nothing anew on another; with replicas";
        assert!(text.contains(helps) && text.contains("`.on(Anywhere).replicas(n)`"), "{text}");
        assert!(!text.contains("used up") && !text.contains("with `.restart(..)` it would"), "{text}");
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
        a_host_that_takes_the_place_of_another_is_found,
        a_stage_works_on_a_device_of_another_host,
        a_stage_comes_back_on_its_host,
        what_a_stage_had_sent_before_it_died_comes_before_the_word_of_its_end,
        restarts_that_are_used_up_on_another_host_are_counted,
        a_source_on_another_host_is_cancelled_and_killed,
        a_run_ends_whichever_gateway_dies_and_nothing_is_lost_in_silence,
        a_source_hears_that_it_is_cancelled_though_a_gateway_dies,
        who_is_told_that_a_run_is_over_hears_it_though_a_gateway_dies,
        what_cannot_be_on_another_host_is_refused,
        the_loss_of_a_host_ends_a_pipeline_with_its_name_or_costs_its_replicas,
    ];
    // The verdict on a host takes 15 s, on an idle machine.
    cases.into_iter().map(|case| case.within(harness::DEADLINE * 3)).collect()
}
