//! `Portable`: the code by which a type describes its form on the wire.
//!
//! serde decides that form. So each serde attribute is either followed, or has no effect on the wire, or is
//! refused with a remedy. Unknown attributes are refused too.

mod serde_attrs;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{DeriveInput, Type, WhereClause, ext::IdentExt, spanned::Spanned};

use crate::{
    bounds, codegen,
    ir::{Body, Field, Fields, Message, Style},
    parse::{self, Errors},
};
use serde_attrs::{Container, Default, FieldAttrs, Repr, VariantAttrs};

/// The additional impls of a portable message.
#[derive(std::default::Default)]
pub(crate) struct Impls {
    /// Goes into the impl of `GpuMessage`.
    pub(crate) constant: TokenStream,
    /// The impl of `Portable`.
    pub(crate) portable: TokenStream,
}

/// Expands the derive of `Portable`, for types inside messages.
pub(crate) fn expand(input: &DeriveInput) -> TokenStream {
    let read = parse::message(input).and_then(|message| {
        let private = private(&message);
        let mut clause = message.generics.where_clause.clone();
        bounds::portable(&message, &private, &mut clause);
        implementation(&message, &private, &clause, &TokenStream::new())
    });
    read.unwrap_or_else(|errors| errors.to_compile_error())
}

fn private(message: &Message) -> TokenStream {
    let root = &message.root;
    quote!(#root::__private)
}

/// Returns the impls for a message with `#[gpu_message(portable)]`.
///
/// # Errors
/// Each names the field, the variant or the attribute that has no portable form, and the remedy.
pub(crate) fn of_message(
    message: &Message,
    private: &TokenStream,
    clause: &Option<WhereClause>,
) -> syn::Result<Impls> {
    // Use the span of the reply, so that the compiler reports a reply that is not portable there.
    let span = Span::mixed_site().located_at(message.reply.span());
    let describer = Ident::new("__describer", span);
    let parts = quote_spanned!(span=> |#describer| #describer.parts::<Self>());
    let constant = quote! {
        const PORTABLE: ::core::option::Option<#private::Describe> = ::core::option::Option::Some(#parts);
    };
    let text = quote! {
        fn schema() -> ::std::string::String {
            #private::schema_of::<Self>()
        }
    };
    Ok(Impls { constant, portable: implementation(message, private, clause, &text)? })
}

fn implementation(
    message: &Message,
    private: &TokenStream,
    clause: &Option<WhereClause>,
    text: &TokenStream,
) -> syn::Result<TokenStream> {
    let describer = Ident::new("__describer", Span::mixed_site());
    let mut code = Code { private, describer: &describer, errors: Errors::default() };
    let shape = code.message(message);
    code.errors.finish()?;
    let ident = &message.ident;
    let (impl_generics, ty_generics, _) = message.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #private::Portable for #ident #ty_generics #clause {
            #text

            fn describe(#describer: &mut #private::Describer) -> #private::Shape {
                #describer.named::<Self>(|#describer| #shape)
            }
        }
    })
}

struct Code<'a> {
    private: &'a TokenStream,
    /// The parameter of the function that the code goes into.
    describer: &'a Ident,
    errors: Errors,
}

