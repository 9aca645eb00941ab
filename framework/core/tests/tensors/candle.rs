//! Tensors to and from candle: every dtype, views of both sides, and the conversions that are refused.

use std::fmt::Debug;

use candle_core::{DType as CandleType, Device, Tensor as CandleTensor, WithDType};
use tensorpost_core::tensor::{DType, DeviceStream, Element, TensorError};
use tensorpost_core::testing::Cluster;

fn there_and_back<T>(stream: &DeviceStream, make: fn(u8) -> T)
where
    T: Element + WithDType + PartialEq + Debug,
{
    let elements: Vec<T> = (0..24).map(make).collect();
    let tensor = stream.from_slice(&[2, 3, 4], &elements).expect("memory").freeze();
    // Takes rows 1 and 2 and every other column, so that both sides have strides.
    let view = tensor.slice(1, 1..3).expect("in range").permute(&[2, 1, 0]).expect("axes");
    let shown = stream.to_candle(&view).expect("candle has it");
    assert_eq!((shown.dims(), shown.dtype()), (&[4, 2, 2][..], <T as WithDType>::DTYPE));
    let expected: Vec<T> = view.to_vec().expect("on the host");
    assert_eq!(shown.flatten_all().and_then(|flat| flat.to_vec1::<T>()).expect("elements"), expected);
    let turned = shown.transpose(0, 2).and_then(|turned| turned.narrow(2, 1, 2)).expect("a view");
    assert!(!turned.is_contiguous());
    let back = stream.from_candle(&turned).expect("memory").freeze();
    assert_eq!(back.shape(), turned.dims());
    let expected = turned.flatten_all().and_then(|flat| flat.to_vec1::<T>()).expect("elements");
    assert_eq!(back.to_vec::<T>().expect("on the host"), expected);
}

#[test]
fn what_candle_has_goes_there_and_back() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    there_and_back::<u8>(stream, |at| at);
    there_and_back::<u32>(stream, |at| u32::MAX - u32::from(at));
    there_and_back::<i16>(stream, |at| i16::from(at) - 12);
    there_and_back::<i32>(stream, |at| i32::from(at) - 12);
    there_and_back::<i64>(stream, |at| i64::MIN + i64::from(at));
    there_and_back::<half::f16>(stream, |at| half::f16::from_f32(f32::from(at) / 4.0));
    there_and_back::<half::bf16>(stream, |at| half::bf16::from_f32(f32::from(at) / 4.0));
    there_and_back::<f32>(stream, |at| f32::from(at) / 3.0);
    there_and_back::<f64>(stream, |at| f64::from(at) / 3.0);
}

#[test]
fn a_slice_of_a_storage_is_what_it_shows() {
    let cluster = Cluster::new(1);
    let all = CandleTensor::arange(0_u32, 100, &Device::Cpu).expect("memory");
    let part = all.narrow(0, 40, 3).expect("in range");
    let tensor = cluster.stream(0).from_candle(&part).expect("memory").freeze();
    assert_eq!(tensor.to_vec::<u32>().expect("on the host"), [40, 41, 42]);
    let none = all.narrow(0, 7, 0).expect("in range");
    assert_eq!(cluster.stream(0).from_candle(&none).expect("nothing").shape(), [0]);
}

#[test]
fn what_the_other_has_not_is_named() {
    let cluster = Cluster::new(1);
    let stream = cluster.stream(0);
    for dtype in [DType::I8, DType::U16, DType::U64, DType::Bool] {
        let tensor = stream.zeros(dtype, &[2]).expect("memory").freeze();
        let error = stream.to_candle(&tensor).map(drop).expect_err("candle has no such tensors").to_string();
        assert!(error.contains(dtype.name()) && error.contains(".cast("), "{error}");
    }
    let odd = CandleTensor::zeros(2, CandleType::F8E4M3, &Device::Cpu).expect("memory");
    let error = stream.from_candle(&odd).map(drop).expect_err("there is none here");
    assert!(matches!(error, TensorError::Candle { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("F8E4M3") && error.contains(".to_dtype("), "{error}");
}
