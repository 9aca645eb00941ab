//! A message that borrows.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame<'a> {
    #[serde(borrow)]
    label: std::borrow::Cow<'a, str>,
    pixels: Tensor,
}

fn main() {}
