//! The text of every refusal. Accepted forms are tested with their results, in `tensorpost-core`.

use syn::{DeriveInput, parse_quote};

use super::{expand, serde_attrs::Case};

#[track_caller]
fn refused(input: DeriveInput, expected: &str) {
    let code = expand(&input).to_string();
    let errors = syn::parse2::<syn::File>(code.parse().unwrap()).map(|file| file.items).unwrap_or_default();
    let messages: Vec<String> = errors
        .iter()
        .filter_map(|item| match item {
            syn::Item::Macro(error) => error.mac.parse_body::<syn::LitStr>().ok().map(|text| text.value()),
            _ => None,
        })
        .collect();
    assert_eq!(messages, [expected]);
}

#[test]
fn what_other_languages_cannot_know_is_refused() {
    refused(
        parse_quote! { struct F { #[serde(flatten)] x: Other } },
        "field `x`: `flatten` cannot be in a portable message: write the fields out, or keep them in a field of their own",
    );
    refused(
        parse_quote! { struct F { #[serde(skip_serializing)] x: u8 } },
        "field `x`: `skip_serializing` cannot be in a portable message: a portable message is the same in both directions; \
         use `skip`, or an Option",
    );
    refused(
        parse_quote! { struct F { #[serde(with = "humantime")] x: Duration } },
        "field `x`: `with` cannot be in a portable message: it decides what is on the wire, and other languages cannot know \
         how; add #[portable(as = Type)] with a type that is written in the same way (`with = \"serde_bytes\"` is known)",
    );
    refused(
        parse_quote! { struct F { #[serde(rename(serialize = "a", deserialize = "b"))] x: u8 } },
        "field `x`: what is written has to be what is read in a portable message; give one name for both directions",
    );
    refused(
        parse_quote! { #[serde(into = "Wire")] struct F { x: u8 } },
        "`into` cannot be in a portable message: what is written has to be what is read; give both `into` and `from` or \
         `try_from`, with the same type",
    );
    refused(
        parse_quote! { #[serde(tag = "t")] struct F { x: u8 } },
        "`tag` cannot be in a portable message: only an enum can have it; put the name into a field",
    );
    refused(
        parse_quote! { enum F { A, #[serde(other)] B } },
        "variant `B`: `other` cannot be in a portable message: other languages cannot tell this variant from the others; \
         name each variant, or put it on the whole enum",
    );
    refused(
        parse_quote! { #[serde(made_up)] struct F { x: u8 } },
        "`made_up` cannot be in a portable message: other languages do not know it; remove it, or remove `portable`",
    );
}

#[test]
fn what_may_be_absent_has_a_name_and_a_default() {
    refused(
        parse_quote! { struct F { #[serde(skip_serializing_if = "Option::is_none")] x: Option<u8> } },
        "field `x`: it may be left out, and nothing says what it is then; add `default` to its #[serde(..)]",
    );
    refused(
        parse_quote! { struct F(u8, #[serde(default)] Option<u8>); },
        "field `1`: a field without a name cannot be absent from a portable message; give the fields names, or make it an \
         Option and remove `default` and `skip_serializing_if`",
    );
    refused(
        parse_quote! { struct F(#[serde(skip)] u8); },
        "field `0`: it is all that there is, and is skipped; make the type, or the variant, a unit",
    );
}

#[test]
fn the_attribute_says_what_it_takes() {
    refused(
        parse_quote! { struct F { #[portable(like = u8)] x: u16 } },
        "field `x`: unknown key `like`; on a field, #[portable(..)] takes as = Type",
    );
    refused(
        parse_quote! { #[portable(as = u8)] struct F { x: u16 } },
        "unknown key `as`; #[portable(..)] takes crate = path on the type, and as = Type on a field",
    );
    refused(
        parse_quote! { struct F { #[serde(skip)] #[portable(as = u8)] x: u16 } },
        "field `x`: it is skipped, so #[portable(as = ..)] means nothing; remove one of the two",
    );
}

/// The names follow the rules of serde's derive.
#[test]
fn names_follow_the_rules_of_serde() {
    let fields = |rule| Case::from_rule(rule).unwrap().field("very_tasty");
    let variants = |rule| Case::from_rule(rule).unwrap().variant("VeryTasty");
    for (rule, field, variant) in [
        ("lowercase", "very_tasty", "verytasty"),
        ("UPPERCASE", "VERY_TASTY", "VERYTASTY"),
        ("PascalCase", "VeryTasty", "VeryTasty"),
        ("camelCase", "veryTasty", "veryTasty"),
        ("snake_case", "very_tasty", "very_tasty"),
        ("SCREAMING_SNAKE_CASE", "VERY_TASTY", "VERY_TASTY"),
        ("kebab-case", "very-tasty", "very-tasty"),
        ("SCREAMING-KEBAB-CASE", "VERY-TASTY", "VERY-TASTY"),
    ] {
        assert_eq!((fields(rule), variants(rule)), (field.to_owned(), variant.to_owned()), "{rule}");
    }
    assert_eq!(Case::from_rule("Title Case"), None);
}
