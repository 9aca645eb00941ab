//! One number out of all elements of a host tensor.
//!
//! Equal elements give an equal result, whatever their strides. To reduce along an axis, slice first, or call
//! `ndarray`'s `sum_axis` and its like on [`view_array`](Tensor::view_array) (feature `ndarray`).

use super::host_blocks::Blocks;
use super::scalar::Scalar;
use super::{Element, Tensor, TensorError};

impl Tensor {
    /// Returns the sum of the elements of a host tensor; 0 where there are none. Blocks until they are there.
    ///
    /// Integers are added as `u64` or `i64`, bools as 0 and 1, floats as `f64`. The order of the additions of
    /// floats depends on the number of elements alone.
    ///
    /// ```
    /// use tensorpost::prelude::*;
    ///
    /// # fn main() -> anyhow::Result<()> {
    /// # let node = Node::builder().start()?;
    /// # let stream = node.host_stream()?;
    /// let scores = stream.from_slice(&[2, 3], &[200_u8, 100, 0, 1, 2, 250])?.freeze();
    /// assert_eq!(scores.sum::<u8>()?, 553_u64);
    /// assert_eq!(scores.mean::<u8>()?, 553.0 / 6.0);
    /// assert_eq!((scores.min::<u8>()?, scores.max::<u8>()?), (0, 250));
    /// assert_eq!(scores.argmax::<u8>()?, 5); // row 1, column 2
    /// assert_eq!(scores.index(0, 0)?.argmax::<u8>()?, 0); // in row 0
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another dtype, a tensor that is not on the host, data that will never be there;
    /// [`TensorError::SumOverflow`] where a sum of integers does not fit; a broadcast of more than 1 GiB.
    pub fn sum<T: Element>(&self) -> Result<T::Sum, TensorError> {
        T::scalar_sum(self.total::<T>()?).ok_or(TensorError::SumOverflow { dtype: T::DTYPE })
    }

    /// Returns the mean of the elements of a host tensor, bools counted as 0 and 1. Blocks until they are
    /// there.
    ///
    /// # Errors
    /// As for [`sum`](Self::sum), an overflow excepted; [`TensorError::NoElements`] where there are none.
    pub fn mean<T: Element>(&self) -> Result<f64, TensorError> {
        self.check_not_empty("mean")?;
        Ok(T::scalar_mean(self.total::<T>()?, self.len()))
    }

    /// Returns the smallest element of a host tensor; NaN if one of them is. Blocks until they are there.
    ///
    /// # Errors
    /// As for [`sum`](Self::sum), an overflow excepted; [`TensorError::NoElements`] where there are none.
    pub fn min<T: Element>(&self) -> Result<T, TensorError> {
        self.first_best("minimum", |element, best: T| element < best).map(|(_, element)| element)
    }

    /// Returns the largest element of a host tensor; NaN if one of them is. Blocks until they are there.
    ///
    /// # Errors
    /// As for [`min`](Self::min).
    pub fn max<T: Element>(&self) -> Result<T, TensorError> {
        self.first_best("maximum", |element, best: T| element > best).map(|(_, element)| element)
    }

    /// Returns the row-major position of the largest element of a host tensor: the first of several, or the
    /// first NaN if there is one. Blocks until they are there.
    ///
    /// # Errors
    /// As for [`min`](Self::min).
    pub fn argmax<T: Element>(&self) -> Result<usize, TensorError> {
        self.first_best("maximum", |element, best: T| element > best).map(|(at, _)| at)
    }

    fn total<T: Element>(&self) -> Result<<T as Scalar>::ScalarTotal, TensorError> {
        self.check_repeats()?;
        let (mut blocks, mut total) = (Blocks::<T>::new(self)?, Default::default());
        while let Some(block) = blocks.next() {
            total = T::scalar_add(total, block);
        }
        Ok(total)
    }

    /// Returns the first element that no other is better than, and where it is. NaN is better than all.
    fn first_best<T: Element>(
        &self,
        asked: &'static str,
        better: impl Fn(T, T) -> bool,
    ) -> Result<(usize, T), TensorError> {
        self.check_repeats()?;
        let mut blocks = Blocks::<T>::new(self)?;
        let (mut found, mut start) = (None, 0);
        while let Some(block) = blocks.next() {
            for (at, &element) in (start..).zip(block) {
                match found {
                    Some((_, best))
                        if T::scalar_is_nan(best)
                            || !(better(element, best) || T::scalar_is_nan(element)) => {}
                    _ => found = Some((at, element)),
                }
            }
            start += block.len();
        }
        found.ok_or_else(|| self.no_elements(asked))
    }

    fn check_not_empty(&self, asked: &'static str) -> Result<(), TensorError> {
        if self.is_empty() { Err(self.no_elements(asked)) } else { Ok(()) }
    }

    fn no_elements(&self, asked: &'static str) -> TensorError {
        TensorError::NoElements { shape: self.shape().to_vec(), asked }
    }
}
