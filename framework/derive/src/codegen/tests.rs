//! The generated impls, read back as syntax.

use quote::ToTokens;
use syn::{DeriveInput, File, ImplItem, Item, ItemImpl, parse_quote};

/// Returns the two impls for `input`: `actix::Message` and `GpuMessage`.
fn impls(input: DeriveInput) -> [ItemImpl; 2] {
    let file: File = syn::parse2(crate::expand(&input)).unwrap();
    let impls: Vec<_> = file
        .items
        .into_iter()
        .filter_map(|item| match item {
            Item::Impl(item) => Some(item),
            // The check of the reply.
            Item::Const(_) => None,
            other => panic!("not an impl: {}", other.to_token_stream()),
        })
        .collect();
    impls.try_into().ok().unwrap()
}

#[test]
fn a_reply_is_checked_where_it_has_no_type_parameters() {
    let expanded = |input: DeriveInput| crate::expand(&input).to_string();
    let checked = expanded(parse_quote! { #[gpu_message(reply = Stats)] struct Frame(Tensor); });
    assert!(checked.contains("__tensorpost_reply :: < Stats > ()"), "{checked}");
    let generic = expanded(parse_quote! { #[gpu_message(reply = Vec<T>)] struct Frame<T>(T); });
    assert!(!generic.contains("__tensorpost_reply"), "{generic}");
}

/// Returns the body of `check`, without the closing `Ok(())`.
fn check_body(input: DeriveInput) -> String {
    let [_, item] = impls(input);
    let check = item.items.iter().find_map(|item| match item {
        ImplItem::Fn(function) if function.sig.ident == "check" => Some(&function.block),
        _ => None,
    });
    let statements = &check.unwrap().stmts;
    let (last, rest) = statements.split_last().unwrap();
    assert_eq!(last.to_token_stream().to_string(), ":: core :: result :: Result :: Ok (())");
    rest.iter().map(|statement| statement.to_token_stream().to_string()).collect()
}

#[test]
fn both_impls_agree_on_the_reply() {
    let [actix, message] = impls(parse_quote! { #[gpu_message(reply = Stats)] struct Frame<T>(T); });
    let actix = actix.to_token_stream().to_string();
    assert!(
        actix.contains(":: tensorpost :: __private :: actix :: Message for Frame < T > where T :"),
        "{actix}"
    );
    assert!(actix.contains("type Result = Stats ;"), "{actix}");
    let message = message.to_token_stream().to_string();
    assert!(
        message.contains(":: tensorpost :: __private :: GpuMessage for Frame < T > where T :"),
        "{message}"
    );
    assert!(message.contains("type Reply = Stats ;"), "{message}");
    assert!(message.contains("const NAME : & 'static str = \"Frame\" ;"), "{message}");
}

#[test]
fn the_root_can_be_moved() {
    let [actix, message] = impls(parse_quote! {
        #[gpu_message(crate = crate::gpu)]
        struct Frame(#[tensor(device = cuda)] Tensor);
    });
    for item in [actix, message] {
        let text = item.to_token_stream().to_string();
        assert!(text.contains("crate :: gpu :: __private") && !text.contains(":: tensorpost"), "{text}");
    }
}

#[test]
fn generics_lose_their_defaults_and_keep_their_bounds() {
    let [_, message] = impls(parse_quote! { struct Frame<T: Clone = u8, const N: usize = 3>([T; N]); });
    let text = message.to_token_stream().to_string();
    assert!(text.starts_with("# [automatically_derived] impl < T : Clone , const N : usize >"), "{text}");
    assert!(text.contains("for Frame < T , N >"), "{text}");
}

#[test]
fn nothing_to_check_is_no_code() {
    assert_eq!(check_body(parse_quote! { struct Frame { x: Tensor } }), "");
    assert_eq!(check_body(parse_quote! { enum E { A(Tensor), B } }), "");
    assert_eq!(check_body(parse_quote! { enum Never {} }), "");
}

#[test]
fn a_check_names_message_and_field() {
    let body = check_body(parse_quote! {
        #[gpu_message(name = "frame")]
        struct Frame { id: u8, #[tensor(dtype = f16, shape = [3, _])] pixels: Tensor }
    });
    assert!(body.starts_with("let Self { pixels : __field_1 , .. } = self ;"), "{body}");
    assert!(
        body.contains(
            "< Tensor as :: tensorpost :: __private :: CheckTensors > :: check_tensors (__field_1 ,"
        ),
        "{body}"
    );
    assert!(body.contains("DType :: F16"), "{body}");
    assert!(body.contains("Option :: Some (3) , :: core :: option :: Option :: None]"), "{body}");
    assert!(body.contains("device : :: core :: option :: Option :: None"), "{body}");
    assert!(body.contains("in_field (\"frame\" , \"pixels\")"), "{body}");
}

#[test]
fn variants_without_checks_share_one_arm() {
    let some = check_body(parse_quote! { enum E { A, B(u8, #[tensor(device = host)] Tensor) } });
    assert!(some.contains("Self :: B { 1 : __field_1 , .. } =>"), "{some}");
    assert!(some.contains("_ => { }"), "{some}");
    assert!(some.contains("in_field (\"E\" , \"B.1\")"), "{some}");
    // A wildcard after every variant would be an unreachable pattern.
    let all = check_body(parse_quote! { enum E { B(#[tensor(device = host)] Tensor) } });
    assert!(!all.contains("_ =>"), "{all}");
}

#[test]
fn errors_become_compile_errors() {
    let text = crate::expand(&parse_quote! { struct F { x: TensorMut } }).to_string();
    assert!(text.contains("compile_error ! { \"field `x`: TensorMut cannot be sent"), "{text}");
}
