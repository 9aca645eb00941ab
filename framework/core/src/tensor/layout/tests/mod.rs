//! Layouts against a model that knows nothing of strides but the definition: `cases` has named ones, `random`
//! generated ones, `wire` the bytes of a peer.

mod cases;
mod random;
mod wire;

use super::*;
use crate::tensor::dtype::DType;

/// The same tensor as a plain list: the offset of every element, in row-major order.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    offsets: Vec<usize>,
}

/// Returns every index of `shape`, in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |prefixes, &extent| {
        prefixes
            .iter()
            .flat_map(|prefix| (0..extent).map(move |i| [prefix.as_slice(), &[i]].concat()))
            .collect()
    })
}

impl Model {
    fn new(shape: &[usize], strides: &[isize], offset: usize) -> Self {
        let offsets = indices(shape)
            .iter()
            .map(|index| index.iter().zip(strides).map(|(&i, &stride)| i * stride as usize).sum::<usize>())
            .map(|distance| offset + distance)
            .collect();
        Model { shape: shape.to_vec(), offsets }
    }

    fn of(layout: &Layout) -> Self {
        Self::new(layout.shape(), layout.strides(), layout.offset())
    }

    /// Returns the offset of the element at `index`.
    fn at(&self, index: &[usize]) -> usize {
        let position = index.iter().zip(&self.shape).fold(0, |position, (&i, &extent)| position * extent + i);
        self.offsets[position]
    }

    /// Returns the tensor of `shape` whose element at an index is the one of `self` at `source(index)`.
    fn pick(&self, shape: &[usize], source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let offsets = indices(shape).iter().map(|index| self.at(&source(index))).collect();
        Model { shape: shape.to_vec(), offsets }
    }

    fn slice(&self, axis: usize, start: usize, end: usize) -> Model {
        let mut shape = self.shape.clone();
        shape[axis] = end - start;
        self.pick(&shape, |index| {
            let mut source = index.to_vec();
            source[axis] += start;
            source
        })
    }

    /// Returns whether two indices have the same offset.
    fn repeats(&self) -> bool {
        let mut sorted = self.offsets.clone();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Returns whether some strides express the elements under `shape`: the steps along each axis fix them,
    /// the rest has to agree.
    fn viewable_as(&self, shape: &[usize]) -> bool {
        let Some(&first) = self.offsets.first() else { return true };
        let view = Model { shape: shape.to_vec(), offsets: self.offsets.clone() };
        let strides: Option<Vec<isize>> = (0..shape.len())
            .map(|axis| {
                let mut index = vec![0; shape.len()];
                index[axis] = usize::from(shape[axis] > 1);
                view.at(&index).checked_sub(first).map(|stride| stride as isize)
            })
            .collect();
        strides.is_some_and(|strides| Model::new(shape, &strides, first).offsets == self.offsets)
    }
}

/// Everything that `layout` says about itself agrees with `model`.
fn assert_matches(layout: &Layout, model: &Model) {
    assert_eq!(layout.shape(), model.shape);
    assert_eq!(layout.rank(), model.shape.len());
    assert_eq!(Model::of(layout).offsets, model.offsets, "{layout:?}");
    assert_eq!(Layout::from_parts(layout.shape(), layout.strides(), layout.offset()), Ok(*layout));

    assert_eq!(layout.len(), model.offsets.len());
    assert_eq!(layout.is_empty(), model.offsets.is_empty());
    assert_eq!(layout.offsets().len(), layout.len());
    assert_eq!(layout.offsets().collect::<Vec<_>>(), model.offsets, "{layout:?}");

    let runs = layout.contiguous_runs();
    assert_eq!(runs.len() * runs.run_len(), layout.len());
    let run_len = runs.run_len();
    let runs: Vec<_> = runs.inspect(|run| assert_eq!(run.len(), run_len)).collect();
    assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), model.offsets, "{layout:?}");

    let coalesced = layout.coalesced();
    assert_eq!(Model::of(&coalesced).offsets, model.offsets, "{layout:?}");
    assert!(coalesced.rank() <= layout.rank());

    let packed = model.offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    assert_eq!(layout.is_contiguous(), packed, "{layout:?}");
    assert_eq!(layout.contiguous_runs().len() <= 1, packed, "{layout:?}");

    let span = match (model.offsets.iter().min(), model.offsets.iter().max()) {
        (Some(&first), Some(&last)) => first..last + 1,
        _ => layout.offset()..layout.offset(),
    };
    assert_eq!(layout.span(), span);
    for dtype in [DType::U8, DType::BF16, DType::F64] {
        let size = dtype.size();
        assert_eq!(layout.bytes_span(dtype), Ok(span.start * size..span.end * size));
        assert_eq!(layout.packed_bytes(dtype), Ok(model.offsets.len() * size));
        let end = (span.end * size) as u64;
        assert_eq!(layout.fits(dtype, end), Ok(()));
        assert_eq!(layout.fits(dtype, end.wrapping_sub(1)).is_ok(), end == 0);
    }
    assert!(layout.overlaps_itself() || !model.repeats(), "{layout:?}");
}
