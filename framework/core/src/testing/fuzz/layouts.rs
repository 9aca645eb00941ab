//! The wire form of layouts, and the operations on a layout that a peer sent (WIRE-1).
//!
//! An accepted layout keeps LAYOUT-1 to LAYOUT-3 and has exactly one form. Every operation on it ends with an
//! error or with another layout. That one keeps the invariants too, its elements are among those of the
//! first, and it is writable only where the first was.

use std::collections::HashSet;

use crate::tensor::layout::WIRE_BYTES;
use crate::tensor::{DType, Layout};

/// Layouts of up to this many elements are compared element by element.
const SMALL: usize = 512;

/// Operations on one layout.
const MOST_OPERATIONS: usize = 16;

/// Returns the elements as offsets in order; `None` where there are too many to list.
fn elements(layout: &Layout) -> Option<Vec<usize>> {
    (layout.len() <= SMALL).then(|| layout.offsets().collect())
}

/// Returns the same offsets by the definition: the offset of each index.
fn by_definition(layout: &Layout) -> Vec<usize> {
    if layout.is_empty() {
        return Vec::new();
    }
    let mut all = vec![layout.offset()];
    for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
        let steps = |from: &usize| {
            let from = *from;
            (0..extent).map(move |step| from + step * stride.unsigned_abs())
        };
        all = all.iter().flat_map(steps).collect();
    }
    all
}

fn check(layout: &Layout, dtype: DType) {
    let again = Layout::from_parts(layout.shape(), layout.strides(), layout.offset());
    assert_eq!(again, Ok(*layout), "it keeps no LAYOUT");
    let span = layout.span();
    let _ = (layout.packed_bytes(dtype), layout.fits(dtype, span.end as u64));
    let coalesced = layout.coalesced();
    assert_eq!(coalesced.len(), layout.len());
    let runs: usize = layout.contiguous_runs().take(SMALL).map(|run| run.len()).sum();
    assert!(runs <= layout.len());
    let Some(elements) = elements(layout) else { return };
    assert_eq!(elements, by_definition(layout), "{layout:?}");
    assert_eq!(elements.len(), layout.len());
    assert!(elements.iter().all(|at| span.contains(at)), "{layout:?}");
    assert_eq!(elements, layout.contiguous_runs().flatten().collect::<Vec<_>>(), "{layout:?}");
    assert_eq!(elements, coalesced.offsets().collect::<Vec<_>>(), "{layout:?}");
    let places: HashSet<_> = elements.iter().collect();
    // `overlaps_itself` is a proof in one direction only, as its docs say.
    assert!(layout.overlaps_itself() || places.len() == elements.len(), "{layout:?} may be written");
    let packed = elements.iter().copied().eq(layout.offset()..layout.offset() + elements.len());
    assert!(!layout.is_contiguous() || elements.is_empty() || packed, "{layout:?}");
}

/// Reads `form` as a peer's layout, checks it, and applies the operations that `operations` names, two bytes
/// each.
///
/// # Panics
/// An invariant does not hold.
pub fn look(form: &[u8], operations: &[u8]) {
    let Ok((dtype, layout)) = Layout::from_wire(form) else { return };
    assert_eq!(form.len(), WIRE_BYTES);
    assert_eq!(layout.to_wire(dtype), form, "a layout has one form");
    check(&layout, dtype);
    let whole: Option<HashSet<usize>> = elements(&layout).map(|elements| elements.into_iter().collect());
    let mut at_hand = layout;
    for operation in operations.chunks_exact(2).take(MOST_OPERATIONS) {
        let (kind, number) = (operation[0] % 9, usize::from(operation[1]));
        let rank = at_hand.rank();
        let axis = number % (rank + 1);
        let extent = at_hand.shape().get(axis).copied().unwrap_or(0);
        let changed = match kind {
            0 => at_hand.slice(axis, number / 16..extent - extent.min(number % 4)),
            1 => at_hand.index(axis, number / 9),
            2 => {
                let axes: Vec<usize> = (0..rank).map(|to| (to + number) % rank).collect();
                at_hand.permute(&axes)
            }
            3 => at_hand.transpose(),
            4 => at_hand.squeeze(axis),
            5 => at_hand.unsqueeze(axis),
            6 => at_hand.view(&[at_hand.len() / (number + 1), number + 1]),
            7 => at_hand.view_infer(&[None, Some(number + 1)]),
            _ => {
                let shape: Vec<usize> =
                    at_hand.shape().iter().map(|e| if *e == 1 { number } else { *e }).collect();
                at_hand.broadcast_to(&shape)
            }
        };
        let Ok(changed) = changed else { continue };
        check(&changed, dtype);
        assert!(
            // Only a broadcast (8) may make a layout overlap itself.
            kind == 8 || at_hand.overlaps_itself() || !changed.overlaps_itself(),
            "{at_hand:?} to {changed:?}"
        );
        if let (Some(whole), Some(elements)) = (&whole, elements(&changed)) {
            assert!(elements.iter().all(|at| whole.contains(at)), "{layout:?} to {changed:?}");
        }
        at_hand = changed;
    }
}
