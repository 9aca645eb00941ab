//! Values worked out by hand, and an `f64` implementation that shares no formula with the one tested.

use proptest::prelude::*;

use super::super::MAX_SIDE;
use super::*;

fn size(width: u32, height: u32) -> ImageSize {
    ImageSize::new(width, height).expect("in bounds")
}

/// Returns an HWC image of three equal channels.
fn gray(values: &[u8]) -> Vec<u8> {
    values.iter().flat_map(|&v| [v; 3]).collect()
}

fn resized(hwc: &[u8], src: ImageSize, dst: ImageSize, range: Range) -> Vec<f32> {
    let mut chw = vec![f32::NAN; dst.rgb_len()];
    resize(hwc, src, &mut chw, dst, range).expect("lengths");
    chw
}

#[test]
fn doubling_a_row_by_hand() {
    // Centres at -0.25, 0.25, 0.75, 1.25: the edge, a quarter, three quarters, the edge.
    let got = resized(&gray(&[0, 100]), size(2, 1), size(4, 1), Range::Bytes);
    assert_eq!(got, [0.0, 25.0, 75.0, 100.0].repeat(3));
}

#[test]
fn doubling_a_square_by_hand() {
    let got = resized(&gray(&[0, 64, 128, 192]), size(2, 2), size(4, 4), Range::Bytes);
    let one_channel = [
        [0.0, 16.0, 48.0, 64.0],
        [32.0, 48.0, 80.0, 96.0],
        [96.0, 112.0, 144.0, 160.0],
        [128.0, 144.0, 176.0, 192.0],
    ];
    assert_eq!(got, one_channel.concat().repeat(3));
}

#[test]
fn shrinking_takes_neighbours_and_does_not_average() {
    // Scale 3, centres at 1 and 4: single pixels. Scale 4, centre at 1.5: the mean of pixels 1 and 2 alone.
    assert_eq!(
        resized(&gray(&[9, 10, 9, 9, 20, 9]), size(6, 1), size(2, 1), Range::Bytes)[..2],
        [10.0, 20.0]
    );
    assert_eq!(resized(&gray(&[255, 10, 20, 255]), size(1, 4), size(1, 1), Range::Bytes)[..1], [15.0]);
}

#[test]
fn same_size_only_changes_the_layout_and_the_range() {
    let hwc = [0, 51, 255, 10, 20, 30];
    assert_eq!(resized(&hwc, size(2, 1), size(2, 1), Range::Bytes), [0.0, 10.0, 51.0, 20.0, 255.0, 30.0]);
    let unit = resized(&hwc, size(2, 1), size(2, 1), Range::Unit);
    assert_eq!(unit, [0.0, 10.0 / 255.0, 0.2, 20.0 / 255.0, 1.0, 30.0 / 255.0]);
}

#[test]
fn coordinates_stay_in_bounds_at_the_largest_side() {
    for (src, dst) in [(1, MAX_SIDE), (MAX_SIDE, 1), (MAX_SIDE, MAX_SIDE - 1), (MAX_SIDE - 1, MAX_SIDE)] {
        for tap in taps(src, dst) {
            assert!(
                tap.lo <= tap.hi && tap.hi < src && (0.0..1.0).contains(&tap.w1),
                "{src} to {dst}: {tap:?}"
            );
        }
    }
}

#[test]
fn wrong_lengths_write_nothing() {
    let mut plan = Bilinear::new(size(2, 1), size(1, 1));
    let mut chw = [7.0; 3];
    assert!(matches!(plan.run(&[0; 5], &mut chw, Range::Bytes), Err(ImageError::Length { expected: 6, .. })));
    assert!(matches!(
        plan.run(&[0; 6], &mut chw[..2], Range::Bytes),
        Err(ImageError::Length { expected: 3, .. })
    ));
    assert_eq!(chw, [7.0; 3]);
}

/// Bilinear interpolation as a sum over all source pixels, each weighted by a tent around its centre, with
/// positions clamped to the outermost centres.
fn naive(hwc: &[u8], src: ImageSize, dst: ImageSize) -> Vec<f64> {
    let at = |i: u32, src: u32, dst: u32| {
        ((f64::from(i) + 0.5) * f64::from(src) / f64::from(dst) - 0.5).clamp(0.0, f64::from(src - 1))
    };
    let tent = |position: f64, pixel: u32| (1.0 - (position - f64::from(pixel)).abs()).max(0.0);
    let mut chw = Vec::new();
    for c in 0..3 {
        for y in 0..dst.height() {
            for x in 0..dst.width() {
                let (py, px) = (at(y, src.height(), dst.height()), at(x, src.width(), dst.width()));
                let mut sum = 0.0;
                for sy in 0..src.height() {
                    for sx in 0..src.width() {
                        let value = hwc[(sy * src.width() + sx) as usize * 3 + c];
                        sum += tent(py, sy) * tent(px, sx) * f64::from(value);
                    }
                }
                chw.push(sum);
            }
        }
    }
    chw
}

prop_compose! {
    fn image()(width in 1u32..=9, height in 1u32..=9)
        (hwc in prop::collection::vec(any::<u8>(), (width * height * 3) as usize), width in Just(width), height in Just(height))
        -> (ImageSize, Vec<u8>) {
        (size(width, height), hwc)
    }
}

proptest! {
    #[test]
    fn agrees_with_f64((src, hwc) in image(), width in 1u32..=13, height in 1u32..=13) {
        let dst = size(width, height);
        let want = naive(&hwc, src, dst);
        // Run twice: a plan must not remember the image before.
        let mut plan = Bilinear::new(src, dst);
        let inverted: Vec<u8> = hwc.iter().map(|v| !v).collect();
        let mut chw = vec![f32::NAN; dst.rgb_len()];
        plan.run(&inverted, &mut chw, Range::Unit).expect("lengths");
        plan.run(&hwc, &mut chw, Range::Bytes).expect("lengths");
        for (got, want) in chw.iter().zip(&want) {
            prop_assert!((f64::from(*got) - want).abs() <= f64::from(TOLERANCE), "{} is not {}", got, want);
        }
        plan.run(&hwc, &mut chw, Range::Unit).expect("lengths");
        for (got, want) in chw.iter().zip(&want) {
            prop_assert!((f64::from(*got) - want / 255.0).abs() <= f64::from(TOLERANCE) / 255.0);
        }
    }
}
