//! Shows that the oracle can fail: each test takes a run that was right, falsifies one thing in its logs or
//! its report, and names the verdict that has to follow.

use serde_json::json;
use tensorpost::pipeline::{Death, ItemId, LostItem, OnError, StageReport};

use super::*;
use crate::random::history::{Line, Step};
use crate::random::plan::{dead_name, helper_name, stage_name, writes};
use crate::random::spec::{Ending, Fails, Fork, Op, Settings, Source, Spec, Stage, Then, When};

fn op(takes: &[(usize, u8)], what: What) -> Op {
    Op { takes: takes.to_vec(), what, settings: Settings::default() }
}

fn sink(from: usize, output: u8) -> Op {
    op(&[(from, output)], What::Sink { closure: true, slow: 0 })
}

fn source(count: u64) -> Op {
    op(&[], What::Source(Source { count, ..Source::default() }))
}

fn spec(ops: Vec<Op>) -> Spec {
    Spec { ops, ..Spec::from_json(r#"{"ops":[]}"#).unwrap() }
}

/// A source, a stage that fails on some items, its dead letters, and two branches.
fn forked() -> Plan {
    let fails = Some(Fails { every: 5, at: 2, times: 100 });
    let mut stage = op(&[(0, 0)], What::Stage(Stage { fails, ..Stage::default() }));
    stage.settings = Settings { dead: true, on_error: OnError::DeadLetter, ..Settings::default() };
    let split = op(&[(1, 0)], What::Fork(Fork::Split(2), 2));
    Plan::new(&spec(vec![source(20), stage, split, sink(2, 0), sink(2, 1), sink(1, 1)]))
}

/// Two branches of a source in pairs, one of which lacks every third item.
fn zipped() -> Plan {
    let filter = Stage { form: crate::random::spec::Form::Filter(3), ..Stage::default() };
    let fork = op(&[(0, 0)], What::Fork(Fork::All, 2));
    let zip = op(&[(2, 0), (1, 1)], What::Zip { restart: None });
    Plan::new(&spec(vec![source(9), fork, op(&[(1, 0)], What::Stage(filter)), zip, sink(3, 0)]))
}

/// Batches, one behind the other, and a fork in turn.
fn batched() -> Plan {
    let batch = What::Batch { of: 4, within: None, then: Then::Pack, restart: None };
    let turns = op(&[(1, 0)], What::Fork(Fork::Turns, 2));
    Plan::new(&spec(vec![source(10), op(&[(0, 0)], batch), turns, sink(2, 0), sink(2, 1)]))
}

/// A sink that drops items for which it has no room.
fn dropping() -> Plan {
    let mut sink = sink(0, 0);
    sink.settings.drops = Some(crate::random::spec::Drops::Oldest);
    Plan::new(&spec(vec![source(10), sink]))
}

/// The logs and the report of a run in which everything went right.
fn right(plan: &Plan) -> Seen {
    let mut logs = Logs::default();
    for op in plan.all() {
        if let What::Source(source) = &op.op.what {
            let made = (0..source.count).map(|number| (7, Past::new(op.number, number)));
            logs.0.insert(Place::of(op.number), vec![made.collect()]);
        }
    }
    // A part that has no log yet gets the items that were made for it, from the sources on.
    loop {
        let edges = Flows::new(plan, &logs).edges;
        let Some(edge) = edges.iter().find(|edge| !has_log(&logs, edge)) else { break };
        fill(&mut logs, edge);
    }
    let report = report(plan, &logs);
    Seen { logs, end: End::Fine(report), wrong: Vec::new(), struck: Vec::new(), ended: false }
}

fn has_log(logs: &Logs, edge: &Edge) -> bool {
    match &edge.taking {
        Taking::Shared(takers) => takers.iter().all(|taker| logs.0.contains_key(taker)),
        _ => logs.0.contains_key(&edge.to),
    }
}

fn fill(logs: &mut Logs, edge: &Edge) {
    let all = |bag: &Bag| -> Vec<Past> {
        bag.iter().flat_map(|(past, count)| (0..*count).map(|_| past.clone())).collect()
    };
    let lines = |pasts: Vec<Past>| vec![pasts.into_iter().map(|past| (7, past)).collect::<Vec<Line>>()];
    let op = edge.to.op;
    match &edge.taking {
        Taking::Each => drop(logs.0.insert(edge.to, lines(all(&edge.want)))),
        Taking::Batches(of, _) => {
            let items = all(&edge.want);
            let batches = items.chunks(*of as usize);
            let batches = batches.map(|batch| batch[0].then(Step::Among(op, batch[1..].to_vec())));
            logs.0.insert(edge.to, lines(batches.collect()));
        }
        Taking::Pairs { want, .. } => {
            let pairs = all(&edge.want).into_iter().filter_map(|left| {
                let right = want.keys().find(|right| right.number == left.number)?;
                Some(left.then(Step::With(op, Box::new(right.clone()))))
            });
            logs.0.insert(edge.to, lines(pairs.collect()));
        }
        Taking::Shared(takers) => {
            for (turn, taker) in takers.iter().enumerate() {
                let mine = all(&edge.want).into_iter().skip(turn).step_by(takers.len());
                logs.0.insert(*taker, lines(mine.collect()));
            }
        }
        Taking::Windows(_) => unreachable!("no test has any"),
    }
}

fn report(plan: &Plan, logs: &Logs) -> Report {
    let mut report = Report::default();
    for op in plan.all().into_iter().filter(|op| writes(&op.op.what)) {
        let count = logs.lines(Place::of(op.number)).count() as u64;
        let is_source = matches!(op.op.what, What::Source(_));
        let dead = logs.lines(Place { op: op.number, dead: true }).count() as u64;
        let mut stage = StageReport::default();
        (stage.stage, stage.replicas, stage.is_source) = (stage_name(op.number, &op.op.what), 1, is_source);
        (stage.items_in, stage.items_out) = (if is_source { 0 } else { count }, count);
        (stage.errors, stage.dead_letters) = (dead, dead);
        report.stages.push(stage);
        let mut letters = StageReport::default();
        (letters.stage, letters.items_in) = (dead_name(op.number), dead);
        report.stages.push(letters);
    }
    for edge in Flows::new(plan, logs).edges {
        if let Taking::Pairs { want, got, .. } = &edge.taking {
            for (past, _) in differ(want, got).missing {
                let id = ItemId { source: 0, number: past.number };
                report.left_over.push(lost(&helper_name(edge.to.op), id));
            }
        }
    }
    report.left_over_count = report.left_over.len() as u64;
    report
}

/// The kinds of verdicts on a run, each once.
fn kinds(plan: &Plan, seen: &Seen) -> Vec<Kind> {
    let mut kinds: Vec<_> = judge(plan, seen).into_iter().map(|verdict| verdict.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn lines(seen: &mut Seen, op: u16) -> &mut Vec<Line> {
    &mut seen.logs.0.get_mut(&Place::of(op)).unwrap()[0]
}

fn said(seen: &mut Seen) -> &mut Report {
    match &mut seen.end {
        End::Fine(report) => report,
        _ => unreachable!("it was fine"),
    }
}

/// A report is read from JSON here, since only the framework makes its parts.
fn lost(stage: &str, id: ItemId) -> LostItem {
    serde_json::from_value(json!({ "stage": stage, "id": id, "why": "" })).expect("a lost item")
}

fn death(stage: &str, why: &str, restarted: bool) -> Death {
    let death = json!({ "stage": stage, "replica": 0, "why": why, "restarted": restarted });
    serde_json::from_value(death).expect("a death")
}

fn name(seen: &mut Seen, number: u64) {
    let report = said(seen);
    report.lost.push(lost("", ItemId { source: 0, number }));
    report.lost_count += 1;
}

#[test]
fn a_run_that_was_right_is_right() {
    for plan in [forked(), zipped(), batched()] {
        let seen = right(&plan);
        assert_eq!(judge(&plan, &seen), [], "{:?}", plan.spec);
        assert!(seen.logs.count() > 10);
    }
}

#[test]
fn what_is_dropped_is_counted_and_no_more_is_missing() {
    let plan = dropping();
    let mut seen = right(&plan);
    lines(&mut seen, 1).drain(2..5);
    let stages = &mut said(&mut seen).stages;
    let sink = stages.iter_mut().find(|stage| stage.stage == "sink-1").unwrap();
    (sink.items_in, sink.dropped) = (7, 3);
    assert_eq!(judge(&plan, &seen), []);
    let sink = |seen: &mut Seen, dropped| {
        let stages = &mut said(seen).stages;
        stages.iter_mut().find(|stage| stage.stage == "sink-1").unwrap().dropped = dropped;
    };
    sink(&mut seen, 4);
    assert_eq!(kinds(&plan, &seen), [Kind::Counts]);
    sink(&mut seen, 2);
    assert_eq!(kinds(&plan, &seen), [Kind::Missing]);
    // A death of the sink drops no item that is not named. A death of its sender takes the sender's count of
    // dropped items with it.
    said(&mut seen).deaths.push(death("sink-1", "", true));
    assert_eq!(kinds(&plan, &seen), [Kind::Missing]);
    said(&mut seen).deaths[0] = death("source-0", "", true);
    assert_eq!(kinds(&plan, &seen), []);
    // Other stages drop nothing.
    let plan = forked();
    let mut seen = right(&plan);
    said(&mut seen).stages[0].dropped = 1;
    assert_eq!(kinds(&plan, &seen), [Kind::Counts]);
}

#[test]
fn an_item_that_does_not_come_is_missing() {
    let plan = forked();
    let mut seen = right(&plan);
    lines(&mut seen, 3).remove(2);
    assert_eq!(kinds(&plan, &seen), [Kind::Missing, Kind::Counts]);
    // The same holds after a death, unless the item is named.
    said(&mut seen).deaths.push(death("sink-3", "", true));
    assert_eq!(kinds(&plan, &seen), [Kind::Missing]);
    name(&mut seen, 6);
    assert_eq!(kinds(&plan, &seen), []);
}

#[test]
fn one_that_another_death_may_have_hidden_is_excused_and_one_elsewhere_is_not() {
    let plan = forked();
    let mut seen = right(&plan);
    lines(&mut seen, 3).remove(2);
    said(&mut seen).deaths.extend([death("sink-3", "", true), death("stage-1", "", true)]);
    assert_eq!(kinds(&plan, &seen), [], "who would have named it may have died as well");
    lines(&mut seen, 4).remove(2);
    said(&mut seen).deaths.remove(1);
    assert_eq!(kinds(&plan, &seen), [Kind::Missing]);
}

#[test]
fn an_item_that_comes_twice_is_doubled_unless_it_may_be_sent_again() {
    let mut plan = forked();
    let mut seen = right(&plan);
    let line = lines(&mut seen, 3)[1].clone();
    lines(&mut seen, 3).insert(1, line);
    assert_eq!(kinds(&plan, &seen), [Kind::Doubled, Kind::Counts]);
    said(&mut seen).deaths.push(death("stage-1", "", true));
    assert_eq!(kinds(&plan, &seen), [Kind::Doubled]);
    plan.spec.at_least_once = Some(4);
    assert_eq!(kinds(&plan, &seen), []);
    said(&mut seen).deaths.clear();
    assert_eq!(kinds(&plan, &seen), [Kind::Doubled, Kind::Counts]);
}

#[test]
fn an_item_in_the_wrong_branch_is_astray() {
    let plan = forked();
    let mut seen = right(&plan);
    let line = lines(&mut seen, 3).pop().unwrap();
    lines(&mut seen, 4).push(line);
    let found = kinds(&plan, &seen);
    assert!(found.contains(&Kind::Astray) && found.contains(&Kind::Missing), "{found:?}");
    said(&mut seen).deaths.push(death("sink-3", "", true));
    assert!(kinds(&plan, &seen).contains(&Kind::Astray), "a death does not excuse it");
}

#[test]
fn an_item_out_of_order_is_seen() {
    let plan = forked();
    let mut seen = right(&plan);
    lines(&mut seen, 4).swap(1, 2);
    assert_eq!(kinds(&plan, &seen), [Kind::Disorder]);
}

#[test]
fn counts_that_do_not_add_up_are_seen() {
    let plan = forked();
    let mut seen = right(&plan);
    said(&mut seen).stages[0].items_out += 1;
    assert_eq!(kinds(&plan, &seen), [Kind::Counts]);
    let mut seen = right(&plan);
    name(&mut seen, 3);
    assert_eq!(kinds(&plan, &seen), [Kind::Counts, Kind::Result], "lost, and nobody died");
}

#[test]
fn a_half_that_is_not_named_is_seen() {
    let plan = zipped();
    let mut seen = right(&plan);
    said(&mut seen).left_over.remove(1);
    said(&mut seen).left_over_count -= 1;
    assert_eq!(kinds(&plan, &seen), [Kind::Missing, Kind::Counts]);
    let mut seen = right(&plan);
    let again = said(&mut seen).left_over[0].clone();
    said(&mut seen).left_over.push(again);
    said(&mut seen).left_over_count += 1;
    assert_eq!(kinds(&plan, &seen), [Kind::Counts], "named twice");
}

#[test]
fn pairs_and_batches_that_do_not_belong_together_are_seen() {
    let plan = zipped();
    let mut seen = right(&plan);
    let [(_, first), (_, second)] = &mut lines(&mut seen, 3)[..2] else { unreachable!() };
    std::mem::swap(&mut first.steps, &mut second.steps);
    assert!(kinds(&plan, &seen).contains(&Kind::Group));
    let plan = batched();
    let mut seen = right(&plan);
    let Some(Step::Among(_, others)) = lines(&mut seen, 1)[0].1.steps.last_mut() else { unreachable!() };
    others.push(Past::new(0, 4));
    let found = kinds(&plan, &seen);
    assert!(found.contains(&Kind::Group) && found.contains(&Kind::Doubled), "{found:?}");
}

#[test]
fn an_item_that_no_branch_or_two_branches_took_is_seen() {
    let plan = batched();
    let mut seen = right(&plan);
    let line = lines(&mut seen, 3).pop().unwrap();
    assert_eq!(kinds(&plan, &seen), [Kind::Missing, Kind::Counts]);
    lines(&mut seen, 3).push(line.clone());
    lines(&mut seen, 4).push(line);
    assert_eq!(kinds(&plan, &seen), [Kind::Doubled, Kind::Counts]);
}

#[test]
fn an_end_that_does_not_fit_is_seen() {
    let mut plan = forked();
    let seen = right(&plan);
    let end = |end: fn(Report) -> End| Seen { end: end(seen.end.report().unwrap().clone()), ..seen.clone() };
    assert_eq!(kinds(&plan, &end(|report| End::Failed("why".into(), report))), [Kind::Result]);
    assert_eq!(kinds(&plan, &end(|report| End::Died("stage-1".into(), 0, report))), [Kind::Result]);
    assert_eq!(kinds(&plan, &end(End::Killed)), [Kind::Result]);
    assert_eq!(kinds(&plan, &Seen { end: End::Error("no".into()), ..seen.clone() }), [Kind::Start]);
    assert_eq!(kinds(&plan, &Seen { wrong: vec!["an element".into()], ..seen.clone() }), [Kind::Content]);
    // A stage that is to fail the pipeline got such an item.
    plan.spec.ops[1].settings = Settings::default();
    plan.spec.ops.truncate(1 + 4);
    let found = kinds(&plan, &seen);
    assert!(found.contains(&Kind::Result), "{found:?}");
}

#[test]
fn what_is_made_twice_and_comes_once_is_not_missing_where_it_was_sent_again() {
    let mut plan = batched();
    plan.spec.at_least_once = Some(4);
    let mut seen = right(&plan);
    let line = lines(&mut seen, 0)[1].clone();
    lines(&mut seen, 0).insert(1, line);
    said(&mut seen).deaths.push(death("pack-1", "", true));
    assert_eq!(kinds(&plan, &seen), []);
    plan.spec.at_least_once = None;
    assert_eq!(kinds(&plan, &seen), [Kind::Missing]);
}

#[test]
fn what_goes_another_way_when_it_is_sent_again_is_not_missing_on_the_first() {
    let mut plan = batched();
    plan.spec.at_least_once = Some(4);
    let mut seen = right(&plan);
    // A batch that was made in an earlier life, of items that are in other batches now.
    let members = [0, 4, 9].map(|number| Past::new(0, number));
    let [first, second, third] = members.clone();
    let batch = first.then(Step::Among(1, vec![second, third]));
    lines(&mut seen, 1).insert(0, (7, batch.clone()));
    said(&mut seen).deaths.push(death("pack-1", "", true));
    assert_eq!(kinds(&plan, &seen), []);
    // One of its items is in no other batch.
    let alone = Past::new(0, 3);
    lines(&mut seen, 1)[0].1 = alone.then(Step::Among(1, vec![Past::new(0, 77)]));
    assert!(kinds(&plan, &seen).contains(&Kind::Missing));
    lines(&mut seen, 1)[0].1 = batch;
    plan.spec.at_least_once = None;
    assert!(kinds(&plan, &seen).contains(&Kind::Missing));
}

/// A source that was to fail on the item behind its last one need not have got there, if it was stopped.
#[test]
fn a_source_that_was_stopped_before_it_failed_is_right() {
    let failing = |ending| {
        let fails = vec![20];
        let source = op(&[], What::Source(Source { count: 20, fails, ..Source::default() }));
        Plan::new(&Spec { ending, ..spec(vec![source, sink(0, 0)]) })
    };
    let plan = failing(Ending::Natural);
    assert_eq!(kinds(&plan, &right(&plan)), [Kind::Result]);
    let plan = failing(Ending::Cancel(When::Items(0, 20)));
    assert_eq!(kinds(&plan, &right(&plan)), []);
}

/// A fork in turn whose first branch has a filter, which leaves no trace in the items that pass it.
fn filtered_behind_a_fork() -> Plan {
    let turns = op(&[(0, 0)], What::Fork(Fork::Turns, 2));
    let filter = Stage { form: crate::random::spec::Form::Filter(3), ..Stage::default() };
    let filter = op(&[(1, 0)], What::Stage(filter));
    Plan::new(&spec(vec![source(12), turns, filter, sink(2, 0), sink(1, 1)]))
}

#[test]
fn what_takes_another_branch_than_the_one_with_a_filter_is_not_missing_behind_the_filter() {
    let mut plan = filtered_behind_a_fork();
    plan.spec.at_least_once = Some(4);
    let mut seen = right(&plan);
    assert_eq!(judge(&plan, &seen), []);
    // The filter had the item when it died; sent again, the item went to the other sink.
    let (_, lost) = lines(&mut seen, 3).pop().unwrap();
    lines(&mut seen, 4).push((7, lost));
    said(&mut seen).deaths.push(death("stage-2", "", true));
    assert_eq!(kinds(&plan, &seen), []);
    lines(&mut seen, 4).pop();
    assert_eq!(kinds(&plan, &seen), [Kind::Missing], "it came nowhere");
}

#[test]
fn a_death_for_good_is_fine_where_another_replica_is_there_in_the_end() {
    let mut plan = forked();
    (plan.spec.at_least_once, plan.spec.ops[1].settings.scales) = (Some(4), true);
    plan = Plan::new(&plan.spec);
    for replicas in [1, 0] {
        let mut seen = right(&plan);
        said(&mut seen).deaths.push(death("stage-1", "", false));
        let stage = said(&mut seen).stages.iter_mut().find(|stage| stage.stage == "stage-1");
        stage.expect("it is there").replicas = replicas;
        let want: &[Kind] = if replicas == 1 { &[] } else { &[Kind::Result] };
        assert_eq!(kinds(&plan, &seen), want, "{replicas}");
    }
}

/// Two branches of a source, joined by the number modulo 3.
fn joined(joins: bool) -> Plan {
    let fork = op(&[(0, 0)], What::Fork(Fork::All, 2));
    let what = if joins { What::Join { modulus: 3, restart: None } } else { What::Zip { restart: None } };
    Plan::new(&spec(vec![source(9), fork, op(&[(1, 0), (1, 1)], what), sink(2, 0)]))
}

#[test]
fn halves_that_are_sent_again_may_find_other_partners_in_a_join_and_not_in_a_zip() {
    for joins in [true, false] {
        let mut plan = joined(joins);
        plan.spec.at_least_once = Some(4);
        let mut seen = right(&plan);
        assert_eq!(judge(&plan, &seen), []);
        // A pair that was made in an earlier life, of halves that came with others, or with each other,
        // later.
        let [left, right] = [1, 4].map(|number| Past::new(0, number));
        let pair = left.then(Step::With(2, Box::new(if joins { right } else { left.clone() })));
        if !joins {
            lines(&mut seen, 3).retain(|(_, line)| *line != pair);
        } else {
            lines(&mut seen, 2).insert(0, (7, pair));
        }
        said(&mut seen).deaths.push(death("pack-2", "", true));
        assert_eq!(kinds(&plan, &seen), if joins { vec![] } else { vec![Kind::Missing] });
    }
}

#[test]
fn a_panic_beside_a_process_that_dies_later_hides_what_that_would_have_named() {
    let stage = || What::Stage(Stage::default());
    let mut beside = op(&[(1, 0)], stage());
    beside.settings.beside = true;
    let plan = Plan::new(&spec(vec![source(9), op(&[(0, 0)], stage()), beside, sink(2, 0)]));
    let mut seen = right(&plan);
    lines(&mut seen, 2).remove(4);
    lines(&mut seen, 3).remove(4);
    let panicked = "the handler ended without a reply: its future panicked, or the actor stopped";
    said(&mut seen).deaths.push(death("stage-2", panicked, true));
    assert_eq!(kinds(&plan, &seen), [Kind::Missing], "the stage before it lives, and names it");
    said(&mut seen).deaths.extend([death("stage-1", "", true), death("stage-2", "", true)]);
    assert_eq!(kinds(&plan, &seen), []);
    said(&mut seen).deaths.remove(0);
    assert_eq!(kinds(&plan, &seen), [Kind::Missing], "both went at once, and their sender lives");
}

#[test]
fn a_stage_and_the_worker_of_its_dead_letters_are_two() {
    let plan = forked();
    let mut seen = right(&plan);
    seen.logs.0.get_mut(&Place { op: 1, dead: true }).unwrap()[0].pop();
    let of = |stage: &str| death(stage, &format!("worker `{stage}` (p2.0) has ended"), true);
    said(&mut seen).deaths.push(of("dead-1"));
    assert!(kinds(&plan, &seen).contains(&Kind::Missing), "the stage lives, and names it");
    said(&mut seen).deaths.push(of("stage-1"));
    assert!(!kinds(&plan, &seen).contains(&Kind::Missing));
}

/// A replica that has failed the pipeline takes no more items, not even one that another replica had when it
/// died.
#[test]
fn what_is_sent_again_to_a_replica_that_has_failed_is_not_missing_behind_it() {
    let fails = Some(Fails { every: 20, at: 7, times: 100 });
    let stage = op(&[(0, 0)], What::Stage(Stage { fails, ..Stage::default() }));
    let mut plan = Plan::new(&spec(vec![source(20), stage, sink(1, 0)]));
    plan.spec.at_least_once = Some(4);
    let mut seen = right(&plan);
    // The stage wrote it down and died.
    lines(&mut seen, 2).pop();
    let mut report = said(&mut seen).clone();
    let failed = |report| End::Failed("told to fail".into(), report);
    seen.end = failed(report.clone());
    assert!(kinds(&plan, &seen).contains(&Kind::Missing), "nobody died");
    report.deaths.push(death("stage-1", "", true));
    seen.end = failed(report);
    assert_eq!(kinds(&plan, &seen), []);
    plan.spec.at_least_once = None;
    assert_eq!(kinds(&plan, &seen), [Kind::Missing], "at most once its sender names it");
}
