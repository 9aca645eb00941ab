//! The reply is not that of the message.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = u64)]
struct HowMany;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Found(u64);

#[derive(Default)]
struct Counter;

#[actor(takes(HowMany))]
impl Counter {}

#[derive(Default)]
struct Tracker;

#[actor]
impl Tracker {
    #[handler]
    fn how_many(&mut self, _: HowMany) -> String {
        String::new()
    }

    #[handler]
    fn found(&mut self, _: Found) -> anyhow::Result<()> {
        Ok(())
    }
}

fn main() {}
