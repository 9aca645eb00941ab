//! The recipe of an item's tensors: dtype, shape, view and every element follow from the item's number.

use tensorpost::prelude::*;

use super::spec::Tensors;
use crate::faults::plan::{Draw, mix};

/// An element type into which numbers are written.
pub trait Cell: Element + Copy + PartialEq + std::fmt::Debug {
    /// Numbers below this can be told apart.
    const RANGE: u64;
    /// Returns the element for a number below [`RANGE`](Self::RANGE).
    fn of(number: u64) -> Self;
    /// Returns the number of an element.
    fn number(self) -> u64;
}

macro_rules! cells {
    ($($type:ty: $range:expr),*) => {$(
        impl Cell for $type {
            const RANGE: u64 = $range;

            fn of(number: u64) -> Self {
                number as $type
            }

            fn number(self) -> u64 {
                self as u64
            }
        }
    )*};
}

cells!(u8: 1 << 8, u16: 1 << 16, u32: 1 << 32, u64: 1 << 63, i16: 1 << 15, i64: 1 << 62, f32: 1 << 24, f64: 1 << 50);

/// Runs code with `$cell` as the type of a dtype.
macro_rules! with_cell {
    ($dtype:expr, $cell:ident => $body:expr) => {
        match $dtype {
            DType::U8 => {
                type $cell = u8;
                $body
            }
            DType::U16 => {
                type $cell = u16;
                $body
            }
            DType::U64 => {
                type $cell = u64;
                $body
            }
            DType::I16 => {
                type $cell = i16;
                $body
            }
            DType::I64 => {
                type $cell = i64;
                $body
            }
            DType::F32 => {
                type $cell = f32;
                $body
            }
            DType::F64 => {
                type $cell = f64;
                $body
            }
            _ => {
                type $cell = u32;
                $body
            }
        }
    };
}
pub(super) use with_cell;

const DTYPES: [DType; 8] =
    [DType::U8, DType::U16, DType::U32, DType::U64, DType::I16, DType::I64, DType::F32, DType::F64];

/// One tensor of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Its type.
    pub dtype: DType,
    /// The shape of its memory.
    pub shape: Vec<usize>,
    /// The views through which it looks at that memory.
    pub views: Vec<View>,
    seed: u64,
}

/// A way to look at a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// From one index to another along an axis.
    Slice(usize, usize, usize),
    /// One index along an axis.
    Index(usize, usize),
    /// The axes the other way around.
    Reverse,
    /// This many copies of it along a new axis in front.
    Repeat(usize),
    /// As one axis.
    Flat,
}

/// Returns the recipes of an item: those of its list of tensors, then those of its nested tensors.
pub fn recipes(tensors: Tensors, source: u16, number: u64) -> (Vec<Recipe>, Vec<Recipe>) {
    let mut draw = Draw::new(mix(u64::from(tensors.seed)) ^ mix((u64::from(source) << 40) + number));
    let count = if tensors.count == 0 {
        0
    } else if tensors.uniform {
        usize::from(tensors.count)
    } else {
        draw.below(usize::from(tensors.count) + 1)
    };
    let list = (0..count).map(|slot| recipe(tensors, &mut draw, slot)).collect();
    let nested = if tensors.nested { draw.below(3) } else { 0 };
    let nested = (0..nested).map(|slot| recipe(tensors, &mut draw, 16 + slot)).collect();
    (list, nested)
}

fn recipe(tensors: Tensors, draw: &mut Draw, slot: usize) -> Recipe {
    let seed = draw.bits();
    if tensors.uniform && slot == 0 {
        let dtype = DTYPES[tensors.seed as usize % DTYPES.len()];
        return Recipe { dtype, shape: vec![1 + tensors.seed as usize % 7, 3], views: Vec::new(), seed };
    }
    let dtype = DTYPES[draw.below(DTYPES.len())];
    let mut shape: Vec<usize> = (0..1 + draw.below(3)).map(|_| 1 + draw.below(6)).collect();
    if tensors.large && draw.below(12) == 0 {
        shape = vec![40 + draw.below(200), 300 + draw.below(300)];
    }
    if tensors.empty && draw.below(8) == 0 {
        let axis = draw.below(shape.len());
        shape[axis] = 0;
    }
    let mut views = Vec::new();
    let mut now = shape.clone();
    while tensors.views && draw.below(2) == 0 && views.len() < 3 {
        let axis = draw.below(now.len().max(1));
        let view = match draw.below(5) {
            0 | 1 if !now.is_empty() => {
                let from = draw.below(now[axis] + 1);
                let least = usize::from(!tensors.empty);
                let to = (from + draw.below(now[axis] - from + 1)).max((from + least).min(now[axis]));
                if to - from < least {
                    continue;
                }
                View::Slice(axis, from, to)
            }
            2 if !now.is_empty() && now[axis] > 0 => View::Index(axis, draw.below(now[axis])),
            3 if now.len() < 4 => View::Repeat(1 + draw.below(3)),
            4 if views.is_empty() => View::Flat,
            _ => View::Reverse,
        };
        now = view.shape(&now);
        views.push(view);
    }
    Recipe { dtype, shape, views, seed }
}

