//! Nothing is marked.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Found(u64);

#[derive(Default)]
struct Tracker;

#[actor]
impl Tracker {
    fn found(&mut self, _: Found) {}
}

fn main() {}
