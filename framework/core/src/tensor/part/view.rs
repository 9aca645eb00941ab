//! The elements of a part on the host.
//!
//! A part's elements lie in runs, and elements of other parts lie between the runs. So a part is never seen
//! as one slice, but run by run: no reference ever covers a byte of another part (ONE-WRITER).

#![expect(unsafe_code, reason = "slices are made over mapped memory, run by run")]

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Waited;
use crate::device::ChunkMapping;
use crate::ids::DeviceId;
use crate::stream::host_wait;
use crate::tensor::host::{elements_mut, in_reach};
use crate::tensor::kernel::{KernelArg, sealed};
use crate::tensor::{DType, DeviceStream, Element, Layout, TensorError, TensorPart};

/// The elements of a part, to read and write.
#[derive(Debug)]
pub struct PartMut<'k, T> {
    /// The address of the allocation, in mapped host memory.
    address: u64,
    layout: Layout,
    elements: PhantomData<&'k mut [T]>,
}

impl<'k, T: Element> PartMut<'k, T> {
    /// Returns the elements of `layout` in the allocation at `address`.
    ///
    /// # Safety
    /// The layout lies in the allocation and does not overlap itself. Its elements are mapped writable, and
    /// nobody else reads or writes them, for as long as `'k`; `T` is their type.
    unsafe fn new(address: u64, layout: Layout) -> Result<Self, TensorError> {
        let mut part = PartMut { address, layout, elements: PhantomData };
        if T::DTYPE == DType::Bool {
            // Check every run: not every byte is a bool.
            part.try_runs().try_for_each(|run| run.map(drop))?;
        }
        Ok(part)
    }

    /// Returns the number of elements along each axis.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns whether there is no element, which never happens.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    fn try_runs(&mut self) -> impl Iterator<Item = Result<&mut [T], TensorError>> {
        let (address, size) = (self.address, size_of::<T>());
        self.layout.contiguous_runs().map(move |run| {
            let bytes = run.start * size..run.end * size;
            // SAFETY: by the promise of `new` the runs are this view's alone for `'k`, and it is borrowed
            // mutably for as long as the slices are; the layout does not overlap itself, so no two runs do.
            unsafe { elements_mut::<T>(address, &bytes) }
        })
    }

    /// Returns the elements in row-major order, in slices; a slice has as many elements as lie one after the
    /// other. For some columns of a packed matrix, each slice has their elements in one row.
    pub fn runs_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        // `new` has checked that the bytes of bools are values, and writing keeps them so.
        self.try_runs().flatten()
    }

    /// Returns the element at `index`, one number per axis; `None` where there is none.
    pub fn get_mut(&mut self, index: &[usize]) -> Option<&mut T> {
        if index.len() != self.layout.rank() {
            return None;
        }
        let mut element = self.layout;
        for index in index {
            element = element.index(0, *index).ok()?;
        }
        let at = element.offset() * size_of::<T>();
        // SAFETY: as in `try_runs`; the offset is that of one of the layout's elements.
        unsafe { elements_mut::<T>(self.address, &(at..at + size_of::<T>())) }.ok()?.first_mut()
    }

    /// Sets every element.
    pub fn fill(&mut self, value: T) {
        self.runs_mut().for_each(|run| run.fill(value));
    }

    /// Returns the same elements as an `ndarray` view, strides kept.
    #[cfg(feature = "ndarray")]
    pub fn into_array(self) -> ndarray::ArrayViewMut<'k, T, ndarray::IxDyn> {
        use ndarray::{ArrayViewMut, IxDyn, ShapeBuilder};

        let strides: Vec<usize> = self.layout.strides().iter().map(|stride| stride.unsigned_abs()).collect();
        let first = self.address as usize + self.layout.offset() * size_of::<T>();
        let first = std::ptr::with_exposed_provenance_mut::<T>(first);
        let shape = IxDyn(self.layout.shape()).strides(IxDyn(&strides));
        // SAFETY: by the promise of `new`, which `self` was, the elements are in bounds, aligned (as in
        // `host`), valid and this view's alone for `'k`; ndarray reaches them by these strides and nothing in
        // between. The strides are not negative and elements do not overlap.
        unsafe { ArrayViewMut::from_shape_ptr(shape, first) }
    }
}

/// A part to write in a host kernel, as elements of type `T`.
#[derive(Debug)]
pub struct PartOut<'t, T>(&'t mut TensorPart, PhantomData<T>);

/// The place of a part's elements, and the mapping that it keeps.
#[derive(Debug)]
pub struct BoundPart {
    address: u64,
    layout: Layout,
    mapping: Arc<ChunkMapping>,
}

