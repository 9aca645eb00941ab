//! Closures as stages.

use std::marker::PhantomData;

use tensorpost_core::api::actor::Env;

use crate::closures;
use crate::{Item, Out, Stage};

/// The shape of a closure over items.
pub(crate) type Applied<I, O> = Box<dyn FnMut(I, &mut Out<O>, &Env) -> anyhow::Result<()>>;
/// Makes a closure for each replica.
pub(crate) type MakeApplied<I, O> = dyn Fn() -> Applied<I, O> + Send + Sync;

/// A closure, by its name.
pub(crate) struct Apply<I, O> {
    closure: Applied<I, O>,
    env: Env,
    types: PhantomData<(I, O)>,
}

impl<I: Item, O: Item> Stage for Apply<I, O> {
    type Args = String;
    type In = I;
    type Out = O;

    fn create(name: String, env: &Env) -> anyhow::Result<Self> {
        let make = closures::find::<MakeApplied<I, O>>(&name)?;
        Ok(Apply { closure: make(), env: env.clone(), types: PhantomData })
    }

    fn process(&mut self, item: I, out: &mut Out<O>) -> anyhow::Result<()> {
        (self.closure)(item, out, &self.env)
    }
}
