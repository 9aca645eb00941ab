//! The where clause of a generic message.
//!
//! `GpuMessage` needs `Serialize`, `DeserializeOwned`, `Send` and `'static` of the message. The bounds on the
//! type parameters follow serde's own rule: a parameter that occurs in a field, outside `PhantomData`, must
//! have them too; so must an associated type (`T::Item`) that is a field's type. Where a serde attribute
//! changes that rule (`bound`, `with`, `skip`, …), the clause puts the bounds on `Self`, which is right for
//! anything that serde derived.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Path, Type, WhereClause, parse_quote, visit::Visit};

use crate::ir::Message;

/// Serde attributes with which serde's impls no longer follow from bounds on the parameters.
const CUSTOM_BOUNDS: &[&str] = &[
    "bound",
    "with",
    "serialize_with",
    "deserialize_with",
    "skip",
    "skip_serializing",
    "skip_deserializing",
    "default",
    "from",
    "try_from",
    "into",
    "getter",
    "remote",
];

/// Returns the where clause of the generated impls: the type's own bounds, and the bounds that the traits
/// need.
pub(crate) fn where_clause(message: &Message, private: &TokenStream) -> Option<WhereClause> {
    let params: BTreeSet<String> =
        message.generics.type_params().map(|param| param.ident.to_string()).collect();
    if params.is_empty() {
        return message.generics.where_clause.clone();
    }
    let mut clause = message.generics.where_clause.clone().unwrap_or_else(|| parse_quote!(where));
    let serde = quote!(#private::serde);
    let sent = quote!(#serde::Serialize + #serde::de::DeserializeOwned + ::core::marker::Send + 'static);

    // With such attributes serde's bounds do not follow from the parameters, so bound the type itself.
    if message.serde_attrs().any(|attrs| attrs.has_any(CUSTOM_BOUNDS)) {
        clause.predicates.push(parse_quote!(Self: #sent));
        let reply = &message.reply;
        if Usage::of(reply, &params).any() {
            clause.predicates.push(parse_quote!(#reply: #sent));
        }
    } else {
        let mut used = Usage::of(&message.reply, &params);
        message.fields().for_each(|field| used.field(&field.ty));
        for param in message.generics.type_params().map(|param| &param.ident) {
            if used.found.contains(&param.to_string()) {
                clause.predicates.push(parse_quote!(#param: #sent));
            } else {
                clause.predicates.push(parse_quote!(#param: ::core::marker::Send + 'static));
            }
        }
        for ty in &used.associated {
            clause.predicates.push(parse_quote!(#ty: #sent));
        }
    }

    // The generated `check` calls `CheckTensors` on these fields.
    for field in message.fields().filter(|field| field.check.is_some()) {
        let ty = &field.ty;
        if Usage::of(ty, &params).any() {
            clause.predicates.push(parse_quote!(#ty: #private::CheckTensors));
        }
    }
    Some(clause)
}

/// Adds to the clause that the parameters of sent fields have a portable schema too.
pub(crate) fn portable(message: &Message, private: &TokenStream, clause: &mut Option<WhereClause>) {
    let params: BTreeSet<String> =
        message.generics.type_params().map(|param| param.ident.to_string()).collect();
    if params.is_empty() {
        return;
    }
    let mut used = Usage::of(&message.reply, &params);
    for field in message.fields().filter(|field| !field.serde.skips()) {
        used.field(field.portable_as.as_ref().unwrap_or(&field.ty));
    }
    let clause = clause.get_or_insert_with(|| parse_quote!(where));
    for param in message.generics.type_params().map(|param| &param.ident) {
        if used.found.contains(&param.to_string()) {
            clause.predicates.push(parse_quote!(#param: #private::Portable));
        } else {
            clause.predicates.push(parse_quote!(#param: 'static));
        }
    }
    for ty in &used.associated {
        clause.predicates.push(parse_quote!(#ty: #private::Portable));
    }
}

/// Collects the type parameters that occur in the visited types.
struct Usage<'a> {
    params: &'a BTreeSet<String>,
    found: BTreeSet<String>,
    /// Types such as `T::Item`.
    associated: Vec<Type>,
}

impl<'a> Usage<'a> {
    fn of(ty: &Type, params: &'a BTreeSet<String>) -> Self {
        let mut usage = Self { params, found: BTreeSet::new(), associated: Vec::new() };
        usage.field(ty);
        usage
    }

    fn any(&self) -> bool {
        !self.found.is_empty() || !self.associated.is_empty()
    }

    fn field(&mut self, ty: &Type) {
        self.visit_type(ty);
        if let Type::Path(path) = ungrouped(ty)
            && path.path.segments.len() > 1
            && path.path.segments.first().is_some_and(|first| self.params.contains(&first.ident.to_string()))
        {
            self.associated.push(ty.clone());
        }
    }
}

impl<'ast> Visit<'ast> for Usage<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        if path.segments.last().is_some_and(|last| last.ident == "PhantomData") {
            return;
        }
        if let Some(ident) = path.get_ident()
            && self.params.contains(&ident.to_string())
        {
            self.found.insert(ident.to_string());
        }
        syn::visit::visit_path(self, path);
    }
}

/// Returns the type without the invisible groups that `macro_rules!` puts around its arguments.
fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        _ => ty,
    }
}

#[cfg(test)]
mod tests;
