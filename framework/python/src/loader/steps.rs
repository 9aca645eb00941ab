//! Transforms decoded pixels, and writes them to a sample's place in its batch.
//!
//! Steps that crop or mirror only move a window over the pixels; steps that resize make new pixels. The last
//! pass splits the window into planes, and looks each byte up in a table of 256 floats for its channel. So a
//! float is exactly `(byte / 255 - mean) / std`, rounded to `f32` after each operation, as in torchvision.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use super::decode::Rgb;
use super::random::Random;

/// The filter that computes a new pixel. All but the first average over the pixels that they shrink, as PIL
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Filter {
    Nearest,
    Box,
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "nearest" => Filter::Nearest,
            "box" => Filter::Box,
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            "lanczos" => Filter::Lanczos,
            _ => return None,
        })
    }

    fn algorithm(self) -> ResizeAlg {
        ResizeAlg::Convolution(match self {
            Filter::Nearest => return ResizeAlg::Nearest,
            Filter::Box => FilterType::Box,
            Filter::Bilinear => FilterType::Bilinear,
            // PIL uses the same parameter, -0.5.
            Filter::Bicubic => FilterType::CatmullRom,
            Filter::Lanczos => FilterType::Lanczos3,
        })
    }
}

/// A transform. Sizes are rows and columns, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Step {
    Resize {
        size: (usize, usize),
        filter: Filter,
    },
    /// The shorter side gets this length, and the other one follows.
    ResizeShorter {
        to: usize,
        filter: Filter,
    },
    CenterCrop {
        size: (usize, usize),
    },
    RandomCrop {
        size: (usize, usize),
    },
    RandomResizedCrop {
        size: (usize, usize),
        scale: (f64, f64),
        ratio: (f64, f64),
        filter: Filter,
    },
    /// Swaps left and right, with this probability.
    FlipHorizontal(f64),
    FlipVertical(f64),
}

/// The part of an image that is used, and how it is read.
#[derive(Clone, Copy, Debug)]
struct Window {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    mirrored: bool,
    upside_down: bool,
}

impl Window {
    fn all(of: &Rgb) -> Self {
        Window { left: 0, top: 0, width: of.width, height: of.height, mirrored: false, upside_down: false }
    }

    /// Moves the window to `left` and `top` in reading direction: from the other end if the image is
    /// mirrored.
    fn cut(&mut self, left: usize, top: usize, (height, width): (usize, usize)) {
        self.left += if self.mirrored { self.width - left - width } else { left };
        self.top += if self.upside_down { self.height - top - height } else { top };
        (self.width, self.height) = (width, height);
    }

    fn room_for(&self, (height, width): (usize, usize)) -> Result<(usize, usize), String> {
        let columns = self.width.checked_sub(width);
        columns.zip(self.height.checked_sub(height)).ok_or_else(|| {
            format!(
                "{} x {} pixels are left of it where {width} x {height} are cut out; resize first",
                self.width, self.height
            )
        })
    }
}

/// The buffers that are reused for the next sample.
#[derive(Debug, Default)]
pub(super) struct Transformer {
    resizer: Resizer,
    made: Rgb,
    spare: Rgb,
}

