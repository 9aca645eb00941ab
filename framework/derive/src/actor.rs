//! `#[actor]`: the `impl Actor`, `impl RemoteActor` and each `impl Handler` of a type, from the methods of an
//! `impl` block of it.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, ImplItem, ImplItemFn, ItemImpl, Meta, Path, Token, Type, parenthesized, parse_quote};

use crate::create;
use crate::methods::{self, Form, Method, Receiver, Value, is_handler, method};
use crate::parse::{Errors, crate_path, key, once};

const HANDLER: Form = Form {
    name: "a handler",
    receiver: Receiver::Exclusive,
    value: Value::Must("message"),
    shared: false,
    exclusive: true,
    not_async: Some(
        "it would borrow the actor for as long as it waits, and the actor could take nothing else. Return a \
         `ResponseFuture<Reply>`, as `Box::pin(async move { .. })` with clones of what it needs; or, where the future \
         needs the actor, a `ResponseActFuture<Self, Reply>`",
    ),
    optional: true,
    written: "fn found(&mut self, message: Found, ctx: &mut Context<Self>) -> Reply, without `ctx` where it does not need it",
};

const ASKED: Form = Form {
    value: Value::None,
    written: "fn look(&mut self, ctx: &mut Context<Self>) -> Reply, without `ctx` where it does not need it: its message is the \
              one that is named in #[handler(message = ..)]",
    ..HANDLER
};

const HANDLES: Form = Form {
    name: "handles",
    receiver: Receiver::None,
    value: Value::None,
    shared: false,
    exclusive: true,
    not_async: Some("it only fills a list"),
    optional: true,
    written: "fn handles(on: &mut Handles<Self>)",
};

const DEAD_LETTER: Form = Form {
    name: "dead_letter",
    receiver: Receiver::Exclusive,
    value: Value::Must("letter"),
    shared: false,
    exclusive: true,
    not_async: Some("the actor could take nothing else meanwhile; `ctx.spawn` runs a future beside it"),
    optional: true,
    written: "fn dead_letter(&mut self, letter: DeadLetter, ctx: &mut Context<Self>)",
};

const STARTED: Form = Form {
    name: "started",
    value: Value::None,
    written: "fn started(&mut self, ctx: &mut Context<Self>)",
    ..DEAD_LETTER
};

const STOPPED: Form =
    Form { name: "stopped", written: "fn stopped(&mut self, ctx: &mut Context<Self>)", ..STARTED };

const STOPPING: Form = Form {
    name: "stopping",
    written: "fn stopping(&mut self, ctx: &mut Context<Self>) -> actix::Running",
    ..STARTED
};

/// The settings of `#[actor(..)]`.
struct Settings {
    /// Messages whose handlers are written by hand.
    handles: Option<Vec<Type>>,
    root: Path,
}

/// A method with `#[handler]`.
struct Handler<'a> {
    function: &'a ImplItemFn,
    /// The name of a message without fields, which the macro writes.
    message: Option<Ident>,
    /// Whether its senders only want to know when it is done.
    acknowledged: bool,
}

/// Returns the block and the impls that follow from it, or the block with a `compile_error!` for each fault
/// in it.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut block = match methods::block("actor", item.clone()) {
        Ok(block) => block,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#error #item);
        }
    };
    let written = settings(arguments).and_then(|settings| implementation(&block, &settings));
    let written = written.unwrap_or_else(|errors| errors.to_compile_error());
    for item in &mut block.items {
        let ImplItem::Fn(function) = item else { continue };
        if function.attrs.iter().any(is_handler) || is_taken(&function.sig.ident.to_string()) {
            function.attrs.retain(|attribute| !is_handler(attribute));
            methods::excuse(function);
        }
    }
    quote!(#block #written)
}

fn is_taken(name: &str) -> bool {
    let forms = [HANDLES, DEAD_LETTER, STARTED, STOPPING, STOPPED];
    forms.iter().map(|form| form.name).chain(create::NAMES).any(|taken| taken == name)
}

fn settings(arguments: TokenStream) -> syn::Result<Settings> {
    let (mut handles, mut root) = (None, None);
    let parser = syn::meta::parser(|meta: ParseNestedMeta<'_>| {
        match key(&meta).as_str() {
        "handles" => once("actor", &mut handles, &meta, |meta| {
            let messages;
            parenthesized!(messages in meta.input);
            Ok(Punctuated::<Type, Token![,]>::parse_terminated(&messages)?.into_iter().collect())
        }),
        "crate" => once("actor", &mut root, &meta, crate_path),
        other => Err(meta.error(format_args!(
            "unknown key `{other}`; #[actor(..)] takes handles(First, ..), for messages whose `impl Handler` is written by \
             hand, and crate = path"
        ))),
    }
    });
    parser.parse2(arguments)?;
    Ok(Settings { handles, root: root.unwrap_or_else(|| parse_quote!(::tensorpost)) })
}

