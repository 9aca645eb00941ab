use proptest::prelude::*;

use super::*;

fn life() -> impl Strategy<Value = HostLife> {
    (any::<u16>(), any::<u64>()).prop_map(|(host, life)| HostLife { host: HostId(host), life: Life(life) })
}

fn gateways() -> impl Strategy<Value = (Gateway, Gateway)> {
    (1_u32.., any::<u32>()).prop_map(|(gateway, to)| (Gateway(gateway), Gateway(to)))
}

fn text(most: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

fn bits() -> impl Strategy<Value = Bits> {
    (1_u64..200, prop::collection::vec(any::<u64>(), 4)).prop_map(|(len, words)| {
        let mut bits = Bits::new(len);
        (0..len).filter(|at| words[(at / 64) as usize] >> (at % 64) & 1 == 1).for_each(|at| {
            bits.set(at);
        });
        bits
    })
}

fn resume() -> impl Strategy<Value = Resume> {
    let partial = prop::collection::btree_map(1_u64..1000, prop::collection::vec(bits(), 1..4), 0..4);
    (1000..u64::MAX, partial).prop_map(|(received, partial)| Resume {
        received,
        partial: partial.into_iter().map(|(post, spans)| Partial { post, spans }).collect(),
    })
}

fn target() -> impl Strategy<Value = Target> {
    let actor = || any::<u64>().prop_map(ActorId);
    prop_oneof![
        actor().prop_map(Target::Send),
        (actor(), any::<u64>()).prop_map(|(actor, correlation)| Target::Ask(actor, correlation)),
        any::<u64>().prop_map(Target::Reply),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let actor = || any::<u64>().prop_map(ActorId);
    prop_oneof![
        (target(), text(200), prop::collection::vec(1..MAX_SPAN_BYTES >> 4, 0..8))
            .prop_map(|(target, head, spans)| Body::Post(Post { target, head, spans })),
        (any::<u64>(), any::<bool>()).prop_map(|(post, whole)| Body::Landed { post, whole }),
        prop::collection::vec(any::<u64>(), 1..9).prop_map(|posts| Body::Done { posts }),
        (1..u64::MAX).prop_map(|bytes| Body::Grant { bytes }),
        (any::<u64>(), text(60)).prop_map(|(correlation, why)| Body::Refusal { correlation, why }),
        (any::<u64>(), text(60)).prop_map(|(post, why)| Body::Abort { post, why }),
        (actor(), 0..=MAX_CAPACITY).prop_map(|(actor, capacity)| Body::Serve { actor, capacity }),
        text(200).prop_map(Body::Note),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (life(), life(), gateways(), any::<u64>(), resume()).prop_map(
            |(from, to, (gateway, to_gateway), attempt, resume)| {
                Frame::Hello(Hello { from, to, gateway, to_gateway, attempt, resume })
            }
        ),
        any::<u64>().prop_map(|received| Frame::Ack { received }),
        any::<u64>().prop_map(|number| Frame::Beat { number }),
        (any::<u64>(), any::<u64>()).prop_map(|(number, at)| Frame::Answer { number, at }),
        (1..u64::MAX >> 1, 0..=MAX_LOG_RECORDS as u16, text(200))
            .prop_map(|(first, count, records)| Frame::Log(Log { first, count, records })),
        (1..u64::MAX, body()).prop_map(|(seq, body)| Frame::Numbered { seq, body }),
    ]
}

/// A frame has only one encoding, so that its bytes hold nothing that no check has seen.
fn one_form(bytes: &Bytes) -> Result<(), TestCaseError> {
    if let Ok(frame) = decode(bytes.clone()) {
        prop_assert_eq!(&encode(&frame), bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_frame_comes_back(frame in frame()) {
        prop_assert_eq!(decode(encode(&frame)), Ok(frame));
    }

    #[test]
    fn a_frame_that_is_cut_or_continued_is_refused(frame in frame(), at in any::<prop::sample::Index>()) {
        let bytes = encode(&frame);
        prop_assert!(decode(bytes.slice(..at.index(bytes.len()))).is_err());
        let longer = Bytes::from([&bytes[..], &[0]].concat());
        prop_assert_eq!(decode(longer), Err(WireError::Trailing { bytes: 1 }));
    }

    #[test]
    fn a_frame_with_other_bytes_is_refused_or_another_frame(
        frame in frame(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode(&frame).to_vec();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        one_form(&Bytes::from(bytes))?;
    }

    #[test]
    fn any_bytes_are_refused_or_a_frame(tag in 0_u8..32, rest in prop::collection::vec(any::<u8>(), 0..120)) {
        one_form(&Bytes::from([&[tag][..], &rest].concat()))?;
    }

    #[test]
    fn a_piece_comes_back(post in 1..u64::MAX, span in 0..MAX_SPANS as u16, at in 0..1000_u64, data in text(100)) {
        prop_assume!(!data.is_empty());
        let piece = Piece { post, span, offset: at * PIECE_BYTES, bytes: data.len() as u32 };
        let bytes = Bytes::from([&encode_piece(&piece)[..], &data].concat());
        let mut frame = bytes.clone();
        prop_assert_eq!((decode_piece(&mut frame), frame), (Ok(piece), data));
        prop_assert!(decode_piece(&mut bytes.slice(..PIECE_HEAD)).is_err(), "a piece of nothing");
        prop_assert!(decode_piece(&mut bytes.slice(..PIECE_HEAD - 1)).is_err());
    }
}

/// A count of more elements than there are makes its reader allocate nothing for them.
#[test]
fn counts_without_their_bytes_are_refused() {
    let mut hello = BytesMut::new();
    hello.put_u8(HELLO);
    hello.put_bytes(0, 2 * 10);
    hello.put_u32_le(Gateway::FIRST.0);
    hello.put_bytes(0, 4 + 8);
    hello.put_u64_le(u64::MAX);
    hello.put_u32_le(MAX_ARRIVING as u32);
    assert_eq!(
        decode(hello.clone().freeze()),
        Err(WireError::CutShort { wanted: 10 * MAX_ARRIVING, left: 0 })
    );
    let at = hello.len() - 4;
    hello[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let refused = WireError::Field { field: "messages that are not whole", value: u32::MAX.into() };
    assert_eq!(decode(hello.clone().freeze()), Err(refused));
    // A greeting states its gateway.
    hello[21..25].fill(0);
    assert_eq!(decode(hello.freeze()), Err(WireError::Field { field: "gateway", value: 0 }));

    let mut post = BytesMut::new();
    put_numbers(&mut post, SEND, &[1, 2]);
    post.put_u16_le(MAX_SPANS as u16);
    assert_eq!(decode(post.freeze()), Err(WireError::CutShort { wanted: 8 * MAX_SPANS, left: 0 }));

    let mut done = BytesMut::new();
    put_numbers(&mut done, DONE, &[1]);
    done.put_u16_le(MAX_DONE as u16);
    assert_eq!(decode(done.freeze()), Err(WireError::CutShort { wanted: 8 * MAX_DONE, left: 0 }));

    let mut note = BytesMut::new();
    put_numbers(&mut note, NOTE, &[1]);
    note.put_u32_le(MAX_NOTE as u32);
    assert_eq!(decode(note.freeze()), Err(WireError::CutShort { wanted: MAX_NOTE, left: 0 }));
}

#[test]
fn spans_of_more_bytes_than_a_message_may_have_are_refused() {
    let post = Post { target: Target::Send(ActorId(1)), head: Bytes::new(), spans: vec![MAX_SPAN_BYTES, 1] };
    let refused = WireError::Field { field: "bytes of all spans", value: MAX_SPAN_BYTES + 1 };
    assert_eq!(decode(encode(&Frame::Numbered { seq: 1, body: Body::Post(post) })), Err(refused));
}
