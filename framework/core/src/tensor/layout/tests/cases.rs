//! Named cases: the edges of each operation and the sentences of the errors.

use super::*;
use crate::limits::MAX_RANK;

fn contiguous(shape: &[usize]) -> Layout {
    Layout::contiguous(shape).expect("a small shape")
}

fn parts(shape: &[usize], strides: &[isize], offset: usize) -> Layout {
    Layout::from_parts(shape, strides, offset).expect("small parts")
}

/// The sentence of the error that `result` must be.
/// The text for a shape with nine axes.
const TOO_MANY_AXES: &str =
    "a tensor has at most 8 axes: this shape has 9; give it a view in which some are one";

fn sentence<T: std::fmt::Debug>(result: Result<T, LayoutError>) -> String {
    result.expect_err("must be refused").to_string()
}

#[test]
fn a_scalar_has_one_element() {
    let scalar = contiguous(&[]);
    assert_eq!((scalar.rank(), scalar.len(), scalar.span()), (0, 1, 0..1));
    assert!(scalar.is_contiguous() && !scalar.overlaps_itself());
    assert_eq!(scalar.offsets().collect::<Vec<_>>(), [0]);
    assert_eq!(scalar.contiguous_runs().next(), Some(0..1));
    assert_eq!(scalar.view(&[1, 1]).map(|view| view.len()), Ok(1));
    assert_eq!(scalar.permute(&[]), Ok(scalar));
    assert_eq!(sentence(scalar.slice(0, ..)), "axis 0 does not exist: the tensor has 0 axes, counted from 0");
    assert_eq!(sentence(scalar.transpose()), "transpose swaps the last two axes: this tensor has 0");
}

#[test]
fn row_major_strides() {
    assert_eq!(contiguous(&[2, 3, 4]).strides(), [12, 4, 1]);
    assert_eq!(contiguous(&[2, 0, 4]).strides(), [4, 4, 1]);
}

#[test]
fn the_highest_rank_works_and_the_next_is_refused() {
    let layout = contiguous(&[2; MAX_RANK]);
    assert_matches(&layout, &Model::of(&layout));
    assert_eq!(sentence(Layout::contiguous(&[1; 9])), TOO_MANY_AXES);
    assert_eq!(sentence(layout.unsqueeze(3)), TOO_MANY_AXES);
    assert_eq!(sentence(layout.view(&[1; 9])), TOO_MANY_AXES);
    assert_eq!(sentence(layout.view_infer(&[None; 9])), TOO_MANY_AXES);
    assert_eq!(sentence(layout.broadcast_to(&[2; 9])), TOO_MANY_AXES);
}

#[test]
fn no_elements_touch_nothing() {
    let empty = parts(&[3, 0, 2], &[5, 7, 1], 4);
    assert_matches(&empty, &Model::of(&empty));
    assert_eq!(empty.bytes_span(DType::F32), Ok(16..16));
    assert_eq!(empty.contiguous_runs().next(), None);
    let view = empty.view(&[0, 9]).expect("no elements are no elements");
    assert_eq!((view.len(), view.offset()), (0, 0));
    assert_eq!(empty.view_infer(&[Some(5), None]).map(|view| view.len()), Ok(0));
    // Even the offset of an empty layout has to lie inside.
    assert!(empty.fits(DType::F32, 15).is_err());
}

/// A slice without elements gets offset 0, however far behind the end of its allocation it would begin: a
/// receiver would refuse that offset (WIRE-1).
#[test]
fn a_view_without_elements_fits_the_smallest_allocation() {
    let rows = contiguous(&[5, 0]);
    let empty = contiguous(&[6, 4]).slice(0, 6..6).expect("an empty range");
    let views = [
        rows.slice(0, 3..5),
        rows.slice(0, 2..4).and_then(|rows| rows.transpose()),
        empty.view(&[0]),
        rows.slice(0, 1..4).and_then(|rows| rows.permute(&[1, 0])),
        rows.split(0, 5).map(|parts| parts.last().expect("five parts")),
    ];
    for view in views {
        let view = view.expect("there is such a view");
        assert_eq!(view.fits(DType::F64, 0), Ok(()), "{view:?}");
        assert_eq!(view.moved_back(3).map(|view| view.len()), Some(0));
        let (dtype, arrived) = Layout::from_wire(&view.to_wire(DType::F64)).expect("it can travel");
        assert_eq!((dtype, arrived), (DType::F64, view));
    }
}

