//! A generic message, used with an argument that cannot be sent.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Batch<T> {
    items: Vec<T>,
    pixels: Tensor,
}

struct Opaque;

fn send<M: GpuMessage>() {}

fn main() {
    send::<Batch<Opaque>>();
}
