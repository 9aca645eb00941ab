//! The derive against the real framework: what must compile and run, and what must be refused, with the words that the
//! user reads. After a change of those words, `TRYBUILD=overwrite` writes the `.stderr` files again; read them.

#[test]
fn the_derive_accepts_and_refuses() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/derive/pass/*.rs");
    cases.compile_fail("tests/derive/fail/*.rs");
}
