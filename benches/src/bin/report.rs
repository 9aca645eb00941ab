//! Prints the results of the last run as one table: the measurement, its baseline, the target, and whether it
//! was met. `report FOLDER` reads another folder of criterion's than the usual one.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use serde_json::Value;
use tensorpost_benches::results::Results;

/// A number by median and by best sample.
#[derive(Clone, Copy)]
struct Both {
    median: f64,
    best: f64,
}

impl Both {
    fn with(self, other: Both, f: impl Fn(f64, f64) -> f64) -> Both {
        Both { median: f(self.median, other.median), best: f(self.best, other.best) }
    }

    fn map(self, f: impl Fn(f64) -> f64) -> Both {
        Both { median: f(self.median), best: f(self.best) }
    }
}

struct Report {
    results: Results,
    table: Table,
}

impl Report {
    fn time(&self, bench: &str) -> Option<Both> {
        Some(Both { median: self.results.median(bench)?, best: self.results.best(bench)? })
    }

    fn row(&mut self, cells: [String; 5]) {
        self.table.add_row(cells);
    }

    /// A time and its ratio to another; met where the ratio of the medians is at most `target`.
    fn compare(
        &mut self,
        what: &str,
        value: Option<Both>,
        with: &str,
        other: Option<Both>,
        target: Option<f64>,
    ) {
        let Some(value) = value else { return };
        let ratio = other.map(|other| value.with(other, |a, b| a / b));
        let shown = ratio
            .map_or_else(String::new, |ratio| format!("{:.3} ({:.3}) x {with}", ratio.median, ratio.best));
        let met = match (target, ratio) {
            (Some(target), Some(ratio)) => verdict(ratio.map(|ratio| target - ratio)),
            _ => String::new(),
        };
        let target = target.map_or_else(String::new, |target| format!("at most {target} x"));
        self.row([what.into(), format!("{} ({})", time(value.median), time(value.best)), shown, target, met]);
    }

    fn messages(&mut self) {
        let own = self.time("message-latency/tensorpost");
        let (ring, path) = (self.time("message-latency/ring"), self.time("message-latency/ring-actix"));
        let actix = self.time("message-latency/actix-two");
        let both = ring.zip(actix).map(|(ring, actix)| ring.with(actix, |a, b| a + b));
        self.compare("256 B message, one way", own, "(ring, and actix between threads)", both, Some(2.0));
        self.compare("the same, strictly", own, "ring into actix, no framework", path, Some(2.0));
        self.compare("  ring", ring, "", None, None);
        self.compare("  actix, two threads", actix, "", None, None);
        self.compare(
            "  actix, two threads kept busy",
            self.time("message-latency/actix-two-busy"),
            "",
            None,
            None,
        );
        self.compare("  actix, one thread", self.time("message-latency/actix-one-thread"), "", None, None);
        self.compare("  ring into actix, no framework", path, "", None, None);
        if let Some(own) = self.time("message-rate/tensorpost") {
            let rate = own.map(|nanos| 1e3 / nanos);
            self.row([
                "256 B messages a second, one way".into(),
                format!("{:.2} M/s ({:.2} M/s)", rate.median, rate.best),
                String::new(),
                "at least 1 M/s".into(),
                verdict(rate.map(|rate| rate - 1.0)),
            ]);
            for (what, bench) in
                [("ring", "ring"), ("ring + actix", "ring-actix"), ("actix, two threads", "actix-two")]
            {
                if let Some(other) = self.time(&format!("message-rate/{bench}")) {
                    let rate = other.map(|nanos| 1e3 / nanos);
                    self.row([
                        format!("  {what}"),
                        format!("{:.2} M/s ({:.2} M/s)", rate.median, rate.best),
                        String::new(),
                        String::new(),
                        String::new(),
                    ]);
                }
            }
        }
    }

    fn tensors(&mut self) {
        let small = self.time("tensor-hand-over/4KiB");
        for size in ["4KiB", "1MiB", "64MiB"] {
            let own = self.time(&format!("tensor-hand-over/{size}"));
            let what = format!("fresh tensor of {size}, ask and reply");
            if size == "4KiB" {
                self.compare(&what, own, "", None, None);
            } else {
                self.compare(&what, own, "4KiB", small, Some(1.1));
            }
            let value = self.time(&format!("tensor-by-value/{size}"));
            self.compare("  by value through a socket", value, "the hand-over", own, None);
            self.compare(
                "  filling it",
                self.time(&format!("tensor-fill/{size}")),
                "the hand-over",
                own,
                None,
            );
        }
    }

    fn fan_out(&mut self) {
        for (group, what) in [
            ("fanout-stream", "one tensor to {} receivers, for each"),
            ("fanout-together", "one tensor to {} receivers in one process, for each"),
            ("fanout-send", "sender's core time for {} receivers, for each"),
        ] {
            let one = self.time(&format!("{group}/1"));
            for receivers in [1_u32, 2, 4, 8, 16] {
                let each = self.time(&format!("{group}/{receivers}"));
                let each = each.map(|time| time.map(|time| time / f64::from(receivers)));
                // The sender's time tells where the cost is, not whether it is flat: a single receiver never
                // sleeps.
                let target = (receivers > 1 && group != "fanout-send").then_some(1.2);
                self.compare(&what.replace("{}", &receivers.to_string()), each, "one", one, target);
            }
        }
    }

    fn leak(&mut self) {
        let Some(leak) = self.results.json("leak.json") else { return };
        let number = |name: &str| leak.get(name).and_then(Value::as_f64);
        if let (Some(messages), Some(first), Some(last)) =
            (number("messages"), number("first_bytes"), number("last_bytes"))
        {
            let grown = last / first;
            self.row([
                format!("resident memory after {messages} messages"),
                format!("{:.1} MiB, {:.1} MiB after the first 10000", last / 1048576.0, first / 1048576.0),
                format!("{grown:.3}"),
                "at most 1.05".into(),
                if grown <= 1.05 { "met".into() } else { "NOT MET".into() },
            ]);
        }
    }
}

fn verdict(room: Both) -> String {
    match (room.median >= 0.0, room.best >= 0.0) {
        (true, _) => "met".into(),
        (false, true) => "NOT MET (met by the best samples)".into(),
        (false, false) => "NOT MET".into(),
    }
}

fn time(nanos: f64) -> String {
    match nanos {
        nanos if nanos < 1e3 => format!("{nanos:.0} ns"),
        nanos if nanos < 1e6 => format!("{:.2} us", nanos / 1e3),
        nanos => format!("{:.2} ms", nanos / 1e6),
    }
}

fn main() {
    let results = std::env::args_os().nth(1).map_or_else(Results::of_last_run, Results::in_folder);
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["what", "median (best sample)", "ratio of medians (of best samples)", "target", ""]);
    let mut report = Report { results, table };
    report.messages();
    report.tensors();
    report.fan_out();
    report.leak();
    println!("{}", report.table);
}
