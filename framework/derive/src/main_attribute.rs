//! The attribute for `main`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{AttrStyle, Attribute, Error, Expr, ExprLit, ItemFn, Lit, MetaNameValue, Token};

/// Returns the function as `main`; an `async` function runs inside a runtime.
pub(crate) fn expand(arguments: TokenStream, function: &ItemFn) -> TokenStream {
    expanded(arguments, function).unwrap_or_else(|error| error.to_compile_error())
}

fn expanded(arguments: TokenStream, function: &ItemFn) -> Result<TokenStream, Error> {
    check(function)?;
    let ItemFn { attrs, vis, sig, block } = function;
    let (outer, inner) = by_style(attrs);
    // The call makes the linker keep the code that takes over a worker before `main`. If that code could not
    // run, the call takes the worker over.
    let begin = quote!(::tensorpost::__private::before_main(););
    if sig.asyncness.is_none() {
        if !arguments.is_empty() {
            return Err(Error::new_spanned(arguments, "a `main` that is not `async` has no runtime to set"));
        }
        return Ok(quote! {
            #(#outer)*
            #vis #sig {
                #(#inner)*
                #begin
                #block
            }
        });
    }
    let builder = builder(arguments)?;
    let mut sig = sig.clone();
    // `main` itself cannot be `async`: its body becomes a future that the runtime runs.
    sig.asyncness = None;
    Ok(quote! {
        #(#outer)*
        #vis #sig {
            #(#inner)*
            #begin
            let runtime = ::tensorpost::__private::tokio::runtime::Builder::#builder.enable_all().build();
            runtime.expect("a runtime for `main`").block_on(async #block)
        }
    })
}

/// Returns the attributes that stand before a function, and those that stand at the beginning of its body.
pub(crate) fn by_style(attrs: &[Attribute]) -> (Vec<&Attribute>, Vec<&Attribute>) {
    attrs.iter().partition(|attr| matches!(attr.style, AttrStyle::Outer))
}

fn check(function: &ItemFn) -> Result<(), Error> {
    let ItemFn { attrs, sig, .. } = function;
    if sig.ident != "main" {
        return Err(Error::new_spanned(&sig.ident, "`#[tensorpost::main]` is for `fn main()`"));
    }
    if !sig.inputs.is_empty() {
        return Err(Error::new_spanned(
            &sig.inputs,
            "`main` has no parameters; `std::env::args()` has the arguments",
        ));
    }
    if !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(&sig.generics, "`main` has no generic parameters"));
    }
    let makes_a_runtime =
        |attr: &&Attribute| attr.path().segments.last().is_some_and(|last| last.ident == "main");
    match attrs.iter().find(makes_a_runtime) {
        Some(other) => {
            let why = "`#[tensorpost::main]` gives an `async fn main` its runtime; leave this attribute out";
            Err(Error::new_spanned(other, why))
        }
        None => Ok(()),
    }
}

/// Returns the call that makes the builder of the runtime, with its settings.
fn builder(arguments: TokenStream) -> Result<TokenStream, Error> {
    const MULTI: &str = "multi_thread";
    const CURRENT: &str = "current_thread";
    let settings = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(arguments)?;
    let (mut flavor, mut threads) = (None, None);
    for setting in &settings {
        let key = setting.path.get_ident().map(ToString::to_string).unwrap_or_default();
        let is_new = match (key.as_str(), &setting.value) {
            ("flavor", Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => {
                let value = text.value();
                if ![MULTI, CURRENT].contains(&value.as_str()) {
                    let why = "a flavor is \"multi_thread\" or \"current_thread\"";
                    return Err(Error::new_spanned(text, why));
                }
                flavor.replace(value).is_none()
            }
            ("worker_threads", Expr::Lit(ExprLit { lit: Lit::Int(count), .. }))
                if count.base10_parse::<usize>().ok() == Some(0) =>
            {
                return Err(Error::new_spanned(count, "a runtime has at least one of the `worker_threads`"));
            }
            ("worker_threads", count) => threads.replace(count).is_none(),
            _ => {
                let why = "it is `flavor = \"multi_thread\"`, `flavor = \"current_thread\"` or `worker_threads = 4`; a `main` \
                           that is not `async` may build any other runtime";
                return Err(Error::new_spanned(setting, why));
            }
        };
        if !is_new {
            return Err(Error::new_spanned(setting, format!("`{key}` is set twice")));
        }
    }
    match (flavor.as_deref(), threads) {
        (Some(CURRENT), Some(threads)) => {
            Err(Error::new_spanned(threads, "only the flavor \"multi_thread\" has `worker_threads`"))
        }
        (Some(CURRENT), None) => Ok(quote!(new_current_thread())),
        (_, Some(threads)) => Ok(quote!(new_multi_thread().worker_threads(#threads))),
        (_, None) => Ok(quote!(new_multi_thread())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: &str, function: &str) -> String {
        let arguments = arguments.parse().expect("tokens");
        expand(arguments, &syn::parse_str(function).expect("a function")).to_string()
    }

    #[test]
    fn a_main_stays_what_it_is_and_an_async_one_has_a_runtime() {
        let plain = expanded("", "fn main() -> anyhow::Result<()> { Ok(()) }");
        assert!(
            plain.starts_with("fn main () -> anyhow :: Result < () >") && !plain.contains("runtime"),
            "{plain}"
        );
        let one = expanded("flavor = \"current_thread\"", "async fn main() { work().await }");
        assert!(one.starts_with("fn main ()") && one.contains("new_current_thread () . enable_all"), "{one}");
        let four = expanded("worker_threads = 4", "async fn main() {}");
        assert!(four.contains("new_multi_thread () . worker_threads (4) . enable_all"), "{four}");
    }

    #[test]
    fn attributes_stay_where_they_are() {
        let main = "#[allow(dead_code)] pub async fn main() -> ExitCode { #![allow(unused)] work().await }";
        let one = expanded("flavor = \"multi_thread\", worker_threads = 1 + 1,", main);
        assert!(one.starts_with("# [allow (dead_code)] pub fn main () -> ExitCode {"), "{one}");
        assert!(one.find("[allow (unused)]") < one.find("before_main"), "{one}");
        assert!(one.contains("worker_threads (1 + 1)"), "{one}");
    }

    #[test]
    fn what_is_no_main_and_what_no_runtime_has_is_refused() {
        for (arguments, function, why) in [
            ("", "fn begin() {}", "is for `fn main()`"),
            ("", "fn main(_: u8) {}", "has no parameters"),
            ("", "fn main<T>() {}", "no generic parameters"),
            ("", "#[tokio::main] async fn main() {}", "leave this attribute out"),
            ("flavor = \"current_thread\"", "fn main() {}", "no runtime to set"),
            ("flavor = \"fast\"", "async fn main() {}", "a flavor is"),
            (
                "flavor = \"multi_thread\", flavor = \"current_thread\"",
                "async fn main() {}",
                "`flavor` is set twice",
            ),
            ("worker_threads = 0", "async fn main() {}", "at least one"),
            ("worker_threads = 1, worker_threads = 2", "async fn main() {}", "`worker_threads` is set twice"),
            ("worker_threads = 2, flavor = \"current_thread\"", "async fn main() {}", "only the flavor"),
            ("start_paused = true", "async fn main() {}", "any other runtime"),
            ("threads = 4", "async fn main() {}", "worker_threads = 4"),
        ] {
            let refused = expanded(arguments, function);
            assert!(refused.contains("compile_error") && refused.contains(why), "{refused}");
        }
    }
}
