//! Bodies of messages by size, there and back between two processes. A plain `Vec<u8>` stands beside one that
//! serde is told to write as bytes, and the rate in bytes a second is measured as they grow.

use std::time::{Duration, Instant};

use tensorpost::prelude::*;
use tensorpost_benches::cores::pin;

use super::{Bound, Row, micros, middle, over};

/// Sizes in bytes, with how often each is sent for one sample.
const SIZES: [(usize, u32); 5] =
    [(1 << 10, 100), (64 << 10, 20), (256 << 10, 10), (1 << 20, 3), (16 << 20, 1)];
const SAMPLES: usize = 15;

/// A body as anybody would write it.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Plain)]
struct Plain {
    data: Vec<u8>,
}

/// A body with bytes written by hand.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Bytes)]
struct Bytes {
    #[serde(with = "by_hand")]
    data: Vec<u8>,
}

/// Does the same as the crate `serde_bytes`.
mod by_hand {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }
}

/// Sends this many bytes this often; the reply is the time of each sample there and back, in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Vec<u64>)]
struct Run {
    plain: bool,
    bytes: usize,
    count: u32,
}

#[derive(RemoteActor)]
#[remote_actor(handles(Run), args = (Address<Plain>, Address<Bytes>), create = Asker::new)]
struct Asker {
    plain: Address<Plain>,
    bytes: Address<Bytes>,
}

impl Asker {
    fn new((plain, bytes): (Address<Plain>, Address<Bytes>), _: &Env) -> anyhow::Result<Self> {
        pin(0);
        Ok(Asker { plain, bytes })
    }
}

impl Handler<Run> for Asker {
    type Result = ResponseFuture<Vec<u64>>;

    fn handle(&mut self, run: Run, _: &mut Context<Self>) -> Self::Result {
        let (plain, bytes) = (self.plain.clone(), self.bytes.clone());
        Box::pin(async move {
            // The bytes have all values, as real data does: small numbers alone would be shorter in
            // MessagePack.
            let mut data: Vec<u8> = (0..run.bytes).map(|at| (at * 7) as u8).collect();
            let mut times = Vec::new();
            // The first one pays for the link, the chunks and the buffers.
            for sample in 0..=SAMPLES {
                let since = Instant::now();
                for _ in 0..run.count {
                    data = if run.plain {
                        plain.ask(Plain { data }).await.expect("the echo runs").data
                    } else {
                        bytes.ask(Bytes { data }).await.expect("the echo runs").data
                    };
                }
                if sample > 0 {
                    times.push((since.elapsed() / run.count).as_nanos() as u64);
                }
            }
            assert!(
                data.len() == run.bytes && data[run.bytes - 1] == ((run.bytes - 1) * 7) as u8,
                "it came back"
            );
            times
        })
    }
}

#[derive(RemoteActor)]
#[remote_actor(handles(Plain, Bytes), args = (), create = Echo::new)]
struct Echo;

impl Echo {
    fn new((): (), _: &Env) -> anyhow::Result<Self> {
        pin(1);
        Ok(Echo)
    }
}

impl Handler<Plain> for Echo {
    type Result = MessageResult<Plain>;

    fn handle(&mut self, message: Plain, _: &mut Context<Self>) -> Self::Result {
        MessageResult(message)
    }
}

impl Handler<Bytes> for Echo {
    type Result = MessageResult<Bytes>;

    fn handle(&mut self, message: Bytes, _: &mut Context<Self>) -> Self::Result {
        MessageResult(message)
    }
}

pub(super) fn rows(node: &Node) -> anyhow::Result<Vec<Row>> {
    let echo = node.spawn::<Echo>(()).start()?;
    let asker = node.spawn::<Asker>((echo.address(), echo.address())).start()?;
    let runs = asker.address::<Run>();
    let run = |plain: bool, bytes: usize, count: u32| -> anyhow::Result<Duration> {
        let times = node.block_on(runs.ask(Run { plain, bytes, count }))?;
        Ok(middle(&mut times.into_iter().map(Duration::from_nanos).collect::<Vec<_>>()))
    };
    let mut rows = Vec::new();
    let mut as_bytes = Vec::new();
    for (bytes, count) in SIZES {
        let by_hand = run(false, bytes, count)?;
        let plain = run(true, bytes, count)?;
        as_bytes.push((bytes, by_hand));
        rows.push(Row::new(
            format!("a plain Vec<u8> over bytes, {} KiB", bytes >> 10),
            format!("{} over {}", micros(plain), micros(by_hand)),
            over(plain, by_hand),
            Some(Bound::AtMost(1.5)),
        ));
    }
    let rate = |wanted: usize| {
        let (bytes, time) = as_bytes.iter().find(|(bytes, _)| *bytes == wanted).expect("it is measured");
        *bytes as f64 / time.as_secs_f64()
    };
    let small = rate(64 << 10);
    for (bytes, bound) in [(256 << 10, None), (1 << 20, Some(Bound::AtLeast(0.8))), (16 << 20, None)] {
        rows.push(Row::new(
            format!("bytes a second of a body of {} KiB, over one of 64 KiB", bytes >> 10),
            format!("{:.2} over {:.2} GB/s", 2e-9 * rate(bytes), 2e-9 * small),
            rate(bytes) / small,
            bound,
        ));
    }
    Ok(rows)
}

/// Sends often enough for the rings between two processes to wrap, and then calls `then` with all workers,
/// which are idle.
pub(super) fn around_the_ring<T>(
    node: &Node,
    then: impl FnOnce(&[u32]) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let echo = node.spawn::<Echo>(()).start()?;
    let asker = node.spawn::<Asker>((echo.address(), echo.address())).start()?;
    node.block_on(asker.address::<Run>().ask(Run { plain: false, bytes: 32 << 10, count: 20 }))?;
    let pids: Vec<u32> = node.workers().iter().map(|worker| worker.pid).collect();
    then(&pids)
}
