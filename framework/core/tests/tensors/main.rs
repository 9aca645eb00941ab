//! Tensors and messages as other software has them: arithmetic against plain loops, candle, libraries of C,
//! programs in other languages.

mod algebra;
#[cfg(all(feature = "testing", feature = "candle"))]
mod candle;
#[cfg(all(feature = "testing", feature = "dlpack"))]
mod dlpack;
#[cfg(feature = "testing")]
mod portable;
