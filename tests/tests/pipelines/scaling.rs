//! Replicas that come and go while items flow: no item is lost or doubled by that, and an order that is kept
//! stays kept.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tensorpost::node::{Node, WorkerState};
use tensorpost::pipeline::{Mistake, PipelineError};
use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost_tests::cases;
use tensorpost_tests::gate::Gate;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::pipes::{
    Count, CountArgs, Numbered, Obey, Orders, Slow, WriteDown, WriteDownArgs, of, watched, written,
    written_sorted,
};
use tensorpost_tests::wait::{has_stopped, until};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn all(count: u64) -> Vec<u64> {
    (0..count).collect()
}

fn dawdling() -> Orders {
    Orders { dawdles: true, ..Orders::default() }
}

/// Returns how many workers a stage has.
fn workers(node: &Node, stage: &str) -> usize {
    let of_stage = |name: &str| name.split_once('.').is_some_and(|(before, _)| before == stage);
    let runs = |state: &WorkerState| matches!(state, WorkerState::Running | WorkerState::Starting);
    node.workers().iter().filter(|worker| of_stage(&worker.name) && runs(&worker.state)).count()
}

/// Kills the worker of this name.
fn kill(node: &Node, name: &str) {
    let mut all = node.workers().into_iter();
    let worker = all.find(|worker| worker.name == name && worker.state == WorkerState::Running);
    node.supervisor().kill_worker(worker.unwrap().worker);
}

fn up_and_down_and_down_to_one_loses_doubles_and_swaps_nothing(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for again in [None, Some(64)] {
        let file = folder.path().join(format!("{again:?}"));
        let flow = Pipeline::new("up and down").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(dawdling()).replicas(2).replicas_up_to(4).ordered();
        let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline();
        let pipeline = again.into_iter().fold(pipeline, Pipeline::at_least_once);
        let (pipeline, seen) = watched(pipeline);
        let running = node.run_pipeline(&pipeline).unwrap();
        until("it begins with two", || of(&seen(), "Obey").0 == 2);
        assert_eq!(workers(&node, "Obey"), 2, "a place without a replica has no process");
        for count in [4, 1, 3, 2, 1, 4, 3] {
            running.scale("Obey", count).unwrap();
            until("so many are there", || of(&seen(), "Obey").0 == count);
            let before = of(&seen(), "WriteDown").1;
            until("items flow", || of(&seen(), "WriteDown").1 > before + 20);
            until("processes come and go", || workers(&node, "Obey") == count as usize);
        }
        running.cancel();
        let report = running.wait().unwrap();
        let made = report.stage("Count").unwrap().items_out;
        assert_eq!(written(&file), all(made), "{report}");
        let stage = report.stage("Obey").unwrap();
        assert_eq!((stage.replicas, stage.most_replicas, stage.at_least), (3, 4, false), "{report}");
        assert_eq!((stage.items_in, stage.items_out, stage.resent), (made, made, 0), "{report}");
        assert!(report.to_string().contains("3 of 4"), "{report}");
        assert!(report.deaths.is_empty() && report.is_complete(), "{report}");
    }
}

/// A stage that grows while the one before it shrinks, and the other way round; the sinks change too.
fn stages_behind_each_other_change_at_the_same_time(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for ordered in [true, false] {
        let file = folder.path().join(ordered.to_string());
        let flow = Pipeline::new("two").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(dawdling()).named("one").replicas_up_to(3);
        let flow = if ordered { flow.ordered() } else { flow };
        let flow = flow.stage::<Obey>(dawdling()).named("two").replicas(3).replicas_up_to(3);
        let flow = if ordered { flow.ordered() } else { flow };
        let flow = flow.sink::<WriteDown>(WriteDownArgs { at_once: true, ..WriteDownArgs::to(&file) });
        let (pipeline, seen) = watched(if ordered { flow } else { flow.replicas_up_to(2) }.pipeline());
        let running = node.run_pipeline(&pipeline).unwrap();
        for (one, two, sinks) in [(3, 1, 2), (1, 3, 1), (2, 2, 2), (3, 1, 1)] {
            running.scale("one", one).unwrap();
            running.scale("two", two).unwrap();
            if !ordered {
                running.scale("WriteDown", sinks).unwrap();
            }
            until("so many are there", || {
                let seen = seen();
                of(&seen, "one").0 == one && of(&seen, "two").0 == two
            });
            let before = of(&seen(), "WriteDown").1;
            until("items flow", || of(&seen(), "WriteDown").1 > before + 20);
        }
        running.cancel();
        let report = running.wait().unwrap();
        let made = report.stage("Count").unwrap().items_out;
        assert_eq!(if ordered { written(&file) } else { written_sorted(&file) }, all(made), "{report}");
        assert!(report.is_complete(), "{report}");
    }
}

