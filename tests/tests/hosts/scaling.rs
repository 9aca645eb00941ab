//! Stages on other hosts whose number of replicas changes, and spare processes on those hosts.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tensorpost::hosts::Anywhere;
use tensorpost::node::WorkerState;
use tensorpost::pipeline::StageLocation;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, Slow, WriteDown, WriteDownArgs, of, watched, written,
};
use tensorpost_tests::wait::{ask, until, until_ok};

use crate::actors::{Echo, Echoer};
use crate::{Other, head};

/// A stage whose result for each item is the number of its process.
struct Process;

impl Stage for Process {
    type Args = ();
    type In = Numbered;
    type Out = Numbered;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Process)
    }

    fn process(&mut self, _: Numbered, out: &mut Out<Numbered>) -> anyhow::Result<()> {
        out.emit(Numbered { number: std::process::id().into(), tensor: None });
        Ok(())
    }
}

fn all(count: u64) -> Vec<u64> {
    (0..count).collect()
}

/// Returns how many workers of the stage are on this host.
fn here(node: &Node) -> usize {
    let runs = |state: &WorkerState| matches!(state, WorkerState::Running | WorkerState::Starting);
    node.workers().iter().filter(|worker| worker.name.starts_with("Obey.") && runs(&worker.state)).count()
}

fn shut_down(node: &Node) {
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
}

/// Order and delivery are kept, as on one host; processes come and go where they belong.
fn replicas_on_other_hosts_come_and_go(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let (node, file) = (head(builder), |name: &str| folder.path().join(name));
    let other = Other::serving(&node);
    let there = StageLocation::from((&node.hosts().expect("hosts")[1], "host"));
    for (name, on, again) in [("there", there, false), ("anywhere", Anywhere.into(), true)] {
        let flow = Pipeline::new(name).source::<Count>(CountArgs { elements: 500, ..CountArgs::endless() });
        let orders = Orders { dawdles: true, ..Orders::default() };
        let flow = flow.stage::<Obey>(orders).on(on).replicas_up_to(4).ordered();
        let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(file(name))).pipeline();
        let (pipeline, seen) = watched(if again { pipeline.at_least_once(64) } else { pipeline });
        let running = node.run_pipeline(&pipeline).expect("it starts");
        for count in [3, 1, 4, 2] {
            running.scale("Obey", count).expect("it may have so many");
            until("so many are there", || of(&seen(), "Obey").0 == count);
            let before = of(&seen(), "WriteDown").1;
            until("items flow", || of(&seen(), "WriteDown").1 > before + 20);
            // Where replicas may be anywhere, some are on the other host, where nothing else runs. A replica
            // starts here where that host does not answer in time.
            let least = if again { usize::from(count > 2) } else { count as usize };
            until_ok("processes come and go", || {
                let (elsewhere, here) = (other.workers(), here(&node));
                let right = elsewhere.len() + here == count as usize && elsewhere.len() >= least;
                right.then_some(()).ok_or_else(|| {
                    format!("{name}, {count} wanted, {least} of them there: {elsewhere:?}, {here} here")
                })
            });
        }
        running.cancel();
        let report = running.wait().expect("it ends");
        let made = report.stage("Count").expect("the source").items_out;
        assert_eq!(written(file(name)), all(made), "{report}");
        let stage = report.stage("Obey").expect("the stage");
        assert_eq!((stage.replicas, stage.most_replicas), (2, 4), "{report}");
        assert_eq!((stage.items_in, stage.items_out, stage.resent), (made, made, 0), "{report}");
        assert!(report.deaths.is_empty() && report.is_complete(), "{report}");
        until("the workers have ended", || other.workers().is_empty() && here(&node) == 0);
    }
    shut_down(&node);
}

