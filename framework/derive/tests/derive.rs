//! The derive against the real framework: what must compile and run, and what must be refused, with the words that the
//! user reads. After a change of those words, `TRYBUILD=overwrite` writes the `.stderr` files again; read them.

// Here and not with trybuild: that would build and link the framework once more for them, where it checks it for the others.
#[path = "derive/pass/mod.rs"]
mod pass;

#[test]
fn the_derive_refuses() {
    trybuild::TestCases::new().compile_fail("tests/derive/fail/*.rs");
}
