//! Compares every image kernel with the host's function, on photographs and on sizes at which grids and
//! borders go wrong.
//!
//! On the host device the same cases show that the operations on tensors are the functions on slices.

use tensorpost::prelude::*;
use tensorpost_actors::image::convolve::Convolution;
use tensorpost_actors::image::normalise::Normalisation;
use tensorpost_actors::image::resize::Range;
use tensorpost_actors::image::{ImageSize, decode, edge, quantise, resize, stats};
use tensorpost_actors::ops::{self, Op, OpError, check};
use tensorpost_actors::ready::{Code, Grid, MapKernel, MapKernelArgs, Named};
use tensorpost_core::testing::thorough;
use tensorpost_tests::harness::Builder;

/// The examples' photographs, built in because the binary has to run where there are no files.
pub(super) const PHOTOGRAPHS: [(&str, &[u8]); 5] = [
    ("camera.png", include_bytes!("../../../examples/data/camera.png")),
    ("chelsea.png", include_bytes!("../../../examples/data/chelsea.png")),
    ("clock.png", include_bytes!("../../../examples/data/clock.png")),
    ("coffee.jpg", include_bytes!("../../../examples/data/coffee.jpg")),
    ("retina.jpg", include_bytes!("../../../examples/data/retina.jpg")),
];

/// Less than a block, a block and one more, one pixel wide, one pixel high.
const ODD: [(u32, u32); 8] = [(1, 1), (2, 1), (1, 9), (7, 5), (31, 8), (33, 9), (257, 3), (640, 427)];

struct Image {
    name: String,
    size: ImageSize,
    hwc: Vec<u8>,
}

fn size(width: u32, height: u32) -> ImageSize {
    ImageSize::new(width, height).expect("in bounds")
}

fn shape(size: ImageSize) -> [usize; 3] {
    [3, size.height() as usize, size.width() as usize]
}

/// Returns this many photographs, and noise in the odd sizes.
fn images(photographs: usize) -> Vec<Image> {
    let photographs = PHOTOGRAPHS.iter().take(photographs).map(|(name, bytes)| {
        let image = decode::decode_bytes(*name, bytes).expect("a photograph");
        Image { name: (*name).to_owned(), size: image.size, hwc: image.pixels }
    });
    let odd = ODD.iter().map(|&(width, height)| {
        let size = size(width, height);
        let hwc = (0..size.rgb_len()).map(|at| (at * 7919 % 251) as u8).collect();
        Image { name: format!("noise of {size}"), size, hwc }
    });
    photographs.chain(odd).collect()
}

/// The same as floats of the range 0..=255, CHW.
fn planes(image: &Image) -> Vec<f32> {
    let mut chw = vec![0.0; image.size.rgb_len()];
    resize::resize(&image.hwc, image.size, &mut chw, image.size, Range::Bytes).expect("lengths");
    chw
}

/// Runs `with` on the device to test, with a stream and each image.
fn on_device(builder: Builder, with: impl Fn(&DeviceStream, &Image)) {
    let (device, is_gpu) = super::device();
    // On the host both sides of each comparison are loops, which are not optimised here.
    let photographs = if is_gpu || thorough() { PHOTOGRAPHS.len() } else { 1 };
    let node = builder.start().expect("a node");
    let stream = node.stream(&device).expect("the device");
    ops::prepare(&stream, &Op::ALL).expect("kernels that compile");
    for image in images(photographs) {
        with(&stream, &image);
    }
}

pub(super) fn resize_agrees(builder: Builder) {
    on_device(builder, |stream, image| {
        let (height, width) = (image.size.height() as usize, image.size.width() as usize);
        let pixels = stream.from_slice(&[height, width, 3], &image.hwc).expect("room").freeze();
        for (to, range) in [
            (size(512, 384), Range::Bytes),
            (size(1, 1), Range::Bytes),
            (size(37, 101), Range::Unit),
            (size(1025, 17), Range::Unit),
            (image.size, Range::Bytes),
        ] {
            let mut wanted = vec![0.0; to.rgb_len()];
            resize::resize(&image.hwc, image.size, &mut wanted, to, range).expect("lengths");
            let found = ops::resize(stream, &pixels, to, range).expect("a resize").freeze();
            let what = format!("{} resized to {to}", image.name);
            check::floats(stream, &what, &found, &wanted, 0.0).expect("equal to the bit");
        }
    });
}