/// Returns the length of the longest descent. Numbers from `n` senders, each of which counts up, have no
/// descent that is longer than `n`.
fn longest_way_down(numbers: &[u64]) -> usize {
    let mut ends: Vec<u64> = Vec::new(); // the greatest end of a descent of each length
    for number in numbers {
        let at = ends.partition_point(|end| end > number);
        match ends.get_mut(at) {
            Some(end) => *end = *number,
            None => ends.push(*number),
        }
    }
    ends.len()
}

/// The order holds for each sender. A replica that takes the place of another counts its items anew.
fn who_takes_the_place_of_one_that_left_has_an_order_of_its_own(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("places").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(Orders::default()).named("one").replicas_up_to(2);
    let flow = flow.stage::<Obey>(dawdling()).named("two").replicas(3).ordered();
    let (pipeline, seen) = watched(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    for count in [2, 1, 2, 1, 2] {
        running.scale("one", count).unwrap();
        until("so many are there", || workers(&node, "one") == count as usize);
        until("and take items", || of(&seen(), "one").0 == count);
        let before = of(&seen(), "WriteDown").1;
        until("items flow", || of(&seen(), "WriteDown").1 > before + 300);
    }
    running.cancel();
    let report = running.wait().unwrap();
    assert_eq!(written_sorted(&file), all(report.stage("Count").unwrap().items_out), "{report}");
    let way = longest_way_down(&written(&file));
    assert!(way <= 2, "an order was lost: {way} numbers go down");
}

/// It has an item when it is told to leave, and dies before it has finished the item.
fn a_replica_that_dies_while_it_leaves_costs_what_a_death_costs(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for again in [true, false] {
        let (gate, file) = (Gate::new(), folder.path().join(again.to_string()));
        let flow = Pipeline::new("dies").source::<Count>(CountArgs::endless());
        // The second item goes to the second replica, and waits there.
        let orders = Orders { door: Some((1, gate.door())), ..dawdling() };
        let flow = flow.stage::<Obey>(orders).replicas(2).replicas_up_to(2).restart(Restart::always(3));
        let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline();
        let (pipeline, seen) = watched(if again { pipeline.at_least_once(64) } else { pipeline });
        let running = node.run_pipeline(&pipeline).unwrap();
        let stands = gate.arrival();
        running.scale("Obey", 1).unwrap();
        until("it leaves", || of(&seen(), "Obey").0 == 1);
        kill(&node, "Obey.1");
        if again {
            gate.pass_one();
        }
        until("its process is gone", || workers(&node, "Obey") == 1);
        drop(stands);
        // There is room for another replica.
        running.scale("Obey", 2).unwrap();
        until("two are there again", || of(&seen(), "Obey").0 == 2);
        let before = of(&seen(), "WriteDown").1;
        until("items flow", || of(&seen(), "WriteDown").1 > before + 20);
        running.cancel();
        let report = running.wait().unwrap();
        let made = report.stage("Count").unwrap().items_out;
        let lost: Vec<_> = report.lost.iter().map(|lost| lost.id.number).collect();
        let mut came = written_sorted(&file);
        came.dedup();
        came.extend(&lost);
        came.sort_unstable();
        assert_eq!(came, all(made), "{report}");
        assert_eq!((report.deaths.len(), lost.contains(&1)), (1, !again), "{report}");
    }
}

/// The other one leaves, and takes no more items.
fn the_first_dies_for_good_while_the_other_leaves(builder: Builder) {
    let (node, folder, gate) = (builder.start().unwrap(), folder(), Gate::new());
    let flow = Pipeline::new("alone").source::<Count>(CountArgs::endless());
    let orders = Orders { door: Some((1, gate.door())), ..dawdling() };
    let flow = flow.stage::<Obey>(orders).replicas(2).replicas_up_to(3);
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(folder.path().join("out")));
    let (pipeline, seen) = watched(end.pipeline().at_least_once(64));
    let running = node.run_pipeline(&pipeline).unwrap();
    let stands = gate.arrival();
    running.scale("Obey", 1).unwrap();
    until("it leaves", || of(&seen(), "Obey").0 == 1);
    kill(&node, "Obey.0");
    until("its process is gone", || workers(&node, "Obey") == 1);
    stands.open();
    running.cancel();
    let error = running.wait().expect_err("nobody is left to take the others");
    let PipelineError::Died { stage, replica, .. } = &error else { panic!("{error}") };
    assert_eq!((&**stage, *replica), ("Obey", 0), "{error}");
}

