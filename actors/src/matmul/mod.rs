//! A chain of matrix products across two processes, and whether every result was right.
//!
//! [`Chain`] multiplies a matrix by another 50 times over, without waiting for the GPU, and sends the last
//! product while the GPU is still at work on the first ones. [`Checker`], in another process, multiplies what
//! came once more and compares the result with one that was computed in double precision on the host. It is
//! right only if the framework's waits are: CLOCK-1 between the processes, and CLOCK-2 for the memory that
//! goes round.
//!
//! On a GPU the products are cuBLAS's, on tensors as cudarc sees them; on the host device they are a plain
//! loop.

mod chain;
mod checker;
mod inputs;
mod product;

pub use chain::{Chain, ChainArgs, Run};
pub use checker::{Checker, CheckerArgs, Tally, Verdict};
pub use inputs::Task;
pub use product::{Multiply, MultiplyError};

use tensorpost::prelude::*;

/// The end of a chain: its tensor is two levels deep.
#[derive(Debug, Serialize, Deserialize, GpuMessage)]
pub struct Outcome {
    /// Which repetition it is.
    pub repetition: u64,
    /// What came out.
    pub result: Products,
}

/// A matrix and how it was made.
#[derive(Debug, Serialize, Deserialize)]
pub struct Products {
    /// How many products are in it.
    pub count: u32,
    /// The matrix, `[size, size]`, f32.
    pub matrix: Tensor,
}
