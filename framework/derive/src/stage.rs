//! `#[stage]`: the `impl Stage`, `Source` or `Sink` of a type, from the methods of an `impl` block of it.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{Error, ImplItem, ItemImpl, Path, Type, parse_quote};

use crate::create;
use crate::methods::{self, Form, Method, Receiver, Value, argument, method};
use crate::parse::{Errors, crate_path, key, once};

const NOT_ASYNC: &str = "items are taken one after the other, and what a call puts on a stream goes on by itself. What is to \
                         be waited for before the first item belongs in `prepare`; `out.send` and `out.ask` of a stage \
                         talk to actors without waiting in the call";

const PROCESS: Form = Form {
    name: "process",
    receiver: Receiver::Exclusive,
    value: Value::Must("item"),
    shared: false,
    exclusive: true,
    not_async: Some(NOT_ASYNC),
    optional: false,
    written: "fn process(&mut self, item: In, out: &mut Out<Made>) -> anyhow::Result<()>, or where each item becomes one\n    \
              fn process(&mut self, item: In) -> anyhow::Result<Made>",
};

const NEXT: Form = Form {
    name: "next",
    receiver: Receiver::Exclusive,
    value: Value::None,
    shared: false,
    exclusive: false,
    not_async: Some(NOT_ASYNC),
    optional: false,
    written: "fn next(&mut self) -> anyhow::Result<Option<Made>>",
};

const CONSUME: Form = Form {
    name: "consume",
    receiver: Receiver::Exclusive,
    value: Value::Must("item"),
    shared: false,
    exclusive: false,
    not_async: Some(NOT_ASYNC),
    optional: false,
    written: "fn consume(&mut self, item: In) -> anyhow::Result<()>",
};

/// `finish` of a stage, which can still make results.
const FINISH: Form = Form {
    name: "finish",
    receiver: Receiver::Exclusive,
    value: Value::None,
    shared: false,
    exclusive: true,
    not_async: Some(NOT_ASYNC),
    optional: true,
    written: "fn finish(&mut self, out: &mut Out<Made>) -> anyhow::Result<()>, without `out` where it makes nothing",
};

const WAKE: Form = Form {
    name: "wake",
    written: "fn wake(&mut self, out: &mut Out<Made>) -> anyhow::Result<()>, with fn wake_at(&self) -> Option<Instant>",
    ..FINISH
};

const FINISH_OF_A_SINK: Form =
    Form { exclusive: false, written: "fn finish(&mut self) -> anyhow::Result<()>", ..FINISH };

const WAKE_AT: Form = Form {
    name: "wake_at",
    receiver: Receiver::Shared,
    exclusive: false,
    written: "fn wake_at(&self) -> Option<Instant>",
    ..FINISH
};

const LENGTH: Form = Form { name: "length", written: "fn length(&self) -> Option<u64>", ..WAKE_AT };

/// Returns the block and the impl that follows from it, or the block with a `compile_error!` for each fault
/// in it.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut block = match methods::block("stage", item.clone()) {
        Ok(block) => block,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let written = root(arguments).and_then(|root| implementation(&block, &root));
    let written = written.unwrap_or_else(|errors| errors.to_compile_error());
    for item in &mut block.items {
        if let ImplItem::Fn(function) = item
            && is_taken(&function.sig.ident.to_string())
        {
            methods::excuse(function);
        }
    }
    quote!(#block #written)
}

fn is_taken(name: &str) -> bool {
    let forms = [PROCESS, NEXT, CONSUME, FINISH, WAKE, WAKE_AT, LENGTH];
    forms.iter().map(|form| form.name).chain(create::NAMES).any(|taken| taken == name)
}

fn root(arguments: TokenStream) -> syn::Result<Path> {
    let mut root = None;
    let parser = syn::meta::parser(|meta: ParseNestedMeta<'_>| match key(&meta).as_str() {
        "crate" => once("stage", &mut root, &meta, crate_path),
        other => Err(meta.error(format_args!("unknown key `{other}`; #[stage(..)] takes crate = path"))),
    });
    parser.parse2(arguments)?;
    Ok(root.unwrap_or_else(|| parse_quote!(::tensorpost)))
}

/// # Errors
/// All faults of the block.
fn implementation(block: &ItemImpl, root: &Path) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let traits = [(PROCESS, "a stage"), (NEXT, "a source"), (CONSUME, "a sink")];
    let mut found = traits.iter().filter_map(|(form, kind)| {
        let function = methods::methods(block).find(|function| function.sig.ident == form.name)?;
        Some((form.name, *kind, &function.sig.ident))
    });
    let Some((name, kind, _)) = found.next() else {
        return Err(Error::new_spanned(
            &block.self_ty,
            format_args!(
                "nothing says what this does with items. A stage has\n    {}\na source\n    {}\nand a sink\n    {}",
                PROCESS.written, NEXT.written, CONSUME.written
            ),
        ));
    };
    if let Some((other, of, at)) = found.next() {
        let why = format!(
            "`{name}` makes this {kind}, and `{other}` would make it {of}; give one of them another name"
        );
        return Err(Error::new_spanned(at, why));
    }
    let private = quote!(#root::__private);
    let create = create::items(block, &private, &mut errors);
    let (name, items) = match name {
        "process" => (quote!(Stage), stage(block, root, &mut errors)),
        "next" => (quote!(Source), source(block, root, &mut errors)),
        _ => (quote!(Sink), sink(block, root, &mut errors)),
    };
    let items = items.unwrap_or_default();
    errors.finish()?;
    let (ty, (impl_generics, _, where_clause)) = (&block.self_ty, block.generics.split_for_impl());
    Ok(quote_spanned! {Span::mixed_site()=>
        #[automatically_derived]
        #[allow(unused_variables, clippy::needless_question_mark)]
        impl #impl_generics #root::pipeline::#name for #ty #where_clause {
            #create
            #items
        }
    })
}

