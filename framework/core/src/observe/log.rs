//! Events of a worker's log, on their way to the node.
//!
//! A worker's [`Forward`] layer turns each `tracing` event into a [`LogRecord`] and offers it to a
//! [`LogSink`]. The sink never waits: it drops and counts an event that finds no room. The node gives
//! arriving events to its own subscriber with [`emit`]. Everything in a record is bounded (MBX-2); longer
//! texts are cut.
//!
//! The events that a worker had not sent yet are lost when it dies. Those that it had sent are read before
//! its death is handled. A panic is an event too, written before the thread unwinds.

use std::fmt::{self, Write};
use std::io::Write as _;
use std::panic::PanicHookInfo;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Value, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::callsites;
use super::list::at_most;
use super::text::{cut, shown};
use crate::limits::{MAX_LOG_FIELDS, MAX_LOG_LABEL, MAX_LOG_RECORD, MAX_LOG_SPANS, MAX_LOG_TEXT};
use crate::os::vital;

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Severity {
    /// Something failed.
    Error,
    /// Something should be looked at.
    Warn,
    /// Something happened.
    Info,
    /// For the developer.
    Debug,
    /// For the developer, in detail.
    Trace,
}

impl From<&Level> for Severity {
    fn from(level: &Level) -> Self {
        match *level {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warn,
            Level::INFO => Severity::Info,
            Level::DEBUG => Severity::Debug,
            Level::TRACE => Severity::Trace,
        }
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// The severity.
    pub severity: Severity,
    /// The target in its process: by default the module.
    pub target: String,
    /// The message.
    pub message: String,
    /// The other fields, by name.
    #[serde(deserialize_with = "at_most::<MAX_LOG_FIELDS, _, _>")]
    pub fields: Vec<(String, String)>,
    /// The spans around the event, outermost first, each with its fields.
    #[serde(deserialize_with = "at_most::<MAX_LOG_SPANS, _, _>")]
    pub spans: Vec<String>,
    /// File and line.
    pub location: Option<(String, u32)>,
}

impl LogRecord {
    /// Writes the record to stderr: in a forked child of a worker, whose records nobody takes.
    pub(crate) fn say(&self) {
        let LogRecord { severity, target, message, fields, .. } = self;
        let fields = fields.iter().collect::<Vec<_>>();
        let mut out = std::io::stderr().lock();
        // An error means that nobody reads stderr.
        let _ = writeln!(out, "{severity:?} {target}: {message} {}", Pairs(&fields));
    }

    /// Returns the bytes of all texts.
    pub(crate) fn bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len());
        let spans = self.spans.iter().map(String::len);
        let file = self.location.as_ref().map_or(0, |(file, _)| file.len());
        self.target.len() + self.message.len() + file + fields.chain(spans).sum::<usize>()
    }

    /// Returns another process's record in a form that can be kept and shown. An honest process keeps to the
    /// bounds, but a peer might not (WIRE-1).
    pub(crate) fn bounded(self) -> Self {
        self.with_texts(shown)
    }

    /// Returns the record as a process sends it, no larger than the node takes.
    pub(crate) fn cut(self) -> Self {
        self.with_texts(cut)
    }

    fn with_texts(self, bounded: impl Fn(String, usize) -> String) -> Self {
        let mut room = MAX_LOG_RECORD;
        let mut take = |text: String, limit: usize| {
            let text = bounded(text, limit.min(room));
            room -= text.len();
            text
        };
        let target = take(self.target, MAX_LOG_LABEL);
        let message = take(self.message, MAX_LOG_TEXT);
        let location = self.location.map(|(file, line)| (take(file, MAX_LOG_LABEL), line));
        let fields = self.fields.into_iter().take(MAX_LOG_FIELDS);
        let fields =
            fields.map(|(name, value)| (take(name, MAX_LOG_LABEL), take(value, MAX_LOG_TEXT))).collect();
        let spans = self.spans.into_iter().take(MAX_LOG_SPANS).map(|span| take(span, MAX_LOG_TEXT)).collect();
        LogRecord { severity: self.severity, target, message, fields, spans, location }
    }
}

/// The destination of a process's records. Never waits.
pub trait LogSink: Send + Sync + 'static {
    /// Takes a record, or drops and counts it.
    fn offer(&self, record: LogRecord);
}

/// The layer that sends a process's events to a sink.
pub struct Forward {
    sink: Arc<dyn LogSink>,
}

impl Forward {
    /// Makes a layer that offers every event to `sink`.
    pub fn new(sink: Arc<dyn LogSink>) -> Self {
        Forward { sink }
    }
}

