//! The item of all random pipelines: its history, and tensors that tell whether they are right.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tensorpost::pipeline::{Gather, gather_tensors};
use tensorpost::prelude::*;

use super::history::{Past, Step};
use super::recipe::{Cell, Recipe, elements, recipes, with_cell};
use super::spec::Tensors;

/// The item.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Thing {
    /// Where it has been.
    pub past: Past,
    /// The life of the source that made it.
    pub life: u32,
    /// The recipe of its tensors.
    pub made: Tensors,
    /// The sum of the numbers that were added to the elements of `tensors`.
    pub added: u64,
    /// Tensors that change on the way.
    pub tensors: Vec<Tensor>,
    /// Tensors that are only passed on.
    pub nested: Option<Nested>,
}

/// Tensors in a struct, one of them optional.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Nested {
    first: Option<Tensor>,
    rest: Vec<Tensor>,
}

/// Several items, whose first tensors are one tensor.
#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
pub struct Things {
    /// The items without their first tensors.
    pub things: Vec<Thing>,
    /// Their first tensors, with one more axis in front.
    pub first: Tensor,
}

/// An element that differs from the recipe.
#[derive(Debug)]
pub struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// Notes something that must never be, for the judge of the run.
pub fn note_wrong(folder: &Path, what: &str) {
    use std::io::Write;
    let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("wrong"));
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{what}\n").as_bytes());
    }
}

impl Thing {
    /// Makes a new item.
    ///
    /// # Errors
    /// There is no memory.
    pub fn make(
        made: Tensors,
        past: Past,
        life: u32,
        stream: &DeviceStream,
        late: u64,
    ) -> Result<Thing, TensorError> {
        let number = past.number;
        let (list, nested) = recipes(made, past.source, number);
        let make = |recipes: &[Recipe]| {
            recipes.iter().map(|recipe| recipe.make(stream, late)).collect::<Result<Vec<_>, _>>()
        };
        let (tensors, mut rest) = (make(&list)?, make(&nested)?);
        // In turn, the tensor goes into the option and into the list.
        let first = if number.is_multiple_of(2) { rest.pop() } else { None };
        let nested = (!nested.is_empty()).then_some(Nested { first, rest });
        Ok(Thing { past, life, made, added: 0, tensors, nested })
    }

    /// Returns its number.
    pub fn number(&self) -> u64 {
        self.past.number
    }

    /// Adds a step to its history.
    #[must_use]
    pub fn then(mut self, step: Step) -> Thing {
        self.past.steps.push(step);
        self
    }

    /// Compares all tensors with their recipes.
    ///
    /// # Errors
    /// The elements will not come, or they are [`Wrong`].
    pub fn check(&self, stream: &DeviceStream) -> anyhow::Result<()> {
        let (list, nested) = recipes(self.made, self.past.source, self.number());
        same_count(self, "tensors", self.tensors.len(), list.len())?;
        for (slot, (tensor, recipe)) in self.tensors.iter().zip(&list).enumerate() {
            self.compare(&format!("tensor {slot}"), tensor, recipe, self.added, stream)?;
        }
        let mut others: Vec<&Tensor> = Vec::new();
        if let Some(within) = &self.nested {
            others.extend(&within.rest);
            others.extend(&within.first);
        }
        same_count(self, "nested tensors", others.len(), nested.len())?;
        for (slot, (tensor, recipe)) in others.into_iter().zip(&nested).enumerate() {
            self.compare(&format!("nested tensor {slot}"), tensor, recipe, 0, stream)?;
        }
        Ok(())
    }

