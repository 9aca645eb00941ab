//! The accepted forms, and the text of every refusal.

use quote::ToTokens;
use syn::{DeriveInput, parse_quote};

use super::message;
use crate::ir::{Body, DType, Device};

/// Returns syntax as text, for comparison.
fn text(syntax: &impl ToTokens) -> String {
    syntax.to_token_stream().to_string()
}

/// Returns all messages of the error, in order.
fn errors(input: DeriveInput) -> Vec<String> {
    match message(&input) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| error.to_string()).collect(),
    }
}

#[track_caller]
fn refused(input: DeriveInput, expected: &str) {
    assert_eq!(errors(input), [expected]);
}

#[test]
fn a_plain_struct_has_the_defaults() {
    let input = parse_quote! { struct Frame { id: u64, pixels: Tensor } };
    let message = message(&input).unwrap();
    assert_eq!(message.name, "Frame");
    assert_eq!(text(&message.reply), "()");
    assert_eq!(text(&message.root), ":: tensorpost");
    assert_eq!(message.fields().map(|field| field.label.as_str()).collect::<Vec<_>>(), ["id", "pixels"]);
    assert!(message.fields().all(|field| field.check.is_none()));
}

#[test]
fn the_container_attributes_are_read_in_any_order_and_number() {
    let input = parse_quote! {
        #[gpu_message(name = "frame/v2", crate = crate::renamed)]
        #[gpu_message(reply = Result<Stats, String>)]
        struct Frame;
    };
    let message = message(&input).unwrap();
    assert_eq!(message.name, "frame/v2");
    assert_eq!(text(&message.reply), "Result < Stats , String >");
    assert_eq!(text(&message.root), "crate :: renamed");
}

