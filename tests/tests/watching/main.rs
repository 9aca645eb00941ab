//! A node's views for watchers: console, traces, page and metrics.

mod console;
mod console_trace;
mod live;
mod observe;
mod user_metrics;

use tensorpost_tests::harness;

tensorpost_tests::modules!(console, console_trace, live, observe, user_metrics);

fn main() {
    harness::run(cases())
}
