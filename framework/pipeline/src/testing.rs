//! For tests: a stage that lies to the conductor of its pipeline, and one that gives others orders and items.
//! Nothing in it is stable.

use std::time::Duration;

use parking_lot::Mutex;
use tensorpost_core::api::actor::{Address, Env, LookupError};
use tensorpost_core::api::node::ProcessId;

use crate::item::{EdgeMessage, EndOf, Item, ItemId, ItemOrder, Tag};
use crate::worker::args::{Config, Control, Directive, Event, ReplicaPlace, Run};
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

/// The names of stages that a liar finds begin so.
pub const VICTIM: &str = "victim";

/// Returns the name under which a liar finds an actor, if it is to find it.
pub(crate) fn name_for_liars(config: &Config) -> Option<String> {
    config.stage.starts_with(VICTIM).then(|| format!("{}/{}", config.stage, config.replica))
}

/// Gives the first replica of a stage all orders and notices that there are, with numbers at their ends and
/// those of the pipeline, and asks it to run. Returns how many it has taken.
///
/// # Errors
/// The stage cannot be found, or takes none any more.
pub async fn order_about(env: &Env, stage: &str) -> anyhow::Result<usize> {
    let victim = victim(env, stage).await?;
    let mut told = 0;
    for key in [None, Some(0), Some(u64::MAX)] {
        let counts = victim.cast::<Run>().ask(Run { key }).await?;
        anyhow::ensure!(counts == Counts::default(), "it told its counts");
        for directive in directives(&victim, &env.address()) {
            victim.send(Control::Order { key, directive }).await?;
            told += 1;
        }
    }
    for notice in notices() {
        victim.send(notice).await?;
        told += 1;
    }
    Ok(told)
}

/// Finds the first replica of a stage.
async fn victim(env: &Env, stage: &str) -> Result<Address<Control>, LookupError> {
    let name = format!("{stage}/0");
    loop {
        match env.lookup(&name).await {
            // It takes the name when it begins to run.
            Err(LookupError::Unknown(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            found => return found,
        }
    }
}

/// Sends the first replica of a stage this item, gaps and ends, as those before it do, but for their key.
/// Returns how many it has answered.
///
/// # Errors
/// The stage cannot be found, or takes none any more.
pub async fn send_as_another<T: Item>(env: &Env, stage: &str, item: &T) -> anyhow::Result<usize> {
    let victim = victim(env, stage).await?.cast::<EdgeMessage<T>>();
    let mut answered = 0;
    for key in [0, 1, u64::MAX] {
        let id = ItemId { source: 0, number: u64::MAX - key };
        let items = [0, 1, u32::MAX].map(|lane| Tag { lane: Some(lane), key, ..Tag::of(id) });
        let items = items.into_iter().map(|tag| EdgeMessage::Item(tag, item.clone()));
        let place = |number| ItemOrder { lane: 0, life: 0, number, last: true };
        let gaps = [0, u64::MAX].map(|number| EdgeMessage::Gap { key, order: place(number) });
        let lanes = (0..8).flat_map(|edge| [edge << 16, edge << 16 | 1]);
        let ends = lanes.map(|lane| EdgeMessage::End { key, lane, of: EndOf::Flow });
        for forged in items.chain(gaps).chain(ends) {
            anyhow::ensure!(victim.ask(forged).await.is_ok(), "it has not answered");
            answered += 1;
        }
    }
    Ok(answered)
}

/// Returns all orders, those that end the receiver last.
fn directives(victim: &Address<Control>, own: &Address<Control>) -> Vec<Directive> {
    let lanes = || (0..8).flat_map(|edge| [edge << 16, edge << 16 | 1]).chain([u32::MAX]).collect::<Vec<_>>();
    let processes = [None, Some(ProcessId::NODE), ProcessId::new(1, 0), ProcessId::new(200, u32::MAX)];
    let mut all = Vec::new();
    for with in processes {
        for orphans in [true, false] {
            all.push(Directive::Exited { lanes: lanes(), orphans, with });
        }
    }
    let places = [
        vec![],
        vec![ReplicaPlace::Empty; 3],
        vec![ReplicaPlace::Open(own.clone()); 1000],
        vec![ReplicaPlace::Leaving(victim.clone()), ReplicaPlace::Open(victim.clone())],
    ];
    for stage in (0..8).chain([u16::MAX]) {
        all.extend(places.iter().map(|places| Directive::Places { stage, places: places.clone() }));
    }
    let made = (0..4).chain([u16::MAX]).flat_map(|source| [(source, 0), (source, u64::MAX)]).collect();
    all.push(Directive::NotAgain { lanes: lanes(), made });
    all.push(Directive::Opens { lanes: lanes() });
    all.extend([true, false].map(|after_a_death| Directive::GoOn { after_a_death }));
    all.extend([Directive::Stop, Directive::Close]);
    all
}

fn notices() -> Vec<Control> {
    let id = |source| move |number| ItemId { source, number };
    let ids = [
        vec![],
        (0..1000).map(id(0)).collect(),
        vec![id(u16::MAX)(u64::MAX); 1000],
        vec![id(0)(u64::MAX), id(u16::MAX)(0)],
    ];
    let mut all = Vec::new();
    for key in [0, 1, u64::MAX] {
        for ids in &ids {
            for (left, again) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(Control::Alone { key, left, ids: ids.clone(), again });
            }
            let still = |source| Control::Still { key, source, ids: ids.clone() };
            all.extend([0, 1, u16::MAX].map(still));
        }
    }
    all
}
