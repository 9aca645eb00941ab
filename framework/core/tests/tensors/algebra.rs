//! Arithmetic on host tensors against plain loops, for every element type, on packed, strided, repeated and
//! empty views.

use std::fmt::Debug;
use std::sync::LazyLock;

use half::{bf16, f16};
use proptest::prelude::*;
use tensorpost_core::api::node::Node;
use tensorpost_core::api::tensor::{DType, DeviceStream, Element, Tensor, TensorError};
use tensorpost_core::testing::Cluster;

/// A node that lives as long as the process, so that its streams are made once.
static NODE: LazyLock<Node> = LazyLock::new(|| Node::builder().start().expect("a node"));

fn stream() -> DeviceStream {
    NODE.host_stream().expect("a stream")
}

/// A view of a packed tensor, and the elements that it shows, computed from the definition.
#[derive(Clone, Debug)]
struct Case {
    shape: Vec<usize>,
    steps: Vec<(u8, usize, usize)>,
    seed: u64,
}

/// Makes small shapes of any form, and some that are longer than the kernels' block.
fn cases() -> impl Strategy<Value = Case> {
    let small = prop::collection::vec(0..6_usize, 0..4);
    let long = (1..3_usize, 1000..3000_usize, 1..3_usize).prop_map(|(a, b, c)| vec![a, b, c]);
    let steps = prop::collection::vec((0..4_u8, 0..10_000_usize, 0..10_000_usize), 0..4);
    (prop_oneof![4 => small, 1 => long], steps, any::<u64>()).prop_map(|(shape, steps, seed)| Case {
        shape,
        steps,
        seed,
    })
}

