//! The macros of `tensorpost`: the derives of its messages and of plain actors, and the attributes of stages,
//! of actors, of `main` and of tests. Use them through that crate, which re-exports them.
//!
//! The derive of messages is three modules: `parse` turns the item into the plain data of `ir`, refusing
//! items that cannot be messages, and `codegen` turns that data into the two impls. Besides them, `refuse`
//! knows the field types that can never be sent, `bounds` makes the where clause of a generic message, and
//! `schema` the hash by which two processes see that they mean the same definition.
//!
//! The attributes `stage` and `actor` read the methods of an `impl` block by their names and parameters
//! (`methods`), and write impls of traits that call them; `create` is their common part.

mod actor;
mod bounds;
mod codegen;
mod create;
mod ir;
mod main_attribute;
mod methods;
mod parse;
mod portable;
mod refuse;
mod remote_actor;
mod schema;
mod stage;
mod test_attribute;

use proc_macro2::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

// The guide's examples need `tensorpost`, which depends on this crate; they are run as doctests in
// `tensorpost`.
#[cfg_attr(not(doctest), doc = include_str!("../GUIDE.md"))]
#[proc_macro_derive(GpuMessage, attributes(gpu_message, tensor, portable))]
pub fn derive_gpu_message(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(&parse_macro_input!(input as DeriveInput)).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../PORTABLE.md"))]
#[proc_macro_derive(Portable, attributes(portable))]
pub fn derive_portable(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    portable::expand(&parse_macro_input!(input as DeriveInput)).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../REMOTE_ACTOR.md"))]
#[proc_macro_derive(RemoteActor, attributes(remote_actor))]
pub fn derive_remote_actor(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    remote_actor::expand(&parse_macro_input!(input as DeriveInput)).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../TEST.md"))]
#[proc_macro_attribute]
pub fn test(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    test_attribute::expand(&arguments.into(), &parse_macro_input!(item as ItemFn)).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../MAIN.md"))]
#[proc_macro_attribute]
pub fn main(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    main_attribute::expand(arguments.into(), &parse_macro_input!(item as ItemFn)).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../STAGE.md"))]
#[proc_macro_attribute]
pub fn stage(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    stage::expand(arguments.into(), item.into()).into()
}

// As above.
#[cfg_attr(not(doctest), doc = include_str!("../ACTOR.md"))]
#[proc_macro_attribute]
pub fn actor(arguments: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    actor::expand(arguments.into(), item.into()).into()
}

/// Returns the impls for `input`, or one `compile_error!` for each fault in it.
fn expand(input: &DeriveInput) -> TokenStream {
    let impls = parse::message(input).and_then(|message| codegen::impls(&message));
    impls.unwrap_or_else(|errors| errors.to_compile_error())
}
