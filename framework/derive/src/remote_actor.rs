//! The derive of plain actors: `Actor` and `RemoteActor`, from the list of their messages.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    Attribute, DeriveInput, Error, Path, Token, Type, parenthesized, parse_quote, punctuated::Punctuated,
};

use crate::parse::{key, once};

/// The settings of `#[remote_actor(..)]`.
#[derive(Default)]
struct Settings {
    handles: Option<Vec<Type>>,
    args: Option<Type>,
    create: Option<Path>,
    root: Option<Path>,
}

/// Returns the two impls for `input`, or a `compile_error!`.
pub(crate) fn expand(input: &DeriveInput) -> TokenStream {
    let settings = match settings(input) {
        Ok(settings) => settings,
        Err(error) => return error.to_compile_error(),
    };
    let Settings { handles, args, create, root } = settings;
    let root = root.unwrap_or_else(|| parse_quote!(::tensorpost));
    let private = quote!(#root::__private);
    let handles = handles.unwrap_or_default();
    let args = args.unwrap_or_else(|| parse_quote!(()));
    let create = match create {
        Some(create) => quote!(#create(args, env)),
        None => quote! {{
            let ((), _) = (args, env);
            ::core::result::Result::Ok(<Self as ::core::default::Default>::default())
        }},
    };
    let ident = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics #private::actix::Actor for #ident #ty_generics #where_clause {
            type Context = #private::actix::Context<Self>;
        }

        #[automatically_derived]
        impl #impl_generics #private::RemoteActor for #ident #ty_generics #where_clause {
            type Args = #args;

            fn create(args: Self::Args, env: &#private::Env) -> #private::anyhow::Result<Self> {
                #create
            }

            fn handles(on: &mut #private::Handles<Self>) {
                #(on.message::<#handles>();)*
                let _ = on;
            }
        }
    }
}

fn settings(input: &DeriveInput) -> syn::Result<Settings> {
    let mut settings = Settings::default();
    for attr in input.attrs.iter().filter(|attr| attr.path().is_ident("remote_actor")) {
        read(attr, &mut settings)?;
    }
    let ident = &input.ident;
    if settings.handles.is_none() {
        return Err(Error::new(
            ident.span(),
            format_args!(
                "`{ident}` does not say which messages it takes; write #[remote_actor(handles(First, Second))]"
            ),
        ));
    }
    if let (Some(args), None) = (&settings.args, &settings.create) {
        return Err(Error::new_spanned(
            args,
            format_args!(
                "nothing says how `{ident}` is made of its arguments; add create = {ident}::new, for a function of \
                 them and &Env with an anyhow::Result<Self>"
            ),
        ));
    }
    Ok(settings)
}

fn read(attr: &Attribute, settings: &mut Settings) -> syn::Result<()> {
    attr.parse_nested_meta(|meta| {
        let key = key(&meta);
        match key.as_str() {
            "handles" => once("remote_actor", &mut settings.handles, &meta, |meta| {
                let messages;
                parenthesized!(messages in meta.input);
                Ok(Punctuated::<Type, Token![,]>::parse_terminated(&messages)?.into_iter().collect())
            }),
            "args" => once("remote_actor", &mut settings.args, &meta, |meta| meta.value()?.parse()),
            "create" => once("remote_actor", &mut settings.create, &meta, |meta| meta.value()?.parse()),
            "crate" => once("remote_actor", &mut settings.root, &meta, |meta| meta.value()?.call(Path::parse_mod_style)),
            other => Err(meta.error(format_args!(
                "unknown key `{other}`; #[remote_actor(..)] takes handles(First, ..), args = Type, create = path and \
                 crate = path"
            ))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(actor: &str) -> String {
        expand(&syn::parse_str(actor).expect("a type")).to_string()
    }

    #[test]
    fn the_messages_are_listed_and_the_default_is_made() {
        let impls = expanded("#[remote_actor(handles(Add, Total,))] struct Sum<T: Copy>(T);");
        for part in
            ["on . message :: < Add > () ; on . message :: < Total > () ;", "type Args = () ;", "Default"]
        {
            assert!(impls.contains(part), "{part} is not in {impls}");
        }
        assert_eq!(impls.matches("impl < T : Copy > :: tensorpost").count(), 2, "{impls}");
    }

    #[test]
    fn arguments_go_to_the_function_that_is_named() {
        let attribute = "#[remote_actor(handles(), args = Address<Frame>, create = Self::new, crate = post)]";
        let impls = expanded(&format!("{attribute} struct Blur;"));
        for part in
            ["type Args = Address < Frame > ;", "Self :: new (args , env)", "post :: __private :: Env"]
        {
            assert!(impls.contains(part), "{part} is not in {impls}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (actor, why) in [
            ("struct Sum;", "does not say which messages it takes"),
            ("#[remote_actor(handles(Add), args = u32)] struct Sum;", "create = Sum::new"),
            ("#[remote_actor(takes(Add))] struct Sum;", "unknown key `takes`"),
            ("#[remote_actor(handles(Add), handles(Add))] struct Sum;", "has `handles` twice"),
        ] {
            let said = expanded(actor);
            assert!(said.contains("compile_error") && said.contains(why), "{said}");
        }
    }
}
