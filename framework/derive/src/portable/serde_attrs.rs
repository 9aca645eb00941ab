//! Serde's attributes, as far as they affect the wire.

mod case;

use quote::ToTokens;
use syn::{Expr, ExprLit, Lit, LitStr, Meta, Token, Type, punctuated::Punctuated};

pub(super) use case::Case;

use crate::{
    ir::{Body, Field, Message, SerdeAttrs, Variant},
    parse::Errors,
};

/// How serde tells the variants of an enum apart.
pub(super) enum Repr {
    External,
    Internal(String),
    Adjacent(String, String),
    Untagged,
}

/// Whether a field may be absent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Default {
    No,
    Yes,
}

pub(super) struct Container {
    pub(super) rename_all: Case,
    pub(super) rename_all_fields: Case,
    pub(super) repr: Repr,
    pub(super) default: bool,
    pub(super) transparent: bool,
    /// The type that it is written as, and read from.
    pub(super) wire: Option<Type>,
}

pub(super) struct VariantAttrs {
    pub(super) rename: Option<String>,
    pub(super) rename_all: Option<Case>,
    pub(super) skip: bool,
}

pub(super) struct FieldAttrs {
    pub(super) rename: Option<String>,
    pub(super) skip: bool,
    pub(super) default: Default,
    /// Whether the writer may leave it out.
    pub(super) left_out: bool,
    /// Whether it is written as bytes.
    pub(super) bytes: bool,
}

/// Reads the attributes of one item, and collects errors that name the item.
struct Reading<'a> {
    of: String,
    errors: &'a mut Errors,
}

impl Reading<'_> {
    fn refuse(&mut self, at: impl ToTokens, why: impl std::fmt::Display) {
        let of = &self.of;
        self.errors.push(at, format_args!("{of}{why}"));
    }

    fn refuse_key(&mut self, meta: &Meta, key: &str) {
        let instead = match key {
            "flatten" => "write the fields out, or keep them in a field of their own",
            "skip_serializing" | "skip_deserializing" => {
                "a portable message is the same in both directions; use `skip`, or an Option"
            }
            "with" | "serialize_with" | "deserialize_with" | "getter" => {
                "it decides what is on the wire, and other languages cannot know how; add #[portable(as = Type)] with a \
                 type that is written in the same way (`with = \"serde_bytes\"` is known)"
            }
            "from" | "try_from" | "into" => {
                "what is written has to be what is read; give both `into` and `from` or `try_from`, with the same type"
            }
            "tag" | "content" => "only an enum can have it; put the name into a field",
            "other" | "untagged" => {
                "other languages cannot tell this variant from the others; name each variant, or put it on the whole enum"
            }
            _ => "other languages do not know it; remove it, or remove `portable`",
        };
        self.refuse(meta, format_args!("`{key}` cannot be in a portable message: {instead}"));
    }

    /// Returns the text of `key = ".."`.
    fn text(&mut self, meta: &Meta) -> Option<LitStr> {
        match meta {
            Meta::NameValue(pair) => match &pair.value {
                Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.clone()),
                // serde's own derive reports it.
                _ => None,
            },
            _ => None,
        }
    }

    /// Reads a name, or a rule for names, which has to be the same in both directions.
    fn name(&mut self, meta: &Meta) -> Option<LitStr> {
        let Meta::List(list) = meta else { return self.text(meta) };
        let pairs = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
        let texts: Vec<_> = pairs.iter().filter_map(|pair| self.text(pair)).collect();
        match texts.as_slice() {
            [one, other] if one.value() == other.value() => Some(one.clone()),
            _ => {
                self.refuse(
                    meta,
                    "what is written has to be what is read in a portable message; give one name for both directions",
                );
                None
            }
        }
    }

    fn case(&mut self, meta: &Meta) -> Case {
        // serde's derive reports a rule that serde does not know.
        self.name(meta).and_then(|rule| Case::from_rule(&rule.value())).unwrap_or_default()
    }
}

/// Returns a type as text, for comparison.
fn written(ty: &Type) -> String {
    ty.to_token_stream().to_string()
}

/// Returns each attribute with its key.
fn keys(attrs: &SerdeAttrs) -> impl Iterator<Item = (String, &Meta)> {
    attrs.metas.iter().filter_map(|meta| meta.path().get_ident().map(|key| (key.to_string(), meta)))
}

