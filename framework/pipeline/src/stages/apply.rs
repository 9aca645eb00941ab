//! Closures as stages.

use std::marker::PhantomData;

use tensorpost_core::api::actor::{Code, Env};

use crate::{Item, Out, Stage};

/// The shape of a closure over items.
pub(crate) type Applied<I, O> = Box<dyn FnMut(I, &mut Out<O>, &Env) -> anyhow::Result<()>>;

/// A closure.
pub(crate) struct Apply<I, O> {
    closure: Applied<I, O>,
    env: Env,
    types: PhantomData<(I, O)>,
}

impl<I: Item, O: Item> Stage for Apply<I, O> {
    type Args = Code;
    type In = I;
    type Out = O;

    fn create(code: Code, env: &Env) -> anyhow::Result<Self> {
        Ok(Apply { closure: code.make()?, env: env.clone(), types: PhantomData })
    }

    fn process(&mut self, item: I, out: &mut Out<O>) -> anyhow::Result<()> {
        (self.closure)(item, out, &self.env)
    }
}