pub(super) fn normalise_agrees(builder: Builder) {
    on_device(builder, |stream, image| {
        let mut values = planes(image);
        let mut tensor = stream.from_slice(&shape(image.size), &values).expect("room");
        let normalisation = Normalisation::IMAGENET;
        normalisation.apply(&mut values, image.size).expect("lengths");
        ops::normalise(stream, &mut tensor, &normalisation).expect("a normalisation");
        let tensor = tensor.freeze();
        let what = format!("{} normalised", image.name);
        check::floats(stream, &what, &tensor, &values, 0.0).expect("equal to the bit");

        let mut tensor = tensor.into_mut(stream).expect("nobody else has it");
        normalisation.invert(&mut values, image.size).expect("lengths");
        ops::denormalise(stream, &mut tensor, &normalisation).expect("its inverse");
        let what = format!("{} normalised and back", image.name);
        check::floats(stream, &what, &tensor.freeze(), &values, 0.0).expect("equal to the bit");
    });
}

pub(super) fn edges_agree_beside_and_in_place(builder: Builder) {
    on_device(builder, |stream, image| {
        let values = planes(image);
        let pixels = image.size.pixels();
        let (mut luma, mut wanted) = (vec![0.0; pixels], vec![0.0; pixels]);
        edge::edges(&values, image.size, &mut luma, &mut wanted).expect("lengths");
        let tensor = stream.from_slice(&shape(image.size), &values).expect("room").freeze();

        let beside = ops::edges(stream, &tensor).expect("edges");
        let what = format!("edges of {}", image.name);
        check::floats(stream, &what, &beside, &wanted, 0.0).expect("equal to the bit");
        check::floats(stream, "the image they were found in", &tensor, &values, 0.0).expect("as it was");

        let memory = tensor.lease().id();
        let in_place = ops::edges_in_place(stream, tensor.into_mut(stream).expect("nobody else has it"));
        let in_place = in_place.expect("edges");
        assert_eq!(in_place.lease().id(), memory);
        let what = format!("edges of {} in place", image.name);
        check::floats(stream, &what, &in_place, &wanted, 0.0).expect("equal to the bit");
    });
}

pub(super) fn convolutions_agree(builder: Builder) {
    let ramp: Vec<f32> = (0..25).map(|at| (at as f32 - 11.3) / 7.0).collect();
    let convolutions = [
        Convolution::mean(3).expect("odd"),
        Convolution::new(ramp).expect("5 x 5"),
        Convolution::new([-0.7]).expect("one"),
    ];
    on_device(builder, |stream, image| {
        let values = planes(image);
        let tensor = stream.from_slice(&shape(image.size), &values).expect("room").freeze();
        for convolution in &convolutions {
            let mut wanted = vec![0.0; values.len()];
            let planes = values.chunks_exact(image.size.pixels());
            for (hw, out) in planes.zip(wanted.chunks_exact_mut(image.size.pixels())) {
                convolution.apply(hw, image.size, out).expect("lengths");
            }
            let found = ops::convolve(stream, &tensor, convolution).expect("a convolution").freeze();
            let what = format!("{} convolved with a side of {}", image.name, convolution.side());
            check::floats(stream, &what, &found, &wanted, 0.0).expect("equal to the bit");
        }
    });
}