/// Returns random numbers from a seed, random in all their bits.
fn bits(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        // SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// An element type as plain loops see it.
trait Plain: Element + PartialEq + PartialOrd + Debug {
    fn from_bits(bits: u64) -> Self;
    /// The element as an `f64`, exact for integers of up to 32 bits.
    fn number(self) -> f64;
    fn is_nan(self) -> bool {
        false
    }
    /// Returns the sum as the docs define it: `None` for an overflow.
    fn add_up(elements: &[Self]) -> Option<Self::Sum>;
    fn near(left: Self::Sum, right: Self::Sum) -> bool;
}

macro_rules! plain_integers {
    ($($type:ty as $wide:ty),+) => {$(
        impl Plain for $type {
            fn from_bits(bits: u64) -> Self {
                // The element is often small, so that not every sum of 64 bits overflows.
                if bits % 4 == 0 { bits as $type } else { (bits % 7) as $type }
            }
            fn number(self) -> f64 {
                self as f64
            }
            fn add_up(elements: &[Self]) -> Option<$wide> {
                elements.iter().map(|&element| i128::from(element)).sum::<i128>().try_into().ok()
            }
            fn near(left: $wide, right: $wide) -> bool {
                left == right
            }
        }
    )+};
}

plain_integers!(u8 as u64, u16 as u64, u32 as u64, u64 as u64, i8 as i64, i16 as i64, i32 as i64, i64 as i64);

impl Plain for bool {
    fn from_bits(bits: u64) -> Self {
        bits.is_multiple_of(3)
    }
    fn number(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn add_up(elements: &[Self]) -> Option<u64> {
        Some(elements.iter().filter(|&&element| element).count() as u64)
    }
    fn near(left: u64, right: u64) -> bool {
        left == right
    }
}

macro_rules! plain_floats {
    ($($type:ty: $from:expr),+) => {$(
        impl Plain for $type {
            fn from_bits(bits: u64) -> Self {
                match bits % 500 {
                    0 => <$type>::NAN,
                    1 => $from(0.0),
                    _ => $from((bits >> 40) as f32 / 65_536.0 - 128.0),
                }
            }
            fn number(self) -> f64 {
                f64::from(self)
            }
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
            fn add_up(elements: &[Self]) -> Option<f64> {
                Some(elements.iter().map(|&element| f64::from(element)).sum())
            }
            fn near(left: f64, right: f64) -> bool {
                (left.is_nan() && right.is_nan()) || (left - right).abs() <= 1e-6 * (1.0 + left.abs())
            }
        }
    )+};
}

plain_floats!(f16: f16::from_f32, bf16: bf16::from_f32, f32: f32::from, f64: f64::from);

/// Says whether the elements are equal or both NaN.
fn same<T: Plain>(left: &[T], right: &[T]) -> bool {
    let alike = |(&left, &right): (&T, &T)| left == right || (left.is_nan() && right.is_nan());
    left.len() == right.len() && left.iter().zip(right).all(alike)
}

impl Case {
    /// Returns the view, and its elements in row-major order.
    fn make<T: Plain>(&self, stream: &DeviceStream) -> (Tensor, Vec<T>) {
        let elements: Vec<T> = bits(self.seed).map(T::from_bits).take(self.shape.iter().product()).collect();
        let base = stream.from_slice(&self.shape, &elements).expect("room").freeze();
        let mut view = base;
        for &(kind, a, b) in &self.steps {
            let rank = view.rank();
            let axis = a % rank.max(1);
            let step = match kind {
                0 if rank > 0 => {
                    let extent = view.shape()[axis];
                    let start = b % (extent + 1);
                    view.slice(axis, start..start + a % (extent - start + 1))
                }
                1 if rank > 0 => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    axes.rotate_left(axis);
                    view.permute(&axes)
                }
                2 if rank > 0 && view.shape()[axis] > 0 => view.index(axis, b % view.shape()[axis]),
                3 if view.len() < 5000 => {
                    let shape: Vec<usize> = [&[b % 3], view.shape()].concat();
                    view.broadcast_to(&shape)
                }
                _ => continue,
            };
            view = step.expect("drawn to fit");
        }
        let seen = view.layout().offsets().map(|offset| elements[offset]).collect();
        (view, seen)
    }
}

/// Checks all operations of a tensor of `T` against loops over its elements.
fn check<T: Plain>(case: &Case) -> Result<(), TestCaseError> {
    let stream = stream();
    let (tensor, elements) = case.make::<T>(&stream);
    let what = format!("{:?} of {}", tensor.layout(), T::DTYPE);

    prop_assert!(same(&stream.download::<T>(&tensor)?, &elements), "{what}");

    let mapped = tensor.map(&stream, |element: T| element.number())?.freeze();
    let expected: Vec<f64> = elements.iter().map(|&element| element.number()).collect();
    prop_assert_eq!(mapped.shape(), tensor.shape());
    prop_assert!(same(mapped.as_slice::<f64>()?, &expected), "{what}");

    let small = tensor.map(&stream, |element: T| element.number() < 3.0)?.freeze();
    let below: Vec<bool> = expected.iter().map(|&number| number < 3.0).collect();
    prop_assert_eq!(small.as_slice::<bool>()?, &below[..], "{}", &what);

    // Covers strided with packed, packed with strided, and strided with itself.
    let both = |element: T, small: bool| if small { element.number() } else { -1.0 };
    let chosen: Vec<f64> = elements.iter().zip(&below).map(|(&e, &small)| both(e, small)).collect();
    prop_assert!(same(tensor.zip_map(&small, &stream, both)?.freeze().as_slice::<f64>()?, &chosen), "{what}");
    let turned = small.zip_map(&tensor, &stream, |small, element| both(element, small))?.freeze();
    prop_assert!(same(turned.as_slice::<f64>()?, &chosen), "{what}");
    let twice = tensor.zip_map(&tensor, &stream, |a: T, b: T| a == b || (a.is_nan() && b.is_nan()))?.freeze();
    prop_assert_eq!(twice.sum::<bool>()?, elements.len() as u64);

    match (tensor.sum::<T>(), T::add_up(&elements)) {
        (Ok(sum), Some(expected)) => prop_assert!(T::near(sum, expected), "{what}"),
        (Err(TensorError::SumOverflow { dtype }), None) => prop_assert_eq!(dtype, T::DTYPE),
        (sum, _) => prop_assert!(false, "{what}: {:?}", sum.err()),
    }
    let best = |better: fn(&T, &T) -> bool| {
        let nan = elements.iter().position(|element| element.is_nan());
        nan.or_else(|| (0..elements.len()).find(|&at| !elements.iter().any(|e| better(e, &elements[at]))))
    };
    if elements.is_empty() {
        let refused = [
            tensor.mean::<T>().map(drop),
            tensor.min::<T>().map(drop),
            tensor.max::<T>().map(drop),
            tensor.argmax::<T>().map(drop),
        ];
        for refused in refused {
            prop_assert!(matches!(refused, Err(TensorError::NoElements { .. })), "{what}: {refused:?}");
        }
    } else {
        let mean = expected.iter().sum::<f64>() / elements.len() as f64;
        prop_assert!(f64::near(tensor.mean::<T>()?, mean), "{what}");
        let least = best(|a, b| a < b).expect("there is one");
        prop_assert!(same(&[tensor.min::<T>()?], &[elements[least]]), "{what}");
        let most = best(|a, b| a > b).expect("there is one");
        prop_assert_eq!(tensor.argmax::<T>()?, most, "{}", &what);
        prop_assert!(same(&[tensor.max::<T>()?], &[elements[most]]), "{what}");
    }
    drop((mapped, turned));

    in_place(tensor, &elements, &small, &stream, &what)
}

/// Checks the operations in place, where nobody else holds the memory and no element is there twice.
fn in_place<T: Plain>(
    tensor: Tensor,
    elements: &[T],
    small: &Tensor,
    stream: &DeviceStream,
    what: &str,
) -> Result<(), TestCaseError> {
    let other = bits(7).map(T::from_bits).next().expect("endless");
    let Ok(mut writable) = tensor.into_mut(stream) else { return Ok(()) };
    writable.zip_map_in_place(small, |element: T, small: bool| if small { element } else { other })?;
    let small = small.as_slice::<bool>()?;
    let kept: Vec<T> =
        elements.iter().zip(small).map(|(&element, &small)| if small { element } else { other }).collect();
    let frozen = writable.freeze();
    prop_assert!(same(&frozen.to_vec::<T>()?, &kept), "{what}");
    let mut writable = frozen.into_mut(stream).map_err(|refused| TestCaseError::fail(refused.to_string()))?;
    let mut order = 0;
    writable.map_in_place(|element: T| {
        order += 1;
        if order % 2 == 0 { other } else { element }
    })?;
    let every_second: Vec<T> =
        kept.iter().enumerate().map(|(at, &element)| if at % 2 == 1 { other } else { element }).collect();
    prop_assert!(same(&writable.freeze().to_vec::<T>()?, &every_second), "{what}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arithmetic_is_that_of_plain_loops(case in cases()) {
        check::<bool>(&case)?;
        check::<u8>(&case)?;
        check::<u16>(&case)?;
        check::<u32>(&case)?;
        check::<u64>(&case)?;
        check::<i8>(&case)?;
        check::<i16>(&case)?;
        check::<i32>(&case)?;
        check::<i64>(&case)?;
        check::<f16>(&case)?;
        check::<bf16>(&case)?;
        check::<f32>(&case)?;
        check::<f64>(&case)?;
    }

    /// The same elements give the same sum to the last bit, packed or not.
    #[test]
    fn sums_do_not_depend_on_strides(case in cases()) {
        let stream = stream();
        let (tensor, _) = case.make::<f32>(&stream);
        let packed = stream.copy(&tensor)?.freeze();
        prop_assert_eq!(tensor.sum::<f32>()?.to_bits(), packed.sum::<f32>()?.to_bits());
    }

    #[test]
    fn casts_are_those_of_as(elements in prop::collection::vec(any::<u64>(), 1..40), small in any::<bool>()) {
        let stream = stream();
        let mut bits: Vec<u64> = elements.into_iter().map(|bits| if small { bits % 600 } else { bits }).collect();
        bits.extend([0, 1, u64::MAX, 1 << 63, f64::NAN.to_bits(), (-1.5_f64).to_bits(), 1e300_f64.to_bits()]);
        macro_rules! cast {
            ($from:ty, [$($to:ty),*]) => {{
                let elements: Vec<$from> = bits.iter().map(|&bits| <$from as Raw>::raw(bits)).collect();
                // Takes every second element, so that the tensor has strides.
                let both: Vec<$from> = elements.iter().flat_map(|&element| [element; 2]).collect();
                let tensor = stream.from_slice(&[elements.len(), 2], &both)?.freeze().index(1, 1)?;
                $(
                    let expected: Vec<$to> = elements.iter().map(|&element| element as $to).collect();
                    let cast = tensor.cast(&stream, <$to as Element>::DTYPE)?.freeze();
                    let cast = cast.to_vec::<$to>()?;
                    prop_assert!(same(&cast, &expected), "{:?} to {:?}, not {:?}", elements, cast, expected);
                )*
                let truth: Vec<bool> = elements.iter().map(|&element| element != 0 as $from).collect();
                prop_assert_eq!(tensor.cast(&stream, DType::Bool)?.freeze().to_vec::<bool>()?, truth);
                let halves: Vec<f16> = elements.iter().map(|&element| f16::from_f32(element as f32)).collect();
                prop_assert!(same(&tensor.cast(&stream, DType::F16)?.freeze().to_vec::<f16>()?, &halves));
                let brains: Vec<bf16> = elements.iter().map(|&element| bf16::from_f32(element as f32)).collect();
                prop_assert!(same(&tensor.cast(&stream, DType::BF16)?.freeze().to_vec::<bf16>()?, &brains));
            }};
        }
        macro_rules! all {
            ($($from:ty),*) => {$( cast!($from, [u8, u16, u32, u64, i8, i16, i32, i64, f32, f64]); )*};
        }
        all!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
    }
}

/// All values of a type, also those that `Plain` seldom draws.
trait Raw {
    fn raw(bits: u64) -> Self;
}

macro_rules! raw {
    ($($type:ty: $from:expr),*) => {$(
        impl Raw for $type {
            fn raw(bits: u64) -> Self {
                $from(bits)
            }
        }
    )*};
}

raw!(u8: |bits| bits as u8, u16: |bits| bits as u16, u32: |bits| bits as u32, u64: |bits| bits);
raw!(i8: |bits| bits as i8, i16: |bits| bits as i16, i32: |bits| bits as i32, i64: |bits| bits as i64);
raw!(f32: |bits| f64::from_bits(bits) as f32, f64: f64::from_bits);

#[test]
fn casts_of_bools_and_16_bits() {
    let stream = stream();
    let bools = stream.from_slice(&[2], &[true, false]).unwrap().freeze();
    assert_eq!(bools.cast(&stream, DType::I8).unwrap().freeze().to_vec::<i8>().unwrap(), [1, 0]);
    assert_eq!(bools.cast(&stream, DType::F32).unwrap().freeze().to_vec::<f32>().unwrap(), [1.0, 0.0]);
    let halves = [-2.75, 0.0, 60_000.0, f32::NAN].map(f16::from_f32);
    let halves = stream.from_slice(&[4], &halves).unwrap().freeze();
    assert_eq!(halves.cast(&stream, DType::U8).unwrap().freeze().to_vec::<u8>().unwrap(), [0, 0, 255, 0]);
    assert_eq!(halves.cast(&stream, DType::I16).unwrap().freeze().to_vec::<i16>().unwrap()[..2], [-2, 0]);
    let brains = halves.cast(&stream, DType::BF16).unwrap().freeze().to_vec::<bf16>().unwrap();
    assert_eq!(brains[..2], [-2.75, 0.0].map(bf16::from_f32));
    assert_eq!(halves.cast(&stream, DType::F16).unwrap().freeze().shape(), [4]);
}

#[test]
fn what_does_not_fit_is_an_error_and_no_panic() {
    let stream = stream();
    let tensor = stream.from_slice(&[2, 3], &[1_i32; 6]).unwrap().freeze();
    let other = stream.from_slice(&[3, 2], &[1_i32; 6]).unwrap().freeze();
    let error = tensor.zip_map(&other, &stream, |a: i32, b: i32| a + b).unwrap_err();
    assert!(
        matches!(&error, TensorError::Shapes { left, right } if *left == [2, 3] && *right == [3, 2]),
        "{error}"
    );
    let mut writable = stream.copy(&tensor).unwrap();
    let error = writable.zip_map_in_place(&other, |a: i32, b: i32| a + b).unwrap_err();
    assert!(matches!(error, TensorError::Shapes { .. }), "{error}");
    let wrong =
        |error: TensorError| matches!(error, TensorError::DType { asked: DType::F32, found: DType::I32 });
    assert!(wrong(tensor.map(&stream, |x: f32| x).unwrap_err()));
    assert!(wrong(tensor.zip_map(&tensor, &stream, |a: i32, _: f32| a).unwrap_err()));
    assert!(wrong(writable.map_in_place(|x: f32| x).unwrap_err()));
    assert!(wrong(tensor.sum::<f32>().unwrap_err()));
    assert!(wrong(tensor.argmax::<f32>().unwrap_err()));

    let large = stream.from_slice(&[2], &[u64::MAX, 1]).unwrap().freeze();
    assert!(matches!(large.sum::<u64>(), Err(TensorError::SumOverflow { dtype: DType::U64 })));
    assert_eq!(large.mean::<u64>().unwrap(), 2.0_f64.powi(63));
    let deep = stream.from_slice(&[2], &[i64::MIN, -1]).unwrap().freeze();
    assert!(matches!(deep.sum::<i64>(), Err(TensorError::SumOverflow { dtype: DType::I64 })));

    // WIRE-1: a peer can send one byte as any shape, and must not make a receiver walk over that.
    let endless =
        stream.from_slice(&[1], &[1_u8]).unwrap().freeze().broadcast_to(&[1 << 31, 1 << 30]).unwrap();
    assert!(matches!(endless.sum::<u8>(), Err(TensorError::NoRoomForCopy { .. })));
    assert!(matches!(endless.max::<u8>(), Err(TensorError::NoRoomForCopy { .. })));
    assert!(matches!(endless.map(&stream, |x: u8| x), Err(TensorError::Pool(_))));
    assert!(matches!(endless.cast(&stream, DType::Bool), Err(TensorError::Pool(_))));
}

#[cfg(feature = "ndarray")]
mod with_ndarray {
    use ndarray::{ArrayD, IxDyn};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn views_show_the_same_elements_and_write_them(case in cases()) {
            let stream = stream();
            let (tensor, elements) = case.make::<i32>(&stream);
            let array = ArrayD::from_shape_vec(IxDyn(tensor.shape()), elements).expect("as many");
            prop_assert_eq!(tensor.view_array::<i32>()?, array.view());
            let doubled = tensor.map(&stream, |x: i32| x.wrapping_mul(2))?.freeze();
            prop_assert_eq!(doubled.view_array::<i32>()?, array.mapv(|x| x.wrapping_mul(2)));
            let again = stream.from_array(&array.view())?.freeze();
            prop_assert_eq!(again.view_array::<i32>()?, array.view());

            let Ok(mut writable) = tensor.into_mut(&stream) else { return Ok(()) };
            writable.view_array_mut::<i32>()?.zip_mut_with(&array, |x, &y| *x = x.wrapping_add(y));
            let written = writable.freeze();
            prop_assert_eq!(written.view_array::<i32>()?, array.mapv(|x| x.wrapping_mul(2)));
        }
    }
}

