//! The frames of a NIXL lane's stream, [in one form](one_form). WIRE-1: a frame that [`decode`] returns is
//! well-formed; the [`Lane`](super::Lane) decides whether the other side may send it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Offer;
use crate::frame::{Run, WireError, one_form, whole, within};
use crate::ids::Seq;
use crate::limits::{MAX_NIXL_METADATA, MAX_NIXL_ROUTES, MAX_SPAN_BYTES, MAX_SPANS, NIXL_SLOTS, PIECE_BYTES};

/// An arena, as it was offered in one epoch of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct At {
    pub(crate) route: u8,
    pub(crate) epoch: u32,
}

/// A frame of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Say {
    /// The first frame of each side: the arenas that it may still write; it writes no others.
    Begin { open: Vec<At> },
    /// From the sender: this span is to go over a route from this device.
    Want { post: Seq, span: u16, device: u8 },
    /// From the receiver: the span goes as pieces; if `for_good`, so do all later spans from its device.
    Narrow { post: Seq, span: u16, for_good: bool },
    /// From the receiver: an arena for spans from this device.
    Offer { at: At, device: u8, offer: Offer },
    /// From the sender: a slot was written for a probe.
    Probed { at: At },
    /// From the receiver: whether the probe's bytes were there.
    Sound { at: At, sound: bool },
    /// From the sender: some of the bytes with which gRPC is measured.
    Ballast { at: At, bytes: u32 },
    /// From the receiver: all of those bytes have come.
    Had { at: At },
    /// From the sender: whether the route is used.
    Chosen { at: At, chosen: bool },
    /// From the receiver: this run may be written to this slot.
    Grant { at: At, slot: u8, run: Run },
    /// From the sender: the slot was written.
    Wrote { at: At, slot: u8 },
    /// From the sender: the slot will not be written.
    Gone { at: At, slot: u8 },
    /// From the sender: a write failed, or took too long.
    Broken { at: At },
    /// From the sender: it does not write to the arena any more.
    Ended { at: At },
}

const MAX_AGENT_NAME: u64 = 64;

/// Encodes a frame. The bytes of ballast, which may be any, follow it.
pub(crate) fn encode(say: &Say) -> Bytes {
    one_form::encode(say)
}

/// Decodes a frame.
///
/// # Errors
/// The bytes are not a frame.
pub(crate) fn decode(bytes: &[u8]) -> Result<Say, WireError> {
    let (say, behind): (Say, _) = one_form::decode_front(bytes)?;
    check(&say, behind.len() as u64)?;
    match say {
        Say::Ballast { .. } => Ok(say),
        say => whole(&behind, say),
    }
}

/// Checks a frame with this number of bytes behind it.
fn check(say: &Say, behind: u64) -> Result<(), WireError> {
    match say {
        Say::Begin { open } => {
            within("open routes", open.len() as u64, 0, MAX_NIXL_ROUTES.into())?;
            open.iter().try_for_each(|at| check_at(*at))
        }
        Say::Want { post, span, .. } | Say::Narrow { post, span, .. } => check_span(*post, *span),
        Say::Offer { at, offer, .. } => {
            check_at(*at)?;
            check_offer(offer)
        }
        Say::Ballast { at, bytes } => {
            let bytes = within("ballast", (*bytes).into(), 1, PIECE_BYTES)?;
            within("bytes of the ballast", behind, bytes, bytes)?;
            check_at(*at)
        }
        Say::Grant { at, slot, run } => {
            within("offset of a run", run.offset, 0, MAX_SPAN_BYTES - 1)?;
            within("bytes of a run", run.bytes, 1, MAX_SPAN_BYTES)?;
            check_span(run.post, run.span)?;
            check_slot(*at, *slot)
        }
        Say::Wrote { at, slot } | Say::Gone { at, slot } => check_slot(*at, *slot),
        Say::Probed { at }
        | Say::Sound { at, .. }
        | Say::Had { at }
        | Say::Chosen { at, .. }
        | Say::Broken { at }
        | Say::Ended { at } => check_at(*at),
    }
}

fn check_at(At { route, epoch }: At) -> Result<(), WireError> {
    within("route", route.into(), 0, u64::from(MAX_NIXL_ROUTES) - 1)?;
    within("epoch", epoch.into(), 1, u32::MAX.into()).map(drop)
}

