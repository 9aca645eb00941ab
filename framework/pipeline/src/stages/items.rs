//! An iterator as a source.

use tensorpost_core::api::actor::{Code, Env};

use crate::{Item, Source};

/// The iterator.
pub(crate) type Iterated<T> = Box<dyn Iterator<Item = anyhow::Result<T>>>;
/// Makes it, in the source's process.
pub(crate) type MakeIterated<T> = Box<dyn FnOnce(&Env) -> Iterated<T>>;

/// The items of a closure.
pub(crate) struct Items<T>(Iterated<T>);

impl<T: Item> Source for Items<T> {
    type Args = Code;
    type Out = T;

    fn create(code: Code, env: &Env) -> anyhow::Result<Self> {
        Ok(Items(code.make::<MakeIterated<T>>()?(env)))
    }

    fn length(&self) -> Option<u64> {
        let (least, most) = self.0.size_hint();
        most.filter(|most| *most == least).map(|most| most as u64)
    }

    fn next(&mut self) -> anyhow::Result<Option<T>> {
        self.0.next().transpose()
    }
}