/// One comes and one goes at once: the old replica stays until the new one has come.
fn where_the_first_died_for_good_the_last_one_stays(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("stays").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(dawdling()).replicas(2).replicas_up_to(3);
    let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
    let (pipeline, seen) = watched(end.pipeline().at_least_once(64));
    let running = node.run_pipeline(&pipeline).unwrap();
    until("items flow", || of(&seen(), "WriteDown").1 > 20);
    kill(&node, "Obey.0");
    until("one is left", || of(&seen(), "Obey").0 == 1);
    running.scale("Obey", 2).unwrap();
    running.scale("Obey", 1).unwrap();
    until("another comes", || node.workers().iter().any(|worker| worker.name == "Obey.2"));
    until("and one goes", || workers(&node, "Obey") == 1);
    let before = of(&seen(), "WriteDown").1;
    until("items flow", || of(&seen(), "WriteDown").1 > before + 20);
    running.cancel();
    let report = running.wait().unwrap();
    let mut came = written_sorted(&file);
    came.dedup();
    assert_eq!(came, all(report.stage("Count").unwrap().items_out), "{report}");
    assert_eq!((report.lost_count, report.deaths.len()), (0, 1), "{report}");
}

fn a_sender_that_dies_learns_again_who_is_there(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let file = folder.path().join("out");
    let flow = Pipeline::new("sender").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(Orders::default()).named("before").restart(Restart::always(3));
    let flow = flow.stage::<Obey>(dawdling()).replicas_up_to(3);
    let pipeline = flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline().at_least_once(64);
    let (pipeline, seen) = watched(pipeline);
    let running = node.run_pipeline(&pipeline).unwrap();
    let before = || node.workers().into_iter().find(|worker| worker.name == "before").unwrap();
    for (lives, count) in [(1, 3), (2, 2), (3, 3)] {
        running.scale("Obey", count).unwrap();
        // The kill comes in the middle of that, at any point.
        node.supervisor().kill_worker(before().worker);
        until("its next life runs", || before().restarts == lives && before().state == WorkerState::Running);
        until("so many are there", || of(&seen(), "Obey").0 == count);
        until("and no more", || workers(&node, "Obey") == count as usize);
        let had = of(&seen(), "WriteDown").1;
        until("items flow", || of(&seen(), "WriteDown").1 > had + 20);
    }
    running.cancel();
    let report = running.wait().unwrap();
    let mut came = written_sorted(&file);
    came.dedup();
    assert_eq!(came, all(report.stage("Count").unwrap().items_out), "{report}");
}

fn the_end_and_a_cancel_and_a_kill_come_in_the_middle_of_it(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    for (number, count) in [0, 1, 30, 150].into_iter().enumerate() {
        let file = folder.path().join(number.to_string());
        let flow = Pipeline::new("ends").source::<Count>(CountArgs::to(count));
        let flow = flow.stage::<Obey>(dawdling()).replicas(2).replicas_up_to(4).ordered();
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let running = node.run_pipeline(&end.pipeline()).unwrap();
        running.scale("Obey", 4).unwrap();
        running.scale("Obey", 1).unwrap();
        running.scale("Obey", 3).unwrap();
        let report = running.wait().unwrap();
        assert_eq!(written(&file), all(count), "{report}");
        assert!(report.is_complete() && report.deaths.is_empty(), "{report}");
    }
    for kills in [false, true] {
        let file = folder.path().join(format!("stopped{kills}"));
        let flow = Pipeline::new("stopped").source::<Count>(CountArgs::endless());
        let flow = flow.stage::<Obey>(dawdling()).replicas_up_to(4).ordered();
        let (pipeline, seen) = watched(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
        let running = node.run_pipeline(&pipeline).unwrap();
        until("items flow", || of(&seen(), "WriteDown").1 > 20);
        running.scale("Obey", 4).unwrap();
        if kills {
            running.kill();
            assert!(matches!(running.wait(), Err(PipelineError::Killed { .. })));
        } else {
            running.cancel();
            let report = running.wait().unwrap();
            assert_eq!(written(&file), all(report.stage("Count").unwrap().items_out), "{report}");
        }
    }
    let is_over = |state: &WorkerState| matches!(state, WorkerState::Exited { .. });
    until("no process is left", || node.workers().iter().all(|worker| is_over(&worker.state)));
}

/// Its process stands still before it has started, for which it has half a minute.
fn the_end_and_a_cancel_wait_for_no_replica_that_is_starting(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    node.supervisor().arm_starts("Obey.1", Fault::new("worker.open", Action::Stop));
    let starting = || {
        let mut workers = node.workers().into_iter();
        workers.find(|worker| worker.name == "Obey.1" && worker.state == WorkerState::Starting)
    };
    for cancels in [false, true] {
        let (gate, file) = (Gate::new(), folder.path().join(cancels.to_string()));
        let orders = Orders { door: Some((1, gate.door())), ..Orders::default() };
        let flow = Pipeline::new("starts").source::<Count>(CountArgs::to(5));
        let flow = flow.stage::<Obey>(orders).replicas_up_to(2);
        let end = flow.sink::<WriteDown>(WriteDownArgs::to(&file));
        let running = node.run_pipeline(&end.pipeline()).unwrap();
        let at_the_door = gate.arrival();
        running.scale("Obey", 2).unwrap();
        until("it stands still", || starting().is_some_and(|worker| has_stopped(worker.pid)));
        if cancels {
            running.cancel();
        }
        at_the_door.open();
        let report = running.wait().unwrap();
        assert_eq!(written(&file), all(report.stage("Count").unwrap().items_out), "{report}");
        assert_eq!(report.stage("Obey").unwrap().most_replicas, 1, "{report}");
        let pid = starting().expect("it still starts").pid;
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::CONT).unwrap();
        until("it ends as soon as it has started", || workers(&node, "Obey") == 0);
    }
    node.supervisor().disarm_starts();
}

