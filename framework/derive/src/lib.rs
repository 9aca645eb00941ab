//! The derive macro of `tensorpost`. Use it through that crate, which re-exports it next to the trait.
//!
//! The macro is three steps, one module each: `parse` turns the item into the plain data of `ir` and refuses
//! what cannot be a message, `codegen` turns that into the two impls. Beside them, `refuse` knows the field
//! types that can never be sent, `bounds` the where clause of a generic message, and `schema` the hash by
//! which two processes see that they mean the same definition.

mod bounds;
mod codegen;
mod ir;
mod parse;
mod refuse;
mod schema;

use proc_macro2::TokenStream;
use syn::{DeriveInput, parse_macro_input};

// The guide's examples need `tensorpost`, which depends on this crate; they are run as doctests over there.
#[cfg_attr(not(doctest), doc = include_str!("../GUIDE.md"))]
#[proc_macro_derive(GpuMessage, attributes(gpu_message, tensor))]
pub fn derive_gpu_message(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(&parse_macro_input!(input as DeriveInput)).into()
}

/// The impls for `input`, or one `compile_error!` for each thing that is wrong with it.
fn expand(input: &DeriveInput) -> TokenStream {
    match parse::message(input) {
        Ok(message) => codegen::impls(&message),
        Err(errors) => errors.to_compile_error(),
    }
}
