//! The portable messages of a program. Two programs show each other theirs before they believe each other's
//! bytes (WIRE-1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::difference::{self, Sides};
use super::{Describe, Describer, Interface};
use crate::limits::MAX_INTERFACE_BYTES;
use crate::message::fnv1a;
use crate::observe::text::shown;

/// The length of the longest message name that is shown, in bytes.
const MAX_SHOWN_NAME: usize = 255;

/// The schemas of all portable messages that a program's actors take, each once. Schemas that find no room
/// are left out, and not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interfaces(Vec<String>);

impl Interfaces {
    /// Collects the schemas of these messages.
    pub(crate) fn of(messages: impl IntoIterator<Item = Describe>) -> Self {
        let mut texts: Vec<String> =
            messages.into_iter().map(|describe| describe(&mut Describer::default()).text()).collect();
        texts.sort_unstable();
        texts.dedup();
        Interfaces(texts).bounded()
    }

    /// Makes a list of the one message that this text describes.
    #[cfg(feature = "inside")]
    pub(super) fn shown(text: &str) -> Self {
        Interfaces(vec![text.to_owned()])
    }

    /// Cuts the list to the bounds, whichever process it comes from.
    pub(crate) fn bounded(self) -> Self {
        let mut room = MAX_INTERFACE_BYTES;
        let fits = |text: &String| match room.checked_sub(text.len() + 8) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        Interfaces(self.0.into_iter().filter(fits).collect())
    }

    /// Describes the differences between messages that both sides have by name, and neither by key. Returns a
    /// heading and its lines for each.
    pub(crate) fn differences(&self, other: &Interfaces, this: &str, that: &str) -> Vec<String> {
        if self == other {
            return Vec::new();
        }
        let (here, there) = (self.by_name(), other.by_name());
        let mut lines = Vec::new();
        for (name, mine) in here {
            let Some(theirs) = there.get(&name) else { continue };
            // A program may have several messages of one name, in different modules. If the two have one in
            // common, they can talk by that.
            if mine.iter().any(|(text, _)| theirs.iter().any(|(other, _)| text == other)) {
                continue;
            }
            let ((text, mine), (other_text, theirs)) = (&mine[0], &theirs[0]);
            let (key, other_key) = (fnv1a([text.as_bytes()]), fnv1a([other_text.as_bytes()]));
            let name = shown(name, MAX_SHOWN_NAME);
            lines.push(format!(
                "message `{name}` has key {key:016x} in {this} and {other_key:016x} in {that}:"
            ));
            let sides = Sides { this, other: that };
            let differ = difference::between(mine, theirs, sides);
            lines.extend(differ.into_iter().map(|line| format!("  {line}")));
        }
        lines
    }

    fn by_name(&self) -> BTreeMap<String, Vec<(&str, Interface)>> {
        let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for text in &self.0 {
            // A schema that cannot be read has a newer form. Without its name there is nothing to compare.
            if let Ok(interface) = serde_json::from_str::<Interface>(text) {
                named.entry(interface.message.clone()).or_default().push((text.as_str(), interface));
            }
        }
        named
    }
}