/// A span's fields as text, kept with the span.
struct SpanText(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Forward {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(SpanText(fields.as_text()));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut extensions = span.extensions_mut();
        if let Some(text) = extensions.get_mut::<SpanText>() {
            if !text.0.is_empty() {
                text.0.push(' ');
            }
            text.0.push_str(&fields.as_text());
            text.0 = cut(std::mem::take(&mut text.0), MAX_LOG_TEXT);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = context.event_scope(event).map(|scope| {
            let mut spans: Vec<_> = scope
                .take(MAX_LOG_SPANS)
                .map(|span| match span.extensions().get::<SpanText>() {
                    Some(SpanText(text)) if !text.is_empty() => format!("{}{{{text}}}", span.name()),
                    _ => span.name().to_owned(),
                })
                .collect();
            spans.reverse();
            spans
        });
        let metadata = event.metadata();
        let location = metadata.file().map(|file| (file.to_owned(), metadata.line().unwrap_or(0)));
        self.sink.offer(LogRecord {
            severity: metadata.level().into(),
            target: metadata.target().to_owned(),
            message: fields.message,
            fields: fields.others,
            spans: spans.unwrap_or_default(),
            location,
        });
    }
}

/// Collects the fields of an event or a span.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(String, String)>,
}

impl Fields {
    fn as_text(&self) -> String {
        let text = self.others.iter().fold(String::new(), |mut text, (name, value)| {
            if !text.is_empty() {
                text.push(' ');
            }
            let _ = write!(text, "{name}={value}");
            text
        });
        cut(text, MAX_LOG_TEXT)
    }

    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let mut text = Bounded(String::new());
        // The bound is the only error, and text past it is meant to be left out.
        let _ = text.write_fmt(value);
        if field.name() == "message" {
            self.message = text.0;
        } else if self.others.len() < MAX_LOG_FIELDS {
            self.others.push((field.name().to_owned(), text.0));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, format_args!("{value}"));
    }
}

/// A string that takes [`MAX_LOG_TEXT`] bytes and then fails the formatting.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(&text[..text.floor_char_boundary(MAX_LOG_TEXT.saturating_sub(self.0.len()))]);
        if self.0.len() + 4 > MAX_LOG_TEXT { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Makes an event of a [`Severity`], which `tracing` fixes for each place in the code.
macro_rules! event_of {
    ($severity:expr, $($event:tt)+) => {
        match $severity {
            $crate::observe::log::Severity::Error => tracing::error!($($event)+),
            $crate::observe::log::Severity::Warn => tracing::warn!($($event)+),
            $crate::observe::log::Severity::Info => tracing::info!($($event)+),
            $crate::observe::log::Severity::Debug => tracing::debug!($($event)+),
            $crate::observe::log::Severity::Trace => tracing::trace!($($event)+),
        }
    };
}
pub(crate) use event_of;

/// Makes each panic an error event of `sink`, with its location, and then calls the hook that was set before.
pub fn forward_panics(sink: Arc<dyn LogSink>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        vital::note_panic(&text_of(info));
        sink.offer(panic_record(info));
        before(info);
    }));
}

fn text_of(info: &PanicHookInfo<'_>) -> String {
    let text = info.payload_as_str().unwrap_or("a panic with a payload that is not text");
    cut(text.to_owned(), MAX_LOG_TEXT)
}

fn panic_record(info: &PanicHookInfo<'_>) -> LogRecord {
    let message = text_of(info);
    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
    LogRecord {
        severity: Severity::Error,
        target: "panic".to_owned(),
        message: format!("panicked: {message}"),
        fields: vec![("thread".to_owned(), thread)],
        spans: Vec::new(),
        location: info.location().map(|at| (at.file().to_owned(), at.line())),
    }
}

