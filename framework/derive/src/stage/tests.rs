//! The generated code for each form, and the words of each refusal. The front door's `tests/derive` compiles
//! the generated code.

use super::*;

fn expanded(arguments: &str, block: &str) -> String {
    expand(arguments.parse().expect("tokens"), block.parse().expect("tokens")).to_string()
}

#[track_caller]
fn has(written: &str, parts: &[&str]) {
    assert!(!written.contains("compile_error"), "{written}");
    for part in parts {
        assert!(written.contains(part), "`{part}` is not in {written}");
    }
}

#[track_caller]
fn refused(block: &str, words: &[&str]) {
    let said = expanded("", &format!("impl Invert {{ {block} }}"));
    assert_eq!(said.matches("compile_error").count(), words.len(), "{said}");
    for words in words {
        assert!(said.contains(words), "`{words}` is not in {said}");
    }
    assert!(said.contains("impl Invert {"), "the block itself stays: {said}");
}

#[test]
fn a_stage_says_what_it_takes_and_makes() {
    let written = expanded(
        "",
        "impl<T: Item> Invert<T> where T: Copy {
            fn create(args: u8, env: &Env) -> anyhow::Result<Self> { todo }
            fn process(&mut self, item: T, out: &mut Out<Vec<T>>) -> anyhow::Result<()> { todo }
        }",
    );
    has(
        &written,
        &[
            "impl < T : Item > :: tensorpost :: pipeline :: Stage for Invert < T > where T : Copy",
            "type Args = u8 ; fn create (value : Self :: Args , shared : & :: tensorpost :: __private :: Env)",
            "let made = Self :: create (value , shared) ? ;",
            "type In = T ; type Out = Vec < T > ;",
            "Self :: process (self , value , exclusive) ? ; :: core :: result :: Result :: Ok (())",
        ],
    );
}

#[test]
fn parameters_are_told_by_what_they_are_and_may_be_missing() {
    let process = "fn process(&self, Frame { id, .. }: Frame) -> Frame { todo }";
    let create = |create: &str| expanded("", &format!("impl Invert {{ {create} {process} }}"));
    has(
        &create(""),
        &["type Args = () ;", "let made = < Invert as :: core :: default :: Default > :: default () ;"],
    );
    has(&create("fn create() -> Self { todo }"), &["type Args = () ;", "let made = Self :: create () ;"]);
    has(
        &create("fn create(env: &Env) -> Self { todo }"),
        &["type Args = () ;", "let made = Self :: create (shared) ;"],
    );
    has(
        &create("fn create(env: &Env, n: (u8,)) -> Self {}"),
        &["type Args = (u8 ,) ;", "create (shared , value)"],
    );
    has(
        &create("fn create(n: u8) -> io::Result<Self> {}"),
        &["type Args = u8 ;", "let made = Self :: create (value) ? ;"],
    );
    let prepared = create("async fn prepare(&mut self) -> anyhow::Result<()> {}");
    has(&prepared, &["async fn prepare (& mut self , shared :", "Self :: prepare (self) . await ? ;"]);
    let optional = create("#[cfg(gpu)] fn finish(&mut self) {}");
    has(&optional, &["# [cfg (gpu)] fn finish (& mut self , exclusive :", "Self :: finish (self) ;"]);
}

#[test]
fn the_short_form_emits_what_it_returns() {
    let process = |output: &str| {
        expanded("", &format!("impl Invert {{ fn process(&mut self, a: A) -> {output} {{}} }}"))
    };
    has(
        &process("B"),
        &["type Out = B ;", "let made = Self :: process (self , value) ;", "exclusive . emit (made)"],
    );
    has(&process("Result<B, E>"), &["type Out = B ;", "let made = Self :: process (self , value) ? ;"]);
    has(&process("anyhow::Result<Option<B>>"), &["type Out = B ;", "for_each", "? ;"]);
    has(&process("(Vec<b::B<C>>)"), &["type Out = b :: B < C > ;", "for_each"]);
    // A pipeline's own `Batch` is one item, not several.
    has(&process("anyhow::Result<Batch<B>>"), &["type Out = Batch < B > ;", "exclusive . emit (made)"]);
}

