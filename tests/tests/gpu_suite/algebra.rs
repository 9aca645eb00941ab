//! The host's arithmetic, called with tensors that are elsewhere.

use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;

use super::device;

pub(crate) fn a_tensor_that_is_not_on_the_host_says_how_it_gets_there(builder: Builder) {
    let node = builder.start().unwrap();
    let (device, is_gpu) = device();
    let (stream, host) = (node.stream(&device).unwrap(), node.host_stream().unwrap());
    let there = stream.from_slice(&[3], &[1.0_f32, 2.0, 3.0]).unwrap().freeze();
    let here = host.from_slice(&[3], &[1.0_f32, 2.0, 3.0]).unwrap().freeze();
    assert_eq!(
        host.from_slice(&[3], &stream.download::<f32>(&there).unwrap())
            .unwrap()
            .freeze()
            .sum::<f32>()
            .unwrap(),
        6.0
    );
    if !is_gpu {
        assert_eq!(there.sum::<f32>().unwrap(), 6.0);
        return;
    }
    let mut writable = stream.copy(&there).unwrap();
    let refused = [
        there.sum::<f32>().map(drop),
        there.argmax::<f32>().map(drop),
        there.map(&host, |x: f32| x).map(drop),
        here.map(&stream, |x: f32| x).map(drop),
        here.zip_map(&there, &host, |x: f32, _: f32| x).map(drop),
        there.cast(&host, DType::U8).map(drop),
        there.view_array::<f32>().map(drop),
        writable.view_array_mut::<f32>().map(drop),
        writable.map_in_place(|x: f32| x),
        writable.zip_map_in_place(&here, |x: f32, _: f32| x),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, TensorError::NotOnHost { .. }), "{error:?}");
        let says = error.to_string();
        assert!(
            says.contains("where the host cannot reach it")
                && says.contains("stream.download")
                && says.contains(".receive_on"),
            "{says}"
        );
    }
}
