//! The size of an image, bounded once so that no later product can overflow.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ImageError;

/// The longest side of an image, in pixels.
///
/// It bounds the memory that a hostile file can make a decoder allocate (768 MiB of RGB), and keeps the
/// sampling coordinates of a resize within 32 bits, in which a GPU computes quickly.
pub const MAX_SIDE: u32 = 16_384;

// The largest numerator of a sampling coordinate, (2x + 1) * side (see `resize`), fits an i32.
const _: () = assert!((2 * MAX_SIDE as u64 - 1) * MAX_SIDE as u64 <= i32::MAX as u64);

/// Width and height in pixels, each 1 to [`MAX_SIDE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
pub struct ImageSize {
    width: u32,
    height: u32,
}

impl ImageSize {
    /// Creates a size of `width` columns and `height` rows.
    ///
    /// # Errors
    /// [`ImageError::Size`] when a side is zero or longer than [`MAX_SIDE`].
    pub const fn new(width: u32, height: u32) -> Result<Self, ImageError> {
        if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE {
            return Err(ImageError::Size { width, height });
        }
        Ok(Self { width, height })
    }

    /// Returns the number of columns.
    pub const fn width(self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// Returns the number of pixels, which is also the number of elements of an HW slice.
    pub const fn pixels(self) -> usize {
        self.width as usize * self.height as usize
    }

    /// Returns the number of elements of an HWC or CHW slice of three channels.
    pub const fn rgb_len(self) -> usize {
        self.pixels() * 3
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} pixels", self.width, self.height)
    }
}

impl TryFrom<(u32, u32)> for ImageSize {
    type Error = ImageError;

    fn try_from((width, height): (u32, u32)) -> Result<Self, ImageError> {
        Self::new(width, height)
    }
}

impl From<ImageSize> for (u32, u32) {
    fn from(size: ImageSize) -> Self {
        (size.width, size.height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        let size = ImageSize::new(3, 2).expect("in bounds");
        assert_eq!((size.pixels(), size.rgb_len(), size.to_string()), (6, 18, "3 x 2 pixels".to_owned()));
        for (width, height) in [(0, 1), (1, 0), (MAX_SIDE + 1, 1), (1, u32::MAX)] {
            assert!(
                matches!(ImageSize::new(width, height), Err(ImageError::Size { .. })),
                "{width} x {height}"
            );
        }
        assert!(ImageSize::new(MAX_SIDE, MAX_SIDE).is_ok());
    }
}
