//! A chain of matrix products across two processes, and a check of every result.
//!
//! A [`Chain`] multiplies a matrix by another 50 times, without waiting for the GPU, and sends the last
//! product while the GPU is still at work on the first ones. A [`Checker`], in another process, multiplies
//! the received matrix once more and compares the product with one that was computed in double precision on
//! the host. The results are right only if the framework's waits are: CLOCK-1 between the processes, and
//! CLOCK-2 for the memory that is reused.
//!
//! On a GPU cuBLAS computes the products, on tensors as cudarc sees them; on the host device a plain loop
//! does.

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
    /// The number of the repetition.
    pub repetition: u64,
    /// The result of the chain.
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
