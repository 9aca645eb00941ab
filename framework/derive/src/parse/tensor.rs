//! `#[tensor(dtype = .., shape = [..], device = ..)]`.

use syn::{
    Attribute, Expr, ExprLit, Lit, Meta, Token, UnOp, bracketed,
    ext::IdentExt,
    meta::ParseNestedMeta,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
    token::Bracket,
};

use super::container::key;
use crate::ir::{DType, Device, TensorCheck};

/// Most dimensions of a tensor: `tensorpost::tensor::MAX_RANK`, which a compile test of `tensorpost`
/// compares.
pub(super) const MAX_RANK: usize = 8;

/// Reads the `#[tensor(..)]` attribute of the field called `label`, if it has one.
///
/// # Errors
///
/// Each names the field: a second attribute, one without keys, an unknown or repeated key, or a value that is
/// not allowed.
pub(super) fn parse(label: &str, attrs: &[Attribute]) -> syn::Result<Option<TensorCheck>> {
    let mut attrs = attrs.iter().filter(|attr| attr.path().is_ident("tensor"));
    let Some(attr) = attrs.next() else { return Ok(None) };
    if let Some(second) = attrs.next() {
        return Err(syn::Error::new_spanned(
            second,
            format_args!("field `{label}`: two #[tensor(..)] attributes; write both checks into one"),
        ));
    }

    let mut check = TensorCheck::default();
    if let Meta::List(_) = attr.meta {
        attr.parse_nested_meta(|meta| part(label, &mut check, &meta))?;
    }
    if check.dtype.is_none() && check.shape.is_none() && check.device.is_none() {
        return Err(syn::Error::new_spanned(
            attr,
            format_args!(
                "field `{label}`: #[tensor] asks for nothing; give at least one of dtype, shape and device, as in \
                 #[tensor(dtype = f32, shape = [3, _, _])], or remove it"
            ),
        ));
    }
    Ok(Some(check))
}

fn part(label: &str, check: &mut TensorCheck, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    let key = key(meta);
    let twice = match key.as_str() {
        "dtype" => check.dtype.is_some(),
        "shape" => check.shape.is_some(),
        "device" => check.device.is_some(),
        _ => {
            return Err(meta.error(format_args!(
                "field `{label}`: unknown key `{key}`; #[tensor(..)] takes dtype, shape and device"
            )));
        }
    };
    if twice {
        return Err(meta.error(format_args!("field `{label}`: #[tensor(..)] has `{key}` twice; keep one")));
    }
    if !meta.input.peek(Token![=]) {
        return Err(
            meta.error(format_args!("field `{label}`: `{key}` needs a value, as in {}", example(&key)))
        );
    }
    let value = meta.value()?;
    match key.as_str() {
        "dtype" => check.dtype = Some(word(label, "dtype", DType::ALLOWED, DType::from_word, value)?),
        "device" => check.device = Some(word(label, "device", Device::ALLOWED, Device::from_word, value)?),
        _ => check.shape = Some(shape(label, value)?),
    }
    Ok(())
}

fn example(key: &str) -> &'static str {
    match key {
        "dtype" => "dtype = f32",
        "device" => "device = cuda",
        _ => "shape = [3, _, _]",
    }
}

/// Reads one of a closed set of words.
fn word<T>(
    label: &str,
    what: &str,
    allowed: &[&str],
    from_word: fn(&str) -> Option<T>,
    value: ParseStream<'_>,
) -> syn::Result<T> {
    // Parse an expression, so that the error can show the text that was written instead.
    let written: Expr = value.parse()?;
    let ident = match &written {
        Expr::Path(path) => path.path.get_ident().map(|ident| ident.unraw().to_string()),
        _ => None,
    };
    ident.as_deref().and_then(from_word).ok_or_else(|| {
        let shown = ident.map_or_else(String::new, |ident| format!("unknown {what} `{ident}`; "));
        syn::Error::new_spanned(
            written,
            format_args!("field `{label}`: {shown}{what} is one of {}", allowed.join(", ")),
        )
    })
}

/// `[3, _, WIDTH]`.
fn shape(label: &str, value: ParseStream<'_>) -> syn::Result<Vec<Option<Expr>>> {
    if !value.peek(Bracket) {
        return Err(value.error(format_args!(
            "field `{label}`: shape is a list in brackets, as in shape = [3, _, _], where _ is any size"
        )));
    }
    let content;
    let bracket = bracketed!(content in value);
    let entries = content.parse_terminated(Expr::parse, Token![,]);
    let entries: Punctuated<Expr, Token![,]> = entries.map_err(|error| {
        syn::Error::new(
            error.span(),
            format_args!(
                "field `{label}`: a dimension is an integer, a constant or _ for any size ({error})"
            ),
        )
    })?;
    if entries.len() > MAX_RANK {
        return Err(syn::Error::new(
            bracket.span.join(),
            format_args!(
                "field `{label}`: a tensor has at most {MAX_RANK} dimensions, this shape has {}",
                entries.len()
            ),
        ));
    }
    entries.into_iter().map(|entry| dimension(label, entry)).collect()
}

/// Reads one entry: `_`, or an expression of type `usize`. A literal that cannot be one is refused here,
/// where the field can be named; the compiler checks the type of anything else.
fn dimension(label: &str, entry: Expr) -> syn::Result<Option<Expr>> {
    let wrong = |entry: &Expr| {
        Err(syn::Error::new_spanned(
            entry,
            format_args!(
                "field `{label}`: a dimension is a non-negative integer, a constant of type usize, or _ for any size"
            ),
        ))
    };
    match &entry {
        Expr::Infer(_) => Ok(None),
        Expr::Lit(ExprLit { lit: Lit::Int(literal), .. }) if matches!(literal.suffix(), "" | "usize") => {
            Ok(Some(entry))
        }
        Expr::Lit(_) | Expr::Range(_) => wrong(&entry),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => wrong(&entry),
        _ => Ok(Some(entry)),
    }
}