fn check_slot(at: At, slot: u8) -> Result<(), WireError> {
    within("slot", slot.into(), 0, u64::from(NIXL_SLOTS) - 1)?;
    check_at(at)
}

fn check_span(post: Seq, span: u16) -> Result<(), WireError> {
    within("message of a span", post, 1, u64::MAX)?;
    within("span", span.into(), 0, MAX_SPANS as u64 - 1).map(drop)
}

fn check_offer(Offer { memory, name, metadata }: &Offer) -> Result<(), WireError> {
    // Addresses inside the arena are counted from its start, so its end must not overflow.
    within("end of an arena", memory.address.saturating_add(memory.bytes), 1, u64::MAX - 1)?;
    within("length of metadata", metadata.len() as u64, 1, MAX_NIXL_METADATA as u64)?;
    let value = within("length of a name", name.len() as u64, 1, MAX_AGENT_NAME)?;
    let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then_some(()).ok_or(WireError::Field { field: "name of an agent", value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MemoryPlace, Region};
    use super::*;

    fn at() -> impl Strategy<Value = At> {
        (0..MAX_NIXL_ROUTES, 1..u32::MAX).prop_map(|(route, epoch)| At { route, epoch })
    }

    fn offer() -> impl Strategy<Value = Offer> {
        let place = prop_oneof![Just(MemoryPlace::Host), (0_u32..9).prop_map(MemoryPlace::Gpu)];
        let metadata = prop::collection::vec(any::<u8>(), 1..300).prop_map(Bytes::from);
        (place, 0..u64::MAX >> 1, 1..u64::MAX >> 2, "[a-z0-9-]{1,64}", metadata).prop_map(
            |(place, address, bytes, name, metadata)| Offer {
                memory: Region { place, address, bytes },
                name,
                metadata,
            },
        )
    }

    fn say() -> impl Strategy<Value = Say> {
        let span = || (1..u64::MAX, 0..MAX_SPANS as u16);
        let slot = || (at(), 0..NIXL_SLOTS);
        prop_oneof![
            prop::collection::vec(at(), 0..usize::from(MAX_NIXL_ROUTES)).prop_map(|open| Say::Begin { open }),
            (span(), any::<u8>()).prop_map(|((post, span), device)| Say::Want { post, span, device }),
            (span(), any::<bool>()).prop_map(|((post, span), for_good)| Say::Narrow { post, span, for_good }),
            (at(), any::<u8>(), offer()).prop_map(|(at, device, offer)| Say::Offer { at, device, offer }),
            at().prop_map(|at| Say::Probed { at }),
            (at(), any::<bool>()).prop_map(|(at, sound)| Say::Sound { at, sound }),
            at().prop_map(|at| Say::Had { at }),
            (at(), any::<bool>()).prop_map(|(at, chosen)| Say::Chosen { at, chosen }),
            (slot(), span(), 0..MAX_SPAN_BYTES, 1..MAX_SPAN_BYTES).prop_map(
                |((at, slot), (post, span), offset, bytes)| {
                    Say::Grant { at, slot, run: Run { post, span, offset, bytes } }
                }
            ),
            slot().prop_map(|(at, slot)| Say::Wrote { at, slot }),
            slot().prop_map(|(at, slot)| Say::Gone { at, slot }),
            at().prop_map(|at| Say::Broken { at }),
            at().prop_map(|at| Say::Ended { at }),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_as_they_went(say in say(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&say);
            prop_assert_eq!(decode(&bytes), Ok(say));
            let short = cut.index(bytes.len());
            prop_assert!(decode(&bytes[..short]).is_err());
            prop_assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        }

        // WIRE-1.
        #[test]
        fn garbage_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(say) = decode(&bytes) {
                // The bytes behind ballast may be any.
                let again = encode(&say);
                prop_assert_eq!(&again[..], &bytes[..again.len()]);
            }
        }
    }

    #[test]
    fn ballast_is_as_long_as_it_says() {
        let at = At { route: 0, epoch: 1 };
        let head = encode(&Say::Ballast { at, bytes: 3 });
        assert_eq!(decode(&[&head[..], &[0; 3]].concat()), Ok(Say::Ballast { at, bytes: 3 }));
        for wrong in [0, 2, 4] {
            assert!(decode(&[&head[..], &vec![0; wrong]].concat()).is_err(), "{wrong}");
        }
    }
}
