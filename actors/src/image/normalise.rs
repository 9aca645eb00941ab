//! Per-channel normalisation of a CHW image, in place: networks expect it instead of 0..=255.

use serde::{Deserialize, Serialize};

use super::{ImageError, ImageSize, expect_len};

/// The largest difference between [`Normalisation::invert`] here and on a GPU that contracts its multiply and
/// add, in the units of the 0..=255 range, for values that came from that range. (One rounding of a value up
/// to 1, times 255, and the last rounding differ.)
pub const INVERSE_TOLERANCE: f32 = 1e-4;

/// Mean and standard deviation of each channel, in units of the 0..=1 range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Normalisation {
    mean: [f32; 3],
    std: [f32; 3],
}

/// The serialised form, which is checked on arrival.
#[derive(Serialize, Deserialize)]
struct Parts {
    mean: [f32; 3],
    std: [f32; 3],
}

impl Normalisation {
    /// The statistics of ImageNet's training images, with which torchvision's classification models are
    /// trained.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };

    /// Creates a normalisation with these means and standard deviations (red, green, blue), in units of the
    /// 0..=1 range.
    ///
    /// # Errors
    /// [`ImageError::Normalisation`] unless all are finite and the deviations are above zero.
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Result<Self, ImageError> {
        for (channel, (&mean, &std)) in mean.iter().zip(&std).enumerate() {
            if !mean.is_finite() || !std.is_finite() || std <= 0.0 {
                return Err(ImageError::Normalisation { channel, mean, std });
            }
        }
        Ok(Self { mean, std })
    }

    /// Returns the means of red, green and blue, in units of the 0..=1 range.
    pub fn mean(&self) -> [f32; 3] {
        self.mean
    }

    /// Returns the standard deviations of red, green and blue, in units of the 0..=1 range.
    pub fn std(&self) -> [f32; 3] {
        self.std
    }

    /// Replaces each value `v` of the 0..=255 range by `((v / 255) - mean) / std` of its channel, three
    /// roundings in that order.
    ///
    /// # Errors
    /// [`ImageError::Length`] when `chw` does not hold `size.rgb_len()` elements; nothing is changed then.
    pub fn apply(&self, chw: &mut [f32], size: ImageSize) -> Result<(), ImageError> {
        self.each_channel(chw, size, |v, mean, std| (v / 255.0 - mean) / std)
    }

    /// Undoes [`apply`](Self::apply): each value `v` becomes `((v * std) + mean) * 255`, three roundings in
    /// that order. The result is within [`INVERSE_TOLERANCE`] of the original for values of the 0..=255 range
    /// and statistics such as ImageNet's (a mean within 0..=1, a deviation of 0.1 or more).
    ///
    /// # Errors
    /// [`ImageError::Length`] when `chw` does not hold `size.rgb_len()` elements; nothing is changed then.
    pub fn invert(&self, chw: &mut [f32], size: ImageSize) -> Result<(), ImageError> {
        self.each_channel(chw, size, |v, mean, std| (v * std + mean) * 255.0)
    }

    fn each_channel(
        &self,
        chw: &mut [f32],
        size: ImageSize,
        f: impl Fn(f32, f32, f32) -> f32,
    ) -> Result<(), ImageError> {
        expect_len("the image to normalise (CHW)", chw.len(), size.rgb_len())?;
        for ((plane, mean), std) in chw.chunks_exact_mut(size.pixels()).zip(self.mean).zip(self.std) {
            for v in plane {
                *v = f(*v, mean, std);
            }
        }
        Ok(())
    }
}

impl TryFrom<Parts> for Normalisation {
    type Error = ImageError;

    fn try_from(parts: Parts) -> Result<Self, ImageError> {
        Self::new(parts.mean, parts.std)
    }
}

impl From<Normalisation> for Parts {
    fn from(Normalisation { mean, std }: Normalisation) -> Self {
        Self { mean, std }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize::new(width, height).expect("in bounds")
    }

    #[test]
    fn worked_by_hand() {
        // Red: 255 -> (1 - 0.5) / 0.25 = 2, 0 -> -2. Green: 51 -> (0.2 - 0.2) / 0.1 = 0. Blue: 0 -> (0 - 1) /
        // 2.
        let norm = Normalisation::new([0.5, 0.2, 1.0], [0.25, 0.1, 2.0]).expect("valid");
        let mut chw = [255.0, 0.0, 51.0, 51.0, 0.0, 255.0];
        norm.apply(&mut chw, size(2, 1)).expect("length");
        assert_eq!(chw, [2.0, -2.0, 0.0, 0.0, -0.5, 0.0]);
        norm.invert(&mut chw, size(2, 1)).expect("length");
        assert_eq!(chw, [255.0, 0.0, 51.0, 51.0, 0.0, 255.0]);
    }

    #[test]
    fn imagenet_black_and_white() {
        // (0 - 0.485) / 0.229 = -2.1179, (1 - 0.406) / 0.225 = 2.6400, as torchvision's users know them.
        let mut chw = [0.0, 0.0, 255.0];
        Normalisation::IMAGENET.apply(&mut chw, size(1, 1)).expect("length");
        for (got, want) in chw.into_iter().zip([-2.117_904, -2.035_714_3, 2.64]) {
            assert!((got - want).abs() < 1e-6, "{got} is not {want}");
        }
    }

    #[test]
    fn refuses() {
        let mut short = [1.0; 5];
        assert!(matches!(
            Normalisation::IMAGENET.apply(&mut short, size(2, 1)),
            Err(ImageError::Length { expected: 6, actual: 5, .. })
        ));
        assert_eq!(short, [1.0; 5]);
        for (mean, std) in [(0.0, 0.0), (0.0, -1.0), (0.0, f32::INFINITY), (f32::NAN, 1.0), (0.0, f32::NAN)] {
            let refused = Normalisation::new([0.0, mean, 0.0], [1.0, std, 1.0]);
            assert!(matches!(refused, Err(ImageError::Normalisation { channel: 1, .. })), "{mean} {std}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_f64_and_inverts(
            values in prop::collection::vec(0f32..=255.0, 3 * 7),
            mean in prop::array::uniform3(0f32..=1.0),
            std in prop::array::uniform3(0.1f32..=1.0),
        ) {
            let norm = Normalisation::new(mean, std).expect("valid");
            let mut chw = values.clone();
            norm.apply(&mut chw, size(7, 1)).expect("length");
            for (i, (&got, &v)) in chw.iter().zip(&values).enumerate() {
                let (mean, std) = (f64::from(mean[i / 7]), f64::from(std[i / 7]));
                let want = (f64::from(v) / 255.0 - mean) / std;
                // Two roundings at up to 1 (divided by std), one of the result.
                prop_assert!((f64::from(got) - want).abs() <= 2f64.powi(-23) * (1.0 / std + want.abs()));
            }
            norm.invert(&mut chw, size(7, 1)).expect("length");
            for (&got, &v) in chw.iter().zip(&values) {
                prop_assert!((got - v).abs() <= INVERSE_TOLERANCE, "{} came back as {}", v, got);
            }
        }
    }
}
