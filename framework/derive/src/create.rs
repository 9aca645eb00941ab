//! How `#[stage]` and `#[actor]` make a value of the type: `Args`, `create` and `prepare`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{ItemImpl, Type};

use crate::methods::{Form, Method, Receiver, Value, method};
use crate::parse::Errors;

const CREATE: Form = Form {
    name: "create",
    receiver: Receiver::None,
    value: Value::May,
    shared: true,
    exclusive: false,
    not_async: Some(
        "all others of its thread would wait with it. What has to be waited for before the first message or item belongs \
         in `async fn prepare(&mut self, env: &Env) -> anyhow::Result<()>`",
    ),
    optional: false,
    written: "fn create(args: Args, env: &Env) -> anyhow::Result<Self>, without those that it does not need, or -> Self",
};

const PREPARE: Form = Form {
    name: "prepare",
    receiver: Receiver::Exclusive,
    value: Value::None,
    shared: true,
    exclusive: false,
    not_async: None,
    optional: true,
    written: "async fn prepare(&mut self, env: &Env) -> anyhow::Result<()>, without `env` where it does not need it",
};

/// The names that are taken.
pub(crate) const NAMES: [&str; 2] = [CREATE.name, PREPARE.name];

/// Returns the items of the impl that make a value of the type.
pub(crate) fn items(block: &ItemImpl, private: &TokenStream, errors: &mut Errors) -> TokenStream {
    let create = errors.take(method(block, &CREATE)).flatten();
    let prepare = errors.take(method(block, &PREPARE)).flatten();
    let args = create.as_ref().and_then(|create| create.value);
    let args = args.map_or_else(|| quote!(()), ToTokens::to_token_stream);
    let made = match &create {
        Some(create) => errors.take(made(create)).unwrap_or_default(),
        None => {
            let ty = &block.self_ty;
            let site = Span::mixed_site().located_at(ty.span());
            quote_spanned!(site=> <#ty as ::core::default::Default>::default())
        }
    };
    let prepare = prepare.and_then(|prepare| {
        let call = errors.take(prepare.call_for_nothing(&PREPARE))?;
        let cfgs = &prepare.cfgs;
        Some(quote_spanned! {Span::mixed_site()=>
            #(#cfgs)*
            async fn prepare(&mut self, shared: &#private::Env) -> #private::anyhow::Result<()> {
                #call
            }
        })
    });
    quote_spanned! {Span::mixed_site()=>
        type Args = #args;

        fn create(value: Self::Args, shared: &#private::Env) -> #private::anyhow::Result<Self> {
            let made = #made;
            ::core::result::Result::Ok(made)
        }

        #prepare
    }
}

/// Returns the call of `create`.
fn made(create: &Method<'_>) -> syn::Result<TokenStream> {
    match create.returns.value {
        Some(Type::ImplTrait(other)) => Err(CREATE.refusal(other, "returns something else than the type")),
        Some(_) => Ok(create.call()),
        None => Err(CREATE.refusal(&create.sig.ident, "returns nothing")),
    }
}