impl Container {
    pub(super) fn read(message: &Message, errors: &mut Errors) -> Self {
        let mut reading = Reading { of: String::new(), errors };
        let is_enum = matches!(message.body, Body::Enum(_));
        let (mut rename_all, mut rename_all_fields) = (Case::default(), Case::default());
        let (mut default, mut transparent, mut untagged) = (false, false, false);
        let (mut tag, mut content) = (None, None);
        let mut from: Option<(LitStr, &Meta)> = None;
        let mut into: Option<(LitStr, &Meta)> = None;
        for (key, meta) in keys(&message.serde) {
            match key.as_str() {
                "rename_all" => rename_all = reading.case(meta),
                "rename_all_fields" => rename_all_fields = reading.case(meta),
                "default" => default = true,
                "transparent" => transparent = true,
                "untagged" if is_enum => untagged = true,
                "tag" if is_enum => tag = reading.text(meta),
                "content" if is_enum => content = reading.text(meta),
                "from" | "try_from" => from = reading.text(meta).map(|ty| (ty, meta)),
                "into" => into = reading.text(meta).map(|ty| (ty, meta)),
                // A type's own name is not on the wire. The others concern code, or input that a peer with
                // the same schema cannot send.
                "rename" | "bound" | "crate" | "expecting" | "deny_unknown_fields" => {}
                other => reading.refuse_key(meta, other),
            }
        }
        let wire = match (from, into) {
            (None, None) => None,
            (Some((from, meta)), Some((into, _))) => match (from.parse::<Type>(), into.parse::<Type>()) {
                (Ok(from), Ok(into)) if written(&from) == written(&into) => Some(from),
                (Ok(_), Ok(_)) => {
                    reading.refuse_key(meta, "from");
                    None
                }
                _ => None,
            },
            (Some((_, meta)), None) => {
                reading.refuse_key(meta, "from");
                None
            }
            (None, Some((_, meta))) => {
                reading.refuse_key(meta, "into");
                None
            }
        };
        let repr = match (tag, content) {
            (Some(tag), Some(content)) => Repr::Adjacent(tag.value(), content.value()),
            (Some(tag), None) => Repr::Internal(tag.value()),
            _ if untagged => Repr::Untagged,
            _ => Repr::External,
        };
        Container { rename_all, rename_all_fields, repr, default, transparent, wire }
    }
}

impl VariantAttrs {
    pub(super) fn read(variant: &Variant, errors: &mut Errors) -> Self {
        let mut reading = Reading { of: format!("variant `{}`: ", variant.ident), errors };
        let mut attrs = VariantAttrs { rename: None, rename_all: None, skip: false };
        for (key, meta) in keys(&variant.serde) {
            match key.as_str() {
                "rename" => attrs.rename = reading.name(meta).map(|name| name.value()),
                "rename_all" => attrs.rename_all = Some(reading.case(meta)),
                "skip" => attrs.skip = true,
                "alias" | "bound" => {}
                other => reading.refuse_key(meta, other),
            }
        }
        attrs
    }
}

impl FieldAttrs {
    pub(super) fn read(field: &Field, errors: &mut Errors) -> Self {
        let mut reading = Reading { of: format!("field `{}`: ", field.label), errors };
        let mut attrs =
            FieldAttrs { rename: None, skip: false, default: Default::No, left_out: false, bytes: false };
        for (key, meta) in keys(&field.serde) {
            match key.as_str() {
                "rename" => attrs.rename = reading.name(meta).map(|name| name.value()),
                "skip" => attrs.skip = true,
                "default" => attrs.default = Default::Yes,
                "skip_serializing_if" => attrs.left_out = true,
                "with" if reading.text(meta).is_some_and(|with| with.value() == "serde_bytes") => {
                    attrs.bytes = true;
                }
                "with" | "serialize_with" | "deserialize_with" if field.portable_as.is_some() => {}
                "alias" | "bound" | "borrow" => {}
                other => reading.refuse_key(meta, other),
            }
        }
        if attrs.skip && field.portable_as.is_some() {
            reading.refuse(
                &field.ty,
                "it is skipped, so #[portable(as = ..)] means nothing; remove one of the two",
            );
        }
        attrs
    }
}
