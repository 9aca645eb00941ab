//! Each marked line has a closure that captures a value that cannot be copied. After a refusal the compiler
//! may not look at closures of the same function whose types it learns later, so some have a function to
//! themselves.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

fn numbers() -> Flow<Number> {
    let [flow] = Pipeline::new("numbers").items("numbers", |_| (0..3).map(Number)).broadcast();
    flow
}

fn without_copy() -> impl Fn(Number) -> anyhow::Result<Number> + Send + Sync {
    Ok
}

fn main() {
    let count = Arc::new(AtomicU64::new(0));
    numbers().for_each("count", move |_| Ok(drop(count.fetch_add(1, Ordering::Relaxed)))); //~
    let text = String::new();
    numbers().map("text", move |Number(k)| Ok(Number(k + text.len() as u64))); //~
    let list = vec![1_u64];
    numbers().filter("list", move |Number(k)| list.contains(k)); //~
    let boxed: Box<dyn Fn(u64) -> u64 + Send + Sync> = Box::new(|k| k + 1);
    numbers().map("boxed", move |Number(k)| Ok(Number(boxed(k)))); //~
    let cell = Rc::new(RefCell::new(0));
    numbers().for_each("cell", move |Number(k)| Ok(*cell.borrow_mut() += k)); //~
}

fn items() {
    let most = vec![3_u64];
    Pipeline::new("items").items("items", move |_| most.clone().into_iter().map(Number)); //~
}

fn with_arguments() {
    let of = vec![3_u64];
    numbers().with(1_u64).map("with", move |m, Number(k)| Ok(Number(k + *m + of[0]))); //~
}

fn no_closures() {
    let whole: Box<dyn Fn(Number) -> anyhow::Result<Number> + Send + Sync> = Box::new(Ok);
    numbers().map("whole", whole); //~
    numbers().map("returned", without_copy()); //~
}
