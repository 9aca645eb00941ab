//! The common part of `#[stage]` and `#[actor]`: an inherent `impl` block whose methods stand, by their
//! names, for methods of traits.
//!
//! The block stays as it was written, and the impls of the traits call it. So the methods can be called as
//! they are written, in tests for example, and a type error is shown at the user's own signature.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, ImplItem, ImplItemFn, Item, ItemImpl,
    PathArguments, ReturnType, Signature, Type, parse_quote,
};

/// Returns the block that an attribute stands on.
///
/// # Errors
/// It is something else, or the impl of a trait.
pub(crate) fn block(attribute: &str, item: TokenStream) -> syn::Result<ItemImpl> {
    let refusal = |at: &dyn ToTokens, what: &str| {
        let why = format!("#[{attribute}] stands on the `impl` block of a type, {what}");
        Err(Error::new(at.to_token_stream().span(), why))
    };
    match syn::parse2(item)? {
        Item::Impl(block) => match &block.trait_ {
            Some((_, path, _)) => refusal(path, "not on that of a trait: it writes that of the trait itself"),
            None => Ok(block),
        },
        Item::Struct(item) => refusal(&item.ident, "not on the type: its methods say what it takes"),
        Item::Enum(item) => refusal(&item.ident, "not on the type: its methods say what it takes"),
        other => refusal(&other, "such as `impl Invert { .. }`"),
    }
}

/// Returns the methods of a block.
pub(crate) fn methods(block: &ItemImpl) -> impl Iterator<Item = &ImplItemFn> {
    block.items.iter().filter_map(|item| match item {
        ImplItem::Fn(function) => Some(function),
        _ => None,
    })
}

/// Returns whether an attribute is the mark of a method that `#[actor]` makes a handler.
pub(crate) fn is_handler(attribute: &Attribute) -> bool {
    attribute.path().is_ident("handler")
}

/// Returns the method of that name, if it is no handler.
///
/// # Errors
/// It is not written as `form` says, or it has a `cfg` although its trait requires it.
pub(crate) fn method<'a>(block: &'a ItemImpl, form: &Form) -> syn::Result<Option<Method<'a>>> {
    let found = methods(block)
        .find(|function| function.sig.ident == form.name && !function.attrs.iter().any(is_handler));
    found.map(|function| form.read(function)).transpose()
}

/// Silences Clippy about a signature that the user cannot choose.
pub(crate) fn excuse(function: &mut ImplItemFn) {
    function.attrs.push(parse_quote! {
        #[allow(
            clippy::needless_pass_by_value,
            clippy::should_implement_trait,
            clippy::unnecessary_wraps,
            clippy::unused_self
        )]
    });
}

/// The form that a method of a trait may have in the block.
pub(crate) struct Form {
    /// The method's name, or a description where the user chooses the name.
    pub(crate) name: &'static str,
    pub(crate) receiver: Receiver,
    /// The requirement on the parameter that is a value.
    pub(crate) value: Value,
    /// Whether it may have a parameter that is a `&`: the environment.
    pub(crate) shared: bool,
    /// Whether it may have a parameter that is a `&mut`: the results, or the actor's context.
    pub(crate) exclusive: bool,
    /// The reason why it cannot be `async`, with the remedy; `None` if it can.
    pub(crate) not_async: Option<&'static str>,
    /// Whether the trait has a default where it is missing.
    pub(crate) optional: bool,
    /// Its full form, for errors.
    pub(crate) written: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    None,
    Shared,
    /// `&mut self`; `&self` will do too.
    Exclusive,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    None,
    May,
    /// There has to be one; the error for a missing one calls it by this name.
    Must(&'static str),
}

/// A method of the block that stands for one of a trait.
pub(crate) struct Method<'a> {
    pub(crate) sig: &'a Signature,
    /// The `cfg`s of this method, which the method of the trait gets too.
    pub(crate) cfgs: Vec<&'a Attribute>,
    pub(crate) value: Option<&'a Type>,
    /// The type behind the `&mut`.
    pub(crate) exclusive: Option<&'a Type>,
    pub(crate) returns: Returns<'a>,
    /// The arguments of the call.
    arguments: Vec<Ident>,
}

/// The return type of a method.
pub(crate) struct Returns<'a> {
    /// As it is written.
    pub(crate) output: Option<&'a Type>,
    /// Whether that is a `Result`.
    pub(crate) fallible: bool,
    /// The type of the value, or of the `Result`'s value; none for `()`.
    pub(crate) value: Option<&'a Type>,
    span: Span,
}