impl View {
    fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        match self {
            View::Slice(axis, from, to) => shape[*axis] = to - from,
            View::Index(axis, _) => drop(shape.remove(*axis)),
            View::Reverse => shape.reverse(),
            View::Repeat(times) => shape.insert(0, *times),
            View::Flat => shape = vec![shape.iter().product()],
        }
        shape
    }

    /// Returns the origin of each element of the view, given the origins of the elements that it looks at.
    fn elements(&self, shape: &[usize], elements: &[usize]) -> Vec<usize> {
        let after = self.shape(shape);
        let count: usize = after.iter().product();
        (0..count)
            .map(|flat| {
                let mut index = unravel(flat, &after);
                match self {
                    View::Slice(axis, from, _) => index[*axis] += from,
                    View::Index(axis, at) => index.insert(*axis, *at),
                    View::Reverse => index.reverse(),
                    View::Repeat(_) => drop(index.remove(0)),
                    View::Flat => return elements[flat],
                }
                elements[ravel(&index, shape)]
            })
            .collect()
    }

    fn of(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        match self {
            View::Slice(axis, from, to) => tensor.slice(*axis, *from..*to),
            View::Index(axis, at) => tensor.index(*axis, *at),
            View::Reverse => tensor.permute(&(0..tensor.rank()).rev().collect::<Vec<_>>()),
            View::Repeat(times) => {
                let mut one = vec![1];
                one.extend(tensor.shape());
                let mut shape = one.clone();
                shape[0] = *times;
                // Some views cannot get a new axis without a copy; all views that are made here can.
                tensor.view(&one)?.broadcast_to(&shape)
            }
            View::Flat => tensor.view(&[tensor.len()]),
        }
    }
}

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (index, extent)| flat * extent + index)
}

impl Recipe {
    /// Returns element `index` of the memory after `added` was added to it.
    fn element<T: Cell>(&self, index: usize, added: u64) -> T {
        let made = mix(self.seed.wrapping_add(index as u64)) % T::RANGE;
        T::of((made + added % T::RANGE) % T::RANGE)
    }

    /// Returns the shape that the tensor has.
    pub fn final_shape(&self) -> Vec<usize> {
        self.views.iter().fold(self.shape.clone(), |shape, view| view.shape(&shape))
    }

    /// Returns all elements that the tensor has, in row-major order.
    pub fn expected<T: Cell>(&self, added: u64) -> Vec<T> {
        let count: usize = self.shape.iter().product();
        let (mut shape, mut elements) = (self.shape.clone(), (0..count).collect::<Vec<_>>());
        for view in &self.views {
            elements = view.elements(&shape, &elements);
            shape = view.shape(&shape);
        }
        elements.into_iter().map(|index| self.element(index, added)).collect()
    }

    /// Makes the tensor. On the host its elements are ready after `late` microseconds.
    ///
    /// # Errors
    /// There is no memory.
    pub fn make(&self, stream: &DeviceStream, late: u64) -> Result<Tensor, TensorError> {
        let whole = with_cell!(self.dtype, T => {
            let count: usize = self.shape.iter().product();
            let content: Vec<T> = (0..count).map(|index| self.element(index, 0)).collect();
            if stream.kind() == DeviceKind::Host && count > 0 {
                let mut whole = stream.empty(self.dtype, &self.shape)?;
                stream.run((whole.of_mut::<T>(),), move |(to,)| {
                    std::thread::sleep(std::time::Duration::from_micros(late));
                    to.copy_from_slice(&content);
                })?;
                whole.freeze()
            } else {
                stream.from_slice(&self.shape, &content)?.freeze()
            }
        });
        self.views.iter().try_fold(whole, |tensor, view| view.of(&tensor))
    }
}

/// Returns the elements of a tensor on any device.
///
/// # Errors
/// The elements will not come.
pub fn elements<T: Element>(tensor: &Tensor, stream: &DeviceStream) -> Result<Vec<T>, TensorError> {
    if stream.kind() == DeviceKind::Host { tensor.to_vec() } else { stream.download(tensor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_show_the_elements_that_the_recipe_names() {
        let node = Node::builder().start().unwrap();
        let stream = node.host_stream().unwrap();
        let tensors =
            Tensors { seed: 3, count: 3, nested: true, views: true, empty: true, ..Tensors::default() };
        let mut seen = (0, 0);
        for number in 0..400 {
            let (list, nested) = recipes(tensors, 0, number);
            for recipe in list.iter().chain(&nested) {
                let tensor = recipe.make(&stream, 0).unwrap();
                assert_eq!(tensor.shape(), recipe.final_shape(), "{recipe:?}");
                with_cell!(recipe.dtype, T => assert_eq!(tensor.to_vec::<T>().unwrap(), recipe.expected::<T>(0)));
                seen.0 += usize::from(tensor.is_empty());
                seen.1 += usize::from(!tensor.is_contiguous());
            }
        }
        assert!(seen.0 > 20 && seen.1 > 20, "{seen:?}");
    }
}