#[test]
fn the_crate_may_be_quoted_as_for_serde() {
    let input = parse_quote! { #[gpu_message(crate = "::gpu::post")] struct Frame; };
    assert_eq!(text(&message(&input).unwrap().root), ":: gpu :: post");
}

#[test]
fn a_raw_identifier_loses_its_prefix() {
    let input = parse_quote! { struct r#Frame { r#type: u8 } };
    let message = message(&input).unwrap();
    assert_eq!(message.name, "Frame");
    assert_eq!(message.fields().next().unwrap().label, "type");
}

#[test]
fn fields_of_variants_are_labelled_with_both_names() {
    let input = parse_quote! { enum Job { Stop, Blur(Tensor, f32), Crop { image: Tensor } } };
    let message = message(&input).unwrap();
    let labels: Vec<_> = message.fields().map(|field| field.label.as_str()).collect();
    assert_eq!(labels, ["Blur.0", "Blur.1", "Crop.image"]);
    assert!(matches!(message.body, Body::Enum(variants) if variants.len() == 3));
}

#[test]
fn a_tensor_check_is_read() {
    let input = parse_quote! {
        struct Frame { #[tensor(device = cuda, shape = [3, _, WIDTH, 2 * N], dtype = bf16)] pixels: Tensor }
    };
    let message = message(&input).unwrap();
    let check = message.fields().next().unwrap().check.as_ref().unwrap();
    assert_eq!((check.dtype, check.device), (Some(DType::BF16), Some(Device::Cuda)));
    let shape: Vec<_> = check.shape.iter().flatten().map(|size| size.as_ref().map(text)).collect();
    assert_eq!(shape, [Some("3".to_owned()), None, Some("WIDTH".to_owned()), Some("2 * N".to_owned())]);
}

#[test]
fn every_allowed_word_is_taken() {
    for dtype in DType::ALLOWED {
        let dtype = syn::Ident::new(dtype, proc_macro2::Span::call_site());
        assert!(errors(parse_quote! { struct F(#[tensor(dtype = #dtype)] Tensor); }).is_empty());
    }
    for device in Device::ALLOWED {
        let device = syn::Ident::new(device, proc_macro2::Span::call_site());
        assert!(errors(parse_quote! { struct F(#[tensor(device = #device)] Tensor); }).is_empty());
    }
}

#[test]
fn the_empty_shape_is_a_scalar() {
    assert!(errors(parse_quote! { struct F(#[tensor(shape = [])] Tensor); }).is_empty());
}

#[test]
fn ranks_up_to_eight_are_taken() {
    assert!(
        errors(parse_quote! { struct F(#[tensor(shape = [1, 2, 3, 4, 5, 6, 7, 8])] Tensor); }).is_empty()
    );
    refused(
        parse_quote! { struct F { #[tensor(shape = [1, 2, 3, 4, 5, 6, 7, 8, 9])] x: Tensor } },
        "field `x`: a tensor has at most 8 dimensions, this shape has 9",
    );
}

#[test]
fn wrong_words_list_the_allowed_ones() {
    refused(
        parse_quote! { struct F { #[tensor(dtype = float)] x: Tensor } },
        "field `x`: unknown dtype `float`; dtype is one of bool, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, \
         f32, f64, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0, f4e2m1x2, complex64, complex128",
    );
    refused(
        parse_quote! { enum E { A { #[tensor(device = "cuda")] x: Tensor } } },
        "field `A.x`: device is one of host, cuda",
    );
}

#[test]
fn unknown_and_repeated_keys_are_refused() {
    refused(
        parse_quote! { struct F(#[tensor(type = f32)] Tensor); },
        "field `0`: unknown key `type`; #[tensor(..)] takes dtype, shape and device",
    );
    refused(
        parse_quote! { struct F { #[tensor(dtype = f32, dtype = f64)] x: Tensor } },
        "field `x`: #[tensor(..)] has `dtype` twice; keep one",
    );
    refused(
        parse_quote! { struct F { #[tensor(dtype = f32)] #[tensor(device = cuda)] x: Tensor } },
        "field `x`: two #[tensor(..)] attributes; write both checks into one",
    );
    refused(
        parse_quote! { #[gpu_message(answer = u8)] struct F; },
        "unknown key `answer`; #[gpu_message(..)] takes reply = Type, name = \"..\", portable and crate = path",
    );
    refused(
        parse_quote! { #[gpu_message(reply = u8)] #[gpu_message(reply = u8)] struct F; },
        "#[gpu_message(..)] has `reply` twice; keep one",
    );
}

#[test]
fn a_check_must_ask_for_something() {
    let expected = "field `x`: #[tensor] asks for nothing; give at least one of dtype, shape and device, as in \
                    #[tensor(dtype = f32, shape = [3, _, _])], or remove it";
    refused(parse_quote! { struct F { #[tensor] x: Tensor } }, expected);
    refused(parse_quote! { struct F { #[tensor()] x: Tensor } }, expected);
    refused(
        parse_quote! { struct F { #[tensor(dtype)] x: Tensor } },
        "field `x`: `dtype` needs a value, as in dtype = f32",
    );
}

#[test]
fn a_shape_is_a_list_of_sizes() {
    refused(
        parse_quote! { struct F { #[tensor(shape = 3)] x: Tensor } },
        "field `x`: shape is a list in brackets, as in shape = [3, _, _], where _ is any size",
    );
    let expected =
        "field `x`: a dimension is a non-negative integer, a constant of type usize, or _ for any size";
    refused(parse_quote! { struct F { #[tensor(shape = [-1])] x: Tensor } }, expected);
    refused(parse_quote! { struct F { #[tensor(shape = [1.5])] x: Tensor } }, expected);
    refused(parse_quote! { struct F { #[tensor(shape = [3u8])] x: Tensor } }, expected);
    refused(parse_quote! { struct F { #[tensor(shape = [..])] x: Tensor } }, expected);
}

#[test]
fn a_skipped_field_cannot_be_checked() {
    let expected = "field `x`: it is marked #[serde(skip)] and so is not sent, which leaves #[tensor(..)] nothing to \
                    check; remove one of the two";
    refused(parse_quote! { struct F { #[serde(skip)] #[tensor(dtype = f32)] x: Tensor } }, expected);
    refused(parse_quote! { struct F { #[serde(default, skip)] #[tensor(dtype = f32)] x: Tensor } }, expected);
    refused(
        parse_quote! { enum E { #[serde(skip)] A { #[tensor(dtype = f32)] x: Tensor } } },
        &expected.replace('x', "A.x").replace("neA.xt", "next"),
    );
    assert!(
        errors(parse_quote! {
            struct F { #[serde(skip_serializing_if = "Option::is_none")] #[tensor(dtype = f32)] x: Option<Tensor> }
        })
        .is_empty()
    );
}

#[test]
fn unions_and_lifetimes_are_refused() {
    refused(
        parse_quote! { union U { a: u8 } },
        "a union cannot be a message, because nothing says which of its fields is valid; use an enum",
    );
    refused(
        parse_quote! { struct F<'a> { x: Cow<'a, str> } },
        "a message must be owned, because it leaves the process: remove the lifetime `'a` and own the data (String \
         for &str, Vec<T> for &[T])",
    );
}

#[test]
fn borrowed_fields_say_what_to_own() {
    refused(
        parse_quote! { struct F { x: &'static str } },
        "field `x`: a message must own what it sends, and this borrows it; use String for &str",
    );
    refused(
        parse_quote! { struct F { x: Vec<&'static [u8]> } },
        "field `x`: a message must own what it sends, and this borrows it; use Vec<T> for &[T]",
    );
    refused(
        parse_quote! { struct F { x: Option<&'static Stats> } },
        "field `x`: a message must own what it sends, and this borrows it; use the value itself or a Box",
    );
}

#[test]
fn writable_tensors_are_found_at_any_depth() {
    let expected = "field `x`: TensorMut cannot be sent; call freeze() and send a Tensor";
    refused(parse_quote! { struct F { x: TensorMut } }, expected);
    refused(parse_quote! { struct F { x: tensorpost::tensor::TensorMut } }, expected);
    refused(parse_quote! { struct F { x: HashMap<String, (u8, [Option<TensorMut>; 2])> } }, expected);
    refused(
        parse_quote! { #[gpu_message(reply = Vec<TensorMut>)] struct F; },
        "the reply: TensorMut cannot be sent; call freeze() and send a Tensor",
    );
}

#[test]
fn what_is_bound_to_a_thread_or_process_is_refused() {
    let rc = "field `x`: Rc cannot leave its thread; use the value itself or a Box";
    refused(parse_quote! { struct F { x: std::rc::Rc<str> } }, rc);
    refused(parse_quote! { struct F { x: Vec<Rc<u8>> } }, rc);
    refused(parse_quote! { struct F { x: rc::Weak<u8> } }, rc);
    refused(
        parse_quote! { struct F { x: *const u8 } },
        "field `x`: a raw pointer means nothing in another process; send the value itself, or a Tensor for memory",
    );
}

#[test]
fn what_stays_behind_may_borrow_and_write() {
    assert!(errors(parse_quote! { struct F { #[serde(skip)] x: Option<TensorMut> } }).is_empty());
    assert!(errors(parse_quote! { struct F { #[serde(skip)] x: &'static str } }).is_empty());
    assert!(errors(parse_quote! { struct F { x: PhantomData<&'static u8> } }).is_empty());
    assert!(errors(parse_quote! { struct F { x: sync::Weak<u8> } }).is_empty());
}

#[test]
fn misplaced_attributes_say_where_they_belong() {
    refused(
        parse_quote! { #[tensor(dtype = f32)] struct F; },
        "#[tensor(..)] belongs on a field, not on the type",
    );
    refused(
        parse_quote! { struct F { #[gpu_message(reply = u8)] x: u8 } },
        "field `x`: #[gpu_message(..)] belongs on the type, not on a field",
    );
    refused(
        parse_quote! { enum E { #[tensor(dtype = f32)] A(Tensor) } },
        "variant `A`: #[tensor(..)] belongs on a field of it, not on the variant",
    );
}

#[test]
fn all_errors_are_reported_together() {
    let input = parse_quote! {
        struct F<'a> { a: &'a str, #[tensor(dtype = f31)] b: Tensor, c: TensorMut }
    };
    assert_eq!(errors(input).len(), 4);
}

#[test]
fn a_name_is_a_string_with_something_in_it() {
    refused(
        parse_quote! { #[gpu_message(name = Frame)] struct F; },
        "the name of a message is a string, such as name = \"Frame\"",
    );
    refused(
        parse_quote! { #[gpu_message(name = " ")] struct F; },
        "the name of a message cannot be empty; leave `name` out to use the type's own",
    );
}
