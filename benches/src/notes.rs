//! Messages of 256 bytes between two actors on any two processes: one at a time, and as many as there is room
//! for.

use std::time::Instant;

use anyhow::Context as _;
use tensorpost::message;
use tensorpost::prelude::*;
use tokio::sync::oneshot;

use crate::baseline::MESSAGE;

/// A message whose encoding has [`MESSAGE`] bytes: see [`text`].
#[derive(Clone, Serialize, Deserialize, GpuMessage)]
pub struct Note {
    number: u64,
    text: String,
}

/// Numbers start here, so that each takes nine bytes.
const FIRST: u64 = 1 << 32;

/// Returns the text that makes a [`Note`] as long as it has to be.
///
/// # Errors
/// There is no such text.
pub fn text() -> anyhow::Result<String> {
    let bytes = |text: String| -> anyhow::Result<usize> {
        Ok(message::bytes_of(&Note { number: FIRST, text })? as usize)
    };
    let rest = bytes("x".repeat(100))? - 100;
    let text = "x".repeat(MESSAGE - rest);
    anyhow::ensure!(bytes(text.clone())? == MESSAGE, "the encoding of a note has {MESSAGE} bytes");
    Ok(text)
}

/// "Send a note there, wait for it to come back, and so on." The answer is half of each round trip, in
/// nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Vec<u64>, String>)]
pub struct Trips {
    /// A [`Counter`] that has met the [`Driver`].
    pub to: Address<Note>,
    /// How many.
    pub count: u64,
}

/// "Send this many, as fast as you may." The answer is the time until all were handled, in nanoseconds.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<u64, String>)]
pub struct Many {
    /// A [`Counter`] that has met nobody.
    pub to: Address<Note>,
    /// The same.
    pub seen: Address<Seen>,
    /// How many.
    pub count: u64,
}

/// "Send each note back to this one, and greet it now": the first message makes the way there. The reply is
/// whether the way exists.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = bool)]
pub struct Meet(pub Address<Note>, pub Address<Greeting>);

/// See [`Meet`].
#[derive(Serialize, Deserialize, GpuMessage)]
pub struct Greeting;

/// "How many notes have you seen, and have all come in order?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (u64, bool))]
pub struct Seen;

/// Sends notes, and takes those that come back.
pub struct Driver {
    text: String,
    trip: Option<Trip>,
}

struct Trip {
    to: Address<Note>,
    since: Instant,
    took: Vec<u64>,
    left: u64,
    done: oneshot::Sender<Result<Vec<u64>, String>>,
}

impl Driver {
    fn note(&self, number: u64) -> Note {
        Note { number: FIRST + number, text: self.text.clone() }
    }
}

#[actor]
impl Driver {
    fn create(_: &Env) -> anyhow::Result<Self> {
        Ok(Driver { text: text()?, trip: None })
    }

    #[handler]
    fn trips(&mut self, Trips { to, count }: Trips) -> ResponseFuture<Result<Vec<u64>, String>> {
        let (done, result) = oneshot::channel();
        let took = Vec::with_capacity(count as usize);
        let first = to.send(self.note(0));
        self.trip = Some(Trip { to, since: Instant::now(), took, left: count, done });
        Box::pin(async move {
            first.await.map_err(|error| error.reason.to_string())?;
            result.await.unwrap_or_else(|_| Err("other trips were begun meanwhile".to_owned()))
        })
    }

    #[handler]
    fn back(&mut self, note: Note) {
        let Some(trip) = &mut self.trip else { return };
        trip.took.push(trip.since.elapsed().as_nanos() as u64 / 2);
        trip.left -= 1;
        if trip.left > 0 {
            trip.since = Instant::now();
            let Err(error) = trip.to.try_send(note) else { return };
            self.end(Err(error.reason.to_string()));
        } else {
            let took = std::mem::take(&mut trip.took);
            self.end(Ok(took));
        }
    }

    #[handler]
    fn greeting(&self, _: Greeting) {}

    fn end(&mut self, result: Result<Vec<u64>, String>) {
        if let Some(trip) = self.trip.take() {
            // The asker waits for it, or is gone.
            let _ = trip.done.send(result);
        }
    }

    #[handler]
    fn many(&self, Many { to, seen, count }: Many) -> ResponseFuture<Result<u64, String>> {
        let first = self.note(0);
        Box::pin(async move {
            let sent = async {
                let (before, _) = seen.ask(Seen).await?;
                let since = Instant::now();
                for number in 0..count {
                    let note = Note { number: first.number + number, text: first.text.clone() };
                    to.send(note).await.map_err(|error| error.reason)?;
                }
                // This ask is behind them, so its answer means that all were handled.
                let (after, in_order) = seen.ask(Seen).await?;
                let took = since.elapsed().as_nanos() as u64;
                anyhow::ensure!(after - before == count && in_order, "{after} less {before} of {count} came");
                Ok(took)
            };
            sent.await.context("a stream of notes").map_err(|error: anyhow::Error| format!("{error:#}"))
        })
    }
}

/// Counts notes, and sends each back if it was given a receiver.
#[derive(Default)]
pub struct Counter {
    peer: Option<Address<Note>>,
    seen: u64,
    last: u64,
    out_of_order: bool,
}

#[actor]
impl Counter {
    fn create(_: &Env) -> Self {
        Counter::default()
    }

    #[handler]
    fn meet(&mut self, Meet(peer, greeted): Meet) -> ResponseFuture<bool> {
        self.peer = Some(peer);
        Box::pin(async move { greeted.send(Greeting).await.is_ok() })
    }

    #[handler]
    fn note(&mut self, note: Note) {
        self.seen += 1;
        // Each stream begins anew.
        self.out_of_order |= note.number != FIRST && note.number != self.last + 1;
        self.last = note.number;
        let Some(peer) = &self.peer else { return };
        if let Err(error) = peer.try_send(note) {
            eprintln!("a note does not go back: {}", error.reason);
        }
    }

    #[handler]
    fn seen(&self, _: Seen) -> (u64, bool) {
        (self.seen, !self.out_of_order)
    }
}
