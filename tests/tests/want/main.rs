//! A node that has too little of something, or too few descriptors.

mod files;
mod lacks;

use tensorpost::prelude::*;
use tensorpost_actors::ready::{Images, Named, SavePng};
use tensorpost_tests::harness::Builder;
use tensorpost_tests::holder::Holder;
use tensorpost_tests::want::{self, Greedy};

/// Every node here is one of this program, the scenes' too.
fn program(builder: Builder) -> Builder {
    builder.actor::<Holder>().actor::<Greedy>().source::<Images>().sink::<SavePng<Named>>()
}

fn main() {
    let cases = [lacks::cases(), files::cases()].concat();
    want::run(program, cases, &[lacks::SCENES, files::SCENES].concat());
}
