//! Resize on tensors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tensorpost::prelude::*;

use super::{OpError, expect_shape, is_cuda, must, size_at, wrong};
use crate::image::resize::{Bilinear, Range};
use crate::image::{ImageError, ImageSize};

/// Number of image sizes with tables that are kept.
const KEPT_SIZES: usize = 16;

/// A resize to one size, for many images of any size. On the host it keeps tables for the sizes that it has
/// seen.
#[derive(Clone, Debug)]
pub struct Resizer {
    size: ImageSize,
    range: Range,
    /// By the image's size. They are used on a stream's thread, so the lock is free unless two streams share
    /// this.
    tables: Arc<Mutex<HashMap<ImageSize, Bilinear>>>,
}

impl Resizer {
    /// Creates a resize to `size`, into values of `range`.
    pub fn new(size: ImageSize, range: Range) -> Self {
        Resizer { size, range, tables: Arc::default() }
    }

    /// Returns the size it makes.
    pub fn size(&self) -> ImageSize {
        self.size
    }

    /// Returns the shape it makes: `[3, height, width]`.
    pub fn shape(&self) -> [usize; 3] {
        [3, self.size.height() as usize, self.size.width() as usize]
    }

    /// Resizes HWC bytes, `[height, width, 3]`, into the CHW floats `planes`, [`shape`](Self::shape).
    ///
    /// # Errors
    /// [`OpError`] says what is wrong with a tensor or the device.
    pub fn run(&self, stream: &DeviceStream, pixels: &Tensor, planes: &mut TensorMut) -> Result<(), OpError> {
        let from = hwc_size(pixels.shape())?;
        expect_shape("the tensor for the resized image", planes.shape(), &self.shape())?;
        if is_cuda(stream)? {
            #[cfg(feature = "cuda")]
            return super::cuda::resize::launch(stream, pixels, from, planes, self.size, self.range);
        }
        let (tables, to, range) = (Arc::clone(&self.tables), self.size, self.range);
        stream.run((pixels.of::<u8>(), planes.of_mut::<f32>()), move |(hwc, chw)| {
            must(on_host(&tables, from, to, hwc, chw, range));
        })?;
        Ok(())
    }
}

/// Resizes HWC bytes, `[height, width, 3]`, to CHW floats, `[3, height, width]` of `size`.
///
/// # Errors
/// As [`Resizer::run`], and no memory.
pub fn resize(
    stream: &DeviceStream,
    pixels: &Tensor,
    size: ImageSize,
    range: Range,
) -> Result<TensorMut, OpError> {
    let resizer = Resizer::new(size, range);
    let mut planes = stream.empty(DType::F32, &resizer.shape())?;
    resizer.run(stream, pixels, &mut planes)?;
    Ok(planes)
}

fn hwc_size(shape: &[usize]) -> Result<ImageSize, OpError> {
    match shape {
        [_, _, 3] => size_at("the image to resize", shape, 0),
        _ => Err(wrong("the image to resize", shape, "[height, width, 3]")),
    }
}

fn on_host(
    tables: &Mutex<HashMap<ImageSize, Bilinear>>,
    from: ImageSize,
    to: ImageSize,
    hwc: &[u8],
    chw: &mut [f32],
    range: Range,
) -> Result<(), ImageError> {
    // A panic elsewhere leaves whole tables: they are only written while they are made.
    let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
    if tables.len() >= KEPT_SIZES && !tables.contains_key(&from) {
        tables.clear();
    }
    tables.entry(from).or_insert_with(|| Bilinear::new(from, to)).run(hwc, chw, range)
}
