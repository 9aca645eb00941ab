//! Tests of the clause for each way in which a parameter can occur.

use quote::{ToTokens, quote};
use syn::{DeriveInput, WhereClause, parse_quote};

use super::where_clause;
use crate::parse;

#[track_caller]
fn clause(input: DeriveInput, expected: Option<WhereClause>) {
    let clause = where_clause(&parse::message(&input).unwrap(), &quote!(p));
    let text = |clause: Option<WhereClause>| clause.map(|clause| clause.to_token_stream().to_string());
    assert_eq!(text(clause), text(expected));
}

#[test]
fn without_type_parameters_nothing_is_added() {
    clause(parse_quote! { struct F { a: u8 } }, None);
    clause(parse_quote! { struct F<const N: usize> { a: [u8; N] } }, None);
}

#[test]
fn a_parameter_in_a_field_or_the_reply_is_sent() {
    let sent = quote!(p::serde::Serialize + p::serde::de::DeserializeOwned + ::core::marker::Send + 'static);
    clause(parse_quote! { struct F<T>(Vec<T>); }, Some(parse_quote!(where T: #sent)));
    clause(parse_quote! { enum E<T> { A, B { x: Option<T> } } }, Some(parse_quote!(where T: #sent)));
    clause(
        parse_quote! { #[gpu_message(reply = R)] struct F<R>(PhantomData<R>); },
        Some(parse_quote!(where R: #sent)),
    );
}

#[test]
fn a_phantom_parameter_need_not_be_serialised() {
    clause(
        parse_quote! { struct F<T> { x: PhantomData<T> } },
        Some(parse_quote!(where T: ::core::marker::Send + 'static)),
    );
}

#[test]
fn an_associated_type_is_bound_itself() {
    let sent = quote!(p::serde::Serialize + p::serde::de::DeserializeOwned + ::core::marker::Send + 'static);
    clause(
        parse_quote! { struct F<T: Iterator> { x: T::Item } },
        Some(parse_quote!(where T: ::core::marker::Send + 'static, T::Item: #sent)),
    );
}

#[test]
fn own_clauses_stay_first() {
    let sent = quote!(p::serde::Serialize + p::serde::de::DeserializeOwned + ::core::marker::Send + 'static);
    clause(
        parse_quote! { struct F<T> where T: Clone, { x: T } },
        Some(parse_quote!(where T: Clone, T: #sent)),
    );
}

#[test]
fn attributes_that_change_serdes_bounds_move_the_bound_to_self() {
    let sent = quote!(p::serde::Serialize + p::serde::de::DeserializeOwned + ::core::marker::Send + 'static);
    clause(parse_quote! { struct F<T> { #[serde(with = "m")] x: T } }, Some(parse_quote!(where Self: #sent)));
    clause(
        parse_quote! { #[serde(bound(serialize = "", deserialize = ""))] #[gpu_message(reply = Vec<T>)] struct F<T>(T); },
        Some(parse_quote!(where Self: #sent, Vec<T>: #sent)),
    );
}

#[test]
fn a_checked_generic_field_must_have_tensors() {
    let sent = quote!(p::serde::Serialize + p::serde::de::DeserializeOwned + ::core::marker::Send + 'static);
    clause(
        parse_quote! { struct F<T>(#[tensor(dtype = f32)] Vec<T>); },
        Some(parse_quote!(where T: #sent, Vec<T>: p::CheckTensors)),
    );
}