#[test]
fn geometry_that_is_too_large_is_refused() {
    let half = isize::MAX as usize / 2 + 1;
    assert!(Layout::contiguous(&[isize::MAX as usize]).is_ok());
    assert_eq!(
        sentence(Layout::contiguous(&[half, 2, 0])),
        format!("shape [{half}, 2, 0] has more elements than memory can be addressed")
    );
    assert!(matches!(Layout::contiguous(&[usize::MAX, 2]), Err(LayoutError::TooManyElements { .. })));
    assert!(Layout::from_parts(&[3], &[isize::MAX / 2 + 1], 0).is_err());
    assert!(Layout::from_parts(&[2], &[isize::MAX], 1).is_err());
    assert!(Layout::from_parts(&[], &[], usize::MAX).is_err());
    assert!(Layout::from_parts(&[], &[], isize::MAX as usize - 1).is_ok());
    assert!(contiguous(&[4]).with_offset(isize::MAX as usize - 3).is_err());
    assert_eq!(
        sentence(Layout::from_parts(&[2, 2], &[1, isize::MAX], 7)),
        format!(
            "offset 7 with shape [2, 2] and strides [1, {}] reaches beyond addressable memory",
            isize::MAX
        )
    );
    let bytes = contiguous(&[half]);
    assert_eq!(bytes.packed_bytes(DType::U8), Ok(half));
    assert!(matches!(bytes.packed_bytes(DType::U16), Err(LayoutError::TooManyBytes { .. })));
    assert!(matches!(bytes.fits(DType::U16, u64::MAX), Err(LayoutError::TooManyBytes { .. })));
    assert!(matches!(contiguous(&[1]).broadcast_to(&[half, 2]), Err(LayoutError::TooManyElements { .. })));
}

#[test]
fn parts_must_agree() {
    assert_eq!(
        sentence(Layout::from_parts(&[2, 3], &[1], 0)),
        "the shape has 2 axes and there are 1 strides: give one stride for each axis"
    );
    assert_eq!(
        sentence(Layout::from_parts(&[2, 3], &[3, -1], 9)),
        "the stride of axis 1 is -1: strides must not be negative, copy the tensor in the order you want"
    );
}

#[test]
fn slices_take_every_kind_of_range() {
    let layout = contiguous(&[4, 7]);
    let columns = |result: Result<Layout, LayoutError>| {
        let layout = result.expect("in range");
        layout.offset()..layout.offset() + layout.shape()[1]
    };
    assert_eq!(columns(layout.slice(1, 2..5)), 2..5);
    assert_eq!(columns(layout.slice(1, 2..=4)), 2..5);
    assert_eq!(columns(layout.slice(1, 2..)), 2..7);
    assert_eq!(columns(layout.slice(1, ..)), 0..7);
    assert_eq!(layout.slice(1, 7..7).map(|slice| slice.len()), Ok(0));
    assert_eq!(
        sentence(layout.slice(1, 5..9)),
        "slice 5..9 of axis 1 is out of range: the axis has 7 elements"
    );
    assert_eq!(
        sentence(layout.slice(1, 8..)),
        "slice 8..7 of axis 1 is out of range: the axis has 7 elements"
    );
    #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
    let reversed = layout.slice(1, 5..2);
    assert_eq!(sentence(reversed), "slice 5..2 of axis 1 ends before it starts");
    assert!(layout.slice(1, ..=usize::MAX).is_err());
    assert_eq!(sentence(layout.index(0, 4)), "index 4 of axis 0 is out of range: the axis has 4 elements");
}

#[test]
fn an_empty_slice_of_a_far_end_stays_in_reach() {
    let far = parts(&[2], &[isize::MAX - 2], 0);
    assert_eq!(far.slice(0, 2..2).map(|slice| slice.span()), Ok(0..0));
}

#[test]
fn splits_give_every_index_once() {
    let layout = contiguous(&[2, 7]);
    let split: Vec<_> = layout.split(1, 3).expect("7 make 3 parts").collect();
    assert_eq!(split.iter().map(|part| part.shape()[1]).collect::<Vec<_>>(), [3, 2, 2]);
    assert_eq!(split.iter().map(Layout::offset).collect::<Vec<_>>(), [0, 3, 5]);
    assert_eq!(contiguous(&[0]).split(0, 1).map(|parts| parts.len()), Ok(1));
    for parts in [0, 8, usize::MAX] {
        assert_eq!(
            sentence(layout.split(1, parts)),
            format!("axis 1 of 7 elements cannot be split into {parts} parts: each part needs an element")
        );
    }
}

#[test]
fn permutations_are_checked() {
    let layout = contiguous(&[2, 3, 4]);
    let permuted = layout.permute(&[2, 0, 1]).expect("a permutation");
    assert_eq!((permuted.shape(), permuted.strides()), (&[4, 2, 3][..], &[1, 12, 4][..]));
    assert_eq!(layout.transpose().map(|layout| layout.shape().to_vec()), Ok(vec![2, 4, 3]));
    for axes in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 3], &[]] {
        assert_eq!(
            sentence(layout.permute(axes)),
            format!("{axes:?} is no order of 3 axes: name each of them once, counted from 0")
        );
    }
}

