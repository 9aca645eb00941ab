use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpost::prelude::*;

#[derive(Clone, Serialize, Deserialize, GpuMessage)]
struct Number(u64);

fn main() {
    let count = Arc::new(AtomicU64::new(0));
    let numbers = Pipeline::new("counts").items("numbers", |_| (0..3).map(Number));
    numbers.for_each("count", move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
}
