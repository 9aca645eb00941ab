//! Generated layouts and chains of operations against the model.

use proptest::prelude::*;

use super::*;
use crate::limits::MAX_RANK;

/// Most elements of a generated layout.
const MOST: usize = 256;

/// Extents of any rank, zero and one often among them, with at most [`MOST`] elements.
fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let extent = prop_oneof![1 => Just(0_usize), 4 => Just(1), 15 => 2..6_usize];
    prop::collection::vec(extent, 0..=MAX_RANK).prop_map(|mut shape| {
        let mut len = 1;
        for extent in &mut shape {
            if len * (*extent).max(1) > MOST {
                *extent = 1;
            }
            len *= (*extent).max(1);
        }
        shape
    })
}

/// Returns a packed layout, from any offset.
fn packed() -> impl Strategy<Value = Layout> {
    (shapes(), 0..20_usize).prop_map(|(shape, offset)| {
        Layout::contiguous(&shape).and_then(|layout| layout.with_offset(offset)).expect("a small shape")
    })
}

/// Returns a layout with any small strides.
fn strided() -> impl Strategy<Value = Layout> {
    (shapes(), prop::array::uniform8(0..24_isize), 0..20_usize).prop_map(|(shape, strides, offset)| {
        Layout::from_parts(&shape, &strides[..shape.len()], offset).expect("small parts")
    })
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![packed(), strided()]
}

/// Numbers that an operation reduces to the range that the layout allows.
type Seed = [usize; MAX_RANK];

fn seeds() -> impl Strategy<Value = Seed> {
    prop::array::uniform8(0..1000_usize)
}

/// Returns a shape with `len` elements: factors taken off in an order that the seed chooses, then what
/// remains.
fn factors(mut len: usize, seed: &Seed) -> Vec<usize> {
    let mut shape = Vec::new();
    for number in &seed[..seed[7] % MAX_RANK] {
        let divisors: Vec<_> =
            (1..=len.max(1)).filter(|divisor| len.is_multiple_of(*divisor)).take(6).collect();
        let factor = divisors[number % divisors.len()];
        shape.push(factor);
        len /= factor;
    }
    shape.push(len);
    shape
}

/// Returns an order of `rank` axes.
fn order(rank: usize, seed: &Seed) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.sort_by_key(|&axis| seed[axis]);
    axes
}

/// Applies one operation to a layout of any strides, and returns the result with the model's answer.
///
/// `None` where the layout at hand does not allow it.
fn apply(kind: usize, seed: &Seed, layout: &Layout, model: &Model) -> Option<(Layout, Model)> {
    let rank = layout.rank();
    let axis = seed[0] % rank.max(1);
    let result = match kind {
        0 if rank > 0 => {
            let extent = model.shape[axis];
            let start = seed[1] % (extent + 1);
            let end = start + seed[2] % (extent - start + 1);
            (layout.slice(axis, start..end), model.slice(axis, start, end))
        }
        1 if rank > 0 && model.shape[axis] > 0 => {
            let i = seed[1] % model.shape[axis];
            let mut shape = model.shape.clone();
            shape.remove(axis);
            let picked = model.pick(&shape, |index| [&index[..axis], &[i], &index[axis..]].concat());
            (layout.index(axis, i), picked)
        }
        2 => {
            let axes = order(rank, seed);
            let shape: Vec<_> = axes.iter().map(|&from| model.shape[from]).collect();
            let permuted = model.pick(&shape, |index| {
                let mut source = vec![0; rank];
                axes.iter().zip(index).for_each(|(&from, &i)| source[from] = i);
                source
            });
            (layout.permute(&axes), permuted)
        }
        3 if rank >= 2 => {
            let swap = |index: &[usize]| {
                let mut swapped = index.to_vec();
                swapped.swap(rank - 2, rank - 1);
                swapped
            };
            (layout.transpose(), model.pick(&swap(&model.shape), swap))
        }
        4 => {
            let shape = factors(layout.len(), seed);
            let expected = Model { shape: shape.clone(), offsets: model.offsets.clone() };
            let view = layout.view(&shape);
            if !model.viewable_as(&shape) {
                assert!(matches!(view, Err(LayoutError::ViewNeedsCopy { .. })), "{layout:?} as {shape:?}");
                return None;
            }
            (view, expected)
        }
        5 if rank > 0 && model.shape[axis] == 1 => {
            let mut shape = model.shape.clone();
            shape.remove(axis);
            (layout.squeeze(axis), Model { shape, offsets: model.offsets.clone() })
        }
        6 if rank < MAX_RANK => {
            let axis = seed[0] % (rank + 1);
            let mut shape = model.shape.clone();
            shape.insert(axis, 1);
            (layout.unsqueeze(axis), Model { shape, offsets: model.offsets.clone() })
        }
        _ => return None,
    };
    let (changed, expected) = result;
    Some((changed.unwrap_or_else(|error| panic!("{layout:?} operation {kind}: {error}")), expected))
}

