//! The share of a budget that small tensors can use, and the cost of an allocation that finds no room.

use tensorpost::prelude::*;

use super::{Bound, Row, median, micros, over};

/// The budget of every process of the program. It is enough for chunks of several sizes.
pub(super) const BUDGET: u64 = 1 << 30;

/// Sizes of tensors in bytes, each with the share of the budget that has to be usable.
const SIZES: [(usize, f64); 3] = [(512, 0.8), (4 << 10, 0.9), (64 << 10, 0.9)];

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let stream = node.host_stream()?;
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    // The order goes from few live tensors to many.
    for (bytes, least) in SIZES.into_iter().rev() {
        let mut live = Vec::new();
        let full = loop {
            match stream.empty(DType::U8, &[bytes]) {
                Ok(tensor) => live.push(tensor.freeze()),
                Err(error) => break error,
            }
        };
        anyhow::ensure!(matches!(full, TensorError::Pool(_)), "the pool is full, and not: {full}");
        let share = (live.len() * bytes) as f64 / BUDGET as f64;
        let of = format!("{} of {} bytes", live.len() * bytes, BUDGET);
        rows.push(Row::new(
            format!("budget that tensors of {bytes} bytes can use"),
            of,
            share,
            Some(Bound::AtLeast(least)),
        ));
        let fails = median(11, 5, || assert!(stream.empty(DType::U8, &[bytes]).is_err(), "it is full"));
        // An allocation that succeeds with as many live tensors: it gets the place of the last one, again and
        // again.
        let count = live.len();
        live.pop();
        let succeeds = median(101, 100, || assert!(stream.empty(DType::U8, &[bytes]).is_ok(), "one is free"));
        failures.push(Row::new(
            format!("an allocation that fails, over one that succeeds, {count} live"),
            format!("{} over {}", micros(fails), micros(succeeds)),
            over(fails, succeeds),
            Some(Bound::AtMost(10.0)),
        ));
        drop(live);
    }
    rows.extend(failures);
    Ok(rows)
}
