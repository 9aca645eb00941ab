//! The tiny pipelines, and the rules without which one of them waits for ever.
//!
//! All mailboxes are the smallest that there are (`mailbox(1)`). With `TENSORPOST_THOROUGH` the larger shapes
//! are visited too.

use super::steps::Model;
use super::{Act, Flaw, Route, Shape};

const ONE: fn(u8) -> usize = |_| 1;
const TWO: fn(u8) -> usize = |_| 2;
const THREE: fn(u8) -> usize = |_| 3;
/// Drops the items of even numbers.
const ODD: fn(u8) -> usize = |id| usize::from(id % 2);
/// Drops the first item.
const LATER: fn(u8) -> usize = |id| usize::from(id > 0);

fn thorough() -> bool {
    std::env::var_os("TENSORPOST_THOROUGH").is_some_and(|value| !value.is_empty())
}

#[track_caller]
fn holds(shape: Shape) {
    let stands = shape.stands;
    let found = Model::new(shape, Flaw::None).explore().unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(found.states > 50 && found.ended > 0, "a model of nothing: {found:?}");
    assert_eq!(found.stood > 0, stands, "{found:?}");
}

#[track_caller]
fn breaks(shape: Shape, flaw: Flaw, how: &str) {
    let wrong = Model::new(shape, flaw).explore().expect_err("the model does not notice what is left out");
    assert!(wrong.contains(how), "another failure: {wrong}");
}

/// A broadcast whose two branches are paired again.
fn zipped(at_least_once: Option<u32>, items: u8, left: fn(u8) -> usize) -> Shape {
    let mut shape = Shape::new(at_least_once, items);
    let source = shape.add(Act::Source, "source", &[]);
    let [one, other] = shape.fork(source, Route::All);
    let left_side = shape.add(Act::Makes(left), "left", &[one]);
    let right_side = shape.add(Act::Makes(ONE), "right", &[other]);
    let zip = shape.zip(left_side, right_side);
    shape.add(Act::Sink, "sink", &[zip]);
    shape.often(left)
}

/// The stages of [`zipped`].
const LEFT: usize = 1;
const ZIP: usize = 3;

/// Even and odd numbers on two branches that become one again.
fn split(at_least_once: Option<u32>, items: u8) -> Shape {
    let mut shape = Shape::new(at_least_once, items);
    let source = shape.add(Act::Source, "source", &[]);
    let [even, odd] = shape.fork(source, Route::ByNumber);
    let even = shape.add(Act::Makes(ONE), "even", &[even]);
    let odd = shape.add(Act::Makes(TWO), "odd", &[odd]);
    shape.add(Act::Sink, "sink", &[even, odd]);
    shape.often(|id| 1 + usize::from(id % 2))
}

/// Each item goes around so often, and each stage of the loop makes so many of it.
fn looped(
    at_least_once: Option<u32>,
    items: u8,
    (bound, rounds): (u32, u8),
    makes: &[fn(u8) -> usize],
) -> Shape {
    let mut shape = Shape::new(at_least_once, items);
    let source = shape.add(Act::Source, "source", &[]);
    shape.looped(source, bound, rounds, makes)
}

/// A stage of two replicas whose order the sink restores.
fn ordered(at_least_once: Option<u32>, items: u8, makes: fn(u8) -> usize) -> Shape {
    Shape::line(at_least_once, items, &[Act::Makes(makes)]).ordered(1).often(makes)
}

/// A stage of two replicas.
fn replicas(at_least_once: Option<u32>, items: u8) -> Shape {
    let mut shape = Shape::line(at_least_once, items, &[Act::Makes(ONE)]);
    shape.plan.stages[1].replicas = 2;
    shape
}

fn one(at_least_once: Option<u32>, items: u8) -> Shape {
    Shape::line(at_least_once, items, &[Act::Makes(ONE)])
}

/// Batches of three.
fn batches(at_least_once: Option<u32>) -> Shape {
    Shape::line(at_least_once, 4, &[Act::Makes(ONE), Act::Batch(3)])
}

#[test]
fn stages_that_drop_and_multiply_end() {
    for at_least_once in [None, Some(1), Some(2)] {
        holds(one(at_least_once, 3));
        holds(Shape::line(at_least_once, 3, &[Act::Makes(ODD)]).often(ODD));
        holds(Shape::line(at_least_once, 2, &[Act::Makes(TWO), Act::Makes(ONE)]).often(TWO));
    }
}

#[test]
fn stages_that_keep_items_end() {
    holds(batches(None));
    holds(batches(Some(3)));
    holds(Shape::line(Some(1), 3, &[Act::Makes(ONE), Act::Timed(2)]));
    holds(Shape::line(Some(2), 2, &[Act::Makes(TWO), Act::Batch(2)]).often(TWO));
    holds(Shape::line(None, 4, &[Act::Window(2)]).often(LATER));
    holds(Shape::line(Some(2), 4, &[Act::Window(2)]).often(LATER));
    holds(Shape::line(None, 4, &[Act::Hold(3)]));
}

/// `check` does not know how many items a stage of the user holds.
#[test]
fn a_stage_that_holds_more_than_may_be_unacknowledged_is_named() {
    holds(Shape::line(Some(2), 4, &[Act::Hold(3)]).stands());
    holds(Shape::line(Some(2), 4, &[Act::Makes(ONE), Act::Hold(3), Act::Makes(ONE)]).stands());
}

