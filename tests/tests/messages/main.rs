//! The promises of messages, tensors and actors while all goes well, and the mistakes that are errors at
//! once.

mod addresses;
mod backpressure;
mod blocking;
mod children;
mod errors;
mod first;
mod forwarding;
mod messages;
mod ordering;
mod parts;
mod prepare;
mod published;
mod ready;
mod tensors;

use tensorpost_tests::harness;

tensorpost_tests::modules!(
    addresses,
    backpressure,
    blocking,
    children,
    errors,
    first,
    forwarding,
    messages,
    ordering,
    parts,
    prepare,
    published,
    ready,
    tensors
);

fn main() {
    harness::run(cases())
}
