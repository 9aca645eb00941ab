//! Parts of split tensors in messages.
//!
//! In a frame, a part is a tensor of the table (the *whole*, so that a layout is checked there as any other)
//! and, in the body, a map from `$part` to the part's description. Its lease is marked as one *in parts*.
//! From such a lease only parts are made, and never tensors, because another process writes the rest.
//!
//! The sender decides whether a part is given away after the message's value was dropped, as it does for a
//! tensor that is handed over. If somebody has kept the part (in an `Arc`, say), the lease is not marked, and
//! the receiver refuses the message. So there is one writer in either case (ONE-WRITER).
//!
//! Serde lets anybody write a map with `$part`, and anybody read a part from bytes that are no message. So
//! both sides search the body for everything that could be read as a part. The sender refuses a body that has
//! any but the message's own parts, and the receiver makes only parts that its message's body has (SAFE-1).

use std::ops::Range;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::codec::EncodeError;
use super::scope::{self, Outgoing};
use crate::lease::Lease;
use crate::lease::table::Uses;
use crate::lease::writers::{Area, Piece};
use crate::tensor::TensorPart;
use crate::tensor::part::{Claim, Inner};

const OUTSIDE: &str = "a TensorPart can only be serialised as part of a message or a reply, because only its lease \
     travels; send it to an actor";

/// The key of a part in a body, beside that of a tensor.
const KEY: &str = "$part";

/// [`KEY`] in a body: a string of five bytes. Serde writes it in no other form.
const KEY_BYTES: &[u8] = b"\xa5$part";

/// The description of a part in a body.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Form {
    /// The index of the whole in the frame's table.
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
        let whole = scope::lent(form.tensor as usize).unwrap_or_else(|| Err(OUTSIDE.into()));
        let whole = whole.map_err(de::Error::custom)?;
        if whole.lease().is_in_parts() && !scope::has_form(&form) {
            return Err(de::Error::custom("it describes a part of a tensor that is not in the message"));
        }
        let Form { index, count, seal, token, area, .. } = form;
        let wrong = |why: String| de::Error::custom(format!("part {index} of {whole:?} is refused: {why}"));
        let area = Area::new(area).ok_or_else(|| wrong("it has no elements".into()))?;
        let claim = Claim { piece: Piece { seal, index, area }, count, token };
        // Serde may visit a part twice, for example in an untagged enum. Then either the first one was
        // dropped before, or this one is a second writer and is refused.
        TensorPart::arrived(&whole, claim).map_err(|error| wrong(error.to_string()))
    }
}

/// Returns everything in `body` that can be read as a part.
pub(super) fn forms(body: &[u8]) -> impl Iterator<Item = Form> {
    let behind_keys = body.windows(KEY_BYTES.len()).zip(KEY_BYTES.len()..);
    behind_keys.filter(|(window, _)| *window == KEY_BYTES).filter_map(|(_, at)| {
        Form::deserialize(&mut rmp_serde::Deserializer::from_read_ref(&body[at..])).ok()
    })
}

/// Checks that everything in `body` that can be read as a part is one of the parts that it was encoded with.
///
/// # Errors
/// [`EncodeError::ForgedPart`] if a part was written by hand.
pub(super) fn check(body: &[u8], outgoing: &Outgoing) -> Result<(), EncodeError> {
    if outgoing.parts.is_empty() {
        // Then no lease is marked, and without a marked lease there is no part.
        return Ok(());
    }
    let known: Vec<(&Arc<Inner>, Claim)> = outgoing.parts.iter().map(|part| (part, part.claim())).collect();
    let is_known = |form: &Form| {
        let Some(outline) = outgoing.tensors.get(form.tensor as usize) else { return false };
        let Some((lease, _)) = outgoing.leases.get(usize::from(outline.lease)) else { return false };
        known.iter().any(|(part, Claim { piece, count, token })| {
            (form.seal, form.index, form.count, form.token) == (piece.seal, piece.index, *count, *token)
                && form.area == piece.area.ranges()
                && part.lease().same_as(lease)
                && *part.whole() == outline.layout
                && part.dtype() == outline.dtype
        })
    };
    match forms(body).find(|form| !is_known(form)) {
        None => Ok(()),
        Some(form) => Err(EncodeError::ForgedPart { index: form.index }),
    }
}

/// Takes the message's parts on `lease`, after the message's value was dropped. Returns whether all were
/// given away, and the uses that their next writers have to wait for. The parts have left this process when
/// this returns.
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
