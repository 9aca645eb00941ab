//! Floats to bytes, for viewing.
//!
//! A value `v` becomes `floor(v * gain + 0.5)`, two roundings in that order, clamped to 0..=255; halves go
//! up, and NaN becomes 0.

use super::{ImageError, ImageSize, expect_len};

/// Quantises an HW image into gray bytes. `gain` stretches the values first: 1 for a 0..=255 image, 255 for a
/// 0..=1 image, [`edge::SOBEL_GAIN`](super::edge::SOBEL_GAIN) for a Sobel magnitude.
///
/// # Errors
/// [`ImageError::Length`] when the two slices differ in length; nothing is written then.
pub fn to_gray8(hw: &[f32], gain: f32, out: &mut [u8]) -> Result<(), ImageError> {
    expect_len("the buffer for gray bytes (HW)", out.len(), hw.len())?;
    for (byte, &v) in out.iter_mut().zip(hw) {
        *byte = to_u8(v, gain);
    }
    Ok(())
}

/// Quantises a CHW image into RGB bytes, HWC. `gain` is as for [`to_gray8`].
///
/// # Errors
/// [`ImageError::Length`] when a slice does not hold `size.rgb_len()` elements; nothing is written then.
pub fn to_rgb8(chw: &[f32], size: ImageSize, gain: f32, hwc: &mut [u8]) -> Result<(), ImageError> {
    expect_len("the image to quantise (CHW)", chw.len(), size.rgb_len())?;
    expect_len("the buffer for RGB bytes (HWC)", hwc.len(), size.rgb_len())?;
    let (red, rest) = chw.split_at(size.pixels());
    let (green, blue) = rest.split_at(size.pixels());
    for (((pixel, &r), &g), &b) in hwc.chunks_exact_mut(3).zip(red).zip(green).zip(blue) {
        pixel.copy_from_slice(&[to_u8(r, gain), to_u8(g, gain), to_u8(b, gain)]);
    }
    Ok(())
}

/// Quantises a value. The cast saturates, sends NaN to 0 and truncates, which is the floor for everything
/// above zero.
#[inline]
fn to_u8(v: f32, gain: f32) -> u8 {
    (v * gain + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_clamps_and_maps_nan_to_zero() {
        let hw = [0.0, 0.49, 0.5, 254.5, 255.0, 1e9, -0.5, -7.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let mut out = [9; 11];
        to_gray8(&hw, 1.0, &mut out).expect("length");
        assert_eq!(out, [0, 0, 1, 255, 255, 255, 0, 0, 0, 255, 0]);
        to_gray8(&[0.0, 0.25, 1.0], 255.0, &mut out[..3]).expect("length");
        assert_eq!(out[..3], [0, 64, 255]);
    }

    #[test]
    fn interleaves() {
        let size = ImageSize::new(2, 1).expect("in bounds");
        let mut hwc = [0; 6];
        to_rgb8(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], size, 1.0, &mut hwc).expect("length");
        assert_eq!(hwc, [1, 3, 5, 2, 4, 6]);
        assert!(matches!(to_rgb8(&[0.0; 5], size, 1.0, &mut hwc), Err(ImageError::Length { actual: 5, .. })));
        assert!(matches!(
            to_rgb8(&[0.0; 6], size, 1.0, &mut hwc[..4]),
            Err(ImageError::Length { actual: 4, .. })
        ));
        assert!(matches!(
            to_gray8(&[0.0; 6], 1.0, &mut hwc[..4]),
            Err(ImageError::Length { expected: 6, .. })
        ));
        assert_eq!(hwc, [1, 3, 5, 2, 4, 6]);
    }
}