/// Gives a worker's record to the subscriber of this thread, under the target `tensorpost::worker`. `tracing`
/// fixes targets when a program is built, so the worker's own target is the field `origin`.
///
/// The record's fields become fields of the event. A field goes into the field `fields`, as text, if its name
/// cannot be a field's name or is one of the node's. All of them go there if workers use too many different
/// sets of names. `on_host` is the worker's host, if that is another one.
pub fn emit(on_host: Option<&str>, worker: &str, record: &LogRecord) {
    let LogRecord { target: origin, message, .. } = record;
    let (named, others): (Vec<_>, Vec<_>) =
        record.fields.iter().take(MAX_LOG_FIELDS).partition(|(name, _)| callsites::is_a_name(name));
    // Two steps, because the boxed values must outlive the references to them.
    let named: Vec<_> = named.iter().map(|(name, value)| (name.as_str(), typed(value))).collect();
    let named: Vec<_> = named.iter().map(|(name, value)| (*name, &**value)).collect();
    let spans = record.spans.join(":");
    let spans = (!spans.is_empty()).then_some(spans.as_str());
    let at = record.location.as_ref().map(|(file, line)| format!("{file}:{line}"));
    let at = at.as_deref();
    let others = Pairs(&others).to_string();
    let text = (!others.is_empty()).then_some(others.as_str());
    let shown = tracing::field::display(Plain(message));
    let own = [
        Some(&shown as &dyn Value),
        Some(&worker as &dyn Value),
        on_host.as_ref().map(|host| host as &dyn Value),
        Some(&origin.as_str() as &dyn Value),
        text.as_ref().map(|text| text as &dyn Value),
        spans.as_ref().map(|spans| spans as &dyn Value),
        at.as_ref().map(|at| at as &dyn Value),
    ];
    if callsites::event(record.severity, own, &named) {
        return;
    }
    // No callsite is left. This one is fixed at build time, so all fields go into it as one text.
    let all: Vec<_> = record.fields.iter().collect();
    let fields = Pairs(&all).to_string();
    let fields = (!fields.is_empty()).then_some(fields.as_str());
    event_of!(
        record.severity,
        target: "tensorpost::worker", worker, on_host, origin, fields, spans, at, "{message}"
    );
}

/// Returns the value of a field that travels as text. A text that looks like a number or a truth value
/// becomes one, so a count stays a count.
fn typed(text: &str) -> Box<dyn Value + '_> {
    fn is<'a, T: Value + std::str::FromStr + ToString + 'static>(text: &str) -> Option<Box<dyn Value + 'a>> {
        let value = text.parse::<T>().ok().filter(|value| value.to_string() == text)?;
        Some(Box::new(value))
    }
    let numbers = || is::<i64>(text).or_else(|| is::<u64>(text)).or_else(|| is::<f64>(text));
    numbers().or_else(|| is::<bool>(text)).unwrap_or_else(|| Box::new(text))
}

/// Displays a text as it is.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

