//! A stage that passes items on: where several flows become one, or an order is restored.

use std::marker::PhantomData;

use tensorpost_core::api::actor::Env;

use crate::{Item, Out, Stage};

/// See the module.
pub(crate) struct Identity<T>(PhantomData<T>);

impl<T: Item> Stage for Identity<T> {
    type Args = PhantomData<T>;
    type In = T;
    type Out = T;

    fn create(_: PhantomData<T>, _: &Env) -> anyhow::Result<Self> {
        Ok(Identity(PhantomData))
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        out.emit(item);
        Ok(())
    }
}
