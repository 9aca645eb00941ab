//! From the item's syntax to [`ir`](crate::ir). Every error names the field that it is about and the remedy;
//! all errors are reported together.

mod container;
mod tensor;

pub(crate) use container::{crate_path, key, once};

use quote::ToTokens;
use syn::{
    Attribute, Data, DeriveInput, Generics, Ident, Index, Member, Meta, Token, ext::IdentExt,
    punctuated::Punctuated, spanned::Spanned,
};

use crate::{
    ir::{Body, Field, Fields, Message, SerdeAttrs, Style, Variant},
    refuse,
};

/// Reads a whole item.
///
/// # Errors
///
/// All faults of the item, combined into one error.
pub(crate) fn message(input: &DeriveInput) -> syn::Result<Message> {
    let mut errors = Errors::default();
    refuse_lifetimes(&input.generics, &mut errors);
    misplaced(&input.attrs, "tensor", "#[tensor(..)] belongs on a field, not on the type", &mut errors);
    let container = errors.take(container::parse(&input.ident, &input.attrs));
    if let Some(container) = &container {
        refuse::reply(&container.reply, &mut errors);
    }

    let body = match &input.data {
        Data::Struct(data) => Some(Body::Struct(fields(&data.fields, None, &mut errors))),
        Data::Enum(data) => {
            Some(Body::Enum(data.variants.iter().map(|syntax| variant(syntax, &mut errors)).collect()))
        }
        Data::Union(data) => {
            errors.push(
                data.union_token,
                "a union cannot be a message, because nothing says which of its fields is valid; use an enum",
            );
            None
        }
    };

    errors.finish()?;
    match (container, body) {
        (Some(container), Some(body)) => Ok(Message {
            ident: input.ident.clone(),
            generics: input.generics.clone(),
            name: container.name,
            reply: container.reply,
            root: container.root,
            portable: container.portable,
            serde: serde_attrs(&input.attrs),
            body,
        }),
        // Unreachable: the missing part has pushed an error. Still, return an error here and do not panic.
        _ => Err(syn::Error::new(input.ident.span(), "cannot read this type as a message")),
    }
}

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// Adds an error that points at the whole of `at`.
    pub(crate) fn push(&mut self, at: impl ToTokens, message: impl std::fmt::Display) {
        self.add(syn::Error::new_spanned(at, message));
    }

    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Returns the value, or nothing with its error added.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// # Errors
    /// All errors that were found, if any.
    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

fn refuse_lifetimes(generics: &Generics, errors: &mut Errors) {
    for parameter in generics.lifetimes() {
        let lifetime = &parameter.lifetime;
        errors.push(
            lifetime,
            format_args!(
                "a message must be owned, because it leaves the process: remove the lifetime `{lifetime}` and own \
                 the data (String for &str, Vec<T> for &[T])"
            ),
        );
    }
}

fn variant(syntax: &syn::Variant, errors: &mut Errors) -> Variant {
    let name = syntax.ident.unraw();
    for attribute in ["tensor", "portable", "gpu_message"] {
        let belongs = if attribute == "gpu_message" { "the enum" } else { "a field of it" };
        misplaced(
            &syntax.attrs,
            attribute,
            &format!("variant `{name}`: #[{attribute}(..)] belongs on {belongs}, not on the variant"),
            errors,
        );
    }
    let serde = serde_attrs(&syntax.attrs);
    let fields = fields(&syntax.fields, Some((&name, &serde)), errors);
    Variant { ident: syntax.ident.clone(), serde, fields }
}

/// Reads the fields of a struct, or of the given variant.
fn fields(syntax: &syn::Fields, variant: Option<(&Ident, &SerdeAttrs)>, errors: &mut Errors) -> Fields {
    let style = match syntax {
        syn::Fields::Named(_) => Style::Named,
        syn::Fields::Unnamed(_) => Style::Tuple,
        syn::Fields::Unit => Style::Unit,
    };
    let variant_skipped = variant.is_some_and(|(_, serde)| serde.skips());
    let list = syntax
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let own =
                field.ident.as_ref().map_or_else(|| index.to_string(), |ident| ident.unraw().to_string());
            let label = variant.map_or_else(|| own.clone(), |(variant, _)| format!("{variant}.{own}"));
            one_field(field, index, label, variant_skipped, errors)
        })
        .collect();
    Fields { style, list }
}

fn one_field(
    syntax: &syn::Field,
    index: usize,
    label: String,
    variant_skipped: bool,
    errors: &mut Errors,
) -> Field {
    misplaced(
        &syntax.attrs,
        "gpu_message",
        &format!("field `{label}`: #[gpu_message(..)] belongs on the type, not on a field"),
        errors,
    );
    let serde = serde_attrs(&syntax.attrs);
    let skipped = variant_skipped || serde.skips();
    let check = errors.take(tensor::parse(&label, &syntax.attrs)).flatten();
    if check.is_some() && skipped {
        errors.push(
            &syntax.ty,
            format_args!(
                "field `{label}`: it is marked #[serde(skip)] and so is not sent, which leaves #[tensor(..)] \
                 nothing to check; remove one of the two"
            ),
        );
    }
    let portable_as = errors.take(container::portable_as(&label, &syntax.attrs)).flatten();
    refuse::field(&label, &syntax.ty, skipped, errors);

    let member = match &syntax.ident {
        Some(ident) => Member::Named(ident.clone()),
        // A tuple's arity fits any integer: rustc itself gives up far below 2^32 fields.
        None => {
            Member::Unnamed(Index { index: u32::try_from(index).unwrap_or(u32::MAX), span: syntax.ty.span() })
        }
    };
    Field { member, label, ty: syntax.ty.clone(), serde, check, portable_as }
}

/// Pushes `message` for each attribute called `name`, which has no meaning in its place.
fn misplaced(attrs: &[Attribute], name: &str, message: &str, errors: &mut Errors) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident(name)) {
        errors.push(attr, message);
    }
}

/// Collects the `#[serde(..)]` attributes. An attribute that does not parse keeps its tokens and has no keys:
/// serde's own derive reports it.
fn serde_attrs(attrs: &[Attribute]) -> SerdeAttrs {
    let mut found = SerdeAttrs::default();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
        let Meta::List(list) = &attr.meta else { continue };
        found.tokens.push(list.tokens.clone());
        let Ok(metas) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else {
            continue;
        };
        found.keys.extend(metas.iter().filter_map(|meta| meta.path().get_ident()).map(Ident::to_string));
        found.metas.extend(metas);
    }
    found
}

#[cfg(test)]
mod tests;
