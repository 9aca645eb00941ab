//! One matrix product: cuBLAS on a GPU, a plain loop on the host.

#[cfg(feature = "cuda")]
mod blas;

use tensorpost::prelude::*;

/// The reasons why a product could not be put on a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MultiplyError {
    /// The tensors are no matrices, empty, or do not fit: the first needs as many columns as the second has
    /// rows.
    #[error("there is no product of shapes {a:?} and {b:?}; it takes [m, k] and [k, n], none of them 0")]
    Shape {
        /// The shape of the first.
        a: Vec<usize>,
        /// The shape of the second.
        b: Vec<usize>,
    },
    /// A tensor of another dtype or device, or a full pool.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// cuBLAS is not there.
    #[error("cuBLAS cannot be used: {0}; is libcublas.so on LD_LIBRARY_PATH?")]
    NoBlas(String),
    /// cuBLAS refused.
    #[error("cuBLAS: {0}")]
    Blas(String),
    /// A device that this build cannot multiply on.
    #[error("no products on {0} in this build; turn the feature `cuda` on")]
    Device(String),
}

/// Multiplies matrices on one stream.
#[derive(Debug)]
pub struct Multiply {
    #[cfg(feature = "cuda")]
    blas: Option<blas::Blas>,
}

impl Multiply {
    /// Prepares products on the stream of `stream`; on a GPU this loads cuBLAS.
    ///
    /// # Errors
    /// cuBLAS is not there, or this build has none.
    pub fn new(stream: &DeviceStream) -> Result<Self, MultiplyError> {
        #[cfg(feature = "cuda")]
        return Ok(Multiply {
            blas: (stream.kind() == DeviceKind::Cuda).then(|| blas::Blas::new(stream)).transpose()?,
        });
        #[cfg(not(feature = "cuda"))]
        match stream.kind() {
            DeviceKind::Host => Ok(Multiply {}),
            _ => Err(MultiplyError::Device(stream.name())),
        }
    }

    /// Computes `a · b` of two packed f32 tensors of shapes `[m, k]` and `[k, n]`, in a fresh tensor
    /// `[m, n]`. It puts the product on the stream of `stream`, which has to be the one that this was made
    /// for, and does not wait for it.
    ///
    /// # Errors
    /// [`MultiplyError`] says what is wrong with a matrix, the pool or cuBLAS.
    pub fn product(&self, stream: &DeviceStream, a: &Tensor, b: &Tensor) -> Result<Tensor, MultiplyError> {
        let sizes = match (a.shape(), b.shape()) {
            (&[m, k], &[rows, n]) if k == rows && ![m, k, n].contains(&0) => Sizes { m, k, n },
            (a, b) => return Err(MultiplyError::Shape { a: a.to_vec(), b: b.to_vec() }),
        };
        let mut c = stream.empty(DType::F32, &[sizes.m, sizes.n])?;
        #[cfg(feature = "cuda")]
        if let Some(blas) = &self.blas {
            blas.product(stream, a, b, &mut c, sizes)?;
            return Ok(c.freeze());
        }
        stream
            .run((a.of::<f32>(), b.of::<f32>(), c.of_mut::<f32>()), move |(a, b, c)| host(a, b, c, sizes))?;
        Ok(c.freeze())
    }
}

/// `[m, k] · [k, n] = [m, n]`, none of them 0.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// Computes `c = a · b`, in row-major order.
fn host(a: &[f32], b: &[f32], c: &mut [f32], Sizes { k, n, .. }: Sizes) {
    c.fill(0.0);
    for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
        for (a, b) in a.iter().zip(b.chunks_exact(n)) {
            for (c, b) in c.iter_mut().zip(b) {
                *c += a * b;
            }
        }
    }
}