#[test]
fn a_stage_that_fails_keeps_nobody_waiting() {
    holds(Shape::line(None, 3, &[Act::Fails(1, 3)]));
    holds(Shape::line(Some(3), 3, &[Act::Fails(1, 3)]));
}

#[test]
fn branches_end() {
    holds(split(None, 3));
    holds(split(Some(1), 3));
    holds(zipped(None, 2, ODD));
    holds(zipped(Some(1), 2, ODD));
    if thorough() {
        holds(zipped(Some(2), 3, ODD));
        holds(zipped(Some(1), 3, TWO).often(ONE));
    }
}

#[test]
fn orders_are_restored_and_end() {
    holds(ordered(None, 3, ODD));
    holds(ordered(None, 2, TWO));
    holds(ordered(Some(1), 3, LATER));
    if thorough() {
        holds(ordered(None, 4, ONE));
        holds(ordered(Some(2), 4, ODD));
    }
}

#[test]
fn loops_end() {
    for at_least_once in [None, Some(2)] {
        holds(looped(at_least_once, 2, (1, 2), &[ONE]));
        holds(looped(at_least_once, 2, (2, 2), &[ONE, ONE]));
    }
    if thorough() {
        holds(looped(None, 4, (2, 2), &[ONE, ONE]));
    }
}

#[test]
fn a_loop_that_makes_more_than_it_holds_is_named() {
    holds(looped(None, 1, (1, 3), &[THREE]).often(|_| 27).stands());
    holds(looped(None, 1, (1, 3), &[THREE, ONE]).often(|_| 27).stands());
    holds(looped(Some(1), 1, (1, 3), &[THREE]).often(|_| 27).stands());
}

#[test]
fn deaths_keep_nobody_waiting() {
    for at_least_once in [None, Some(1)] {
        // A source that dies does not come back here: it would begin anew.
        holds(one(at_least_once, 2).dies(0, false));
        for comes_back in [true, false] {
            holds(one(at_least_once, if comes_back { 1 } else { 2 }).dies(1, comes_back));
            holds(one(at_least_once, 2).dies(2, comes_back));
        }
    }
    holds(replicas(None, 2).dies(1, false));
    holds(replicas(Some(1), 1).dies(1, false));
    holds(Shape::line(None, 3, &[Act::Batch(2)]).dies(1, true));
    holds(zipped(None, 1, ONE).dies(LEFT, true));
    holds(zipped(Some(1), 1, ONE).dies(LEFT, false));
    if thorough() {
        holds(one(Some(2), 2).dies(1, true));
        holds(replicas(Some(1), 1).dies(1, true));
        holds(Shape::line(Some(2), 3, &[Act::Batch(2)]).dies(1, true));
        holds(ordered(None, 2, ONE).dies(1, true));
        holds(ordered(None, 2, ONE).dies(1, false));
        for comes_back in [true, false] {
            holds(zipped(Some(1), 1, ONE).dies(ZIP, comes_back));
            holds(zipped(Some(1), 1, ONE).dies(LEFT, comes_back));
        }
    }
}

#[test]
fn a_broken_promise_is_noticed() {
    breaks(Shape::line(None, 2, &[Act::Makes(ODD)]), Flaw::None, "item 0 came 0 times and not 1");
    breaks(Shape::line(None, 2, &[Act::Makes(TWO)]), Flaw::None, "item 0 came 2 times and not 1");
    let mut unordered = replicas(None, 2);
    unordered.in_order = true;
    breaks(unordered, Flaw::None, "they came in the order [1, 0]");
}

#[test]
fn kept_items_need_places_of_their_own() {
    breaks(batches(None), Flaw::NoPlaces, "it stands still");
}

#[test]
fn the_end_must_pass_answers_that_come_after_it() {
    breaks(batches(None), Flaw::EndBehindAnswers, "it stands still");
}

#[test]
fn a_plan_that_is_refused_would_wait_for_itself() {
    breaks(batches(Some(2)), Flaw::None, "at_least_once(3)");
    breaks(batches(Some(2)), Flaw::NotRefused, "it stands still");
}

#[test]
fn a_stage_that_fails_must_give_up_what_it_keeps() {
    breaks(Shape::line(None, 3, &[Act::Fails(1, 3)]), Flaw::KeepsOnFailure, "it stands still");
}

#[test]
fn a_death_must_be_told_to_the_stages_behind() {
    breaks(one(None, 2).dies(1, false), Flaw::UntoldDeath, "it stands still");
}

#[test]
fn a_partner_that_does_not_come_must_be_told() {
    breaks(zipped(Some(1), 2, ODD), Flaw::UntoldPartners, "only the reminder helps");
}

#[test]
fn a_restorer_must_be_told_of_what_does_not_come() {
    breaks(ordered(Some(1), 3, LATER), Flaw::UntoldGaps, "it stands still");
}

#[test]
fn a_time_at_which_a_stage_goes_on_must_be_told() {
    let timed = Shape::line(Some(1), 3, &[Act::Makes(ONE), Act::Timed(2)]);
    breaks(timed, Flaw::UntoldTime, "it goes on, and is said to stand still");
}
