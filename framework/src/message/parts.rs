//! Parts of split tensors in messages.
//!
//! In a frame a part is a tensor of the table (the *whole*, so that a layout is checked there as any other) and, in the
//! body, a map of `$part` to what it says of itself. Its lease is marked as one *in parts*: only then are parts made of
//! it, and never tensors, for somebody else writes the rest.
//!
//! Whether a part is given away is decided after the message's value was dropped, as for a tensor that is handed over:
//! had somebody kept it (in an `Arc`, say), the lease is not marked, and the receiver refuses the message. So there is one
//! writer in either case (ONE-WRITER).

use std::ops::Range;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::scope;
use crate::lease::Lease;
use crate::lease::table::Uses;
use crate::lease::writers::{Area, Piece};
use crate::tensor::TensorPart;
use crate::tensor::part::{Claim, Inner};

const OUTSIDE: &str = "a TensorPart can only be serialised as part of a message or a reply, because only its lease \
     travels; send it to an actor";

/// The key of a part in a body, beside that of a tensor.
const KEY: &str = "$part";

/// The description of a part in a body.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    /// The whole, in the frame's table.
    tensor: u32,
    index: u32,
    count: u32,
    seal: u64,
    token: u64,
    area: Vec<Range<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keyed {
    #[serde(rename = "$part")]
    form: Form,
}

impl Serialize for TensorPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensor = scope::add_part(self.inner()).unwrap_or_else(|| Err(OUTSIDE.into()));
        let Claim { piece: Piece { seal, index, area }, count, token } = self.inner().claim();
        let area = area.ranges().to_vec();
        let tensor = tensor.map_err(ser::Error::custom)?;
        let mut keyed = serializer.serialize_struct("TensorPart", 1)?;
        keyed.serialize_field(KEY, &Form { tensor, index, count, seal, token, area })?;
        keyed.end()
    }
}

impl<'de> Deserialize<'de> for TensorPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Keyed { form } = Keyed::deserialize(deserializer)?;
        let Form { tensor, index, count, seal, token, area } = form;
        let whole = scope::lent(tensor as usize).unwrap_or_else(|| Err(OUTSIDE.into()));
        let whole = whole.map_err(de::Error::custom)?;
        let wrong = |why: String| de::Error::custom(format!("part {index} of {whole:?} is refused: {why}"));
        let area = Area::new(area).ok_or_else(|| wrong("it has no elements".into()))?;
        let claim = Claim { piece: Piece { seal, index, area }, count, token };
        // Serde may visit a part twice, in an untagged enum for example: then the first was dropped before, or this one is
        // a second writer and is refused.
        TensorPart::arrived(&whole, claim).map_err(|error| wrong(error.to_string()))
    }
}

/// Those of a message's parts that stand on `lease`, when the message's value has been dropped: whether all were given
/// away, and what their next writers have to wait for. They have left this process when this returns.
pub(crate) fn give_away(lease: &Lease, parts: &mut Vec<Arc<Inner>>) -> Option<(bool, Uses)> {
    let here: Vec<Arc<Inner>> = parts.extract_if(.., |part| part.lease().same_as(lease)).collect();
    if here.is_empty() {
        return None;
    }
    let given = here.iter().all(Inner::is_last);
    let mut uses = Uses::new();
    for ticket in here.iter().flat_map(|part| part.last_uses()) {
        if !uses.contains(&ticket) {
            uses.push(ticket);
        }
    }
    Some((given, uses))
}
