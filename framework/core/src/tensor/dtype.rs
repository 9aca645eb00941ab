//! Element types, and their names in memory, on the wire and in text.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::scalar::Scalar;

/// The type of a tensor's elements.
///
/// The discriminants are the wire codes: they never change, and a retired code is never used again. Zero is
/// no type, so that zeroed memory does not pass for one. In serde and in text a type is its lower-case name,
/// such as `"bf16"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DType {
    /// One byte, 0 or 1; every other value is invalid.
    Bool = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Unsigned, 16 bits.
    U16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Unsigned, 64 bits.
    U64 = 5,
    /// Two's complement, 8 bits.
    I8 = 6,
    /// Two's complement, 16 bits.
    I16 = 7,
    /// Two's complement, 32 bits.
    I32 = 8,
    /// Two's complement, 64 bits.
    I64 = 9,
    /// IEEE 754 binary16.
    F16 = 10,
    /// bfloat16: the upper half of an IEEE 754 binary32.
    BF16 = 11,
    /// IEEE 754 binary32.
    F32 = 12,
    /// IEEE 754 binary64.
    F64 = 13,
    /// A float of 8 bits with 4 of exponent, without infinities: `float8_e4m3fn`. Rust has no type for it,
    /// nor for those below: their elements go as bytes.
    F8E4M3 = 14,
    /// A float of 8 bits with 5 of exponent: `float8_e5m2`.
    F8E5M2 = 15,
    /// As [`F8E4M3`](Self::F8E4M3), with one zero and one NaN: `float8_e4m3fnuz`.
    F8E4M3Fnuz = 16,
    /// As [`F8E5M2`](Self::F8E5M2), with one zero and one NaN and without infinities: `float8_e5m2fnuz`.
    F8E5M2Fnuz = 17,
    /// A power of two in 8 bits, which scales others: `float8_e8m0fnu`.
    F8E8M0 = 18,
    /// Two floats of 4 bits in one byte, which is one element here: `float4_e2m1fn_x2`.
    F4E2M1X2 = 19,
    /// Two [`F32`](Self::F32), the real part first.
    Complex64 = 20,
    /// Two [`F64`](Self::F64), the real part first.
    Complex128 = 21,
}

impl DType {
    /// Every type, in the order of the wire codes.
    pub const ALL: [DType; 21] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E4M3Fnuz,
        DType::F8E5M2Fnuz,
        DType::F8E8M0,
        DType::F4E2M1X2,
        DType::Complex64,
        DType::Complex128,
    ];

    /// Returns the code of this type on the wire, the same in every version.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the type with this wire code; `None` for a code that names no type.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Returns the bytes of one element. It is also the alignment, in bytes, that an element needs.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3Fnuz | DType::F8E5M2Fnuz => 1,
            DType::F8E8M0 | DType::F4E2M1X2 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 | DType::Complex64 => 8,
            DType::Complex128 => 16,
        }
    }

    /// Returns the name in text and in serde, such as `"f32"`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E4M3Fnuz => "f8e4m3fnuz",
            DType::F8E5M2Fnuz => "f8e5m2fnuz",
            DType::F8E8M0 => "f8e8m0",
            DType::F4E2M1X2 => "f4e2m1x2",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no element type: use one of {}", DType::ALL.map(DType::name).join(", "))]
#[non_exhaustive]
pub struct UnknownDType {
    /// The text that was given.
    pub name: String,
}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| UnknownDType { name: name.to_owned() })
    }
}

/// A Rust type that is the element of a tensor.
///
/// Sealed: each implementor is exactly one [`DType`], with its size and alignment. The `bytemuck` bounds let
/// host access cast between bytes and elements without `unsafe`: no implementor has padding, and only `bool`
/// has bytes that are not a value.
pub trait Element:
    Scalar<ScalarSum = <Self as Element>::Sum>
    + bytemuck::NoUninit
    + bytemuck::CheckedBitPattern
    + Send
    + Sync
    + 'static
{
    /// The element type that `Self` is.
    const DTYPE: DType;

    /// The type that [`Tensor::sum`](super::Tensor::sum) returns: `u64` for `bool` and unsigned integers,
    /// `i64` for signed ones, `f64` for floats.
    type Sum: Element;

    /// Returns whether `bytes`, a whole number of elements, may be read as `&[Self]`.
    ///
    /// True for every type but `bool`, for which a byte other than 0 and 1 would be undefined behaviour. Code
    /// that makes a `&[bool]` of memory that something else wrote calls this first.
    fn validate(_bytes: &[u8]) -> bool {
        true
    }
}

/// Implements [`Element`] for one type and checks at compile time that the sizes agree.
macro_rules! element {
    ($type:ty, $dtype:ident $(, $validate:item)?) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Sum = <$type as Scalar>::ScalarSum;
            $($validate)?
        }
        const _: () = assert!(size_of::<$type>() == DType::$dtype.size());
        const _: () = assert!(align_of::<$type>() <= DType::$dtype.size());
    };
}

element!(
    bool,
    Bool,
    fn validate(bytes: &[u8]) -> bool {
        // One pass without an early exit, which the compiler turns into vector instructions.
        bytes.iter().fold(0, |seen, byte| seen | byte) <= 1
    }
);
element!(u8, U8);
element!(u16, U16);
element!(u32, U32);
element!(u64, U64);
element!(i8, I8);
element!(i16, I16);
element!(i32, I32);
element!(i64, I64);
element!(f16, F16);
element!(bf16, BF16);
element!(f32, F32);
element!(f64, F64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_codes_are_stable() {
        let codes: Vec<u8> = DType::ALL.iter().map(|dtype| dtype.code()).collect();
        assert_eq!(codes, (1..=21).collect::<Vec<u8>>());
        assert_eq!(DType::F32.code(), 12);
    }

    #[test]
    fn every_byte_is_a_type_or_none() {
        for code in 0..=u8::MAX {
            assert_eq!(DType::from_code(code).map(DType::code), (1..=21).contains(&code).then_some(code));
        }
    }

    #[test]
    fn names_agree_in_text_and_serde() {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            let bytes = rmp_serde::to_vec(&dtype).expect("a unit variant always encodes");
            let name: String = rmp_serde::from_slice(&bytes).expect("a dtype is its name");
            assert_eq!(name, dtype.name());
            assert_eq!(rmp_serde::from_slice::<DType>(&bytes).expect("the name is known"), dtype);
        }
    }

    #[test]
    fn unknown_names_are_named() {
        let error = "float32".parse::<DType>().expect_err("not one of our names");
        assert!(error.to_string().starts_with("\"float32\" is no element type"), "{error}");
    }

    #[test]
    fn display_obeys_the_width() {
        assert_eq!(format!("{:>5}|", DType::F32), "  f32|");
    }

    #[test]
    fn only_zero_and_one_are_bools() {
        assert!(bool::validate(&[]));
        assert!(bool::validate(&[0, 1, 1, 0]));
        for byte in 2..=u8::MAX {
            assert!(!bool::validate(&[0, 1, byte]), "{byte}");
        }
        assert!(u8::validate(&[2, 255]));
        assert!(f32::validate(&f32::NAN.to_le_bytes()));
    }
}