pub(crate) struct Pairs<'a>(pub(crate) &'a [&'a (String, String)]);

impl fmt::Display for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_LOG_MESSAGE;
    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Default)]
    struct Kept(Mutex<Vec<LogRecord>>);

    impl LogSink for Kept {
        fn offer(&self, record: LogRecord) {
            self.0.lock().push(record);
        }
    }

    fn records(body: impl FnOnce()) -> Vec<LogRecord> {
        let sink = Arc::new(Kept::default());
        let subscriber = tracing_subscriber::registry().with(Forward::new(sink.clone()));
        tracing::subscriber::with_default(subscriber, body);
        std::mem::take(&mut *sink.0.lock())
    }

    #[test]
    fn an_event_keeps_its_level_target_message_fields_and_spans() {
        let records = records(|| {
            let outer = tracing::info_span!("stage", id = 7, late = tracing::field::Empty);
            let _outer = outer.enter();
            outer.record("late", "yes");
            let _inner = tracing::info_span!("frame").entered();
            tracing::warn!(target: "demo", count = 3, name = "x", "dropped {} frames", 3);
        });
        let record = &records[0];
        assert_eq!((record.severity, record.target.as_str()), (Severity::Warn, "demo"));
        assert_eq!(record.message, "dropped 3 frames");
        assert_eq!(record.fields, [("count".into(), "3".into()), ("name".into(), "x".into())]);
        assert_eq!(record.spans, ["stage{id=7 late=yes}", "frame"]);
        assert!(record.location.as_ref().unwrap().0.ends_with("log.rs"));
    }

    // MBX-2.
    #[test]
    fn a_long_text_is_cut() {
        let records =
            records(|| tracing::info!(big = "ä".repeat(MAX_LOG_TEXT), "{}", "x".repeat(3 * MAX_LOG_TEXT)));
        assert!(records[0].message.len() <= MAX_LOG_TEXT && records[0].message.len() > MAX_LOG_TEXT - 8);
        assert!(records[0].fields[0].1.len() <= MAX_LOG_TEXT);
    }

    // WIRE-1, MBX-2.
    #[test]
    fn a_record_of_another_process_is_bounded_and_forges_no_line() {
        let long = "x\n".repeat(1 << 16);
        let forged = LogRecord {
            severity: Severity::Error,
            target: long.clone(),
            message: "well\n2026-11-22T00:00:00Z ERROR tensorpost::node: worker `b` ended".into(),
            fields: vec![(long.clone(), long.clone()); 1000],
            spans: vec![long.clone(); 1000],
            location: Some((long, 5)),
        };
        let record = forged.bounded();
        assert!(record.bytes() <= MAX_LOG_RECORD, "{}", record.bytes());
        assert!(record.fields.len() <= MAX_LOG_FIELDS && record.spans.len() <= MAX_LOG_SPANS);
        let texts = record.fields.iter().flat_map(|(name, value)| [name, value]).chain(&record.spans);
        for text in texts.chain([&record.message, &record.target]) {
            assert!(text.lines().skip(1).all(|line| line.starts_with("    |")), "{text}");
        }
    }

    /// MBX-2: a record that a process sends fits the node's bounds.
    #[test]
    fn the_longest_record_is_cut_before_it_is_sent() {
        let long = "ä\n".repeat(1 << 16);
        let record = LogRecord {
            severity: Severity::Trace,
            target: long.clone(),
            message: long.clone(),
            fields: vec![(long.clone(), long.clone()); 1000],
            spans: vec![long.clone(); 1000],
            location: Some((long, u32::MAX)),
        };
        let sent = rmp_serde::to_vec_named(&record.cut()).unwrap();
        assert!(sent.len() <= MAX_LOG_MESSAGE && sent.len() > MAX_LOG_RECORD, "{} bytes", sent.len());
        assert!(rmp_serde::from_slice::<LogRecord>(&sent).unwrap().bytes() <= MAX_LOG_RECORD);
        let short =
            LogRecord { message: "two\nlines".into(), fields: vec![], spans: vec![], ..record_of("t") };
        assert_eq!(short.clone().cut(), short);
    }

    fn record_of(target: &str) -> LogRecord {
        let (message, fields, spans) = (String::new(), Vec::new(), Vec::new());
        LogRecord { severity: Severity::Info, target: target.into(), message, fields, spans, location: None }
    }

    #[test]
    fn a_record_comes_out_of_the_node_as_it_went_in_under_its_workers_name() {
        let sent = LogRecord {
            severity: Severity::Error,
            target: "demo::blur".into(),
            message: "out of {memory}".into(),
            fields: vec![("bytes".into(), "12".into())],
            spans: vec!["stage".into()],
            location: Some(("a.rs".into(), 5)),
        };
        let records = records(|| emit(None, "blur-1", &sent));
        assert_eq!((records[0].severity, records[0].message.as_str()), (Severity::Error, "out of {memory}"));
        assert_eq!(pairs(&records[0]), "worker=blur-1 origin=demo::blur spans=stage at=a.rs:5 bytes=12");
        let records = self::records(|| emit(Some("2 right"), "blur-1", &sent));
        let named = "worker=blur-1 on_host=2 right origin=demo::blur spans=stage at=a.rs:5 bytes=12";
        assert_eq!(pairs(&records[0]), named);
    }

    fn pairs(record: &LogRecord) -> String {
        Pairs(&record.fields.iter().collect::<Vec<_>>()).to_string()
    }

    // WIRE-1: a worker chooses the names.
    #[test]
    fn a_field_that_is_none_of_its_own_is_text() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let fields = vec![
            field("worker", "another"),
            field("x y", "1"),
            field("frame.id", "7"),
            field("", "empty"),
            field(&"n".repeat(65), "long"),
        ];
        let sent = LogRecord {
            severity: Severity::Warn,
            target: "demo".into(),
            message: "late".into(),
            fields,
            spans: Vec::new(),
            location: None,
        };
        let records = records(|| emit(None, "camera.0", &sent));
        let expected = format!(
            "worker=camera.0 origin=demo fields=worker=another x y=1 =empty {}=long frame.id=7",
            "n".repeat(65)
        );
        assert_eq!((pairs(&records[0]), records[0].message.as_str()), (expected, "late"));
    }

    // MBX-2: the memory kept for sets of names is bounded, and no field is lost past the bound.
    #[test]
    fn more_sets_of_names_than_are_kept_become_text() {
        let sent = |number: u32| LogRecord {
            severity: Severity::Trace,
            target: "demo".into(),
            message: "m".into(),
            fields: vec![(format!("name_{number}"), "v".into())],
            spans: Vec::new(),
            location: None,
        };
        let records = records(|| (0..1000).for_each(|number| emit(Some("1 left"), "w", &sent(number))));
        let as_text = records.iter().filter(|record| record.fields.iter().any(|(name, _)| name == "fields"));
        // Counts only this severity; the other tests keep their own callsites.
        assert!(as_text.count() > 500 && records.len() == 1000);
        let values = |record: &LogRecord| pairs(record).matches("=v").count();
        assert!(records.iter().all(|record| values(record) == 1));
    }
}
