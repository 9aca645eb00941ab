//! The macros against the real framework, under the harness of `cargo test`: what they accept compiles and
//! runs, and a `#[tensorpost::test]` has nodes with workers. What they refuse is in `refusals`.

mod accepted;
mod test_attribute;
