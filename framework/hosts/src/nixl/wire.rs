//! The frames of a NIXL lane's stream. All numbers are little-endian. WIRE-1: a frame that [`decode`] returns
//! is well-formed; the [`Lane`](super::Lane) decides whether the other side may send it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{MemoryPlace, Offer, Region};
use crate::frame::{Run, WireError, whole, within};
use crate::ids::Seq;
use crate::limits::{MAX_NIXL_METADATA, MAX_NIXL_ROUTES, MAX_SPAN_BYTES, MAX_SPANS, NIXL_SLOTS, PIECE_BYTES};

/// An arena, as it was offered in one epoch of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) route: u8,
    pub(crate) epoch: u32,
}

/// A frame of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
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

const BEGIN: u8 = 1;
const WANT: u8 = 2;
const NARROW: u8 = 3;
const OFFER: u8 = 4;
const PROBED: u8 = 5;
const SOUND: u8 = 6;
const BALLAST: u8 = 7;
const HAD: u8 = 8;
const CHOSEN: u8 = 9;
const GRANT: u8 = 10;
const WROTE: u8 = 11;
const GONE: u8 = 12;
const BROKEN: u8 = 13;
const ENDED: u8 = 14;

const MAX_AGENT_NAME: u64 = 64;

/// Encodes a frame. The bytes of ballast, which may be any, follow it.
pub(crate) fn encode(say: &Say) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    let put_at = |out: &mut BytesMut, tag: u8, at: At| {
        out.put_u8(tag);
        out.put_u8(at.route);
        out.put_u32_le(at.epoch);
    };
    match say {
        Say::Begin { open } => {
            out.put_u8(BEGIN);
            out.put_u8(open.len() as u8); // one for each route at most
            for at in open {
                out.put_u8(at.route);
                out.put_u32_le(at.epoch);
            }
        }
        Say::Want { post, span, device } => {
            put_span(&mut out, WANT, *post, *span);
            out.put_u8(*device);
        }
        Say::Narrow { post, span, for_good } => {
            put_span(&mut out, NARROW, *post, *span);
            out.put_u8(u8::from(*for_good));
        }
        Say::Offer { at, device, offer } => {
            put_at(&mut out, OFFER, *at);
            out.put_u8(*device);
            let (kind, number) = match offer.memory.place {
                MemoryPlace::Host => (0, 0),
                MemoryPlace::Gpu(number) => (1, number),
            };
            out.put_u8(kind);
            out.put_u32_le(number);
            out.put_u64_le(offer.memory.address);
            out.put_u64_le(offer.memory.bytes);
            out.put_u8(offer.name.len() as u8); // MAX_AGENT_NAME
            out.put_slice(offer.name.as_bytes());
            out.put_u32_le(offer.metadata.len() as u32); // MAX_NIXL_METADATA
            out.put_slice(&offer.metadata);
        }
        Say::Probed { at } => put_at(&mut out, PROBED, *at),
        Say::Sound { at, sound } => {
            put_at(&mut out, SOUND, *at);
            out.put_u8(u8::from(*sound));
        }
        Say::Ballast { at, bytes } => {
            put_at(&mut out, BALLAST, *at);
            out.put_u32_le(*bytes);
        }
        Say::Had { at } => put_at(&mut out, HAD, *at),
        Say::Chosen { at, chosen } => {
            put_at(&mut out, CHOSEN, *at);
            out.put_u8(u8::from(*chosen));
        }
        Say::Grant { at, slot, run } => {
            put_at(&mut out, GRANT, *at);
            out.put_u8(*slot);
            out.put_u64_le(run.post);
            out.put_u16_le(run.span);
            out.put_u64_le(run.offset);
            out.put_u64_le(run.bytes);
        }
        Say::Wrote { at, slot } => {
            put_at(&mut out, WROTE, *at);
            out.put_u8(*slot);
        }
        Say::Gone { at, slot } => {
            put_at(&mut out, GONE, *at);
            out.put_u8(*slot);
        }
        Say::Broken { at } => put_at(&mut out, BROKEN, *at),
        Say::Ended { at } => put_at(&mut out, ENDED, *at),
    }
    out.freeze()
}

fn put_span(out: &mut BytesMut, tag: u8, post: Seq, span: u16) {
    out.put_u8(tag);
    out.put_u64_le(post);
    out.put_u16_le(span);
}

