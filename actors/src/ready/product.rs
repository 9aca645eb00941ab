//! Matrix products.

use std::marker::PhantomData;

use tensorpost::prelude::*;

use super::Carrier;
use crate::matmul::Multiply;

/// The factor of a [`Product`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductArgs {
    /// Rows and columns of the factor, `[m, k]`.
    pub shape: [usize; 2],
    /// The factor, row by row: `m * k` floats.
    pub factor: Vec<f32>,
}

/// Multiplies the matrix of each item, floats `[k, n]` with any `n`, by a factor `[m, k]` from the left,
/// which makes `[m, n]`. It uses cuBLAS on a GPU, and a plain loop on the host.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, Product, ProductArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Product<Named>>(args)`. To try it out:
/// let args = ProductArgs { shape: [1, 2], factor: vec![1.0, 10.0] }; // the first row, and ten times the second
/// let mut stage = Product::<Named>::new(args, &stream)?;
/// let mut out = Out::new();
/// stage.process(Named::new(0, "m", stream.from_slice(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?.freeze()), &mut
/// out)?; let product = &out.take()[0].tensor;
/// assert_eq!((product.shape(), product.to_vec::<f32>()?), (&[1, 3][..], vec![41.0, 52.0, 63.0]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Product<T> {
    stream: DeviceStream,
    multiply: Multiply,
    factor: Tensor,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Product<T> {
    /// Creates the stage on the stream of `stream`.
    ///
    /// # Errors
    /// A factor of another length; no cuBLAS on a GPU; no memory.
    pub fn new(args: ProductArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        let ProductArgs { shape, factor } = args;
        let multiply = Multiply::new(stream)?;
        let factor = stream.from_slice(&shape, &factor)?.freeze();
        Ok(Product { stream: stream.clone(), multiply, factor, types: PhantomData })
    }
}

impl<T: Carrier> Stage for Product<T> {
    type Args = ProductArgs;
    type In = T;
    type Out = T;

    fn create(args: ProductArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item.with(|matrix| -> anyhow::Result<Tensor> {
            let matrix = self.stream.contiguous(&matrix)?;
            Ok(self.multiply.product(&self.stream, &self.factor, &matrix)?)
        })?);
        Ok(())
    }
}