fn a_slow_stage_gets_replicas_on_its_host_by_itself(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let (node, file, fast) = (head(builder), folder.path().join("out"), folder.path().join("fast"));
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    let flow = Pipeline::new("by itself").source::<Count>(CountArgs::endless());
    // Two replicas are not enough for so many items, and one that is fast has time to spare, also on a
    // machine that does much else.
    let flow = flow.every(Duration::from_millis(4)).stage::<Slow>(fast.clone()).on(&hosts[1]);
    let end = flow.autoscale(1..=3).ordered().sink::<WriteDown>(WriteDownArgs::to(&file));
    let (pipeline, seen) = watched(end.pipeline());
    let running = node.run_pipeline(&pipeline).expect("it starts");
    until("it has all that it may have", || of(&seen(), "Slow").0 == 3);
    assert_eq!(other.workers().len(), 3, "{:?}", other.workers());
    std::fs::write(&fast, "").expect("a file");
    until("one is enough", || of(&seen(), "Slow").0 == 1 && other.workers().len() == 1);
    running.cancel();
    let report = running.wait().expect("it ends");
    assert_eq!(written(&file), all(report.stage("Count").expect("the source").items_out), "{report}");
    shut_down(&node);
}

/// Its process was there before the end.
fn who_dies_on_another_host_goes_on_in_a_spare_there(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let node = head(builder);
    let other = Other::serving(&node);
    let hosts = node.hosts().expect("hosts");
    // A spare has the name of its worker.
    let spare_of = |name: &str, pid: u64| {
        let mut spare = None;
        until("a spare waits", || {
            let all = other.processes().into_iter().filter(|(_, of)| of == name).map(|(pid, _)| pid as u64);
            spare = all.into_iter().find(|other| *other != pid);
            spare.is_some()
        });
        spare.expect("it was seen")
    };
    let kill = |pid: u64| {
        let pid = Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
    };
    let echo = node.spawn::<Echoer>(()).label("echo").on(&hosts[1]).restart(Restart::on_failure(3)).spares(1);
    let echo = echo.start().expect("an actor there");
    let works = u64::from(ask(&node, &echo.address(), Echo::empty()).pid);
    let spare = spare_of("echo", works);
    kill(works);
    until("it is back", || node.block_on(echo.address().ask(Echo::empty())).is_ok());
    assert_eq!(u64::from(ask(&node, &echo.address(), Echo::empty()).pid), spare);

    // A stage, and a replica of it that has come later.
    let file = folder.path().join("out");
    let flow = Pipeline::new("spare").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Process>(()).on(&hosts[1]).replicas_up_to(2);
    let flow = flow.restart(Restart::on_failure(3)).spares(1);
    let sink = WriteDownArgs { at_once: true, ..WriteDownArgs::to(&file) };
    let running = node.run_pipeline(&flow.sink::<WriteDown>(sink).pipeline()).expect("it starts");
    running.scale("Process", 2).expect("it may have two");
    let work = || -> Vec<u64> {
        let latest = written(&file).into_iter().rev().take(50);
        latest.collect::<BTreeSet<_>>().into_iter().collect()
    };
    for place in ["Process.0", "Process.1"] {
        until("two work", || work().len() == 2);
        let [one, two] = work()[..] else { panic!("{:?}", work()) };
        let names: HashMap<_, _> = other.processes().into_iter().collect();
        let dies = if names[&(one as i32)] == place { one } else { two };
        let spare = spare_of(place, dies);
        kill(dies);
        until("it goes on in its spare", || work().contains(&spare) && !work().contains(&dies));
    }
    running.cancel();
    let report = running.wait().expect("it ends");
    assert_eq!(report.deaths.len(), 2, "{report}");
    assert!(report.deaths.iter().all(|death| death.restarted), "{report}");
    until("the workers have ended", || !other.workers().iter().any(|name| name.starts_with("Process")));
    shut_down(&node);
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        replicas_on_other_hosts_come_and_go,
        a_slow_stage_gets_replicas_on_its_host_by_itself,
        who_dies_on_another_host_goes_on_in_a_spare_there,
    ]
}
