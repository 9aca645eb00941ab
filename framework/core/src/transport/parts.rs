//! The content of a reply, for its asker.

use crate::tensor::Tensor;

/// A reply's content.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) tensors: Vec<Tensor>,
}
