//! Processes that end, stand still or lie, and the costs for the others.

mod complaints;
mod deaths;
mod faults;
mod forks;
mod groups;
mod hangs;
mod hostile;
mod last_replies;
mod liars;
mod lifecycle;
mod node_death;
mod spares;
mod supervision;

use tensorpost_tests::harness;

tensorpost_tests::modules!(
    complaints,
    deaths,
    faults,
    forks,
    groups,
    hangs,
    hostile,
    last_replies,
    liars,
    lifecycle,
    node_death,
    spares,
    supervision
);

fn main() {
    if forks::play() || node_death::play() {
        return;
    }
    harness::run_waiting(cases())
}
