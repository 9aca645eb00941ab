//! `#[tensorpost::test]`: nodes with workers, under the harness of `cargo test`.

use tensorpost::prelude::*;
use tensorpost::testing::fault::{Action, Fault};
use tensorpost::testing::{fault, leaks};

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

/// Where an item was made.
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Made {
    number: u64,
    process: u32,
}

fn made() -> Pipeline {
    let flow = Pipeline::new("made")
        .items("numbers", |_| (0..20).map(Number))
        .map("make", |Number(number)| Ok(Made { number, process: std::process::id() }));
    let ending = flow.for_each("check", |made| {
        anyhow::ensure!(made.process != std::process::id(), "one process");
        Ok(())
    });
    ending.pipeline()
}

#[tensorpost::test]
fn a_pipeline_has_workers() -> anyhow::Result<()> {
    let report = made().run()?;
    assert!(report.is_complete(), "{report}");
    Ok(())
}

/// Its own node ends with it; `pipelines::workers` tests `wait` with other nodes.
#[tensorpost::test]
fn a_pipeline_that_was_waited_for_has_left_no_process() {
    let running = made().start().unwrap();
    assert!(leaks().children.values().sum::<usize>() >= 3, "{:?}", leaks().children);
    running.wait().unwrap();
    assert!(leaks().children.is_empty(), "{:?}", leaks().children);
}

mod further_in {
    use super::*;

    #[tensorpost::test]
    #[should_panic(expected = "as it should")]
    fn a_test_in_a_module_is_found_too() {
        let report = made().run().expect("it runs");
        assert!(!report.is_complete(), "as it should");
    }
}

/// A fault that the test before has armed is gone when the next test begins.
fn arms_a_fault() {
    assert!(fault::armed().is_empty());
    fault::arm(Fault::new("nowhere", Action::Kill));
}

#[tensorpost::test]
fn one_arms_a_fault() {
    arms_a_fault();
}

#[tensorpost::test]
fn another_arms_a_fault() {
    arms_a_fault();
}

#[derive(Default)]
struct Square;

#[stage]
impl Square {
    fn process(&mut self, Number(n): Number) -> Number {
        Number(n * n)
    }
}

/// The example of `docs/TESTING.md`.
#[tensorpost::test]
fn a_stage_that_dies_comes_back() -> anyhow::Result<()> {
    let pipeline = Pipeline::new("squares");
    let numbers =
        pipeline.items("numbers", |_| (0..1000).map(Number)).every(std::time::Duration::from_millis(1));
    let squares = numbers.stage::<Square>(()).named("square").restart(Restart::on_failure(100));
    squares.for_each("check", |_| Ok(()));
    let node = Node::builder().start()?;
    node.supervisor().arm_starts("square", Fault::new("wire.decoded", Action::Kill).at(20));
    let running = node.run_pipeline(&pipeline)?;
    while node.report()?.restarts.is_empty() {
        std::thread::yield_now();
    }
    node.supervisor().disarm_starts();
    let report = running.wait()?;
    assert!(!report.deaths.is_empty() && report.deaths.iter().all(|death| death.restarted), "{report}");
    Ok(())
}