fn stage(block: &ItemImpl, root: &Path, errors: &mut Errors) -> Option<TokenStream> {
    let process = errors.take(method(block, &PROCESS))??;
    let taken = process.value;
    let processed = errors.take(processed(&process));
    let wake_at = optional(block, &WAKE_AT, errors, |method| {
        let call = method.call();
        Ok(
            quote_spanned! { Span::mixed_site()=> fn wake_at(&self) -> ::core::option::Option<::std::time::Instant> { #call } },
        )
    });
    let [wake, finish] = [WAKE, FINISH].map(|form| {
        optional(block, &form, errors, |method| {
            let (name, call) = (&method.sig.ident, method.call_for_nothing(&form)?);
            let out = quote_spanned!(Span::mixed_site()=> exclusive: &mut #root::pipeline::Out<Self::Out>);
            Ok(quote_spanned! { Span::mixed_site()=> fn #name(&mut self, #out) -> #root::__private::anyhow::Result<()> { #call } })
        })
    });
    // Return only here, so that faults of the other methods are reported together with those of `process`.
    let (made, body) = processed?;
    Some(quote_spanned! {Span::mixed_site()=>
        type In = #taken;
        type Out = #made;

        fn process(
            &mut self,
            value: Self::In,
            exclusive: &mut #root::pipeline::Out<Self::Out>,
        ) -> #root::__private::anyhow::Result<()> {
            #body
        }

        #wake_at
        #wake
        #finish
    })
}

/// Returns the type that `process` makes, and the body of the trait's method.
fn processed(process: &Method<'_>) -> syn::Result<(TokenStream, TokenStream)> {
    let call = process.call();
    if let Some(out) = process.exclusive {
        let Some(Some(made)) = argument(out, "Out") else {
            return Err(PROCESS.refusal(out, "says what it makes by the type of `out`, an `Out<Made>`"));
        };
        if let Some(value) = process.returns.value {
            return Err(
                PROCESS.refusal(value, "has `out` for what it makes, and returns something beside it")
            );
        }
        return Ok((made.to_token_stream(), process.call_for_nothing(&PROCESS)?));
    }
    let site = Span::mixed_site();
    let (made, emit) = match process.returns.value {
        None => {
            let what = "makes nothing: it has no `out`, and returns nothing. What takes items and makes none is a sink, and \
                        has `consume` instead";
            return Err(PROCESS.refusal(&process.sig.ident, what));
        }
        Some(Type::ImplTrait(made)) => {
            return Err(PROCESS.refusal(made, "has to name the type of what it makes"));
        }
        Some(made) => match (argument(made, "Option"), argument(made, "Vec")) {
            (Some(Some(one)), _) | (_, Some(Some(one))) => (
                one,
                quote_spanned!(site=> ::core::iter::Iterator::for_each(
                    ::core::iter::IntoIterator::into_iter(made), |made| exclusive.emit(made)
                )),
            ),
            _ => (made, quote_spanned!(site=> exclusive.emit(made))),
        },
    };
    let body = quote_spanned! {site=>
        let made = #call;
        #emit;
        ::core::result::Result::Ok(())
    };
    Ok((made.to_token_stream(), body))
}

fn source(block: &ItemImpl, root: &Path, errors: &mut Errors) -> Option<TokenStream> {
    let next = errors.take(method(block, &NEXT))??;
    let length = optional(block, &LENGTH, errors, |method| {
        let call = method.call();
        Ok(quote_spanned! { Span::mixed_site()=> fn length(&self) -> ::core::option::Option<u64> { #call } })
    });
    let Some(Some(made)) = next.returns.value.and_then(|value| argument(value, "Option")) else {
        let what = "says its end by `None`";
        errors.add(match &next.sig.output {
            syn::ReturnType::Type(_, ty) => NEXT.refusal(ty, what),
            syn::ReturnType::Default => NEXT.refusal(&next.sig.ident, what),
        });
        return None;
    };
    let call = next.call();
    Some(quote_spanned! {Span::mixed_site()=>
        type Out = #made;

        fn next(&mut self) -> #root::__private::anyhow::Result<::core::option::Option<Self::Out>> {
            let made = #call;
            ::core::result::Result::Ok(made)
        }

        #length
    })
}

fn sink(block: &ItemImpl, root: &Path, errors: &mut Errors) -> Option<TokenStream> {
    let consume = errors.take(method(block, &CONSUME))??;
    let taken = consume.value;
    let finish = optional(block, &FINISH_OF_A_SINK, errors, |method| {
        let call = method.call_for_nothing(&FINISH_OF_A_SINK)?;
        Ok(
            quote_spanned! { Span::mixed_site()=> fn finish(&mut self) -> #root::__private::anyhow::Result<()> { #call } },
        )
    });
    let call = errors.take(consume.call_for_nothing(&CONSUME))?;
    Some(quote_spanned! {Span::mixed_site()=>
        type In = #taken;

        fn consume(&mut self, value: Self::In) -> #root::__private::anyhow::Result<()> {
            #call
        }

        #finish
    })
}

/// Returns a method for which the trait has a default, where the block has it.
fn optional(
    block: &ItemImpl,
    form: &Form,
    errors: &mut Errors,
    write: impl FnOnce(&Method<'_>) -> syn::Result<TokenStream>,
) -> Option<TokenStream> {
    let method = errors.take(method(block, form))??;
    let written = errors.take(write(&method))?;
    let cfgs = &method.cfgs;
    Some(quote!(#(#cfgs)* #written))
}

#[cfg(test)]
mod tests;