impl Form {
    /// # Errors
    /// The parts that are not written as required, each at its place.
    pub(crate) fn read<'a>(&self, function: &'a ImplItemFn) -> syn::Result<Method<'a>> {
        let sig = &function.sig;
        self.check(function)?;
        let mut method = Method {
            sig,
            cfgs: function.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect(),
            value: None,
            exclusive: None,
            returns: returns(sig),
            arguments: Vec::new(),
        };
        if self.receiver != Receiver::None {
            method.arguments.push(Ident::new("self", Span::mixed_site()));
        }
        let mut shared = None;
        for input in &sig.inputs {
            let FnArg::Typed(parameter) = input else { continue };
            let (slot, name, may) = match bare(&parameter.ty) {
                Type::Reference(to) if to.mutability.is_some() => {
                    (replace(&mut method.exclusive, &to.elem), "exclusive", self.exclusive)
                }
                Type::Reference(to) => (replace(&mut shared, &to.elem), "shared", self.shared),
                value => (replace(&mut method.value, value), "value", self.value != Value::None),
            };
            if !slot || !may {
                return Err(self.refusal(parameter, "is not called with this"));
            }
            method.arguments.push(Ident::new(name, Span::mixed_site()));
        }
        match (self.value, method.value) {
            (Value::Must(what), None) => Err(self.refusal(&sig.ident, &format!("lacks its {what}"))),
            _ => Ok(method),
        }
    }

    /// Checks everything but the parameters.
    fn check(&self, function: &ImplItemFn) -> syn::Result<()> {
        let sig = &function.sig;
        if let (Some(asyncness), Some(why)) = (&sig.asyncness, self.not_async) {
            return Err(Error::new_spanned(asyncness, format!("{} cannot be `async`: {why}", self.shown())));
        }
        if let Some(unsafety) = &sig.unsafety {
            return Err(self.refusal(unsafety, "cannot be `unsafe`"));
        }
        let own = sig.generics.params.iter().find(|param| !matches!(param, GenericParam::Lifetime(_)));
        if let Some(own) = own {
            return Err(self.refusal(own, "cannot have parameters of its own"));
        }
        let cfg = function.attrs.iter().find(|attribute| attribute.path().is_ident("cfg"));
        if let (Some(cfg), false) = (cfg, self.optional) {
            return Err(self.refusal(cfg, "cannot depend on a `cfg` by itself; put that on the whole block"));
        }
        match (sig.receiver(), self.receiver) {
            (None, Receiver::None) => Ok(()),
            (Some(receiver), Receiver::None) => Err(self.refusal(receiver, "takes no `self`")),
            (None, _) => Err(self.refusal(&sig.ident, "has to take `self`")),
            (Some(receiver), wanted) => {
                let fits = receiver.reference.is_some() && receiver.colon_token.is_none();
                if fits && (wanted == Receiver::Exclusive || receiver.mutability.is_none()) {
                    return Ok(());
                }
                Err(self.refusal(receiver, "takes `self` in another way"))
            }
        }
    }

    pub(crate) fn refusal(&self, at: &impl ToTokens, what: &str) -> Error {
        Error::new_spanned(at, format!("{} {what}; it is written\n    {}", self.shown(), self.written))
    }

    /// Returns its name for an error; a name with a space in it is a description and no method's name.
    fn shown(&self) -> String {
        if self.name.contains(' ') { self.name.to_owned() } else { format!("`{}`", self.name) }
    }
}

/// Returns whether the slot was empty.
fn replace<'a>(slot: &mut Option<&'a Type>, ty: &'a Type) -> bool {
    slot.replace(ty).is_none()
}

impl Method<'_> {
    /// Returns the call of the method. The method of the trait has the parameters `value`, `shared` and
    /// `exclusive` for it.
    pub(crate) fn plain_call(&self) -> TokenStream {
        let Method { sig, arguments, .. } = self;
        let name = &sig.ident;
        quote_spanned!(Span::mixed_site().located_at(self.returns.span)=> Self::#name(#(#arguments),*))
    }

    /// Returns the call of the method, awaited where it is `async`, with its error returned.
    pub(crate) fn call(&self) -> TokenStream {
        let (call, site) = (self.plain_call(), Span::mixed_site().located_at(self.returns.span));
        // A return type `impl Future` tells nothing about the output, so it is awaited and its error
        // returned.
        let promised = matches!(self.returns.value, Some(Type::ImplTrait(_)));
        let wait = (promised || self.sig.asyncness.is_some()).then(|| quote_spanned!(site=> .await));
        let question = (promised || self.returns.fallible).then(|| quote_spanned!(site=> ?));
        quote_spanned!(site=> #call #wait #question)
    }

    /// Returns the call as [`call`](Self::call) does, for a method that returns nothing or a `Result<()>`: an
    /// expression that is `Ok(())`.
    ///
    /// # Errors
    /// It returns something else.
    pub(crate) fn call_for_nothing(&self, form: &Form) -> syn::Result<TokenStream> {
        match self.returns.value {
            Some(ty) if !matches!(ty, Type::ImplTrait(_)) => {
                Err(form.refusal(ty, "returns something that nobody takes"))
            }
            _ => {
                let call = self.call();
                Ok(quote_spanned! {Span::mixed_site()=> #call; ::core::result::Result::Ok(()) })
            }
        }
    }
}

fn returns(sig: &Signature) -> Returns<'_> {
    let ReturnType::Type(_, ty) = &sig.output else {
        return Returns { output: None, fallible: false, value: None, span: sig.ident.span() };
    };
    let (fallible, value) = match argument(ty, "Result") {
        Some(value) => (true, value),
        None => (false, Some(bare(ty))),
    };
    let value = value.filter(|ty| !matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty()));
    Returns { output: Some(bare(ty)), fallible, value, span: ty.span() }
}

/// Returns the first type argument of `ty`, if it has one, where the type's name is `name`, in any module.
pub(crate) fn argument<'a>(ty: &'a Type, name: &str) -> Option<Option<&'a Type>> {
    arguments(ty, name).map(|arguments| arguments.first().copied())
}

/// Returns all type arguments, in the way of [`argument`].
pub(crate) fn arguments<'a>(ty: &'a Type, name: &str) -> Option<Vec<&'a Type>> {
    let Type::Path(path) = bare(ty) else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Some(Vec::new()) };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(bare(ty)),
        _ => None,
    });
    Some(types.collect())
}

/// Returns the type without parentheses and the groups that `macro_rules!` puts around it.
pub(crate) fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}
