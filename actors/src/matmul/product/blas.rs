//! Products by cuBLAS, through cudarc.

#![expect(unsafe_code, reason = "cudarc cannot see that the matrices have the sizes that it is told")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use tensorpost::prelude::*;

use super::{MultiplyError, Sizes};

/// A cuBLAS handle on one stream.
#[derive(Debug)]
pub(super) struct Blas(CudaBlas);

impl Blas {
    pub(super) fn new(stream: &DeviceStream) -> Result<Self, MultiplyError> {
        let stream = stream.cuda_stream()?.clone();
        // cudarc looks for the library at the first call and panics where there is none.
        let handle = catch_unwind(AssertUnwindSafe(|| CudaBlas::new(stream)));
        match handle {
            Ok(handle) => handle.map(Blas).map_err(|error| MultiplyError::NoBlas(error.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                Err(MultiplyError::NoBlas(text.unwrap_or_else(|| "it could not be loaded".to_owned())))
            }
        }
    }

    /// Computes `c = a · b` of matrices of these sizes in row-major order; the caller has checked the shapes.
    pub(super) fn product(
        &self,
        stream: &DeviceStream,
        a: &Tensor,
        b: &Tensor,
        c: &mut TensorMut,
        Sizes { m, k, n }: Sizes,
    ) -> Result<(), MultiplyError> {
        let int = |count: usize| {
            let refused = || MultiplyError::Blas(format!("{count} is more rows or columns than it counts"));
            i32::try_from(count).map_err(|_| refused())
        };
        let (m, k, n) = (int(m)?, int(k)?, int(n)?);
        // cuBLAS is column-major: it reads the same memory as the transposed matrix, and (a b)' = b' a'.
        let config = GemmConfig {
            transa: CUBLAS_OP_N,
            transb: CUBLAS_OP_N,
            m: n,
            n: m,
            k,
            alpha: 1.0_f32,
            lda: n,
            ldb: k,
            beta: 0.0,
            ldc: n,
        };
        let (a, b, mut c) = (stream.view::<f32>(a)?, stream.view::<f32>(b)?, stream.view_mut::<f32>(c)?);
        // SAFETY: the views are packed f32 of `m * k`, `k * n` and `m * n` elements on this device, and the
        // configuration makes cuBLAS read and write exactly these. The handle's stream is the one that the
        // views were ordered on.
        unsafe { self.0.gemm(config, &b, &a, &mut c) }.map_err(|error| MultiplyError::Blas(error.to_string()))
    }
}