impl Code<'_> {
    /// Returns the shape of the whole type.
    fn message(&mut self, message: &Message) -> TokenStream {
        let private = self.private;
        let container = Container::read(message, &mut self.errors);
        if let Some(wire) = &container.wire {
            return self.shape(wire, wire.span());
        }
        match &message.body {
            Body::Struct(fields) if container.transparent => {
                match fields.list.iter().find(|field| !field.serde.skips()) {
                    Some(field) => {
                        let attrs = FieldAttrs::read(field, &mut self.errors);
                        self.field_shape(field, &attrs)
                    }
                    // serde's own derive reports the missing field.
                    None => quote!(#private::Shape::Nil),
                }
            }
            Body::Struct(fields) => {
                let all_default = container.default;
                match fields.style {
                    Style::Named => {
                        let list = self.named(fields, &container.rename_all, all_default);
                        quote!(#private::Shape::structure([#(#list),*]))
                    }
                    Style::Tuple if fields.list.len() == 1 => self.newtype(&fields.list[0]),
                    Style::Tuple | Style::Unit => {
                        let list = self.places(fields);
                        quote!(#private::Shape::tuple([#(#list),*]))
                    }
                }
            }
            Body::Enum(variants) => {
                let repr = match &container.repr {
                    Repr::External => quote!(External),
                    Repr::Internal(tag) => quote!(internal(#tag)),
                    Repr::Adjacent(tag, content) => quote!(adjacent(#tag, #content)),
                    Repr::Untagged => quote!(Untagged),
                };
                let mut list = Vec::new();
                for variant in variants {
                    let attrs = VariantAttrs::read(variant, &mut self.errors);
                    if attrs.skip {
                        continue;
                    }
                    let name = attrs
                        .rename
                        .unwrap_or_else(|| container.rename_all.variant(&variant.ident.unraw().to_string()));
                    let rule = attrs.rename_all.unwrap_or(container.rename_all_fields);
                    let body = match variant.fields.style {
                        Style::Unit => quote!(Unit),
                        Style::Tuple if variant.fields.list.len() == 1 => {
                            let shape = self.newtype(&variant.fields.list[0]);
                            quote!(Newtype(#shape))
                        }
                        Style::Tuple => {
                            let list = self.places(&variant.fields);
                            quote!(tuple([#(#list),*]))
                        }
                        Style::Named => {
                            let list = self.named(&variant.fields, &rule, false);
                            quote!(structure([#(#list),*]))
                        }
                    };
                    list.push(quote!(#private::Variant::new(#name, #private::Body::#body)));
                }
                quote!(#private::Shape::variants(#private::Repr::#repr, [#(#list),*]))
            }
        }
    }

    fn named(&mut self, fields: &Fields, rule: &serde_attrs::Case, all_default: bool) -> Vec<TokenStream> {
        let private = self.private;
        let mut list = Vec::new();
        for field in &fields.list {
            let attrs = FieldAttrs::read(field, &mut self.errors);
            if attrs.skip {
                continue;
            }
            if attrs.left_out && !all_default && attrs.default == Default::No {
                self.errors.push(
                    &field.ty,
                    format_args!(
                        "field `{}`: it may be left out, and nothing says what it is then; add `default` to its \
                         #[serde(..)]",
                        field.label
                    ),
                );
            }
            let own = field.label.rsplit('.').next().unwrap_or_default();
            let name = attrs.rename.clone().unwrap_or_else(|| rule.field(own));
            let optional = all_default || attrs.default == Default::Yes;
            let shape = self.field_shape(field, &attrs);
            list.push(quote!(#private::Field::new(#name, #optional, #shape)));
        }
        list
    }

    fn places(&mut self, fields: &Fields) -> Vec<TokenStream> {
        let mut list = Vec::new();
        for field in &fields.list {
            let attrs = FieldAttrs::read(field, &mut self.errors);
            self.whole(field, &attrs);
            if !attrs.skip {
                list.push(self.field_shape(field, &attrs));
            }
        }
        list
    }

    fn newtype(&mut self, field: &Field) -> TokenStream {
        let attrs = FieldAttrs::read(field, &mut self.errors);
        self.whole(field, &attrs);
        if attrs.skip {
            self.errors.push(
                &field.ty,
                format_args!(
                    "field `{}`: it is all that there is, and is skipped; make the type, or the variant, a unit",
                    field.label
                ),
            );
        }
        self.field_shape(field, &attrs)
    }

    /// Refuses a field without a name that may be absent: its place identifies it.
    fn whole(&mut self, field: &Field, attrs: &FieldAttrs) {
        if attrs.left_out || attrs.default == Default::Yes {
            self.errors.push(
                &field.ty,
                format_args!(
                    "field `{}`: a field without a name cannot be absent from a portable message; give the fields names, \
                     or make it an Option and remove `default` and `skip_serializing_if`",
                    field.label
                ),
            );
        }
    }

    fn field_shape(&mut self, field: &Field, attrs: &FieldAttrs) -> TokenStream {
        if let Some(wire) = &field.portable_as {
            return self.shape(wire, wire.span());
        }
        let ty = &field.ty;
        let (describer, span) = (self.shown_at(ty.span()), Span::mixed_site().located_at(ty.span()));
        if attrs.bytes {
            return quote_spanned!(span=> #describer.bytes::<#ty>());
        }
        match &field.check {
            Some(check) => {
                let spec = codegen::spec(check, self.private);
                quote_spanned!(span=> #describer.checked::<#ty>(#spec))
            }
            None => self.shape(ty, ty.span()),
        }
    }

    /// Returns the call that describes `ty`. If `ty` is not portable, the compiler reports that at `span`.
    fn shape(&self, ty: &Type, span: Span) -> TokenStream {
        let (describer, span) = (self.shown_at(span), Span::mixed_site().located_at(span));
        quote_spanned!(span=> #describer.of::<#ty>())
    }

    /// Returns the describer's identifier, with its resolution kept and the location of `span`.
    fn shown_at(&self, span: Span) -> Ident {
        Ident::new(&self.describer.to_string(), Span::mixed_site().located_at(span))
    }
}

#[cfg(test)]
mod tests;