/// Rust has no type for floats of 8 bits and complex numbers: tensors of them are made, sent and read as
/// bytes, and no sum or cast takes them.
#[test]
fn every_dtype_goes_from_process_to_process() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Tensor>(1, 4);
    for dtype in DType::ALL {
        let bytes: Vec<u8> = (0..6 * dtype.size()).map(|at| at as u8 % 2).collect();
        let mut made = cluster.stream(0).empty(dtype, &[2, 3]).expect("memory");
        let short = cluster.stream(0).upload_bytes(&mut made, &bytes[1..]).expect_err("a byte is missing");
        assert!(matches!(short, TensorError::Length { .. }), "{short}");
        cluster.stream(0).upload_bytes(&mut made, &bytes).expect("as many");
        cluster.send(0, &to, made.freeze());
        cluster.run_until_idle();
        let came = inbox.take_one().message;
        assert_eq!((came.dtype(), came.shape()), (dtype, &[2, 3][..]));
        let there = cluster.stream(1).download_bytes(&came).expect("data");
        assert_eq!(there, bytes, "{dtype}");
        let cast = came.cast(cluster.stream(1), DType::F64);
        if dtype > DType::F64 {
            let why = cast.expect_err("no type").to_string();
            assert!(why.contains(dtype.name()) && why.contains("upload_bytes"), "{why}");
        } else {
            cast.expect("there is a type");
        }
        drop(came);
        cluster.run_until_idle();
    }
    let mut flags = cluster.stream(0).empty(DType::Bool, &[1]).expect("memory");
    let wrong = cluster.stream(0).upload_bytes(&mut flags, &[2]).expect_err("neither 0 nor 1");
    assert!(matches!(wrong, TensorError::NotBool), "{wrong}");
}
