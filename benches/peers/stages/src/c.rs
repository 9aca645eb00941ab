//! The stages with C's calling convention. Each returns 0, or prints the error on standard error and returns
//! -1.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use crate::{EncodedImage, ImageSize, PIXELS, PLANES};

fn status(done: Result<(), impl Display>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            -1
        }
    }
}

/// # Safety
/// `path` is the address of a text that ends with a null byte, and stays as it is.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: see above.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

/// Returns the size of a photograph, in pixels.
///
/// # Safety
/// `file` is a text that ends with a null byte; `width` and `height` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_size(file: *const c_char, width: *mut u32, height: *mut u32) -> c_int {
    // SAFETY: the caller's promise.
    let file = unsafe { path(file) };
    status(EncodedImage::open(file).map(|image| {
        // SAFETY: the caller's promise.
        unsafe {
            *width = image.size().width();
            *height = image.size().height();
        }
    }))
}

/// Reads a photograph's pixels, three bytes each.
///
/// # Safety
/// `file` is a text that ends with a null byte; `len` bytes from `pixels` on may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_decode(file: *const c_char, pixels: *mut u8, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    let (file, pixels) = unsafe { (path(file), from_raw_parts_mut(pixels, len)) };
    status(EncodedImage::open(file).and_then(|image| image.decode_into(pixels)))
}

/// See [`resize`](crate::resize).
///
/// # Safety
/// `width` times `height` times 3 bytes from `pixels` on may be read, [`PLANES`] floats from `planes` on
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_resize(
    pixels: *const u8,
    width: u32,
    height: u32,
    planes: *mut f32,
) -> c_int {
    status(ImageSize::new(width, height).and_then(|size| {
        // SAFETY: the caller's promise.
        let (pixels, planes) =
            unsafe { (from_raw_parts(pixels, size.rgb_len()), from_raw_parts_mut(planes, PLANES)) };
        crate::resize(pixels, size, planes)
    }))
}

/// See [`edges`](crate::edges).
///
/// # Safety
/// [`PLANES`] floats from `planes` on may be read, [`PIXELS`] from `magnitudes` on written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_edges(planes: *const f32, magnitudes: *mut f32) -> c_int {
    // SAFETY: the caller's promise.
    let (planes, magnitudes) =
        unsafe { (from_raw_parts(planes, PLANES), from_raw_parts_mut(magnitudes, PIXELS)) };
    status(crate::edges(planes, &mut vec![0.0; PIXELS], magnitudes))
}

/// See [`edges_in_place`](crate::edges_in_place).
///
/// # Safety
/// [`PLANES`] floats from `planes` on may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_edges_in_place(planes: *mut f32) -> c_int {
    // SAFETY: the caller's promise.
    status(crate::edges_in_place(unsafe { from_raw_parts_mut(planes, PLANES) }))
}

/// See [`write`](crate::write).
///
/// # Safety
/// `file` is a text that ends with a null byte; [`PIXELS`] floats from `magnitudes` on may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorpost_write(file: *const c_char, magnitudes: *const f32) -> c_int {
    // SAFETY: the caller's promise.
    let (file, magnitudes) = unsafe { (path(file), from_raw_parts(magnitudes, PIXELS)) };
    status(crate::write(file, magnitudes))
}
