//! Values worked out by hand, and an `f64` convolution with the two kernels written out.

use proptest::prelude::*;

use super::super::quantise;
use super::*;

fn size(width: u32, height: u32) -> ImageSize {
    ImageSize::new(width, height).expect("in bounds")
}

fn sobel_of(luma: &[f32], size: ImageSize) -> Vec<f32> {
    let mut hw = vec![f32::NAN; size.pixels()];
    sobel(luma, size, &mut hw).expect("lengths");
    hw
}

#[test]
fn luma_by_hand() {
    // Pure red, green, blue and white at 100: the coefficients, and their sum.
    let chw = [100.0, 0.0, 0.0, 100.0, 0.0, 100.0, 0.0, 100.0, 0.0, 0.0, 100.0, 100.0];
    let mut hw = [0.0; 4];
    luma(&chw, size(4, 1), &mut hw).expect("lengths");
    for (got, want) in hw.into_iter().zip([29.9, 58.7, 11.4, 100.0]) {
        assert!((got - want).abs() < 1e-5, "{got} is not {want}");
    }
}

#[test]
fn a_step_by_hand() {
    // 0 0 255 255 in each row: columns 1 and 2 see the step, 4 * 255; the replicated border sees nothing.
    let rows = [0.0, 0.0, 255.0, 255.0].repeat(3);
    let hw = sobel_of(&rows, size(4, 3));
    assert_eq!(hw, [0.0, 1020.0, 1020.0, 0.0].repeat(3));
    let mut gray = [0; 12];
    quantise::to_gray8(&hw, SOBEL_GAIN, &mut gray).expect("lengths");
    assert_eq!(gray[..4], [0, 255, 255, 0]);
    // The same step, from top to bottom.
    let columns: Vec<f32> = [0.0, 0.0, 255.0, 255.0].into_iter().flat_map(|v| [v; 3]).collect();
    let want: Vec<f32> = [0.0, 1020.0, 1020.0, 0.0].into_iter().flat_map(|v| [v; 3]).collect();
    assert_eq!(sobel_of(&columns, size(3, 4)), want);
}

#[test]
fn a_corner_by_hand() {
    // One pixel of 1 at the top left of 3 x 3. In the middle it is "nw": gx = gy = -1. At the top middle it
    // is "w" and, replicated, "nw": gx = -3, and gy = +0 - 1 = -1. At itself it is also n, w and nw: gx = (0
    // - 1) + 2 (0 - 1) + 0 = -3 and gy the same.
    let mut image = [0.0; 9];
    image[0] = 1.0;
    let (r2, r10, r18) = (2f32.sqrt(), 10f32.sqrt(), 18f32.sqrt());
    assert_eq!(sobel_of(&image, size(3, 3)), [r18, r10, 0.0, r10, r2, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn thin_images_have_borders_only() {
    assert_eq!(sobel_of(&[5.0], size(1, 1)), [0.0]);
    assert_eq!(sobel_of(&[0.0, 1.0], size(2, 1)), [4.0, 4.0]);
    assert_eq!(sobel_of(&[0.0, 1.0, 1.0], size(1, 3)), [4.0, 4.0, 0.0]);
}

#[test]
fn wrong_lengths_write_nothing() {
    let (mut scratch, mut hw) = ([7.0; 2], [7.0; 2]);
    let two = size(2, 1);
    assert!(matches!(
        edges(&[0.0; 5], two, &mut scratch, &mut hw),
        Err(ImageError::Length { actual: 5, .. })
    ));
    assert!(matches!(
        edges(&[0.0; 6], two, &mut scratch[..1], &mut hw),
        Err(ImageError::Length { actual: 1, .. })
    ));
    assert!(matches!(
        edges(&[0.0; 6], two, &mut scratch, &mut hw[..1]),
        Err(ImageError::Length { actual: 1, .. })
    ));
    assert!(matches!(sobel(&[0.0; 3], two, &mut hw), Err(ImageError::Length { actual: 3, .. })));
    assert_eq!((scratch, hw), ([7.0; 2], [7.0; 2]));
}

fn naive(chw: &[f32], width: usize, height: usize) -> Vec<f64> {
    const KX: [[f64; 3]; 3] = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]];
    let n = width * height;
    let luma = |i: usize| {
        0.299 * f64::from(chw[i]) + 0.587 * f64::from(chw[n + i]) + 0.114 * f64::from(chw[2 * n + i])
    };
    let mut hw = Vec::new();
    for y in 0..height as isize {
        for x in 0..width as isize {
            let (mut gx, mut gy) = (0.0, 0.0);
            for dy in -1..=1isize {
                for dx in -1..=1isize {
                    let sy = (y + dy).clamp(0, height as isize - 1) as usize;
                    let sx = (x + dx).clamp(0, width as isize - 1) as usize;
                    let value = luma(sy * width + sx);
                    gx += KX[(dy + 1) as usize][(dx + 1) as usize] * value;
                    gy += KX[(dx + 1) as usize][(dy + 1) as usize] * value;
                }
            }
            hw.push(gx.hypot(gy));
        }
    }
    hw
}

prop_compose! {
    fn image()(width in 1u32..=20, height in 1u32..=6)
        (chw in prop::collection::vec(0f32..=255.0, (width * height * 3) as usize), width in Just(width), height in Just(height))
        -> (ImageSize, Vec<f32>) {
        (size(width, height), chw)
    }
}

proptest! {
    #[test]
    fn agrees_with_f64((size, chw) in image()) {
        let (mut scratch, mut hw) = (vec![f32::NAN; size.pixels()], vec![f32::NAN; size.pixels()]);
        edges(&chw, size, &mut scratch, &mut hw).expect("lengths");
        for (got, want) in hw.iter().zip(naive(&chw, size.width() as usize, size.height() as usize)) {
            prop_assert!((f64::from(*got) - want).abs() <= f64::from(TOLERANCE), "{} is not {}", got, want);
        }
    }

    #[test]
    fn in_place_is_the_same_to_the_bit((size, chw) in image()) {
        let (mut scratch, mut hw) = (vec![0.0; size.pixels()], vec![0.0; size.pixels()]);
        edges(&chw, size, &mut scratch, &mut hw).expect("lengths");
        let mut own = chw.clone();
        edges_in_place(&mut own, size).expect("length");
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&own[EDGES_PLANE * size.pixels()..][..size.pixels()]), bits(&hw));
        prop_assert!(edges_in_place(&mut own[1..], size).is_err());
    }
}
