//! For tests: a stage that lies to the conductor of its pipeline. Nothing in it is stable.

use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_core::api::actor::Address;

use crate::item::ItemId;
use crate::worker::args::Event;
use crate::worker::meter::{Counts, Failure, LostItem, Span, Spanned, Toward};

/// The address to which the actors of this process report.
static EVENTS: Mutex<Option<Address<Event>>> = Mutex::new(None);

pub(crate) fn note(events: &Address<Event>) {
    *EVENTS.lock() = Some(events.clone());
}

/// The subject of a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The progress of a replica, in the life that began then: every count is the largest number.
    Progress {
        /// When the life began.
        life: u64,
    },
    /// That a stage has failed.
    Failed,
    /// The calls of a replica, and their times.
    Spans,
}

/// Tells a lie about a stage, by its number and its name. Returns whether there was room for the event.
pub fn tell(stage: u16, name: &str, replica: u16, lie: Lie) -> bool {
    let events = EVENTS.lock().clone().expect("an actor of a pipeline is in this process");
    let (id, most) = (ItemId { source: u16::MAX, number: u64::MAX }, u64::MAX);
    let failure =
        Failure { stage: name.to_owned(), id: Some(id), why: "a lie".to_owned(), attempts: u32::MAX };
    let lost = LostItem { stage: name.to_owned(), id, why: "a lie".repeat(10_000) };
    let toward = |stage| Toward { stage, handled: most, accepted: most, waiting: u32::MAX, dropped: most };
    let event = match lie {
        Lie::Failed => Event::Failed(failure),
        Lie::Spans => {
            let span = |what| Span { what, id: Some(id), from: most, took: most };
            let spans = [Spanned::Call, Spanned::Send(stage), Spanned::Lease(u16::MAX)].map(span).into();
            Event::Spans { stage, replica, pid: u32::MAX, spans }
        }
        Lie::Progress { life } => {
            let counts = Counts {
                stage,
                replica,
                life,
                items_in: most,
                items_out: most,
                missed: most,
                errors: most,
                retries: most,
                skipped: most,
                dead_letters: most,
                lost: most,
                lost_tainted: most,
                lost_outside: most,
                lost_unread: most,
                resent: most,
                busy: Duration::MAX,
                waiting: Duration::MAX,
                active: Duration::MAX,
                stream_waits: most,
                stream_waited: Some(Duration::MAX),
                in_flight: most,
                bytes_in_flight: most,
                bytes_not_copied: most,
                failures: vec![failure; 2],
                lost_items: vec![lost.clone(); 2],
                left_over: most,
                left_over_items: vec![lost; 2],
                toward: (0..4).chain([u16::MAX]).map(toward).collect(),
                made: most,
                length: Some(most),
                ..Counts::default()
            };
            Event::Progress(Box::new(counts), Vec::new())
        }
    };
    events.try_send(event).is_ok()
}
