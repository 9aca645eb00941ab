//! A sink that gives its items to an actor.

use tensorpost_core::api::actor::{Address, Env};

use super::Nothing;
use crate::{Item, Out, Stage};

/// See the module.
pub(crate) struct SendTo<T>(Address<T>);

impl<T: Item> Stage for SendTo<T> {
    type Args = Address<T>;
    type In = T;
    type Out = Nothing;

    fn create(address: Address<T>, _: &Env) -> anyhow::Result<Self> {
        Ok(SendTo(address))
    }

    fn process(&mut self, item: T, out: &mut Out<Nothing>) -> anyhow::Result<()> {
        out.send(&self.0, item);
        Ok(())
    }
}