impl<T> sealed::Sealed for PartOut<'_, T> {}

impl<T: Element> KernelArg for PartOut<'_, T> {
    type View<'k> = PartMut<'k, T>;
    type Bound = BoundPart;

    fn bind(self, stream: &DeviceStream) -> Result<BoundPart, TensorError> {
        self.0.check::<T>()?;
        in_reach(self.0.device(), stream)?;
        let address = self.0.write_on(stream.clocked())?;
        let (_, mapping) = self.0.lease().writable()?;
        Ok(BoundPart { address, layout: *self.0.layout(), mapping })
    }

    unsafe fn view<'k>(bound: &BoundPart) -> Result<PartMut<'k, T>, TensorError> {
        // SAFETY: this runs on the stream, in order: earlier holders of the part have passed (`write_on`),
        // and the next holder, of the part or of the whole tensor, waits for this stream's clock. The layout
        // was cut out of one that lies in its lease and does not overlap itself; `bound` keeps it mapped.
        // Others write other elements only (ONE-WRITER).
        unsafe { PartMut::new(bound.address, bound.layout) }
    }

    fn mapping(bound: &BoundPart) -> &Arc<ChunkMapping> {
        &bound.mapping
    }
}

impl TensorPart {
    fn check<T: Element>(&self) -> Result<(), TensorError> {
        if self.dtype() != T::DTYPE {
            return Err(TensorError::DType { asked: T::DTYPE, found: self.dtype() });
        }
        if self.device() != DeviceId::HOST {
            return Err(TensorError::NotOnHost { device: self.device().to_string() });
        }
        Ok(())
    }

    /// Passes the part to [`DeviceStream::run`] to be read and written: the closure sees a [`PartMut`].
    pub fn of_mut<T: Element>(&mut self) -> PartOut<'_, T> {
        PartOut(self, PhantomData)
    }

    /// Returns the elements of a part on the host as an `ndarray` view, strides kept, to read and write.
    /// Blocks until earlier work on them is done.
    ///
    /// # Errors
    /// As [`elements_mut`](Self::elements_mut).
    #[cfg(feature = "ndarray")]
    pub fn view_array_mut<T: Element>(
        &mut self,
    ) -> Result<ndarray::ArrayViewMut<'_, T, ndarray::IxDyn>, TensorError> {
        Ok(self.elements_mut::<T>()?.into_array())
    }

    /// Blocks until all work on the part is done that was put on streams, in this process or in those it came
    /// from.
    ///
    /// # Errors
    /// The process that was to write it is unknown or has died, or the deadline came first.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<(), TensorError> {
        for ticket in self.inner().last_uses() {
            match host_wait(self.lease().domain(), ticket, deadline)? {
                Waited::Passed => {}
                Waited::TimedOut => return Err(TensorError::TimedOut),
            }
        }
        Ok(())
    }

    /// Returns the elements of a part on the host, to read and write. Blocks until earlier work on them is
    /// done.
    ///
    /// # Errors
    /// Another dtype, a part that is not on the host, work that will not end.
    pub fn elements_mut<T: Element>(&mut self) -> Result<PartMut<'_, T>, TensorError> {
        self.check::<T>()?;
        self.wait(None)?;
        let (address, _mapping) = self.lease().writable()?;
        // SAFETY: the layout lies in the allocation and does not overlap itself; the lease, which keeps the
        // writable mapping, is borrowed mutably with `self`; nobody else has these elements (ONE-WRITER), and
        // queued work was waited for.
        unsafe { PartMut::new(address, *self.layout()) }
    }

    /// Copies `elements`, in row-major order, into a part on the host. Blocks until earlier work on it is
    /// done.
    ///
    /// # Errors
    /// As [`elements_mut`](Self::elements_mut), and another number of elements.
    pub fn copy_from_slice<T: Element>(&mut self, elements: &[T]) -> Result<(), TensorError> {
        if elements.len() != self.len() {
            let shape = self.shape().to_vec();
            return Err(TensorError::Length { shape, wanted: self.len(), given: elements.len() });
        }
        let mut rest = elements;
        for run in self.elements_mut::<T>()?.runs_mut() {
            let (now, later) = rest.split_at(run.len());
            run.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Returns a copy of the elements of a part on the host, in row-major order. Blocks until earlier work on
    /// them is done.
    ///
    /// # Errors
    /// As [`elements_mut`](Self::elements_mut).
    pub fn to_vec<T: Element>(&mut self) -> Result<Vec<T>, TensorError> {
        let mut elements = Vec::with_capacity(self.len());
        self.elements_mut::<T>()?.runs_mut().for_each(|run| elements.extend_from_slice(run));
        Ok(elements)
    }
}
