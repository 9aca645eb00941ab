//! What the pipeline did, in numbers.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::UTF8_BORDERS_ONLY};
use tensorpost_actors::stages::StageReport;

use crate::follow::Outcome;

/// One line for each stage, ending with a line break.
pub(crate) fn table(stages: &[StageReport]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_BORDERS_ONLY);
    table.set_header([
        "stage",
        "process",
        "pid",
        "frames",
        "total µs",
        "mean µs",
        "max µs",
        "waited µs",
        "in place",
        "not copied",
    ]);
    for stage in stages {
        let mean = stage.total_us.checked_div(stage.frames).unwrap_or(0);
        table.add_row([
            stage.stage.clone(),
            stage.name.clone(),
            stage.pid.to_string(),
            stage.frames.to_string(),
            stage.total_us.to_string(),
            mean.to_string(),
            stage.max_us.to_string(),
            stage.waiting_us.to_string(),
            stage.in_place.to_string(),
            bytes(stage.bytes_not_copied),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

/// The whole in a few lines. `startup` is the time until all processes were there.
pub(crate) fn summary(outcome: &Outcome, startup: Duration) -> String {
    let frames = outcome.written.len();
    let rate = frames as f64 / outcome.took.as_secs_f64().max(f64::MIN_POSITIVE);
    let not_copied = outcome.end.stages.iter().map(|stage| stage.bytes_not_copied).sum();
    let first = outcome.first.map_or_else(|| "never".to_owned(), |first| format!("after {first:.1?}"));
    let mut lines = format!(
        "{frames} frames in {:.2?}: {rate:.1} frames/s; the first {first}, with {startup:.1?} before to start four processes\n\
         {} went from process to process without being copied",
        outcome.took,
        bytes(not_copied),
    );
    if !outcome.skipped.is_empty() {
        lines +=
            &format!("\n{} frames were left out: their files could not be decoded", outcome.skipped.len());
    }
    lines
}

fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_for_people() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1024), bytes(5 << 30)],
            ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
        );
    }
}
