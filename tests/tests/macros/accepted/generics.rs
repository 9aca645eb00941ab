//! Generic messages: parameters, defaults, const parameters, associated types, serde's own bounds.

use std::{collections::HashMap, fmt::Debug, marker::PhantomData};

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Batch<T> {
    items: Vec<T>,
    pixels: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Tagged<K = u32, V = String>
where
    K: Eq + std::hash::Hash,
    V: Debug,
{
    by_key: HashMap<K, V>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
enum Either<L, R: Clone> {
    Left(L),
    Right { value: R, mask: Option<Tensor> },
}

/// `T` is never sent, so it needs no serde impl.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Marked<T> {
    id: u64,
    unit: PhantomData<T>,
}

struct Metres;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Window<const N: usize, const M: usize> {
    corners: [Option<u8>; 2],
    #[tensor(dtype = f32, shape = [N, 2 * M, _])]
    pixels: Option<Tensor>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Associated<I: Iterator> {
    next: I::Item,
}

/// The reply has the parameter too.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Option<T>)]
struct Lookup<T> {
    key: String,
    of: PhantomData<T>,
}

/// Serde's bounds are replaced: the message follows them.
#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(bound(serialize = "T: ToString", deserialize = "T: From<String>"))]
struct AsText<T> {
    #[serde(with = "text")]
    value: T,
}

mod text {
    use tensorpost::prelude::*;

    pub fn serialize<T: ToString, S: serde::Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.to_string().serialize(to)
    }

    pub fn deserialize<'de, T: From<String>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from).map(T::from)
    }
}

struct Name(String);

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Default)]
struct Buffer;

/// A skipped field needs no serde impl, only a default.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Cached<T> {
    #[serde(skip)]
    cache: Option<T>,
    id: u64,
}

/// A generic field can be checked when it has tensors.
#[derive(Serialize, Deserialize, GpuMessage)]
struct Checked<T> {
    #[tensor(device = cuda)]
    tensors: Vec<T>,
}

fn message<M: GpuMessage>() -> &'static str {
    M::NAME
}

/// The bounds that the derive adds are also all that generic code has to ask for.
fn in_generic_code<T: Serialize + serde::de::DeserializeOwned + Send + 'static>() -> &'static str {
    message::<Batch<T>>()
}

#[test]
fn all_of_it_is_accepted() {
    assert_eq!(message::<Batch<u64>>(), "Batch");
    assert_eq!(message::<Batch<Option<Tensor>>>(), "Batch");
    assert_eq!(message::<Tagged>(), "Tagged");
    assert_eq!(message::<Tagged<String, Vec<u8>>>(), "Tagged");
    assert_eq!(message::<Either<Tensor, u8>>(), "Either");
    assert_eq!(message::<Marked<Metres>>(), "Marked");
    assert_eq!(message::<Window<3, 480>>(), "Window");
    assert_eq!(message::<Associated<std::vec::IntoIter<u8>>>(), "Associated");
    assert_eq!(message::<Lookup<Tensor>>(), "Lookup");
    assert_eq!(message::<AsText<Name>>(), "AsText");
    assert_eq!(message::<Cached<Buffer>>(), "Cached");
    assert_eq!(message::<Checked<Option<Tensor>>>(), "Checked");
    assert_eq!(in_generic_code::<Tensor>(), "Batch");
    Window::<3, 480> { corners: [None; 2], pixels: None }.check().unwrap();
}
