//! The arithmetic of elements: conversions, order, sums. Sealed below [`Element`](super::Element).
//!
//! A conversion goes through the widest type of its class (`u64`, `i64` or `f64`), which loses nothing, and
//! from there works like `as`. A conversion to a 16-bit float goes through `f32`.

use half::{bf16, f16};

/// Number of sums that run side by side over a block of floats, so that an addition need not wait for the one
/// before.
const LANES: usize = 8;

/// The arithmetic of one element type. The names are long because they are in scope wherever a type is an
/// `Element`: there `T: Element + Float` must leave `x.is_nan()` to `Float`.
pub trait Scalar: Copy + PartialOrd {
    /// The type of a sum of elements.
    type ScalarSum: Copy;
    /// The type of the accumulator. No number of elements that a tensor can have overflows it.
    type ScalarTotal: Copy + Default;

    #[doc(hidden)]
    fn scalar_from_u64(value: u64) -> Self;
    #[doc(hidden)]
    fn scalar_from_i64(value: i64) -> Self;
    #[doc(hidden)]
    fn scalar_from_f64(value: f64) -> Self;
    #[doc(hidden)]
    fn scalar_cast<U: Scalar>(self) -> U;
    /// Returns the sum of at most [`BLOCK`](super::host_blocks::BLOCK) elements, added to `total`.
    #[doc(hidden)]
    fn scalar_add(total: Self::ScalarTotal, block: &[Self]) -> Self::ScalarTotal;
    /// Returns the sum of a total; `None` where it does not fit.
    #[doc(hidden)]
    fn scalar_sum(total: Self::ScalarTotal) -> Option<Self::ScalarSum>;
    #[doc(hidden)]
    fn scalar_mean(total: Self::ScalarTotal, elements: usize) -> f64;
    #[doc(hidden)]
    fn scalar_is_nan(self) -> bool {
        false
    }
}

/// Integers: `$wide` is the 64-bit type of the class, `$block` one that the sum of a block fits.
macro_rules! integer {
    ($type:ty, $wide:ty, $from_wide:ident, $block:ty) => {
        impl Scalar for $type {
            type ScalarSum = $wide;
            type ScalarTotal = i128;

            fn scalar_from_u64(value: u64) -> Self {
                value as $type
            }

            fn scalar_from_i64(value: i64) -> Self {
                value as $type
            }

            fn scalar_from_f64(value: f64) -> Self {
                value as $type
            }

            fn scalar_cast<U: Scalar>(self) -> U {
                U::$from_wide(<$wide>::from(self))
            }

            fn scalar_add(total: i128, block: &[Self]) -> i128 {
                total + i128::from(block.iter().map(|&element| <$block>::from(element)).sum::<$block>())
            }

            fn scalar_sum(total: i128) -> Option<$wide> {
                total.try_into().ok()
            }

            fn scalar_mean(total: i128, elements: usize) -> f64 {
                total as f64 / elements as f64
            }
        }
    };
}

integer!(u8, u64, scalar_from_u64, u64);
integer!(u16, u64, scalar_from_u64, u64);
integer!(u32, u64, scalar_from_u64, u64);
integer!(u64, u64, scalar_from_u64, i128);
integer!(i8, i64, scalar_from_i64, i64);
integer!(i16, i64, scalar_from_i64, i64);
integer!(i32, i64, scalar_from_i64, i64);
integer!(i64, i64, scalar_from_i64, i128);

impl Scalar for bool {
    type ScalarSum = u64;
    type ScalarTotal = i128;

    fn scalar_from_u64(value: u64) -> Self {
        value != 0
    }

    fn scalar_from_i64(value: i64) -> Self {
        value != 0
    }

    fn scalar_from_f64(value: f64) -> Self {
        value != 0.0
    }

    fn scalar_cast<U: Scalar>(self) -> U {
        U::scalar_from_u64(u64::from(self))
    }

    fn scalar_add(total: i128, block: &[Self]) -> i128 {
        total + i128::from(block.iter().map(|&element| u64::from(element)).sum::<u64>())
    }

    fn scalar_sum(total: i128) -> Option<u64> {
        total.try_into().ok()
    }

    fn scalar_mean(total: i128, elements: usize) -> f64 {
        total as f64 / elements as f64
    }
}

/// Floats: `$by` are the casts from a 64-bit number to the type.
macro_rules! float {
    ($type:ty, |$value:ident| $by:expr) => {
        impl Scalar for $type {
            type ScalarSum = f64;
            type ScalarTotal = f64;

            fn scalar_from_u64($value: u64) -> Self {
                $by
            }

            fn scalar_from_i64($value: i64) -> Self {
                $by
            }

            fn scalar_from_f64($value: f64) -> Self {
                $by
            }

            fn scalar_cast<U: Scalar>(self) -> U {
                U::scalar_from_f64(f64::from(self))
            }

            fn scalar_add(total: f64, block: &[Self]) -> f64 {
                let mut lanes = [0.0_f64; LANES];
                for chunk in block.chunks(LANES) {
                    for (lane, &element) in lanes.iter_mut().zip(chunk) {
                        *lane += f64::from(element);
                    }
                }
                total + lanes.iter().sum::<f64>()
            }

            fn scalar_sum(total: f64) -> Option<f64> {
                Some(total)
            }

            fn scalar_mean(total: f64, elements: usize) -> f64 {
                total / elements as f64
            }

            fn scalar_is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
        }
    };
}

float!(f64, |value| value as f64);
float!(f32, |value| value as f32);
float!(f16, |value| f16::from_f32(value as f32));
float!(bf16, |value| bf16::from_f32(value as f32));
