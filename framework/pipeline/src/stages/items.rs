//! An iterator as a source.

use tensorpost_core::api::actor::Env;

use crate::closures;
use crate::{Item, Source};

/// The iterator.
pub(crate) type Iterated<T> = Box<dyn Iterator<Item = anyhow::Result<T>>>;
/// Makes it, in the source's process.
pub(crate) type MakeIterated<T> = dyn Fn(&Env) -> Iterated<T> + Send + Sync;

/// A closure that makes an iterator, by its name.
pub(crate) struct Items<T>(Iterated<T>);

impl<T: Item> Source for Items<T> {
    type Args = String;
    type Out = T;

    fn create(name: String, env: &Env) -> anyhow::Result<Self> {
        Ok(Items(closures::find::<MakeIterated<T>>(&name)?(env)))
    }

    fn length(&self) -> Option<u64> {
        let (least, most) = self.0.size_hint();
        most.filter(|most| *most == least).map(|most| most as u64)
    }

    fn next(&mut self) -> anyhow::Result<Option<T>> {
        self.0.next().transpose()
    }
}
