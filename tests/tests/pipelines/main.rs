//! The promises of pipelines, while all goes well and otherwise.

mod actors;
mod circles;
mod closures;
mod errors;
mod graphs;
mod here;
mod liars;
mod live;
mod losses;
mod promises;
mod scaling;
mod standstill;
mod workers;

use tensorpost_tests::harness;

tensorpost_tests::modules!(
    actors, circles, closures, errors, graphs, here, liars, live, losses, promises, scaling, standstill,
    workers
);

fn main() {
    harness::run(cases())
}
