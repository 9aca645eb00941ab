//! A batch while it is made: tracks which of its parts have come back, and which samples are broken.

use tensorpost_core::tensor::{DType, DeviceStream, Element, Tensor, TensorMut, TensorPart};

use super::feed::Stop;

/// A file that cannot be a sample.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) index: u32,
    pub(super) why: String,
}

/// See the module.
pub(super) struct Batch {
    pub(super) samples: Vec<u32>,
    /// How many of the epoch's samples are delivered with it.
    pub(super) position: usize,
    has_memory: bool,
    /// The number of parts that workers have.
    out: usize,
    parts: Vec<TensorPart>,
    /// Rows, and the errors of their samples.
    broken: Vec<(usize, String)>,
    lost: bool,
}

impl Batch {
    pub(super) fn new(samples: Vec<u32>, position: usize) -> Self {
        Batch {
            samples,
            position,
            has_memory: false,
            out: 0,
            parts: Vec::new(),
            broken: Vec::new(),
            lost: false,
        }
    }

    pub(super) fn wants_memory(&self) -> bool {
        !self.has_memory
    }

    /// Notes that its memory is with workers now, in so many parts.
    pub(super) fn is_given(&mut self, parts: usize) {
        (self.has_memory, self.out) = (true, parts);
    }

    /// Keeps a part of one sample that no worker gets.
    pub(super) fn keeps(&mut self, part: TensorPart, row: usize, why: String) {
        self.parts.push(part);
        self.broken.push((row, why));
    }

    /// Takes a part that has come back. Joining the parts finds out whether it belongs to this batch.
    pub(super) fn took(&mut self, part: TensorPart, broken: Vec<(u32, String)>) {
        let start = part.start().first().copied().unwrap_or(0);
        let rows = part.shape().first().copied().unwrap_or(0);
        let broken = broken.into_iter().filter(|(row, _)| (*row as usize) < rows);
        self.broken.extend(broken.map(|(row, why)| (start + row as usize, why)));
        self.parts.push(part);
        self.out -= 1;
    }

    /// Notes that a part is gone, with its worker.
    pub(super) fn lost_part(&mut self) {
        self.out -= 1;
        self.lost = true;
    }

    /// Whether every part has come back.
    pub(super) fn is_done(&self) -> bool {
        self.has_memory && self.out == 0 && !self.lost
    }

    /// Begins anew if a part is gone and no worker has another.
    pub(super) fn begin_again_if_lost(&mut self) {
        if self.lost && self.out == 0 {
            *self = Batch::new(std::mem::take(&mut self.samples), self.position);
        }
    }

    /// Returns the broken samples, in the order of the rows.
    pub(super) fn broken(&mut self) -> Vec<Broken> {
        self.broken.sort_by_key(|(row, _)| *row);
        self.broken.iter().map(|(row, why)| Broken { index: self.samples[*row], why: why.clone() }).collect()
    }

    /// Returns the tensor, and the samples in it: those that are not broken. There is no tensor if all are
    /// broken.
    pub(super) fn join(self, stream: &DeviceStream) -> Result<(Option<Tensor>, Vec<u32>), Stop> {
        let Batch { samples, parts, broken, .. } = self;
        let whole = TensorMut::join(parts, stream);
        let mut whole = whole.map_err(|error| Stop::Other(format!("a batch is not whole: {}", error.why)))?;
        if broken.is_empty() {
            return Ok((Some(whole.freeze()), samples));
        }
        let is_broken = |row: &usize| broken.iter().any(|(broken, _)| broken == row);
        let good: Vec<usize> = (0..samples.len()).filter(|row| !is_broken(row)).collect();
        if good.is_empty() {
            return Ok((None, Vec::new()));
        }
        match whole.dtype() {
            DType::U8 => close_up::<u8>(&mut whole, &good)?,
            _ => close_up::<f32>(&mut whole, &good)?,
        }
        let tensor = whole.freeze().slice(0, 0..good.len());
        let tensor = tensor.map_err(|error| Stop::Other(error.to_string()))?;
        Ok((Some(tensor), good.into_iter().map(|row| samples[row]).collect()))
    }
}

/// Moves these rows to the front.
fn close_up<T: Element>(whole: &mut TensorMut, rows: &[usize]) -> Result<(), Stop> {
    let row_elements = whole.len() / whole.shape().first().copied().unwrap_or(1).max(1);
    let elements = whole.as_mut_slice::<T>()?;
    for (to, from) in rows.iter().enumerate() {
        elements.copy_within(from * row_elements..(from + 1) * row_elements, to * row_elements);
    }
    Ok(())
}
