//! The attribute for `main`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, ItemFn, Lit, MetaNameValue, Token};

/// Returns the function as `main`; an `async` function runs inside a runtime.
pub(crate) fn expand(arguments: TokenStream, function: &ItemFn) -> TokenStream {
    expanded(arguments, function).unwrap_or_else(|error| error.to_compile_error())
}

fn expanded(arguments: TokenStream, function: &ItemFn) -> Result<TokenStream, Error> {
    let ItemFn { attrs, vis, sig, block } = function;
    if sig.ident != "main" || !sig.inputs.is_empty() || !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(sig, "`#[tensorpost::main]` is for `fn main()`"));
    }
    // The call makes the linker keep the code that takes over a worker before `main`. Where that code could not
    // run, the call takes the worker over.
    let name = quote!(::tensorpost::__private::before_main());
    if sig.asyncness.is_none() {
        if !arguments.is_empty() {
            return Err(Error::new_spanned(arguments, "a `main` that is not `async` has no runtime to set"));
        }
        return Ok(quote! {
            #(#attrs)*
            #vis #sig {
                #name;
                #block
            }
        });
    }
    let settings = Punctuated::<MetaNameValue, Token![,]>::parse_terminated.parse2(arguments)?;
    let (mut flavor, mut calls) = (format_ident!("new_multi_thread"), TokenStream::new());
    for setting in &settings {
        let key = setting.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match (key.as_str(), &setting.value) {
            ("flavor", Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => match text.value().as_str() {
                "multi_thread" => {}
                "current_thread" => flavor = format_ident!("new_current_thread"),
                _ => {
                    return Err(Error::new_spanned(
                        text,
                        "a flavor is \"multi_thread\" or \"current_thread\"",
                    ));
                }
            },
            ("worker_threads", count) => calls.extend(quote!(.worker_threads(#count))),
            _ => {
                let why = "it is `flavor = \"multi_thread\"`, `flavor = \"current_thread\"` or `worker_threads = 4`";
                return Err(Error::new_spanned(setting, why));
            }
        }
    }
    let mut sig = sig.clone();
    // `main` itself cannot be `async`: its body becomes a future that the runtime runs.
    sig.asyncness = None;
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            #name;
            let runtime = ::tensorpost::__private::tokio::runtime::Builder::#flavor() #calls .enable_all().build();
            runtime.expect("a runtime for `main`").block_on(async #block)
        }
    })
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
    fn what_is_no_main_and_what_no_runtime_has_is_refused() {
        for (arguments, function, why) in [
            ("", "fn begin() {}", "is for `fn main()`"),
            ("", "fn main(_: u8) {}", "is for `fn main()`"),
            ("flavor = \"current_thread\"", "fn main() {}", "no runtime to set"),
            ("flavor = \"fast\"", "async fn main() {}", "a flavor is"),
            ("threads = 4", "async fn main() {}", "worker_threads = 4"),
        ] {
            let refused = expanded(arguments, function);
            assert!(refused.contains("compile_error") && refused.contains(why), "{refused}");
        }
    }
}
