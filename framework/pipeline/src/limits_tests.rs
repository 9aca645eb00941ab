//! Every `MAX_` and `MOST_` of [`limits`](crate::limits) has a row here: the text that a program reads at the
//! limit, or the reason why it reads none. A new limit without a row fails.

use std::collections::BTreeSet;

use crate::limits::*;
use crate::plan::{Kind, Plan, RESULTS, StagePlan, Tap};
use crate::stages::too_many_wait;

/// The effect of a limit on a program that reaches it.
enum At {
    /// The text has the limit and this remedy in it.
    Says(String, u64, &'static str),
    /// There is no text, for this reason.
    Silent(&'static str),
}

use At::{Says, Silent};

/// Returns the error of a plan with one change to its sink.
fn refused(change: impl FnOnce(&mut StagePlan)) -> String {
    let mut plan = Plan::new("pictures".to_owned());
    let camera = plan.add(StagePlan::new(Kind::Source, "camera"), &[]);
    let tap = Tap { stage: camera, output: RESULTS, branch: 0 };
    let save = plan.add(StagePlan::new(Kind::Sink, "save"), &[tap]);
    change(&mut plan.stages[save]);
    plan.check().expect_err("more than there may be").to_string()
}

fn rows() -> Vec<(&'static str, At)> {
    let replicas = refused(|stage| stage.replicas = MAX_REPLICAS + 1);
    let batch = refused(|stage| stage.keeps = Some(MAX_BATCH + 1));
    vec![
        ("MOST_EARLY", Silent("a replica waits until there is a place")),
        ("MAX_NAMED", Silent("the report counts further ones")),
        ("MAX_WHY", Silent("the rest of the text is left out")),
        ("MOST_TIME", Silent("only a worker that lies reports as much")),
        ("MAX_LIVES", Silent("the counts of earlier lives are added up")),
        ("MAX_TRACED_OF_ONE", Silent("only a worker that lies reports as many")),
        ("MAX_REPLICAS", Says(replicas, MAX_REPLICAS.into(), "it can be 1 to")),
        ("MAX_BATCH", Says(batch, MAX_BATCH.into(), "it can be 1 to")),
        ("MAX_WAITING", Says(too_many_wait(), MAX_WAITING as u64, "drop items in front of the fork")),
        ("MAX_TRACED", Silent("later events are left out of the trace")),
    ]
}

/// Returns the limits in the source that this test is about.
fn limits() -> BTreeSet<&'static str> {
    let constants = include_str!("limits.rs").lines().filter(|line| line.starts_with("pub"));
    let names = constants.filter_map(|line| line.split_once(" const ")?.1.split(':').next());
    names.filter(|name| name.starts_with("MAX_") || name.starts_with("MOST_")).collect()
}

#[test]
fn each_limit_names_itself_and_the_remedy() {
    let rows = rows();
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), limits(), "left: rows");
    for (name, at) in rows {
        match at {
            Says(text, limit, remedy) => {
                assert!(text.contains(&limit.to_string()) && text.contains(remedy), "{name}: {text}");
            }
            Silent(reason) => assert!(!reason.is_empty(), "{name}"),
        }
    }
}
