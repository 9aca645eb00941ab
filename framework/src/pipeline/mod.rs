//! Pipelines: sources, stages and sinks in processes of their own, and what flows between them.

mod cargo;
mod item;
mod on_error;
mod out;
mod traits;

pub use item::{Item, ItemId};
pub use on_error::OnError;
pub use out::{Held, Out};
pub use traits::{Sink, Source, Stage};