#[test]
fn views_of_strided_layouts() {
    let rows = contiguous(&[4, 6]).slice(1, 0..4).expect("in range");
    assert_eq!(rows.view(&[2, 2, 4]).map(|view| view.strides().to_vec()), Ok(vec![12, 6, 1]));
    assert_eq!(rows.view(&[4, 2, 2]).map(|view| view.strides().to_vec()), Ok(vec![6, 2, 1]));
    assert_eq!(
        sentence(rows.view(&[16])),
        "shape [4, 4] with strides [6, 1] cannot be viewed as [16] without a copy: make it contiguous first"
    );
    assert_eq!(
        sentence(rows.view(&[5, 3])),
        "shape [4, 4] cannot be viewed as [5, 3]: 16 elements are not 15"
    );
    // A stride that places nothing does not stand in the way.
    assert!(parts(&[4, 1], &[1, 100], 0).view(&[2, 2]).is_ok());
    let repeated = parts(&[1], &[1], 5).broadcast_to(&[2, 3]).expect("one repeats");
    assert_eq!(repeated.view(&[6]).map(|view| view.strides().to_vec()), Ok(vec![0]));
}

#[test]
fn one_extent_can_be_inferred() {
    let layout = contiguous(&[4, 6]);
    let shape = |result: Result<Layout, LayoutError>| result.map(|layout| layout.shape().to_vec());
    assert_eq!(shape(layout.view_infer(&[None, Some(8)])), Ok(vec![3, 8]));
    assert_eq!(shape(layout.view_infer(&[Some(24), None])), Ok(vec![24, 1]));
    assert_eq!(shape(layout.view_infer(&[Some(2), Some(12)])), Ok(vec![2, 12]));
    assert_eq!(
        sentence(layout.view_infer(&[None, Some(2), None])),
        "axes 0 and 2 are both left to infer: one at most can be"
    );
    assert_eq!(
        sentence(layout.view_infer(&[None, Some(7)])),
        "axis 0 cannot be inferred: 24 elements do not divide into groups of 7"
    );
    assert!(matches!(
        contiguous(&[0]).view_infer(&[None, Some(0)]),
        Err(LayoutError::CannotInfer { known: 0, .. })
    ));
    assert!(layout.view_infer(&[None, Some(usize::MAX), Some(2)]).is_err());
}

#[test]
fn axes_of_one_come_and_go() {
    let layout = contiguous(&[3, 1, 2]);
    assert_eq!(layout.squeeze(1), Ok(contiguous(&[3, 2])));
    assert_eq!(contiguous(&[3, 2]).unsqueeze(2), Ok(contiguous(&[3, 2, 1])));
    assert_eq!(contiguous(&[3, 2]).unsqueeze(0), Ok(contiguous(&[1, 3, 2])));
    assert_eq!(sentence(layout.squeeze(0)), "axis 0 has 3 elements: squeeze drops an axis of exactly 1");
    assert_eq!(
        sentence(layout.unsqueeze(4)),
        "a new axis cannot be axis 4 of a tensor of 3 axes: 3 would be the last place"
    );
}

#[test]
fn broadcasts_repeat_by_stride_zero() {
    let layout = contiguous(&[3, 1]);
    let repeated = layout.broadcast_to(&[2, 3, 4]).expect("1 becomes 4");
    assert_eq!(repeated.strides(), [0, 1, 0]);
    assert!(repeated.overlaps_itself());
    assert_eq!(repeated.span(), layout.span());
    assert_eq!(layout.broadcast_to(&[3, 0]).map(|empty| empty.len()), Ok(0));
    for shape in [&[3][..], &[2, 4], &[]] {
        assert_eq!(
            sentence(layout.broadcast_to(shape)),
            format!(
                "shape [3, 1] does not broadcast to {shape:?}: counted from the last, each axis must be equal or 1"
            )
        );
    }
}

#[test]
fn overlap_is_found_and_suspected() {
    assert!(parts(&[2, 2], &[1, 1], 0).overlaps_itself());
    assert!(parts(&[4, 3], &[2, 3], 0).overlaps_itself());
    assert!(!parts(&[3, 3], &[7, 3], 0).overlaps_itself());
    // Offsets 0, 3, 6, 4, 7, 10: distinct, and still suspected, as documented.
    assert!(parts(&[2, 3], &[4, 3], 0).overlaps_itself());
    assert!(!parts(&[0, 2], &[0, 0], 0).overlaps_itself());
    assert!(!parts(&[1, 2], &[0, 1], 0).overlaps_itself());
}

#[test]
fn runs_are_as_long_as_the_inner_axes_are_packed() {
    let middle = contiguous(&[3, 4, 5]).slice(1, 1..3).expect("in range");
    assert_eq!(middle.contiguous_runs().collect::<Vec<_>>(), [5..15, 25..35, 45..55]);
    let column = contiguous(&[3, 4]).index(1, 2).expect("in range");
    assert_eq!(column.contiguous_runs().collect::<Vec<_>>(), [2..3, 6..7, 10..11]);
    let mut whole = contiguous(&[3, 4]).contiguous_runs();
    assert_eq!((whole.len(), whole.next()), (1, Some(0..12)));
}

#[test]
fn an_allocation_holds_its_elements_only() {
    let layout = parts(&[2, 2], &[8, 1], 3);
    assert_eq!(layout.bytes_span(DType::F32), Ok(12..52));
    assert_eq!(layout.fits(DType::F32, 52), Ok(()));
    assert_eq!(
        sentence(layout.fits(DType::F32, 51)),
        "shape [2, 2] of f32 ends at byte 52 of an allocation of 51 bytes"
    );
}