impl Transformer {
    /// Applies the steps to `image`, and gives the remaining rows to `write`.
    ///
    /// # Errors
    /// The reason why the steps cannot be applied to this image.
    pub(super) fn run(
        &mut self,
        image: &Rgb,
        steps: &[Step],
        mut random: Random,
        mut write: impl FnMut(&Rows<'_>),
    ) -> Result<(), String> {
        let mut window = Window::all(image);
        let mut resized = false;
        for step in steps {
            match *step {
                Step::Resize { size, filter } => {
                    self.resize(image, &mut window, &mut resized, size, filter)?
                }
                Step::ResizeShorter { to, filter } => {
                    let size = shorter(&window, to);
                    self.resize(image, &mut window, &mut resized, size, filter)?;
                }
                Step::CenterCrop { size } => {
                    let (columns, rows) = window.room_for(size)?;
                    window.cut(half_even(columns), half_even(rows), size);
                }
                Step::RandomCrop { size } => {
                    let (columns, rows) = window.room_for(size)?;
                    let top = random.below(rows as u64 + 1) as usize;
                    let left = random.below(columns as u64 + 1) as usize;
                    window.cut(left, top, size);
                }
                Step::RandomResizedCrop { size, scale, ratio, filter } => {
                    let (left, top, cut) = drawn(&window, scale, ratio, &mut random);
                    window.cut(left, top, cut);
                    self.resize(image, &mut window, &mut resized, size, filter)?;
                }
                Step::FlipHorizontal(probability) => window.mirrored ^= random.happens(probability),
                Step::FlipVertical(probability) => window.upside_down ^= random.happens(probability),
            }
        }
        write(&Rows { image: if resized { &self.made } else { image }, window });
        Ok(())
    }

    fn resize(
        &mut self,
        image: &Rgb,
        window: &mut Window,
        resized: &mut bool,
        (height, width): (usize, usize),
        filter: Filter,
    ) -> Result<(), String> {
        if (window.width, window.height) == (width, height) {
            return Ok(());
        }
        let failed = |error: &dyn std::error::Error| format!("it cannot be resized: {error}");
        let from = if *resized { &self.made } else { image };
        self.spare.reshape(width, height)?;
        let source = ImageRef::new(from.width as u32, from.height as u32, &from.pixels, PixelType::U8x3);
        let source = source.map_err(|error| failed(&error))?;
        let target =
            Image::from_slice_u8(width as u32, height as u32, &mut self.spare.pixels, PixelType::U8x3);
        let mut target = target.map_err(|error| failed(&error))?;
        let options = ResizeOptions::new().resize_alg(filter.algorithm()).use_alpha(false).crop(
            window.left as f64,
            window.top as f64,
            window.width as f64,
            window.height as f64,
        );
        self.resizer.resize(&source, &mut target, &options).map_err(|error| failed(&error))?;
        // The source may be `made`, so the result is written to `spare`, and the two are swapped.
        std::mem::swap(&mut self.made, &mut self.spare);
        *resized = true;
        // The new pixels are not mirrored yet: mirroring stays with the window.
        *window =
            Window { mirrored: window.mirrored, upside_down: window.upside_down, ..Window::all(&self.made) };
        Ok(())
    }
}

/// Halves a number as Python rounds: to the even one if it is between two.
fn half_even(number: usize) -> usize {
    number / 2 + usize::from(number % 4 == 3)
}

/// Returns the size at which the shorter side is `to`; the longer one is rounded down, as torchvision does
/// it.
fn shorter(window: &Window, to: usize) -> (usize, usize) {
    let (width, height) = (window.width, window.height);
    if width <= height { (to * height / width, to) } else { (to, to * width / height) }
}

/// Draws a crop of a random area and ratio, as torchvision's `RandomResizedCrop` does: up to ten times, and
/// then the largest in the middle.
fn drawn(
    window: &Window,
    scale: (f64, f64),
    ratio: (f64, f64),
    random: &mut Random,
) -> (usize, usize, (usize, usize)) {
    let (width, height) = (window.width, window.height);
    let area = (width * height) as f64;
    for _ in 0..10 {
        let part = area * random.between(scale.0, scale.1);
        let aspect = random.between(ratio.0.ln(), ratio.1.ln()).exp();
        let columns = (part * aspect).sqrt().round_ties_even() as usize;
        let rows = (part / aspect).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&columns) && (1..=height).contains(&rows) {
            let top = random.below((height - rows) as u64 + 1) as usize;
            let left = random.below((width - columns) as u64 + 1) as usize;
            return (left, top, (rows, columns));
        }
    }
    let aspect = width as f64 / height as f64;
    let (rows, columns) = if aspect < ratio.0 {
        (((width as f64 / ratio.0).round_ties_even() as usize).clamp(1, height), width)
    } else if aspect > ratio.1 {
        (height, ((height as f64 * ratio.1).round_ties_even() as usize).clamp(1, width))
    } else {
        (height, width)
    };
    ((width - columns) / 2, (height - rows) / 2, (rows, columns))
}

/// The rows that remain of an image.
pub(super) struct Rows<'a> {
    image: &'a Rgb,
    window: Window,
}

impl Rows<'_> {
    /// Returns rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.window.height, self.window.width)
    }

    /// Writes three planes, which are one after the other in `out`.
    pub(super) fn planes<T>(&self, out: &mut [T], value: impl Fn(usize, u8) -> T) {
        let Window { left, top, width, height, mirrored, upside_down } = self.window;
        let (red, rest) = out.split_at_mut(width * height);
        let (green, blue) = rest.split_at_mut(width * height);
        let planes =
            red.chunks_exact_mut(width).zip(green.chunks_exact_mut(width)).zip(blue.chunks_exact_mut(width));
        for (row, ((red, green), blue)) in planes.enumerate() {
            let row = top + if upside_down { height - 1 - row } else { row };
            let from = (row * self.image.width + left) * 3;
            let pixels = self.image.pixels[from..from + width * 3].chunks_exact(3);
            let places = red.iter_mut().zip(green).zip(blue);
            let write = |(((red, green), blue), pixel): (((&mut T, &mut T), &mut T), &[u8])| {
                *red = value(0, pixel[0]);
                *green = value(1, pixel[1]);
                *blue = value(2, pixel[2]);
            };
            if mirrored {
                places.zip(pixels.rev()).for_each(write);
            } else {
                places.zip(pixels).for_each(write);
            }
        }
    }
}

/// The value of each byte in each channel.
pub(super) type Table = [[f32; 256]; 3];

/// Makes the table of `(byte / 255 - mean) / std`, or of `byte / 255`.
pub(super) fn table(normalise: Option<([f32; 3], [f32; 3])>) -> Table {
    let (mean, std) = normalise.unwrap_or(([0.0; 3], [1.0; 3]));
    std::array::from_fn(|channel| {
        std::array::from_fn(|byte| (byte as f32 / 255.0 - mean[channel]) / std[channel])
    })
}
