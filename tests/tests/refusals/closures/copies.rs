//! Each marked line has a closure that captures a value that may be copied. The other lines are accepted.

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

fn numbers() -> Flow<Number> {
    let [flow] = Pipeline::new("numbers").items("numbers", |_| (0..3).map(Number)).broadcast();
    flow
}

fn generic<T: Copy + Send + Sync + Into<u64> + 'static>(value: T) {
    numbers().map("generic", move |Number(k)| Ok(Number(k + Into::<u64>::into(value)))); //~
}

fn twice(k: u64) -> u64 {
    2 * k
}

#[derive(Clone, Copy)]
struct Token;

const SEVEN: u64 = 7;

fn main() {
    let n = std::env::args().count() as u64;
    Pipeline::new("items").items("items", move |_| (0..n).map(Number)); //~
    numbers().map("map", move |Number(k)| Ok(Number(k + n))); //~
    numbers().filter("filter", move |Number(k)| *k < n); //~
    numbers().flat_map("flat_map", move |Number(k)| Ok((0..k + n).map(Number))); //~
    numbers().apply("apply", move |Number(k), out, _| Ok(out.emit(Number(k + n)))); //~
    numbers().for_each("for_each", move |Number(k)| Ok(assert!(k < n))); //~
    let [_, _] = numbers().spread_by_key(move |Number(k)| k % n); //~
    let (_, _) = numbers().split(move |Number(k)| *k < n); //~
    numbers().iterate(4, |flow| flow.map("round", Ok), move |Number(k)| *k < n); //~
    numbers().map("by_key", Ok).by_key(move |Number(k)| k % n); //~
    numbers().join(numbers(), move |Number(k)| k % n, |Number(k)| *k); //~
    numbers().join(numbers(), |Number(k)| *k, move |Number(k)| k % n); //~
    Pipeline::new("items").with(1_u64).items("items", move |m, _| (0..m + n).map(Number)); //~
    numbers().with(1_u64).map("map", move |m, Number(k)| Ok(Number(k + n + *m))); //~
    numbers().with(1_u64).filter("filter", move |m, Number(k)| *k < n + *m); //~
    numbers().with(1_u64).flat_map("flat_map", move |m, Number(k)| Ok((0..k + n + *m).map(Number))); //~
    numbers().with(1_u64).apply("apply", move |m, Number(k), out, _| Ok(out.emit(Number(k + n + *m)))); //~
    numbers().with(1_u64).for_each("for_each", move |m, Number(k)| Ok(assert!(k < n + *m))); //~
    let [_, _] = numbers().with(1_u64).spread_by_key(move |m, Number(k)| (k + n) % m); //~
    let (_, _) = numbers().with(1_u64).split(move |m, Number(k)| *k < n + *m); //~
    numbers().with(1_u64).iterate(4, |flow| flow.map("round", Ok), move |m, Number(k)| *k < n + *m); //~
    numbers().map("by_key", Ok).with(1_u64).by_key(move |m, Number(k)| (k + n) % m); //~
    numbers().with(1_u64).join(numbers(), move |m, Number(k)| (k + n) % m, |_, Number(k)| *k); //~
    numbers().with(1_u64).join(numbers(), |_, Number(k)| *k, move |m, Number(k)| (k + n) % m); //~
    let _ = Node::builder().worker_telemetry(move |_| { assert!(n > 0); unreachable!() }); //~

    // All kinds of values are refused.
    let text: &'static str = Box::leak(n.to_string().into_boxed_str());
    numbers().map("text", move |Number(k)| Ok(Number(k + text.len() as u64))); //~
    let pair = (n, n);
    numbers().map("half", move |Number(k)| Ok(Number(k + pair.0))); //~
    let pointer: fn(u64) -> u64 = twice;
    numbers().map("pointer", move |Number(k)| Ok(Number(pointer(k)))); //~
    let inner = move |k: u64| k + n;
    numbers().map("inner", move |Number(k)| Ok(Number(inner(k)))); //~
    generic(n);

    // These have no bytes.
    let (token, function) = (Token, twice);
    numbers().map("accepted token", move |Number(k)| Ok(Number(k + size_of_val(&token) as u64)));
    numbers().map("accepted function", move |Number(k)| Ok(Number(function(k))));
    numbers().map("accepted constant", move |Number(k)| Ok(Number(k + SEVEN)));
}