proptest! {
    #[test]
    fn layouts_agree_with_the_model(layout in layouts()) {
        assert_matches(&layout, &Model::of(&layout));
    }

    #[test]
    fn chains_of_operations_agree_with_the_model(
        layout in layouts(),
        operations in prop::collection::vec((0..7_usize, seeds()), 1..8),
    ) {
        let mut at_hand = (layout, Model::of(&layout));
        let overlaps = layout.overlaps_itself();
        for (kind, seed) in operations {
            if let Some(changed) = apply(kind, &seed, &at_hand.0, &at_hand.1) {
                assert_matches(&changed.0, &changed.1);
                // None of them can make a writable layout overlap.
                prop_assert!(overlaps || !changed.0.overlaps_itself(), "{:?}", changed.0);
                at_hand = changed;
            }
        }
    }

    #[test]
    fn packed_layouts_take_every_view(layout in packed(), seed in seeds()) {
        let shape = factors(layout.len(), &seed);
        let view = layout.view(&shape).expect("packed");
        prop_assert!(view.is_contiguous());
        let inferred: Vec<_> = shape.iter().enumerate().map(|(i, &e)| (i > 0).then_some(e)).collect();
        if !shape[1..].contains(&0) {
            prop_assert_eq!(layout.view_infer(&inferred), Ok(view));
        }
    }

    #[test]
    fn broadcasts_agree_with_the_model(layout in layouts(), seed in seeds()) {
        let mut shape = layout.shape().to_vec();
        for (extent, number) in shape.iter_mut().zip(&seed).filter(|(extent, _)| **extent == 1) {
            *extent = number % 3;
        }
        let added = seed[6] % (MAX_RANK - shape.len() + 1);
        for number in &seed[..added.min(2)] {
            shape.insert(0, number % 3);
        }
        if shape.iter().product::<usize>() <= 16 * MOST {
            let model = Model::of(&layout);
            let added = shape.len() - layout.rank();
            let expected = model.pick(&shape, |index| {
                index[added..].iter().zip(&model.shape).map(|(&i, &extent)| i.min(extent.max(1) - 1)).collect()
            });
            assert_matches(&layout.broadcast_to(&shape).expect("made to fit"), &expected);
        }
    }

    #[test]
    fn splits_are_the_whole_in_order(layout in layouts(), seed in seeds()) {
        let layout = if layout.rank() == 0 { layout.unsqueeze(0).expect("there is room") } else { layout };
        let (axis, model) = (seed[0] % layout.rank(), Model::of(&layout));
        let extent = layout.shape()[axis];
        let parts = layout.split(axis, 1 + seed[1] % extent.max(1)).expect("no more parts than elements");
        let mut start = 0;
        let mut seen = Vec::new();
        for part in parts {
            let end = start + part.shape()[axis];
            assert_matches(&part, &model.slice(axis, start, end));
            seen.extend(part.offsets());
            start = end;
        }
        prop_assert_eq!(start, extent);
        let mut all = model.offsets;
        all.sort_unstable();
        seen.sort_unstable();
        prop_assert_eq!(seen, all);
    }
}

/// Any number, with the extremes often among them.
fn wild() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..4_usize,
        any::<usize>(),
        (0..70_u32, 0..3_usize)
            .prop_map(|(bits, less)| { 1_usize.checked_shl(bits).unwrap_or(0).wrapping_sub(less) }),
    ]
}

/// Calls every method of a layout of any size, to find overflows.
pub(super) fn exercise(layout: &Layout, seed: &Seed) {
    let _ = (layout.len(), layout.span(), layout.is_contiguous(), layout.overlaps_itself());
    let _ = (layout.coalesced(), layout.offsets().take(20).count());
    let _ = layout.contiguous_runs().take(20).count();
    for dtype in DType::ALL {
        let _ = (layout.bytes_span(dtype), layout.packed_bytes(dtype), layout.fits(dtype, seed[0] as u64));
    }
    for axis in 0..=layout.rank() {
        let _ = (layout.index(axis, seed[1]), layout.slice(axis, seed[1]..=seed[2]));
        let _ = (layout.slice(axis, 1..), layout.squeeze(axis), layout.unsqueeze(axis));
        let _ = layout.split(axis, seed[3]).map(|mut parts| parts.next());
    }
    let last = layout.shape().iter().map(|extent| extent.saturating_sub(1));
    for (axis, last) in last.enumerate() {
        let _ = (layout.index(axis, last), layout.slice(axis, last..));
    }
    let _ = (layout.transpose(), layout.permute(&order(layout.rank(), seed)));
    let _ = (layout.view(&[layout.len()]), layout.view(&seed[..3]), layout.broadcast_to(seed));
    let _ = layout.view_infer(&[None, Some(2), Some(seed[4])]);
    let _ = layout.with_offset(seed[5]);
}

proptest! {
    #[test]
    fn no_number_panics(
        shape in prop::collection::vec(wild(), 0..10),
        strides in prop::collection::vec(wild(), 10),
        offset in wild(),
        seed in prop::array::uniform8(wild()),
    ) {
        let strides: Vec<_> = strides[..shape.len()].iter().map(|&stride| stride as isize).collect();
        if let Ok(layout) = Layout::contiguous(&shape) {
            exercise(&layout, &seed);
        }
        if let Ok(layout) = Layout::from_parts(&shape, &strides, offset) {
            exercise(&layout, &seed);
        }
    }
}
