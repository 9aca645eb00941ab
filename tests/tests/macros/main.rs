//! The macros against the real framework, under the harness of `cargo test`: what they accept compiles and runs, what they
//! refuse is refused in the words that a user reads, and a `#[tensorpost::test]` has nodes with workers.

mod accepted;
mod refusals;
mod test_attribute;