/// Decodes a frame.
///
/// # Errors
/// The bytes are not a frame.
pub(crate) fn decode(from: &mut impl Buf) -> Result<Say, WireError> {
    let say = match from.try_get_u8()? {
        BEGIN => {
            let count = within("open routes", from.try_get_u8()?.into(), 0, MAX_NIXL_ROUTES.into())?;
            Say::Begin { open: (0..count).map(|_| get_at(from)).collect::<Result<_, _>>()? }
        }
        WANT => {
            let (post, span) = get_span(from)?;
            Say::Want { post, span, device: from.try_get_u8()? }
        }
        NARROW => {
            let (post, span) = get_span(from)?;
            Say::Narrow { post, span, for_good: get_bool(from)? }
        }
        OFFER => {
            let (at, device) = (get_at(from)?, from.try_get_u8()?);
            Say::Offer { at, device, offer: get_offer(from)? }
        }
        PROBED => Say::Probed { at: get_at(from)? },
        SOUND => Say::Sound { at: get_at(from)?, sound: get_bool(from)? },
        BALLAST => {
            let (at, bytes) = (get_at(from)?, from.try_get_u32_le()?);
            within("ballast", bytes.into(), 1, PIECE_BYTES)?;
            within("bytes of the ballast", from.remaining() as u64, bytes.into(), bytes.into())?;
            from.advance(bytes as usize);
            Say::Ballast { at, bytes }
        }
        HAD => Say::Had { at: get_at(from)? },
        CHOSEN => Say::Chosen { at: get_at(from)?, chosen: get_bool(from)? },
        GRANT => {
            let (at, slot) = get_slot(from)?;
            let (post, span) = get_span(from)?;
            let offset = within("offset of a run", from.try_get_u64_le()?, 0, MAX_SPAN_BYTES - 1)?;
            let bytes = within("bytes of a run", from.try_get_u64_le()?, 1, MAX_SPAN_BYTES)?;
            Say::Grant { at, slot, run: Run { post, span, offset, bytes } }
        }
        WROTE => {
            let (at, slot) = get_slot(from)?;
            Say::Wrote { at, slot }
        }
        GONE => {
            let (at, slot) = get_slot(from)?;
            Say::Gone { at, slot }
        }
        BROKEN => Say::Broken { at: get_at(from)? },
        ENDED => Say::Ended { at: get_at(from)? },
        other => return Err(WireError::Field { field: "kind", value: other.into() }),
    };
    whole(from, say)
}

fn get_at(from: &mut impl Buf) -> Result<At, WireError> {
    let route = from.try_get_u8()?;
    within("route", route.into(), 0, u64::from(MAX_NIXL_ROUTES) - 1)?;
    let epoch = from.try_get_u32_le()?;
    within("epoch", epoch.into(), 1, u32::MAX.into())?;
    Ok(At { route, epoch })
}

fn get_slot(from: &mut impl Buf) -> Result<(At, u8), WireError> {
    let (at, slot) = (get_at(from)?, from.try_get_u8()?);
    within("slot", slot.into(), 0, u64::from(NIXL_SLOTS) - 1)?;
    Ok((at, slot))
}

fn get_span(from: &mut impl Buf) -> Result<(Seq, u16), WireError> {
    let (post, span) = (from.try_get_u64_le()?, from.try_get_u16_le()?);
    within("message of a span", post, 1, u64::MAX)?;
    within("span", span.into(), 0, MAX_SPANS as u64 - 1)?;
    Ok((post, span))
}

fn get_bool(from: &mut impl Buf) -> Result<bool, WireError> {
    Ok(within("yes or no", from.try_get_u8()?.into(), 0, 1)? == 1)
}

fn get_offer(from: &mut impl Buf) -> Result<Offer, WireError> {
    let kind = within("kind of memory", from.try_get_u8()?.into(), 0, 1)?;
    let number = from.try_get_u32_le()?;
    let place = if kind == 0 { MemoryPlace::Host } else { MemoryPlace::Gpu(number) };
    let (address, bytes) = (from.try_get_u64_le()?, from.try_get_u64_le()?);
    // Addresses inside the arena are counted from its start, so its end must not overflow.
    within("end of an arena", address.saturating_add(bytes), 1, u64::MAX - 1)?;
    let name =
        get_bytes(from, |from| within("length of a name", from.try_get_u8()?.into(), 1, MAX_AGENT_NAME))?;
    let name =
        String::from_utf8(name.to_vec()).ok().filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()));
    let name = name.ok_or(WireError::Field { field: "name of an agent", value: 0 })?;
    let most = MAX_NIXL_METADATA as u64;
    let metadata =
        get_bytes(from, |from| within("length of metadata", from.try_get_u32_le()?.into(), 1, most))?;
    Ok(Offer { memory: Region { place, address, bytes }, name, metadata })
}

fn get_bytes<B: Buf>(
    from: &mut B,
    length: impl FnOnce(&mut B) -> Result<u64, WireError>,
) -> Result<Bytes, WireError> {
    let wanted = length(from)? as usize; // bounded by the caller
    match from.remaining() {
        left if left < wanted => Err(WireError::CutShort { wanted, left }),
        _ => Ok(from.copy_to_bytes(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            prop_assert_eq!(decode(&mut bytes.clone()), Ok(say));
            let short = cut.index(bytes.len());
            prop_assert!(decode(&mut bytes.slice(..short)).is_err());
            prop_assert!(decode(&mut [&bytes[..], &[0]].concat().as_slice()).is_err());
        }

        // WIRE-1.
        #[test]
        fn garbage_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(say) = decode(&mut &bytes[..]) {
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
        assert_eq!(decode(&mut [&head[..], &[0; 3]].concat().as_slice()), Ok(Say::Ballast { at, bytes: 3 }));
        for wrong in [0, 2, 4] {
            assert!(decode(&mut [&head[..], &vec![0; wrong]].concat().as_slice()).is_err(), "{wrong}");
        }
    }
}