#[test]
fn a_source_has_next_and_a_sink_consume() {
    let source = "fn next(&mut self) -> anyhow::Result<Option<Frame>> {} fn length(&self) -> Option<u64> {}";
    has(
        &expanded("crate = post", &format!("impl Camera {{ {source} }}")),
        &[
            "post :: pipeline :: Source for Camera",
            "type Out = Frame ;",
            "let made = Self :: next (self) ? ;",
            "Self :: length (self)",
        ],
    );
    let sink = "fn consume(&mut self, frame: Frame) {} fn finish(&mut self) -> anyhow::Result<()> {}";
    has(
        &expanded("", &format!("impl Print {{ {sink} }}")),
        &[
            "Sink for Print",
            "type In = Frame ;",
            "Self :: consume (self , value) ;",
            "Self :: finish (self) ? ;",
        ],
    );
}

#[test]
fn what_is_no_stage_is_refused() {
    refused("fn invert(&mut self) {}", &["nothing says what this does with items"]);
    refused(
        "fn process(&mut self, a: A) -> A {} fn next(&mut self) -> Option<A> {}",
        &["`process` makes this a stage, and `next` would make it a source"],
    );
    refused("fn process(&mut self, out: &mut Out<A>) {}", &["`process` lacks its item; it is written"]);
    refused("fn process(&mut self, a: A, b: B) -> A {}", &["`process` is not called with this"]);
    refused("fn process(&mut self, a: A, env: &Env) -> A {}", &["`process` is not called with this"]);
    refused("fn process(&mut self, a: A) {}", &["makes nothing: it has no `out`"]);
    refused("fn process(&mut self, a: A) -> impl Item {}", &["has to name the type"]);
    refused("fn process(&mut self, a: A, out: &mut Out<A>) -> A {}", &["returns something beside it"]);
    refused("fn process(&mut self, a: A, out: &mut Outs) {}", &["by the type of `out`"]);
    refused("fn process<T>(&mut self, a: T) -> A {}", &["cannot have parameters of its own"]);
    refused("unsafe fn consume(&mut self, a: A) {}", &["cannot be `unsafe`"]);
    refused("#[cfg(gpu)] fn consume(&mut self, a: A) {}", &["put that on the whole block"]);
    refused("fn consume(&mut self, a: A) -> u8 {}", &["returns something that nobody takes"]);
    refused("fn next(&mut self) -> anyhow::Result<A> {}", &["says its end by `None`"]);
    refused("fn next(&mut self) {}", &["says its end by `None`"]);
}

#[test]
fn receivers_and_what_waits_are_named_all_at_once() {
    refused(
        "fn create(&self) -> Self {} fn process(self, a: A) -> A {} fn wake_at(&mut self) -> Option<Instant> {}",
        &["`create` takes no `self`", "`process` takes `self` in another way"],
    );
    refused(
        "fn process(&mut self, a: A) -> A {} fn wake_at(&mut self) -> Option<Instant> {} fn finish() {}",
        &["`wake_at` takes `self` in another way", "`finish` has to take `self`"],
    );
    refused(
        "async fn create() -> Self {} fn consume(&mut self, a: A) {} async fn finish(&mut self) {}",
        &[
            "`create` cannot be `async`: all others of its thread would wait with it",
            "`finish` cannot be `async`",
        ],
    );
    refused("fn create() {} fn consume(&mut self, a: A) {}", &["`create` returns nothing"]);
}

#[test]
fn it_stands_on_the_impl_of_a_type() {
    for (item, why) in [
        ("struct Invert;", "not on the type"),
        ("impl Stage for Invert {}", "not on that of a trait"),
        ("fn invert() {}", "such as `impl Invert"),
    ] {
        let said = expanded("", item);
        assert!(said.contains("compile_error") && said.contains(why), "{said}");
    }
    let said = expanded("replicas = 2", "impl Print { fn consume(&mut self, a: A) {} }");
    assert!(said.contains("unknown key `replicas`"), "{said}");
}
