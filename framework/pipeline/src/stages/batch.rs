//! Items in batches, in windows, and one by one again.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Instant;

use tensorpost_core::api::actor::Env;
use tensorpost_core::api::tensor::DeviceStream;

use crate::{Batch, Gather, HeldItem, Item, Many, Out, Stage};

/// How the items of a batch are combined.
pub(crate) trait Packing<T: Item>: 'static {
    /// The type of the combined item.
    type Packed: Item;
    /// Combines the items.
    fn pack(items: Vec<T>, stream: &DeviceStream) -> anyhow::Result<Self::Packed>;
}

/// Packs the items as they are, side by side.
pub(crate) struct AsMany;
/// Packs the items with their tensors gathered into one.
pub(crate) struct Gathered;

impl<T: Item> Packing<T> for AsMany {
    type Packed = Many<T>;

    fn pack(items: Vec<T>, _: &DeviceStream) -> anyhow::Result<Many<T>> {
        Ok(Many { items })
    }
}

impl<T: Gather> Packing<T> for Gathered {
    type Packed = T::Gathered;

    fn pack(items: Vec<T>, stream: &DeviceStream) -> anyhow::Result<T::Gathered> {
        T::gather(items, stream)
    }
}

/// Collects items until there are enough, or the time is up.
pub(crate) struct Batcher<T, P> {
    batch: Batch,
    stream: DeviceStream,
    items: Vec<(T, HeldItem)>,
    /// When the batch goes on although it is not full.
    until: Option<Instant>,
    packing: PhantomData<P>,
}

impl<T: Item, P: Packing<T>> Batcher<T, P> {
    fn pack(&mut self, out: &mut Out<P::Packed>) -> anyhow::Result<()> {
        self.until = None;
        let (items, parts): (Vec<_>, Vec<_>) = std::mem::take(&mut self.items).into_iter().unzip();
        if !items.is_empty() {
            out.emit_for(P::pack(items, &self.stream)?, parts);
        }
        Ok(())
    }
}

impl<T: Item, P: Packing<T>> Stage for Batcher<T, P> {
    type Args = Batch;
    type In = T;
    type Out = P::Packed;

    fn create(batch: Batch, env: &Env) -> anyhow::Result<Self> {
        Ok(Batcher { batch, stream: env.stream(), items: Vec::new(), until: None, packing: PhantomData })
    }

    fn process(&mut self, item: T, out: &mut Out<P::Packed>) -> anyhow::Result<()> {
        if self.items.is_empty() {
            self.until = self.batch.within.and_then(|time| Instant::now().checked_add(time));
        }
        self.items.push((item, out.hold()));
        if self.items.len() >= self.batch.count as usize { self.pack(out) } else { Ok(()) }
    }

    fn wake_at(&self) -> Option<Instant> {
        self.until
    }

    fn wake(&mut self, out: &mut Out<P::Packed>) -> anyhow::Result<()> {
        self.pack(out)
    }

    fn finish(&mut self, out: &mut Out<P::Packed>) -> anyhow::Result<()> {
        self.pack(out)
    }
}

/// Takes batches apart.
pub(crate) struct Unbatch<T>(PhantomData<T>);

impl<T: Item> Stage for Unbatch<T> {
    type Args = PhantomData<T>;
    type In = Many<T>;
    type Out = T;

    fn create(_: PhantomData<T>, _: &Env) -> anyhow::Result<Self> {
        Ok(Unbatch(PhantomData))
    }

    fn process(&mut self, many: Many<T>, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit_apart(many.items);
        Ok(())
    }
}

/// Emits the last items again with each new one.
pub(crate) struct Windows<T> {
    count: usize,
    /// Each item is released when it has been in its last window, or at the end.
    items: VecDeque<(T, Option<HeldItem>)>,
}

impl<T: Item> Stage for Windows<T> {
    type Args = u32;
    type In = T;
    type Out = Many<T>;

    fn create(count: u32, _: &Env) -> anyhow::Result<Self> {
        Ok(Windows { count: count as usize, items: VecDeque::new() })
    }

    fn process(&mut self, item: T, out: &mut Out<Many<T>>) -> anyhow::Result<()> {
        self.items.push_back((item, Some(out.hold())));
        if self.items.len() == self.count {
            out.emit(Many { items: self.items.iter().map(|(item, _)| item.clone()).collect() });
            self.items.pop_front();
        }
        Ok(())
    }

    /// Releases the items but keeps their values: after a death more items may come behind the end, one by
    /// one, and each makes a window with these.
    fn finish(&mut self, _: &mut Out<Many<T>>) -> anyhow::Result<()> {
        self.items.iter_mut().for_each(|(_, held)| *held = None);
        Ok(())
    }
}
