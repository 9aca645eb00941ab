//! The wire form: round trips, and the faults of a peer (WIRE-1).

use proptest::prelude::*;

use super::random::exercise;
use super::*;

/// Returns a form with the plausible parts that random bytes lack, to get past the first checks.
fn forms() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..5_u64, any::<u64>(), (0..64_u32).prop_map(|bits| 1 << bits)];
    let numbers = prop::collection::vec(number, 17);
    (0..16_u8, 0..10_u8, numbers, prop::option::weighted(0.2, (0..WIRE_BYTES, any::<u8>()))).prop_map(
        |(code, rank, mut numbers, broken)| {
            for axis in usize::from(rank)..8 {
                (numbers[1 + axis], numbers[9 + axis]) = (0, 0);
            }
            let mut bytes = vec![code, rank, 0, 0, 0, 0, 0, 0];
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            if let Some((at, byte)) = broken {
                bytes[at] = byte;
            }
            bytes
        },
    )
}

/// WIRE-1: `bytes` are refused, or they are the one form of a layout that is sound.
fn check(bytes: &[u8]) {
    if let Ok((dtype, layout)) = Layout::from_wire(bytes) {
        assert_eq!(layout.to_wire(dtype), bytes);
        assert!(layout.packed_bytes(dtype).is_ok() && layout.bytes_span(dtype).is_ok());
        exercise(&layout, &[0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_sound(bytes in prop::collection::vec(any::<u8>(), 0..2 * WIRE_BYTES)) {
        check(&bytes);
    }

    #[test]
    fn any_form_is_refused_or_sound(bytes in forms()) {
        check(&bytes);
    }

    #[test]
    fn any_small_geometry_comes_back(
        code in 1..=13_u8,
        axes in prop::collection::vec((0..40_usize, 0..100_000_isize), 0..=8),
        offset in 0..1_usize << 40,
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
        let dtype = DType::from_code(code).expect("a code of ours");
        let layout = Layout::from_parts(&shape, &strides, offset).expect("small parts");
        prop_assert_eq!(Layout::from_wire(&layout.to_wire(dtype)), Ok((dtype, layout)));
    }
}

/// Returns the form of a plain layout with `number` written over the word at `at`.
fn with_word(at: usize, number: u64) -> Result<(DType, Layout), LayoutError> {
    let mut bytes = Layout::contiguous(&[2, 3]).expect("small").to_wire(DType::F32);
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    Layout::from_wire(&bytes)
}

#[test]
fn the_form_is_stable() {
    let layout = Layout::from_parts(&[2, 3], &[8, 1], 5).expect("small");
    let mut expected = [0; 144];
    (expected[0], expected[1]) = (11, 2);
    (expected[8], expected[16], expected[24], expected[80], expected[88]) = (5, 2, 3, 8, 1);
    assert_eq!(layout.to_wire(DType::BF16), expected);
}

#[test]
fn lies_are_refused() {
    assert!(with_word(8, 7).is_ok());
    assert_eq!(Layout::from_wire(&[]), Err(LayoutError::WireLength { bytes: 0 }));
    assert_eq!(Layout::from_wire(&[12; 145]), Err(LayoutError::WireLength { bytes: 145 }));
    assert_eq!(with_word(0, 0), Err(LayoutError::WireDType { code: 0 }));
    assert_eq!(with_word(0, 22), Err(LayoutError::WireDType { code: 22 }));
    assert_eq!(with_word(0, 0x090c), Err(LayoutError::TooManyAxes { rank: 9 }));
    assert_eq!(with_word(0, 0x0100_0000_0000_020c), Err(LayoutError::WirePadding { at: 7 }));
    assert_eq!(with_word(32, 1), Err(LayoutError::WirePadding { at: 32 }));
    assert_eq!(with_word(136, 1 << 56), Err(LayoutError::WirePadding { at: 143 }));
    assert_eq!(with_word(88, u64::MAX), Err(LayoutError::NegativeStride { axis: 1, stride: -1 }));
    assert!(matches!(with_word(8, u64::MAX), Err(LayoutError::OutOfReach { .. })));
    assert!(matches!(with_word(16, u64::MAX), Err(LayoutError::TooManyElements { .. })));
    assert!(matches!(with_word(80, i64::MAX as u64), Err(LayoutError::OutOfReach { .. })));
    // Representable in elements, not in bytes: first the end of the span, then the length of repeated
    // elements.
    assert!(matches!(with_word(8, 1 << 62), Err(LayoutError::TooManyBytes { .. })));
    let repeated = Layout::from_parts(&[1 << 62], &[0], 0).expect("one element, often").to_wire(DType::F32);
    assert!(matches!(Layout::from_wire(&repeated), Err(LayoutError::TooManyBytes { .. })));
}
