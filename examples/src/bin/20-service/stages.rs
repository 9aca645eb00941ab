//! The stages of the pipeline: a camera, the background, the detectors.

use std::time::Duration;

use tensorpost::prelude::*;

use crate::messages::{Found, Frame, Region, Stamp, Weights};

/// The name under which the weights are published.
pub(crate) const WEIGHTS: &str = "weights";

/// How long a detector waits for the first weights.
const FIRST_WEIGHTS: Duration = Duration::from_secs(30);

/// A simulated camera: two squares that move over a noisy wall, for ever.
pub(crate) struct Camera {
    stream: DeviceStream,
    size: [usize; 2],
    frame: u64,
}

#[stage]
impl Camera {
    /// Creates a camera of `size` rows and columns.
    fn create(size: [usize; 2], env: &Env) -> Self {
        Camera { stream: env.stream(), size, frame: 0 }
    }

    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        let stamp = Stamp::now(self.frame);
        self.frame += 1;
        let [rows, columns] = self.size;
        let mut pixels = self.stream.empty(DType::U8, &[rows, columns, 3])?;
        self.stream
            .run((pixels.of_mut::<u8>(),), move |(pixels,)| draw(pixels, rows, columns, stamp.frame))?;
        Ok(Some(Frame { stamp, pixels: pixels.freeze() }))
    }
}

fn draw(pixels: &mut [u8], rows: usize, columns: usize, frame: u64) {
    let mut noise = frame.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for value in pixels.iter_mut() {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *value = 64 + (noise >> 61) as u8;
    }
    let (side, step) = (rows / 6, frame as usize);
    for (top, left, colour) in [
        (rows / 8, step % (columns - side), [230, 40, 40]),
        (rows * 5 / 8, columns - side - 1 - (2 * step) % (columns - side), [40, 60, 230]),
    ] {
        for row in top..top + side {
            let start = 3 * (row * columns + left);
            pixels[start..start + 3 * side]
                .chunks_exact_mut(3)
                .for_each(|pixel| pixel.copy_from_slice(&colour));
        }
    }
}

/// Subtracts the background from each frame, in the frame's own memory. The background is everything that has
/// not changed for long.
pub(crate) struct Background {
    stream: DeviceStream,
    background: Option<TensorMut>,
}

#[stage]
impl Background {
    fn create(env: &Env) -> Self {
        Background { stream: env.stream(), background: None }
    }

    fn process(&mut self, Frame { stamp, pixels }: Frame) -> anyhow::Result<Frame> {
        let mut pixels = pixels.into_mut(&self.stream)?;
        let background = match &mut self.background {
            Some(background) => background,
            none => {
                let first = pixels.freeze();
                let background = none.insert(self.stream.copy(&first)?);
                pixels = first.into_mut(&self.stream)?;
                background
            }
        };
        self.stream.run((pixels.of_mut::<f32>(), background.of_mut::<f32>()), |(pixels, background)| {
            for (pixel, background) in pixels.iter_mut().zip(background) {
                let difference = *pixel - *background;
                *background += 0.02 * difference;
                *pixel = difference.abs();
            }
        })?;
        Ok(Frame { stamp, pixels: pixels.freeze() })
    }
}

/// Finds moving things, with the newest weights.
pub(crate) struct Detect {
    env: Env,
    weights: Subscriber<Weights>,
}

#[stage]
impl Detect {
    fn create(env: &Env) -> Self {
        Detect { env: env.clone(), weights: Subscriber::follow(env, WEIGHTS) }
    }

    async fn prepare(&mut self) -> anyhow::Result<()> {
        self.weights.ready(FIRST_WEIGHTS).await?; // so the first frame of each life has weights
        Ok(())
    }

    fn process(&mut self, Frame { stamp, pixels }: Frame) -> anyhow::Result<Found> {
        let weights = self.weights.latest().expect("`prepare` has waited for them");
        let colours = weights.value.colours.to_vec::<f32>()?;
        let regions = regions(&pixels, &colours, weights.value.threshold)?;
        metrics::counter!("regions_found").increment(regions.len() as u64);
        let by = (self.env.name().to_owned(), self.env.incarnation());
        Ok(Found { stamp, regions, weights: weights.number, by, pixels })
    }
}

/// Rows and columns of the grid of cells.
const GRID: usize = 16;

/// Returns the cells with a score from the threshold on, joined with their neighbours.
fn regions(pixels: &Tensor, colours: &[f32], threshold: f32) -> anyhow::Result<Vec<Region>> {
    let (rows, columns) = (pixels.shape()[1], pixels.shape()[2]);
    let pixels_of_a_cell = (rows * columns) as f32 / (GRID * GRID) as f32;
    let mut scores = [[0.0_f32; GRID]; GRID];
    for (plane, colour) in pixels.to_vec::<f32>()?.chunks_exact(rows * columns).zip(colours) {
        for (index, value) in plane.iter().enumerate() {
            let (row, column) = (index / columns * GRID / rows, index % columns * GRID / columns);
            scores[row][column] += colour * value;
        }
    }
    let mut left = [[false; GRID]; GRID];
    for row in 0..GRID {
        for column in 0..GRID {
            left[row][column] = scores[row][column] >= threshold * pixels_of_a_cell;
        }
    }
    let mut regions = Vec::new();
    for index in 0..GRID * GRID {
        if let Some(region) = take(&mut left, (index / GRID, index % GRID)) {
            regions.push(region);
        }
    }
    Ok(regions)
}

/// Takes a cell, and all cells that are joined to it, out of the cells that are left.
fn take(left: &mut [[bool; GRID]; GRID], first: (usize, usize)) -> Option<Region> {
    let mut open = vec![first];
    let (mut top, mut bottom, mut start, mut end) = (GRID, 0, GRID, 0);
    while let Some((row, column)) = open.pop() {
        if !std::mem::take(&mut left[row][column]) {
            continue;
        }
        (top, bottom) = (top.min(row), bottom.max(row + 1));
        (start, end) = (start.min(column), end.max(column + 1));
        let rows = row.saturating_sub(1)..=(row + 1).min(GRID - 1);
        open.extend(rows.map(|row| (row, column)));
        let columns = column.saturating_sub(1)..=(column + 1).min(GRID - 1);
        open.extend(columns.map(|column| (row, column)));
    }
    let share = |cells: usize| cells as f32 / GRID as f32;
    (top < bottom).then(|| Region {
        left: share(start),
        top: share(top),
        right: share(end),
        bottom: share(bottom),
    })
}
