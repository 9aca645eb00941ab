//! Each marked line gives a closure arguments that serde cannot pass to another process.

use std::fs::File;
use std::sync::mpsc::Sender;

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

struct Plain(u64);

fn main() {
    let numbers = || Pipeline::new("numbers").items("numbers", |_| (0..3).map(Number));
    numbers().with(Plain(3)).map("plain", |plain, Number(k)| Ok(Number(k + plain.0))); //~
    let file: Option<File> = None;
    numbers().with(file).map("file", |_, number| Ok(number)); //~
    let sender: Option<Sender<u64>> = None;
    numbers().with(sender).map("sender", |_, number| Ok(number)); //~
    let closure = |k: u64| k + 1;
    numbers().with(closure).map("closure", |closure, Number(k)| Ok(Number(closure(k)))); //~
    let pointer: fn(u64) -> u64 = closure;
    numbers().with(pointer).map("pointer", |pointer, Number(k)| Ok(Number(pointer(k)))); //~
}