/// # Errors
/// All faults of the block.
fn implementation(block: &ItemImpl, settings: &Settings) -> syn::Result<TokenStream> {
    let Settings { handles, root } = settings;
    let private = quote!(#root::__private);
    let mut errors = Errors::default();
    let marked: Vec<_> = methods::methods(block)
        .filter(|function| function.attrs.iter().any(is_handler))
        .filter_map(|function| errors.take(handler(function)))
        .collect();
    let by_hand = errors.take(method(block, &HANDLES)).flatten();
    if marked.is_empty() && handles.is_none() && by_hand.is_none() {
        errors.push(
            &block.self_ty,
            "no method is marked with #[handler], so this actor takes no message. For one whose handlers are written by hand \
             list the messages, as #[actor(handles(First, Second))]",
        );
    }
    let mut seen = HashSet::new();
    let (mut entries, mut handlers) = (TokenStream::new(), TokenStream::new());
    for handler in &marked {
        let form = if handler.message.is_some() { &ASKED } else { &HANDLER };
        let Some(method) = errors.take(form.read(handler.function)) else { continue };
        let message = match (&handler.message, method.value) {
            (Some(message), _) => message.to_token_stream(),
            (None, value) => value.to_token_stream(),
        };
        // Two handlers of one message would be two impls of one trait. Report that here, at the user's
        // method.
        if !seen.insert(message.to_token_stream().to_string()) {
            errors.push(message, "another method is the handler of this message");
            continue;
        }
        let Some(written) = errors.take(handles_one(block, &method, &message, &private)) else { continue };
        let cfgs = &method.cfgs;
        if let Some(name) = &handler.message
            && let Some(question) = errors.take(question(name, handler.function, &method, root))
        {
            handlers.extend(quote!(#(#cfgs)* #question));
        }
        handlers.extend(quote!(#(#cfgs)* #written));
        let enter = if handler.acknowledged { quote!(acknowledged) } else { quote!(message) };
        entries.extend(quote_spanned!(Span::mixed_site()=> #(#cfgs)* exclusive.#enter::<#message>();));
    }
    // Handlers written by hand need an entry in the list of messages, and no generated impl.
    for message in handles.iter().flatten() {
        entries.extend(quote_spanned!(Span::mixed_site()=> exclusive.message::<#message>();));
    }
    if let Some(by_hand) = by_hand {
        let (call, cfgs) = (by_hand.call(), &by_hand.cfgs);
        entries.extend(quote!(#(#cfgs)* { #call; }));
    }
    let create = create::items(block, &private, &mut errors);
    let dead_letter = hook(block, &DEAD_LETTER, &private, &mut errors);
    let hooks = [STARTED, STOPPING, STOPPED].map(|form| hook(block, &form, &private, &mut errors));
    // Report all faults of the block together, before anything is generated.
    errors.finish()?;

    let (ty, (impl_generics, _, where_clause)) = (&block.self_ty, block.generics.split_for_impl());
    Ok(quote_spanned! {Span::mixed_site()=>
        #[automatically_derived]
        #[allow(unused_variables, clippy::needless_question_mark)]
        impl #impl_generics #private::actix::Actor for #ty #where_clause {
            type Context = #private::actix::Context<Self>;

            #(#hooks)*
        }

        #[automatically_derived]
        #[allow(unused_variables, clippy::needless_question_mark)]
        impl #impl_generics #private::RemoteActor for #ty #where_clause {
            #create

            fn handles(exclusive: &mut #private::Handles<Self>) {
                #entries
            }

            #dead_letter
        }

        #handlers
    })
}

/// Reads the `#[handler]` mark of a method.
fn handler(function: &ImplItemFn) -> syn::Result<Handler<'_>> {
    let mut marks = function.attrs.iter().filter(|attribute| is_handler(attribute));
    let (mut acknowledged, mut message) = (None, None);
    if let Some(mark) = marks.next()
        && !matches!(mark.meta, Meta::Path(_))
    {
        mark.parse_nested_meta(|meta| match key(&meta).as_str() {
            "acknowledged" => once("handler", &mut acknowledged, &meta, |_| Ok(())),
            "message" => once("handler", &mut message, &meta, |meta| meta.value()?.parse()),
            other => Err(meta.error(format_args!(
                "unknown key `{other}`; #[handler(..)] takes message = Look, which writes that message without fields, and \
                 acknowledged, for messages that are asked only to know when they are done with"
            ))),
        })?;
    }
    if let Some(second) = marks.next() {
        return Err(Error::new_spanned(second, "the method is marked with #[handler] already"));
    }
    let name = function.sig.ident.to_string();
    if is_taken(&name) {
        let why = format!("`{name}` is a method of every actor; a handler needs another name");
        return Err(Error::new_spanned(&function.sig.ident, why));
    }
    Ok(Handler { function, message, acknowledged: acknowledged.is_some() })
}

/// Returns a message without fields, with the docs and the visibility of its handler.
fn question(
    name: &Ident,
    function: &ImplItemFn,
    method: &Method<'_>,
    root: &Path,
) -> syn::Result<TokenStream> {
    let output = method.returns.output;
    let later =
        |name| output.and_then(|output| methods::arguments(output, name)).and_then(|of| of.last().copied());
    let reply =
        ["ResponseFuture", "ResponseActFuture", "AtomicResponse"].into_iter().find_map(later).or(output);
    if let Some(of) = output.filter(|output| methods::arguments(output, "MessageResult").is_some()) {
        return Err(ASKED.refusal(of, "has to return the reply itself, which becomes the one of the message"));
    }
    let reply = reply.map_or_else(|| quote!(()), ToTokens::to_token_stream);
    let docs = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let (vis, private) = (&function.vis, quote!(#root::__private));
    let serde = quote!(#private::serde).to_string();
    Ok(quote! {
        #(#docs)*
        #[derive(
            ::core::clone::Clone,
            ::core::marker::Copy,
            ::core::fmt::Debug,
            #private::serde::Serialize,
            #private::serde::Deserialize,
            #private::GpuMessage,
        )]
        #[serde(crate = #serde)]
        #[gpu_message(reply = #reply, crate = #root)]
        #vis struct #name;
    })
}

/// The actix types of replies that resolve later, or that name their message themselves.
const AS_THEY_ARE: [&str; 4] = ["ResponseFuture", "ResponseActFuture", "AtomicResponse", "MessageResult"];

/// Returns the `impl Handler` of one message.
fn handles_one(
    block: &ItemImpl,
    method: &Method<'_>,
    message: &TokenStream,
    private: &TokenStream,
) -> syn::Result<TokenStream> {
    let output = method.returns.output;
    let call = method.plain_call();
    let (result, body) = match output {
        Some(Type::ImplTrait(future)) => {
            let what = "cannot return an `impl` type, because its trait has to name it. A reply that comes later is a \
                        `ResponseFuture<Reply>`, and the future goes into a `Box::pin(..)`";
            return Err(HANDLER.refusal(future, what));
        }
        Some(output) if AS_THEY_ARE.iter().any(|name| methods::arguments(output, name).is_some()) => {
            (output.to_token_stream(), call)
        }
        // Putting the reply into this type checks that it is the message's reply: the error is at the user's
        // type.
        _ => {
            let site = Span::mixed_site().located_at(output.map_or(method.sig.ident.span(), Spanned::span));
            let result = quote!(#private::actix::MessageResult<#message>);
            let body = quote_spanned! {site=>
                let reply: <#message as #private::actix::Message>::Result = #call;
                #private::actix::MessageResult(reply)
            };
            (result, body)
        }
    };
    let (ty, (impl_generics, _, where_clause)) = (&block.self_ty, block.generics.split_for_impl());
    Ok(quote_spanned! {Span::mixed_site()=>
        #[automatically_derived]
        #[allow(unused_variables, clippy::let_unit_value)]
        impl #impl_generics #private::actix::Handler<#message> for #ty #where_clause {
            type Result = #result;

            fn handle(
                &mut self,
                value: #message,
                exclusive: &mut #private::actix::Context<Self>,
            ) -> Self::Result {
                #body
            }
        }
    })
}

/// Returns a method that actix or the framework calls, where the block has it.
fn hook(block: &ItemImpl, form: &Form, private: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let method = errors.take(method(block, form))??;
    let (name, cfgs, call) = (&method.sig.ident, &method.cfgs, method.plain_call());
    let letter = (form.name == DEAD_LETTER.name)
        .then(|| quote_spanned!(Span::mixed_site()=> value: #private::DeadLetter,));
    let output = (form.name == STOPPING.name).then(|| quote!(-> #private::actix::Running));
    let returned = method.sig.output.to_token_stream();
    if output.is_none() && !returned.is_empty() {
        errors.add(form.refusal(&returned, "returns nothing"));
    }
    Some(quote_spanned! {Span::mixed_site()=>
        #(#cfgs)*
        fn #name(&mut self, #letter exclusive: &mut #private::actix::Context<Self>) #output {
            #call
        }
    })
}

#[cfg(test)]
mod tests;
