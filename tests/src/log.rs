//! The log of this process: all cases of a program share it, and each can listen.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

type Listener = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

#[derive(Clone, Default)]
struct Listeners(Arc<Mutex<Vec<Listener>>>);

impl<S: Subscriber> Layer<S> for Listeners {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Called outside of the lock, because a listener may hold up the thread that logs.
        let listeners = self.0.lock().clone();
        listeners.iter().for_each(|listener| listener(event));
    }
}

/// The message of an event.
pub fn message_of(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0
}

/// Hears of every event that this process logs until it is dropped, those of cases that run beside this one
/// included. Returns `None` where another subscriber has the log, because `RUST_LOG` is set; the case then
/// has to do without.
#[must_use = "it listens until it is dropped"]
pub fn listen(listener: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Option<Listening> {
    static LISTENERS: OnceLock<Option<Listeners>> = OnceLock::new();
    let begin = || {
        let listeners = Listeners::default();
        // For the whole process: a thread's own subscriber would miss callsites that others register.
        let subscriber = tracing_subscriber::registry().with(listeners.clone());
        tracing::subscriber::set_global_default(subscriber).is_ok().then_some(listeners)
    };
    let Some(listeners) = LISTENERS.get_or_init(begin) else {
        eprintln!("RUST_LOG is set: the log is somebody else's, and this case hears nothing of it");
        return None;
    };
    let listener: Listener = Arc::new(listener);
    listeners.0.lock().push(Arc::clone(&listener));
    Some(Listening { listeners: listeners.clone(), listener })
}

/// A registered listener.
pub struct Listening {
    listeners: Listeners,
    listener: Listener,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening")
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listeners.0.lock().retain(|listener| !Arc::ptr_eq(listener, &self.listener));
    }
}
