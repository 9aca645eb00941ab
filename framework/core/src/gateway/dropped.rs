//! The log about words and messages that are dropped between hosts: one line a second about each host.
//!
//! A host with the key, or a worker of this one, can have something dropped as often as it likes (MBX-2).
//!
//! **Locks.** One, which is a leaf.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

use parking_lot::Mutex;

use crate::limits::MAX_LOG_TEXT;
use crate::observe::pace::Pace;
use crate::observe::text::shown;

/// By the number of the host. Each number is used once, and there are 65,536.
static LINES: Mutex<BTreeMap<u16, Pace>> = Mutex::new(BTreeMap::new());

/// Logs that something from this host is dropped, unless the log has had such a line within a second.
pub(crate) fn dropped(host: u16, why: &dyn Display) {
    let left_out = LINES.lock().entry(host).or_default().tell(Instant::now());
    if let Some(left_out) = left_out {
        // The reason may quote what that host says.
        let why = shown(why.to_string(), MAX_LOG_TEXT);
        tracing::warn!(host, left_out, "dropped: {why}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tracing::{Event, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};

    use super::*;

    struct Count(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_flood_of_one_host_is_a_line_and_hides_no_other() {
        let lines = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry().with(Count(Arc::clone(&lines)));
        let began = Instant::now();
        tracing::subscriber::with_default(subscriber, || {
            (0..10_000).for_each(|_| dropped(u16::MAX, &"it lies"));
            dropped(u16::MAX - 1, &"it lies, too");
        });
        let most = 2 + began.elapsed().as_secs() as usize;
        assert!((2..=most).contains(&lines.load(Relaxed)), "{lines:?}");
    }
}
