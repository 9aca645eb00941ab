//! An iterator as a source.

use crate::actor::Env;
use crate::pipeline::closures;
use crate::pipeline::{Item, Source};

/// The iterator.
pub(in crate::pipeline) type Iterated<T> = Box<dyn Iterator<Item = anyhow::Result<T>>>;
/// Makes it, in the source's process.
pub(in crate::pipeline) type MakeIterated<T> = dyn Fn(&Env) -> Iterated<T> + Send + Sync;

/// A closure that makes an iterator, by its name.
pub(in crate::pipeline) struct Items<T>(Iterated<T>);

impl<T: Item> Source for Items<T> {
    type Args = String;
    type Out = T;

    fn create(name: String, env: &Env) -> anyhow::Result<Self> {
        Ok(Items(closures::find::<MakeIterated<T>>(&name)?(env)))
    }

    fn next(&mut self) -> anyhow::Result<Option<T>> {
        self.0.next().transpose()
    }
}
