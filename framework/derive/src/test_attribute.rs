//! The attribute for tests that start nodes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, ItemFn};

use crate::main_attribute::by_style;

/// Returns the function as a libtest test, with the call that begins such a test in front of its body.
pub(crate) fn expand(arguments: &TokenStream, function: &ItemFn) -> TokenStream {
    if let Err(error) = check(arguments, function) {
        return error.to_compile_error();
    }
    let ItemFn { attrs, vis, sig, block } = function;
    let (outer, inner) = by_style(attrs);
    quote! {
        #(#outer)*
        #[::core::prelude::v1::test]
        #vis #sig {
            #(#inner)*
            let _begun = ::tensorpost::__private::begin_test();
            #block
        }
    }
}

fn check(arguments: &TokenStream, function: &ItemFn) -> Result<(), Error> {
    let sig = &function.sig;
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "`#[tensorpost::test]` takes no arguments"));
    }
    if sig.asyncness.is_some() {
        let why = "a test that starts a node is no async function; wait in it with `node.block_on(…)`";
        return Err(Error::new_spanned(sig.asyncness, why));
    }
    if !sig.inputs.is_empty() || !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(sig, "a test has no parameters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: &str, function: &str) -> String {
        let arguments = arguments.parse().expect("tokens");
        expand(&arguments, &syn::parse_str(function).expect("a function")).to_string()
    }

    #[test]
    fn what_libtest_runs_begins_the_test() {
        let test = expanded("", "#[should_panic] fn it_works() -> anyhow::Result<()> { Ok(()) }");
        assert!(
            test.starts_with("# [should_panic] # [:: core :: prelude :: v1 :: test] fn it_works ()"),
            "{test}"
        );
        assert!(test.contains("begin_test"), "{test}");
    }

    #[test]
    fn what_is_no_test_is_refused() {
        for (arguments, function, why) in [
            ("workers = 2", "fn a() {}", "takes no arguments"),
            ("", "async fn a() {}", "no async function"),
            ("", "fn a(_: u8) {}", "no parameters"),
            ("", "fn a<T>() {}", "no parameters"),
        ] {
            let refused = expanded(arguments, function);
            assert!(refused.contains("compile_error") && refused.contains(why), "{refused}");
        }
    }
}