pub(super) fn gray_bytes_agree(builder: Builder) {
    on_device(builder, |stream, image| {
        let mut values = planes(image);
        // Values that are clamped, and halves.
        for (value, edge) in
            values.iter_mut().zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5, 0.5, 1e9])
        {
            *value = edge;
        }
        let tensor = stream.from_slice(&[values.len()], &values).expect("room").freeze();
        for gain in [1.0, 0.37, 255.0, -1.0] {
            let mut wanted = vec![0; values.len()];
            quantise::to_gray8(&values, gain, &mut wanted).expect("lengths");
            let found = ops::to_gray8(stream, &tensor, gain).expect("bytes").freeze();
            let what = format!("{} as bytes, gain {gain}", image.name);
            check::bytes(stream, &what, &found, &wanted, 0).expect("equal");
        }
    });
}

/// All but mean and deviation agree to the bit. Those agree within [`stats::TOLERANCE`], and are the same
/// when computed twice.
pub(super) fn statistics_agree(builder: Builder) {
    on_device(builder, |stream, image| {
        let mut values = planes(image);
        for (at, value) in values.iter_mut().enumerate().skip(1).step_by(1001) {
            *value = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e6][at / 1001 % 4];
        }
        for values in [&values[..], &values[..1], &[f32::NAN; 3], &[]] {
            let tensor = stream.from_slice(&[values.len()], values).expect("room").freeze();
            let measured = ops::stats(stream, &tensor).expect("statistics");
            let found = check::summary(stream, &image.name, &measured, values).expect("they agree");
            let again =
                ops::read_stats(stream, &ops::stats(stream, &tensor).expect("statistics")).expect("read");
            assert_eq!(again.to_words(), found.to_words(), "{}", image.name);
            assert_eq!(stats::checksum(values), found.checksum);
        }
    });
}

/// The kernels use addresses of their own, so slices and views must be as right as whole tensors.
pub(super) fn parts_of_tensors_agree(builder: Builder) {
    let (device, _) = super::device();
    let node = builder.start().expect("a node");
    let stream = node.stream(&device).expect("the device");
    let values: Vec<f32> = (0..4 * 3 * 5 * 7).map(|at| (at * 37 % 101) as f32).collect();
    let batch = stream.from_slice(&[4, 3, 5, 7], &values).expect("room").freeze();
    let size = size(7, 5);
    for at in 0..4 {
        let one = &values[at * size.rgb_len()..][..size.rgb_len()];
        let (mut luma, mut wanted) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
        edge::edges(one, size, &mut luma, &mut wanted).expect("lengths");
        let found = ops::edges(&stream, &batch.index(0, at).expect("an image")).expect("edges");
        check::floats(&stream, "edges of a part", &found, &wanted, 0.0).expect("equal to the bit");
    }

    // They are gathered and uploaded into parts, as a batcher does.
    let mut gathered = stream.empty(DType::F32, &[2, 3, 5, 7]).expect("room");
    for (to, from) in [3, 1].into_iter().enumerate() {
        let image = batch.index(0, from).expect("an image");
        stream.copy_into(&mut gathered, to * size.rgb_len(), &image).expect("one copy");
    }
    let wanted = [&values[3 * size.rgb_len()..], &values[size.rgb_len()..][..size.rgb_len()]].concat();
    check::floats(&stream, "a batch", &gathered.freeze(), &wanted, 0.0).expect("equal to the bit");

    let mut uploaded = stream.empty(DType::F32, &[values.len()]).expect("room");
    stream.upload(&mut uploaded, &values).expect("uploaded");
    check::floats(&stream, "an upload", &uploaded.freeze(), &values, 0.0).expect("equal to the bit");
}

