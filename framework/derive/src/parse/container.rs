//! `#[gpu_message(reply = .., name = "..", crate = ..)]`.

use syn::{Attribute, Ident, LitStr, Path, Type, ext::IdentExt, meta::ParseNestedMeta, parse_quote};

/// What the attributes on the type say.
pub(super) struct Container {
    pub(super) name: String,
    pub(super) reply: Type,
    pub(super) root: Path,
}

/// Reads the `#[gpu_message(..)]` attributes of a type.
///
/// # Errors
///
/// An unknown key, one given twice, a value of the wrong kind, or an empty name.
pub(super) fn parse(ident: &Ident, attrs: &[Attribute]) -> syn::Result<Container> {
    let (mut name, mut reply, mut root) = (None, None, None);
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("gpu_message")) {
        attr.parse_nested_meta(|meta| match key(&meta).as_str() {
            "reply" => once("gpu_message", &mut reply, &meta, |meta| meta.value()?.parse::<Type>()),
            "name" => once("gpu_message", &mut name, &meta, wire_name),
            "crate" => once("gpu_message", &mut root, &meta, crate_path),
            other => Err(meta.error(format_args!(
                "unknown key `{other}`; #[gpu_message(..)] takes reply = Type, name = \"..\" and crate = path"
            ))),
        })?;
    }
    Ok(Container {
        name: name.unwrap_or_else(|| ident.unraw().to_string()),
        reply: reply.unwrap_or_else(|| parse_quote!(())),
        root: root.unwrap_or_else(|| parse_quote!(::tensorpost)),
    })
}

/// The key of a `key = value` pair as written.
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

/// A path, bare or in quotes as serde has it.
fn crate_path(meta: &ParseNestedMeta<'_>) -> syn::Result<Path> {
    let value = meta.value()?;
    if value.peek(LitStr) {
        value.parse::<LitStr>()?.parse_with(Path::parse_mod_style)
    } else {
        value.call(Path::parse_mod_style)
    }
}
