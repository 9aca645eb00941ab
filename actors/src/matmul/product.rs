//! One matrix product: cuBLAS on a GPU, a plain loop on the host.

#[cfg(feature = "cuda")]
mod blas;

use tensorpost::prelude::*;

/// Why a product could not be put on a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MultiplyError {
    /// A matrix of another shape.
    #[error("a matrix of shape {found:?} where {size} x {size} was due")]
    Shape {
        /// Its shape.
        found: Vec<usize>,
        /// Rows and columns that were due.
        size: usize,
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

/// Multiplies square matrices of one size on one stream.
#[derive(Debug)]
pub struct Multiply {
    size: usize,
    #[cfg(feature = "cuda")]
    blas: Option<blas::Blas>,
}

impl Multiply {
    /// Products of `size` by `size` matrices on the stream of `gpu`; on a GPU this loads cuBLAS.
    ///
    /// # Errors
    /// cuBLAS is not there, or this build has none.
    pub fn new(gpu: &Gpu, size: usize) -> Result<Self, MultiplyError> {
        #[cfg(feature = "cuda")]
        return Ok(Multiply {
            size,
            blas: (gpu.kind() == DeviceKind::Cuda).then(|| blas::Blas::new(gpu)).transpose()?,
        });
        #[cfg(not(feature = "cuda"))]
        match gpu.kind() {
            DeviceKind::Host => Ok(Multiply { size }),
            _ => Err(MultiplyError::Device(gpu.name())),
        }
    }

    /// `a · b`, in a fresh tensor, of two packed f32 tensors of shape `[size, size]`. Puts the product on the stream of
    /// `gpu`, which has to be the one that this was made for, and does not wait for it.
    ///
    /// # Errors
    /// [`MultiplyError`] says what is wrong with a matrix, the pool or cuBLAS.
    pub fn product(&self, gpu: &Gpu, a: &Tensor, b: &Tensor) -> Result<Tensor, MultiplyError> {
        for matrix in [a, b] {
            if matrix.shape() != [self.size, self.size] {
                return Err(MultiplyError::Shape { found: matrix.shape().to_vec(), size: self.size });
            }
        }
        let mut c = gpu.empty(DType::F32, &[self.size, self.size])?;
        #[cfg(feature = "cuda")]
        if let Some(blas) = &self.blas {
            blas.product(gpu, a, b, &mut c, self.size)?;
            return Ok(c.freeze());
        }
        let size = self.size;
        gpu.run((a.of::<f32>(), b.of::<f32>(), c.of_mut::<f32>()), move |(a, b, c)| host(a, b, c, size))?;
        Ok(c.freeze())
    }
}

/// `c = a · b`, in row-major order.
fn host(a: &[f32], b: &[f32], c: &mut [f32], size: usize) {
    c.fill(0.0);
    for (a, c) in a.chunks_exact(size).zip(c.chunks_exact_mut(size)) {
        for (a, b) in a.iter().zip(b.chunks_exact(size)) {
            for (c, b) in c.iter_mut().zip(b) {
                *c += a * b;
            }
        }
    }
}