fn a_stage_that_is_slow_gets_replicas_and_loses_them_when_they_are_idle(builder: Builder) {
    let (node, folder) = (builder.start().unwrap(), folder());
    let (file, fast) = (folder.path().join("out"), folder.path().join("fast"));
    let flow = Pipeline::new("by itself").source::<Count>(CountArgs::endless());
    let flow = flow.every(Duration::from_millis(2)).stage::<Slow>(fast.clone()).autoscale(1..=3).ordered();
    let (pipeline, seen) = watched(flow.sink::<WriteDown>(WriteDownArgs::to(&file)).pipeline());
    let running = node.run_pipeline(&pipeline).unwrap();
    until("it has all that it may have", || of(&seen(), "Slow").0 == 3);
    std::fs::write(&fast, "").unwrap();
    until("one is enough", || of(&seen(), "Slow").0 == 1);
    running.cancel();
    let report = running.wait().unwrap();
    assert_eq!(written(&file), all(report.stage("Count").unwrap().items_out), "{report}");
    assert_eq!(report.stage("Slow").unwrap().most_replicas, 3, "{report}");
}

fn what_cannot_be_is_an_error_that_says_what_to_do(builder: Builder) {
    let node = builder.start().unwrap();
    let sink = || WriteDownArgs::to("/dev/null");
    let flow = Pipeline::new("errors").source::<Count>(CountArgs::endless());
    let flow = flow.stage::<Obey>(Orders::default()).autoscale(2..=4);
    let running = node.run_pipeline(&flow.sink::<WriteDown>(sink()).pipeline()).unwrap();
    for (stage, count, text) in [
        ("Obey", 5, "`.replicas_up_to(5)`"),
        ("Obey", 1, "`.autoscale(1..=4)`"),
        ("WriteDown", 2, "`.replicas_up_to(2)`"),
        ("Obei", 2, "its stages are `Count`, `Obey`, `WriteDown`"),
    ] {
        let error = running.scale(stage, count).unwrap_err();
        assert!(matches!(error, PipelineError::Scale { .. }) && error.to_string().contains(text), "{error}");
    }
    running.cancel();
    assert_eq!(running.wait().unwrap().stage("Obey").unwrap().replicas, 2);

    let begin =
        || Pipeline::new("mistakes").source::<Count>(CountArgs::to(1)).stage::<Obey>(Orders::default());
    let ends = [
        (begin().to_all().replicas_up_to(2), "`to_all`"),
        (begin().by_key(|item: &Numbered| item.number).replicas_up_to(2), "`by_key`"),
        (begin().autoscale(0..=2), "the least number of replicas = 0"),
        (begin().replicas(3).replicas_up_to(2), "replicas to begin with = 3"),
        (begin().replicas_up_to(1000), "replicas = 1000"),
        (begin().beside().replicas_up_to(2), "`beside`"),
    ];
    for (flow, text) in ends {
        let error = flow.sink::<WriteDown>(sink()).pipeline().check().unwrap_err();
        let PipelineError::Graph { mistakes, .. } = &error else { panic!("{error}") };
        assert!(mistakes.iter().all(|mistake| !matches!(mistake, Mistake::Unconnected { .. })), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

pub(crate) fn cases() -> Vec<Case> {
    cases![
        up_and_down_and_down_to_one_loses_doubles_and_swaps_nothing,
        stages_behind_each_other_change_at_the_same_time,
        who_takes_the_place_of_one_that_left_has_an_order_of_its_own,
        a_replica_that_dies_while_it_leaves_costs_what_a_death_costs,
        the_first_dies_for_good_while_the_other_leaves,
        where_the_first_died_for_good_the_last_one_stays,
        a_sender_that_dies_learns_again_who_is_there,
        the_end_and_a_cancel_and_a_kill_come_in_the_middle_of_it,
        the_end_and_a_cancel_wait_for_no_replica_that_is_starting,
        a_stage_that_is_slow_gets_replicas_and_loses_them_when_they_are_idle,
        what_cannot_be_is_an_error_that_says_what_to_do,
    ]
}
