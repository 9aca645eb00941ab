//! Each marked line has a closure that borrows from its function, or gives a closure what only this process
//! has.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

fn numbers() -> Flow<Number> {
    let [flow] = Pipeline::new("numbers").items("numbers", |_| (0..3).map(Number)).broadcast();
    flow
}

fn by_reference() {
    let n = std::env::args().count() as u64;
    numbers().map("borrows", |Number(k)| Ok(Number(k + n))); //~
}

fn lent(text: &str) {
    numbers().with(text).map("lent", |text, Number(k)| Ok(Number(k + text.len() as u64))); //~
}

fn main() {
    by_reference();
    lent("text");
}
