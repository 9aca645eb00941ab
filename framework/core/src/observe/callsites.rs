//! Callsites for workers' events, whose fields are only known when the events come.
//!
//! `tracing` wants the names of an event's fields when a program is built. So the node makes a callsite for
//! each set of names that a worker uses, and keeps it for good, as `tracing` asks for. A worker chooses its
//! names. Therefore the number of callsites is bounded (MBX-2), a name has to look like one (WIRE-1), and
//! none takes the place of the node's own. A field that does not fit is not lost:
//! [`log::emit`](super::log::emit) puts it into the field `fields`, as text.
//!
//! Only [`log`](super::log) uses this. The one lock is held for a look-up and no longer; a callsite is
//! registered outside of it.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use parking_lot::Mutex;
use tracing::callsite::{self, Callsite, Identifier};
use tracing::field::{Field, FieldSet, Value};
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};

use super::log::Severity;
use crate::limits::{MAX_LOG_CALLSITES, MAX_LOG_FIELD_NAME, MAX_LOG_FIELDS};

/// The node's own fields, which come first.
const OWN: [&str; 7] = ["message", "worker", "on_host", "origin", "fields", "spans", "at"];
/// The largest number of fields of an event.
const ALL: usize = OWN.len() + MAX_LOG_FIELDS;

/// One level with one set of names.
struct Site(OnceLock<Metadata<'static>>);

impl Callsite for Site {
    // Does nothing: there are few events, so the interest is asked for anew with each.
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        self.0.get_or_init(|| unreachable!("it is set before anybody can see the callsite"))
    }
}

type Sets = HashMap<(Severity, Vec<String>), &'static Site>;

static SITES: LazyLock<Mutex<Sets>> = LazyLock::new(Mutex::default);

/// Returns whether a field with this name can be one of the event's own.
pub(super) fn is_a_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    (1..=MAX_LOG_FIELD_NAME).contains(&name.len())
        && name.bytes().all(plain)
        && !name.as_bytes()[0].is_ascii_digit()
        && !OWN.contains(&name)
}

/// Returns the callsite for these names, or `None` if there are too many callsites already.
fn site(severity: Severity, names: &[&str]) -> Option<&'static Site> {
    let key = (severity, names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let made = {
        let mut sites = SITES.lock();
        if let Some(site) = sites.get(&key) {
            return Some(site);
        }
        if sites.keys().filter(|(of, _)| *of == severity).count() >= MAX_LOG_CALLSITES {
            return None;
        }
        let site = make(severity, &key.1);
        sites.insert(key, site);
        site
    };
    callsite::register(made);
    Some(made)
}

fn make(severity: Severity, names: &[String]) -> &'static Site {
    let site: &'static Site = Box::leak(Box::new(Site(OnceLock::new())));
    let names = names.iter().map(|name| -> &'static str { Box::leak(name.clone().into_boxed_str()) });
    let names: Vec<_> = OWN.into_iter().chain(names).collect();
    let fields = FieldSet::new(Box::leak(names.into_boxed_slice()), Identifier(site));
    let level = match severity {
        Severity::Error => Level::ERROR,
        Severity::Warn => Level::WARN,
        Severity::Info => Level::INFO,
        Severity::Debug => Level::DEBUG,
        Severity::Trace => Level::TRACE,
    };
    let metadata = Metadata::new(
        "event of a worker",
        "tensorpost::worker",
        level,
        Some(file!()),
        None,
        Some(module_path!()),
        fields,
        Kind::EVENT,
    );
    let _ = site.0.set(metadata);
    site
}

/// Gives an event to the subscriber of this thread: the node's own fields, in the order of [`OWN`], and
/// others by name. Returns false, and gives nothing, if no callsite is left for these names.
pub(super) fn event(
    severity: Severity,
    own: [Option<&dyn Value>; OWN.len()],
    others: &[(&str, &dyn Value)],
) -> bool {
    let names: Vec<_> = others.iter().map(|(name, _)| *name).collect();
    let Some(site) = site(severity, &names) else { return false };
    let metadata = site.metadata();
    tracing::dispatcher::get_default(|dispatch| {
        if !dispatch.enabled(metadata) {
            return;
        }
        let fields: Vec<Field> = metadata.fields().iter().collect();
        let Some(first) = fields.first() else { return };
        let value = |index: usize| {
            let field = fields.get(index).unwrap_or(first);
            let value = match own.get(index) {
                Some(own) => *own,
                None => others.get(index - OWN.len()).map(|(_, value)| *value),
            };
            (field, value)
        };
        let values: [(&Field, Option<&dyn Value>); ALL] = std::array::from_fn(value);
        dispatch.event(&Event::new(metadata, &metadata.fields().value_set(&values)));
    });
    true
}
