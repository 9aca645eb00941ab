//! The generated code for each form, and the words of each refusal. The front door's `tests/derive` compiles
//! the generated code.

use super::*;

fn expanded(arguments: &str, block: &str) -> String {
    let block = format!("impl<T: Copy> Tracker<T> {{ {block} }}");
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
fn refused(arguments: &str, block: &str, words: &str) {
    let said = expanded(arguments, block);
    assert_eq!(said.matches("compile_error").count(), 1, "{said}");
    assert!(said.contains(words), "`{words}` is not in {said}");
    assert!(said.contains("impl < T : Copy > Tracker < T > {"), "the block itself stays: {said}");
    assert!(!said.contains("# [handler"), "what only this attribute knows does not: {said}");
}

#[test]
fn a_marked_method_is_a_handler_and_in_the_list() {
    let written = expanded(
        "",
        "#[handler] fn found(&mut self, Found(n): Found, ctx: &mut Context<Self>) {}
         #[handler(acknowledged)] fn look(&self, _: Look) -> Scene {}
         fn other(&mut self, _: Other) {}",
    );
    has(
        &written,
        &[
            "impl < T : Copy > :: tensorpost :: __private :: actix :: Actor for Tracker < T >",
            "impl < T : Copy > :: tensorpost :: __private :: RemoteActor for Tracker < T >",
            "Handler < Found > for Tracker < T > { type Result = :: tensorpost :: __private :: actix :: MessageResult < Found > ;",
            "Result = Self :: found (self , value , exclusive) ; ",
            "Result = Self :: look (self , value) ; :: tensorpost :: __private :: actix :: MessageResult (reply)",
            "exclusive . message :: < Found > () ; exclusive . acknowledged :: < Look > () ; }",
            "let made = < Tracker < T > as :: core :: default :: Default > :: default () ;",
        ],
    );
    assert!(!written.contains("# [handler") && !written.contains("Handler < Other >"), "{written}");
}

#[test]
fn a_message_without_fields_is_written_with_its_handler() {
    let block = "/// What is there.
        #[handler(message = Look)] pub(crate) fn look(&self) -> Option<Scene> {}
        #[handler(message = Tick, acknowledged)] fn tick(&mut self, ctx: &mut Context<Self>) -> ResponseActFuture<Self, u8> {}
        #[handler(message = Stop)] fn stop(&mut self) {}";
    has(
        &expanded("", block),
        &[
            "Self :: look (self)",
            "__private :: GpuMessage ,)] # [serde (crate = \":: tensorpost :: __private :: serde\")] \
             # [gpu_message (reply = Option < Scene > , crate = :: tensorpost)] pub (crate) struct Look ;",
            "# [doc = \" What is there.\"] # [derive",
            "reply = u8 , crate = :: tensorpost)] struct Tick ;",
            "reply = () , crate = :: tensorpost)] struct Stop ;",
            "exclusive . message :: < Look > () ; exclusive . acknowledged :: < Tick > () ; exclusive . message :: < Stop > () ;",
        ],
    );
}

#[test]
fn what_resolves_later_stays_what_it_is() {
    for output in ["ResponseFuture<u8>", "actix::ResponseActFuture<Self, u8>", "MessageResult<Look>"] {
        let written = expanded("", &format!("#[handler] fn look(&mut self, _: Look) -> {output} {{}}"));
        let output: TokenStream = output.parse().expect("a type");
        has(
            &written,
            &[&format!("type Result = {output} ;"), "-> Self :: Result { Self :: look (self , value) }"],
        );
    }
}

#[test]
fn the_list_is_completed_by_hand() {
    has(
        &expanded("handles(Look, Of<T>), crate = post", "fn handles(on: &mut Handles<Self>) { on.waits(); }"),
        &[
            "exclusive . message :: < Look > () ; exclusive . message :: < Of < T > > () ; { Self :: handles (exclusive) ; }",
            "post :: __private :: Handles",
        ],
    );
    has(
        &expanded("handles()", ""),
        &["fn handles (exclusive : & mut :: tensorpost :: __private :: Handles < Self >) { }"],
    );
}

#[test]
fn other_methods_of_actors_are_known_by_their_names() {
    has(
        &expanded(
            "handles()",
            "fn create(next: Address<Found>, env: &Env) -> anyhow::Result<Self> {}
             async fn prepare(&mut self, env: &Env) -> anyhow::Result<()> {}
             fn dead_letter(&mut self, letter: DeadLetter) {}
             fn started(&mut self, ctx: &mut Context<Self>) {}
             #[cfg(gpu)] fn stopping(&mut self) -> Running {}",
        ),
        &[
            "type Args = Address < Found > ;",
            "let made = Self :: create (value , shared) ? ;",
            "Self :: prepare (self , shared) . await ? ;",
            "fn dead_letter (& mut self , value : :: tensorpost :: __private :: DeadLetter , exclusive :",
            "Self :: dead_letter (self , value)",
            "Self :: started (self , exclusive)",
            "# [cfg (gpu)] fn stopping (& mut self , exclusive : & mut :: tensorpost :: __private :: actix :: Context < Self >) \
             -> :: tensorpost :: __private :: actix :: Running { Self :: stopping (self) }",
        ],
    );
}

#[test]
fn what_is_no_handler_is_refused() {
    for (block, words) in [
        ("#[handler] async fn found(&mut self, _: Found) {}", "cannot be `async`: it would borrow the actor"),
        ("#[handler] fn found(&mut self) {}", "a handler lacks its message"),
        ("#[handler] fn found(_: Found) {}", "has to take `self`"),
        ("#[handler] fn found(self, _: Found) {}", "takes `self` in another way"),
        ("#[handler] fn found<M>(&mut self, _: M) {}", "cannot have parameters of its own"),
        ("#[handler] fn found(&mut self, _: Found, env: &Env) {}", "is not called with this"),
        (
            "#[handler] fn found(&mut self, _: Found) -> impl Future {}",
            "A reply that comes later is a `ResponseFuture",
        ),
        (
            "#[handler] fn a(&mut self, _: A) {} #[handler] fn b(&mut self, _: A) {}",
            "another method is the handler of this",
        ),
        ("#[handler(message = Look)] fn look(&self, _: Look) -> u8 {}", "is not called with this"),
        (
            "#[handler(message = Look)] fn look(&self) -> MessageResult<Look> {}",
            "has to return the reply itself",
        ),
        ("#[handler(acknowledged, acknowledged)] fn a(&self, _: A) {}", "has `acknowledged` twice"),
        ("#[handler(soon)] fn found(&mut self, _: Found) {}", "unknown key `soon`"),
        ("#[handler] #[handler] fn found(&mut self, _: Found) {}", "marked with #[handler] already"),
        ("#[handler] fn started(&mut self, _: Found) {}", "`started` is a method of every actor"),
        (
            "#[handler] fn found(&mut self, _: Found) {} fn stopped(&mut self) -> u8 {}",
            "`stopped` returns nothing",
        ),
        ("#[handler] fn found(&mut self, _: Found) {} async fn create() -> Self {}", "async fn prepare"),
    ] {
        refused("handles(Other)", block, words);
    }
    refused("", "fn found(&mut self, _: Found) {}", "no method is marked with #[handler]");
    refused("takes(Found)", "#[handler] fn found(&mut self, _: Found) {}", "unknown key `takes`");
}
