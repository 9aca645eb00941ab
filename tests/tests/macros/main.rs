//! The macros against the real framework, under the harness of `cargo test`: accepted code compiles and runs,
//! and a `#[tensorpost::test]` has nodes with workers. `refusals` has the code that they refuse.

mod accepted;
mod test_attribute;
