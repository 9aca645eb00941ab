//! From [`ir`](crate::ir) to the two impls: `actix::Message` and `GpuMessage`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;

use crate::{
    bounds,
    ir::{Body, Field, Message, TensorCheck},
    portable, schema,
};

/// Returns everything that the derive adds to the type.
///
/// # Errors
/// The reasons why a message marked as portable cannot be portable.
pub(crate) fn impls(message: &Message) -> syn::Result<TokenStream> {
    let Message { ident, name, reply, root, .. } = message;
    let private = quote!(#root::__private);
    let (impl_generics, ty_generics, _) = message.generics.split_for_impl();
    let mut where_clause = bounds::where_clause(message, &private);
    let mut portable = portable::Impls::default();
    // Extend the where clause first: all generated impls share it.
    if message.portable {
        bounds::portable(message, &private, &mut where_clause);
        portable = portable::of_message(message, &private, &where_clause)?;
    }
    // Without `portable` the attribute would have no effect, so refuse it rather than ignore it.
    if let Some(ty) =
        message.fields().filter(|_| !message.portable).find_map(|field| field.portable_as.as_ref())
    {
        return Err(syn::Error::new_spanned(
            ty,
            "#[portable(as = ..)] says what a field is in a portable message; add `portable` to the type's #[gpu_message(..)]",
        ));
    }
    let portable::Impls { constant, portable } = portable;
    let schema = schema::hash(message);
    let checks = checks(message, &private);
    let may_hold = may_hold(message, &private);
    let reply_check = reply_check(message, &private);

    Ok(quote! {
        #reply_check
        #portable

        #[automatically_derived]
        impl #impl_generics #private::actix::Message for #ident #ty_generics #where_clause {
            type Result = #reply;
        }

        #[automatically_derived]
        impl #impl_generics #private::GpuMessage for #ident #ty_generics #where_clause {
            type Reply = #reply;
            const NAME: &'static str = #name;
            const SCHEMA: u64 = #schema;
            #constant
            #may_hold

            #[allow(deprecated)]
            fn check(&self) -> ::core::result::Result<(), #private::TensorCheckError> {
                #checks
                ::core::result::Result::Ok(())
            }
        }
    })
}

/// Returns the constants that say whether the message, and its reply, can hold tensors.
fn may_hold(message: &Message, private: &TokenStream) -> TokenStream {
    let fields: Vec<_> = match &message.body {
        Body::Struct(fields) => fields.list.iter().collect(),
        Body::Enum(variants) => variants.iter().flat_map(|variant| &variant.fields.list).collect(),
    };
    let types = fields.iter().map(|field| &field.ty);
    let reply = &message.reply;
    quote! {
        const MAY_HOLD_TENSORS: bool = {
            #[allow(unused_imports)]
            use #private::Otherwise as _;
            false #(|| #private::Probe::<#types>::MAY_HOLD_TENSORS)*
        };
        const REPLY_MAY_HOLD_TENSORS: bool = {
            #[allow(unused_imports)]
            use #private::Otherwise as _;
            #private::Probe::<#reply>::MAY_HOLD_TENSORS
        };
    }
}

/// Makes the compiler report the traits that a reply lacks. Where there are type parameters, the where clause
/// reports it.
fn reply_check(message: &Message, private: &TokenStream) -> TokenStream {
    let reply = &message.reply;
    if message.generics.params.iter().next().is_some() {
        return TokenStream::new();
    }
    quote_spanned! { reply.span() =>
        const _: () = {
            const fn __tensorpost_reply<R: #private::SentBack>() {}
            __tensorpost_reply::<#reply>()
        };
    }
}

/// Returns the statements that run every `#[tensor(..)]` of the message.
fn checks(message: &Message, private: &TokenStream) -> TokenStream {
    match &message.body {
        Body::Struct(fields) => {
            let (pattern, checks) = bind(&fields.list, &message.name, private);
            if checks.is_empty() {
                return TokenStream::new();
            }
            quote! {
                let Self { #pattern .. } = self;
                #checks
            }
        }
        Body::Enum(variants) => {
            let arms: Vec<_> = variants
                .iter()
                .filter_map(|variant| {
                    let (pattern, checks) = bind(&variant.fields.list, &message.name, private);
                    let ident = &variant.ident;
                    (!checks.is_empty()).then(|| quote!(Self::#ident { #pattern .. } => { #checks }))
                })
                .collect();
            if arms.is_empty() {
                return TokenStream::new();
            }
            let rest = (arms.len() < variants.len()).then(|| quote!(_ => {}));
            quote!(match self { #(#arms)* #rest })
        }
    }
}

/// Returns the part of a pattern that binds the fields with a check, and their checks.
fn bind(fields: &[Field], name: &str, private: &TokenStream) -> (TokenStream, TokenStream) {
    let (mut pattern, mut checks) = (TokenStream::new(), TokenStream::new());
    for (index, field) in fields.iter().enumerate() {
        let Some(check) = &field.check else { continue };
        let member = &field.member;
        let binding = format_ident!("__field_{index}", span = Span::mixed_site());
        pattern.extend(quote!(#member: #binding,));
        checks.extend(one_check(field, check, &binding, name, private));
    }
    (pattern, checks)
}

/// Returns one call, located at the field's type: a type with no tensors in it is reported there.
fn one_check(
    field: &Field,
    check: &TensorCheck,
    binding: &Ident,
    name: &str,
    private: &TokenStream,
) -> TokenStream {
    let Field { ty, label, .. } = field;
    let spec = spec(check, private);
    let located = Span::mixed_site().located_at(ty.span());
    // The binding keeps its resolution, and is located at the type.
    let binding = Ident::new(&binding.to_string(), located);
    let call = quote_spanned!(located=> <#ty as #private::CheckTensors>::check_tensors(#binding, #spec));
    quote! {
        if let ::core::result::Result::Err(__mismatch) = #call {
            return ::core::result::Result::Err(__mismatch.in_field(#name, #label));
        }
    }
}

/// Returns a `&'static TensorSpec`. It is an inline constant, because a shape may name a const parameter of
/// the message, which a `const` item could not.
pub(crate) fn spec(check: &TensorCheck, private: &TokenStream) -> TokenStream {
    let dtype = option(check.dtype.map(|dtype| {
        let variant = Ident::new(dtype.variant(), Span::call_site());
        quote!(#private::DType::#variant)
    }));
    let shape = option(check.shape.as_ref().map(|shape| {
        let entries = shape.iter().map(|entry| option(entry.as_ref().map(|size| quote!(#size))));
        quote!(&[#(#entries),*])
    }));
    let device = option(check.device.map(|device| {
        let variant = Ident::new(device.variant(), Span::call_site());
        quote!(#private::DeviceKind::#variant)
    }));
    quote!(const { &#private::TensorSpec { dtype: #dtype, shape: #shape, device: #device } })
}

fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

#[cfg(test)]
mod tests;
