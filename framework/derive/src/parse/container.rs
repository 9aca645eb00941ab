//! `#[gpu_message(reply = .., name = "..", portable, crate = ..)]`, and the keys of `#[portable(..)]`.

use syn::{Attribute, Ident, LitStr, Path, Type, ext::IdentExt, meta::ParseNestedMeta, parse_quote};

/// The settings of the attributes on the type.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) reply: Type,
    pub(super) root: Path,
    pub(super) portable: bool,
}

/// Reads the `#[gpu_message(..)]` attributes of a type.
///
/// # Errors
///
/// An unknown key, one given twice, a value of the wrong kind, or an empty name.
pub(super) fn parse(ident: &Ident, attrs: &[Attribute]) -> syn::Result<Container> {
    let (mut name, mut reply, mut root, mut portable) = (None, None, None, None);
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("gpu_message")) {
        attr.parse_nested_meta(|meta| match key(&meta).as_str() {
            "reply" => once("gpu_message", &mut reply, &meta, |meta| meta.value()?.parse::<Type>()),
            "name" => once("gpu_message", &mut name, &meta, wire_name),
            "crate" => once("gpu_message", &mut root, &meta, crate_path),
            "portable" => once("gpu_message", &mut portable, &meta, |_| Ok(())),
            other => Err(meta.error(format_args!(
                "unknown key `{other}`; #[gpu_message(..)] takes reply = Type, name = \"..\", portable and crate = path"
            ))),
        })?;
    }
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("portable")) {
        attr.parse_nested_meta(|meta| match key(&meta).as_str() {
            "crate" => once("portable", &mut root, &meta, crate_path),
            other => Err(meta.error(format_args!(
                "unknown key `{other}`; #[portable(..)] takes crate = path on the type, and as = Type on a field"
            ))),
        })?;
    }
    Ok(Container {
        name: name.unwrap_or_else(|| ident.unraw().to_string()),
        reply: reply.unwrap_or_else(|| parse_quote!(())),
        root: root.unwrap_or_else(|| parse_quote!(::tensorpost)),
        portable: portable.is_some(),
    })
}

/// Returns the key of a `key = value` pair as written.
pub(crate) fn key(meta: &ParseNestedMeta<'_>) -> String {
    let segments: Vec<_> = meta.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    segments.join("::")
}

/// Reads the value of a key that may be given once.
pub(crate) fn once<T>(
    attribute: &str,
    slot: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> syn::Result<T>,
) -> syn::Result<()> {
    if slot.is_some() {
        return Err(meta.error(format_args!("#[{attribute}(..)] has `{}` twice; keep one", key(meta))));
    }
    *slot = Some(read(meta)?);
    Ok(())
}

fn wire_name(meta: &ParseNestedMeta<'_>) -> syn::Result<String> {
    let value = meta.value()?;
    let Ok(literal) = value.parse::<LitStr>() else {
        return Err(value.error("the name of a message is a string, such as name = \"Frame\""));
    };
    let name = literal.value();
    if name.trim().is_empty() {
        return Err(syn::Error::new(
            literal.span(),
            "the name of a message cannot be empty; leave `name` out to use the type's own",
        ));
    }
    Ok(name)
}

/// Returns a path, bare or in quotes as serde has it.
pub(crate) fn crate_path(meta: &ParseNestedMeta<'_>) -> syn::Result<Path> {
    let value = meta.value()?;
    if value.peek(LitStr) {
        value.parse::<LitStr>()?.parse_with(Path::parse_mod_style)
    } else {
        value.call(Path::parse_mod_style)
    }
}

/// Returns the type in a field's `#[portable(as = Type)]`.
///
/// # Errors
/// Each names the field: an unknown key, one that is there twice, no type.
pub(super) fn portable_as(label: &str, attrs: &[Attribute]) -> syn::Result<Option<Type>> {
    let mut found = None;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("portable")) {
        attr.parse_nested_meta(|meta| match key(&meta).as_str() {
            "as" => once("portable", &mut found, &meta, |meta| meta.value()?.parse::<Type>()),
            other => Err(meta.error(format_args!(
                "field `{label}`: unknown key `{other}`; on a field, #[portable(..)] takes as = Type"
            ))),
        })?;
    }
    Ok(found)
}