    fn compare(
        &self,
        what: &str,
        tensor: &Tensor,
        recipe: &Recipe,
        added: u64,
        stream: &DeviceStream,
    ) -> anyhow::Result<()> {
        if (tensor.dtype(), tensor.shape()) != (recipe.dtype, &recipe.final_shape()[..]) {
            let what = format!("{what} of {} is {tensor:?} and has to be {recipe:?}", self.past);
            return Err(Wrong(what).into());
        }
        with_cell!(recipe.dtype, T => {
            let (found, wanted) = (elements::<T>(tensor, stream)?, recipe.expected::<T>(added));
            if found != wanted {
                let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
                let shown = at.map(|at| (at, found[at], wanted[at]));
                let owner = tensor.lease().owner();
                return Err(Wrong(format!(
                    "{what} of {}, {tensor:?} of {owner}, +{added}: element, found and wanted: {shown:?}",
                    self.past
                ))
                .into());
            }
        });
        Ok(())
    }

    /// Adds to every element of its tensors: in place where nobody else has them, in a copy otherwise. On the
    /// host that is done after `late` microseconds.
    ///
    /// # Errors
    /// The tensors are lost with a process, or there is no memory.
    pub fn add(&mut self, more: u64, stream: &DeviceStream, late: u64) -> anyhow::Result<()> {
        let tensors = std::mem::take(&mut self.tensors);
        let added = tensors.into_iter().map(|tensor| add_to(tensor, more, stream, late));
        self.tensors = added.collect::<anyhow::Result<_>>()?;
        self.added = self.added.wrapping_add(more);
        Ok(())
    }

    /// Replaces its tensors by copies.
    ///
    /// # Errors
    /// The tensors are lost with a process, or there is no memory.
    pub fn copy(&mut self, stream: &DeviceStream) -> Result<(), TensorError> {
        for tensor in &mut self.tensors {
            *tensor = stream.copy(tensor)?.freeze();
        }
        Ok(())
    }
}

fn add_to(tensor: Tensor, more: u64, stream: &DeviceStream, late: u64) -> anyhow::Result<Tensor> {
    fn sum<T: Cell>(element: T, more: u64) -> T {
        T::of((element.number() + more % T::RANGE) % T::RANGE)
    }

    if tensor.is_empty() {
        return Ok(tensor);
    }
    with_cell!(tensor.dtype(), T => {
        if stream.kind() != DeviceKind::Host {
            let sums: Vec<T> = stream.download::<T>(&tensor)?.into_iter().map(|element| sum(element, more)).collect();
            return Ok(stream.from_slice(tensor.shape(), &sums)?.freeze());
        }
        let mut tensor = if tensor.is_contiguous() {
            match tensor.into_mut(stream) {
                Ok(tensor) => tensor,
                Err(refused) => stream.copy(&refused.tensor)?,
            }
        } else {
            stream.copy(&tensor)?
        };
        stream.run((tensor.of_mut::<T>(),), move |(to,)| {
            std::thread::sleep(Duration::from_micros(late));
            to.iter_mut().for_each(|element| *element = sum(*element, more));
        })?;
        Ok(tensor.freeze())
    })
}

fn same_count(thing: &Thing, what: &str, found: usize, wanted: usize) -> Result<(), Wrong> {
    if found == wanted {
        return Ok(());
    }
    Err(Wrong(format!("{} has {found} {what} and should have {wanted}", thing.past)))
}

impl Gather for Thing {
    type Gathered = Things;

    fn gather(mut things: Vec<Thing>, stream: &DeviceStream) -> anyhow::Result<Things> {
        let firsts: Vec<Tensor> = things.iter_mut().map(|thing| thing.tensors.remove(0)).collect();
        Ok(Things { first: gather_tensors(stream, &firsts)?, things })
    }
}

impl Things {
    /// Returns the items, each with its first tensor again, which is a view of the one of all.
    ///
    /// # Errors
    /// The tensor has too few rows.
    pub fn apart(self) -> Result<Vec<Thing>, TensorError> {
        let put = |(row, mut thing): (usize, Thing)| {
            thing.tensors.insert(0, self.first.index(0, row)?);
            Ok(thing)
        };
        self.things.into_iter().enumerate().map(put).collect()
    }
}