/// A kernel of the user's as a stage; on the host, an error names the requirement.
pub(super) fn a_kernel_of_the_users_is_a_stage(builder: Builder) {
    const SOURCE: &str = r#"
        extern "C" __global__ void shift(const float *in, float *out, unsigned long long n, float by) {
            unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = in[i] + by;
        }
        extern "C" __global__ void turn(const float *in, float *out, unsigned width, unsigned height) {
            unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
            if (x >= width || y >= height) return;
            size_t plane = (size_t)blockIdx.z * width * height;
            out[plane + (size_t)(height - 1 - y) * width + x] = in[plane + (size_t)y * width + x];
        }"#;
    let (device, is_gpu) = super::device();
    let node = builder.start().expect("a node");
    let stream = node.stream(&device).expect("the device");
    let args = |kernel: &str, grid, numbers| MapKernelArgs {
        code: Code::Cuda(SOURCE.to_owned()),
        kernel: kernel.to_owned(),
        grid,
        dtype: DType::F32,
        numbers,
    };
    let shift = MapKernel::<Named>::new(args("shift", Grid::Elements, vec![0.5]), &stream);
    if !is_gpu {
        let refused = shift.expect_err("no GPU").to_string();
        assert!(refused.contains("needs a GPU"), "{refused}");
        return;
    }
    let turn = MapKernel::<Named>::new(args("turn", Grid::Planes, vec![]), &stream);
    let (width, height) = (37, 11);
    let values: Vec<f32> = (0..3 * width * height).map(|at| at as f32).collect();
    let item =
        Named::new(0, "numbers", stream.from_slice(&[3, height, width], &values).expect("room").freeze());
    let mut out = Out::new();
    shift.expect("compiled").process(item, &mut out).expect("launched");
    turn.expect("compiled").process(out.take().remove(0), &mut out).expect("launched");
    let wanted: Vec<f32> = (0..3 * height)
        .flat_map(|row| {
            let from = row / height * height + (height - 1 - row % height);
            (0..width).map(move |x| (from * width + x) as f32 + 0.5)
        })
        .collect();
    check::floats(&stream, "shifted and turned", &out.take()[0].tensor, &wanted, 0.0)
        .expect("equal to the bit");

    let missing =
        MapKernel::<Named>::new(args("nowhere", Grid::Elements, vec![]), &stream).expect_err("not there");
    assert!(missing.to_string().contains("nowhere"), "{missing}");
    let broken =
        MapKernelArgs { code: Code::Cuda("no C".to_owned()), ..args("shift", Grid::Elements, vec![]) };
    let broken = MapKernel::<Named>::new(broken, &stream).expect_err("no C").to_string();
    assert!(broken.contains("does not compile") && broken.contains("error"), "{broken}");
}

pub(super) fn what_does_not_fit_is_refused(builder: Builder) {
    let (device, _) = super::device();
    let node = builder.start().expect("a node");
    let stream = node.stream(&device).expect("the device");
    let wrong = stream.zeros(DType::F32, &[2, 4, 4]).expect("room").freeze();
    assert!(matches!(ops::edges(&stream, &wrong), Err(OpError::Shape { .. })));
    let empty = stream.zeros(DType::F32, &[3, 0, 4]).expect("room").freeze();
    assert!(matches!(ops::edges(&stream, &empty), Err(OpError::Image(_))));
    let bytes = stream.zeros(DType::U8, &[3, 4, 4]).expect("room").freeze();
    assert!(matches!(ops::edges(&stream, &bytes), Err(OpError::Tensor(TensorError::DType { .. }))));
    let turned =
        stream.zeros(DType::F32, &[4, 4, 3]).expect("room").freeze().permute(&[2, 0, 1]).expect("turned");
    let refused = ops::edges(&stream, &turned);
    assert!(matches!(refused, Err(OpError::Tensor(TensorError::NotContiguous { .. }))), "{refused:?}");

    let (one, mut two) = (stream.zeros(DType::F32, &[1]), stream.zeros(DType::F32, &[2]).expect("room"));
    let one = one.expect("room").freeze();
    let copy = |two: &mut TensorMut, at| stream.copy_into(two, at, &one);
    assert!(copy(&mut two, 1).is_ok());
    for at in [2, 3, usize::MAX] {
        assert!(matches!(copy(&mut two, at), Err(TensorError::Length { .. })), "{at}");
    }
    assert!(matches!(stream.upload(&mut two, &[1.0_f32]), Err(TensorError::Length { .. })));
    assert!(matches!(stream.upload(&mut two, &[1_u8, 2]), Err(TensorError::DType { .. })));
}
