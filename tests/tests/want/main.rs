//! A node that has too little of something, or too few descriptors.

mod files;
mod lacks;

use tensorpost_tests::want;

fn main() {
    let cases = [lacks::cases(), files::cases()].concat();
    want::run(cases, &[lacks::SCENES, files::SCENES].concat());
}
