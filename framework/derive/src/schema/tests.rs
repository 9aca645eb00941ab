//! Shows which parts of a definition the hash depends on, and which not (WIRE-1).

use syn::{DeriveInput, parse_quote, parse_str};

use super::{fnv1a, hash};
use crate::parse;

fn of(input: DeriveInput) -> u64 {
    hash(&parse::message(&input).unwrap())
}

fn of_source(source: &str) -> u64 {
    of(parse_str(source).unwrap())
}

/// The test vectors of the FNV draft's section 8.
#[test]
fn fnv_matches_its_published_vectors() {
    assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
}

/// A change of this number changes every program's wire format: raise `VERSION` with it.
#[test]
fn the_hash_of_a_definition_is_pinned() {
    let text =
        super::text(&parse::message(&parse_quote! { struct Frame { id: u64, pixels: Tensor } }).unwrap());
    assert_eq!(
        text.split(super::TOKEN_END).collect::<Vec<_>>(),
        [
            "tensorpost-schema-1",
            "Frame",
            "#generics",
            "#where",
            "#reply",
            "(",
            ")",
            "struct",
            "#named",
            "#field",
            "id",
            "#type",
            "u64",
            "#field",
            "pixels",
            "#type",
            "Tensor",
            "",
        ]
    );
    assert_eq!(of(parse_quote! { struct Frame { id: u64, pixels: Tensor } }), fnv1a(text.as_bytes()));
}

#[test]
fn layout_docs_visibility_and_derives_do_not_count() {
    let plain = of_source(
        "struct Frame<T> where T: Clone { id: Vec<Vec<T>>, #[serde(rename = \"p\")] pixels: Tensor }",
    );
    let dressed = of_source(
        "/// A frame.\n#[derive(Clone, Debug)]\n#[must_use]\npub struct Frame < T >\nwhere\n    T : Clone\n{\n\
         /// Its number.\n pub id : Vec < Vec < T > > ,\n #[doc(hidden)] #[serde( rename=\"p\" )] pub(crate) pixels: \
         Tensor,\n}",
    );
    assert_eq!(plain, dressed);
}

#[test]
fn the_order_within_a_check_does_not_count() {
    assert_eq!(
        of(parse_quote! { struct F(#[tensor(dtype = f32, shape = [3, _], device = cuda)] Tensor); }),
        of(parse_quote! { struct F(#[tensor(device = cuda, dtype = f32, shape = [3, _])] Tensor); }),
    );
}

#[test]
fn invisible_groups_do_not_count() {
    use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
    let ty: TokenStream = "Vec<u8>".parse().unwrap();
    let grouped = TokenTree::Group(Group::new(Delimiter::None, ty.clone()));
    assert_eq!(of(parse_quote! { struct F { x: #ty } }), of(parse_quote! { struct F { x: #grouped } }));
}

/// Each definition differs from every other in one thing; so must the hashes.
#[test]
fn every_change_of_the_definition_counts() {
    let definitions = [
        "struct F { a: u8, b: Tensor }",
        "struct G { a: u8, b: Tensor }",
        "#[gpu_message(name = \"f\")] struct F { a: u8, b: Tensor }",
        "#[gpu_message(reply = u8)] struct F { a: u8, b: Tensor }",
        "struct F { a: u8 }",
        "struct F { a: u8, c: Tensor }",
        "struct F { a: u16, b: Tensor }",
        "struct F { b: Tensor, a: u8 }",
        "struct F { a: u8, b: Option<Tensor> }",
        "struct F { a: u8, b: Tensor, c: () }",
        "struct F<T> { a: u8, b: Tensor, c: T }",
        "struct F<T: Clone> { a: u8, b: Tensor, c: T }",
        "struct F<T> where T: Clone { a: u8, b: Tensor, c: T }",
        "struct F<const N: usize> { a: u8, b: Tensor }",
        "#[serde(deny_unknown_fields)] struct F { a: u8, b: Tensor }",
        "struct F { #[serde(default)] a: u8, b: Tensor }",
        "struct F { a: u8, #[serde(default)] b: Tensor }",
        "struct F { #[serde(rename = \"x\")] a: u8, b: Tensor }",
        "struct F { #[serde(rename = \"y\")] a: u8, b: Tensor }",
        "struct F { a: u8, #[tensor(dtype = f32)] b: Tensor }",
        "struct F { a: u8, #[tensor(dtype = f16)] b: Tensor }",
        "struct F { a: u8, #[tensor(device = cuda)] b: Tensor }",
        "struct F { a: u8, #[tensor(device = host)] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [])] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [_])] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [_, _])] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [3, _])] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [_, 3])] b: Tensor }",
        "struct F { a: u8, #[tensor(shape = [3 * 2])] b: Tensor }",
        "struct F(u8, Tensor);",
        "struct F((u8, Tensor));",
        "struct F;",
        "struct F();",
        "struct F {}",
        "enum F { A, B }",
        "enum F { B, A }",
        "enum F { A }",
        "enum F { A, C }",
        "enum F { A, B {} }",
        "enum F { A, B(u8) }",
        "enum F { A(u8), B }",
        "enum F { A, B { x: u8 } }",
        "#[serde(tag = \"t\")] enum F { A, B }",
        "#[serde(tag = \"t\", content = \"c\")] enum F { A, B }",
        "#[serde(untagged)] enum F { A, B }",
        "enum F { #[serde(rename = \"a\")] A, B }",
        "enum F { A, #[serde(rename = \"a\")] B }",
    ];
    let mut seen = std::collections::HashMap::new();
    for definition in definitions {
        if let Some(other) = seen.insert(of_source(definition), definition) {
            panic!("the same hash for\n{other}\n{definition}");
        }
    }
}
