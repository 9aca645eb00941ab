//! Named, tuple, newtype and unit structs, with tensors at the top, nested, and flattened.

use std::collections::{BTreeMap, HashMap};

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Frame {
    id: u64,
    pixels: Tensor,
    regions: Vec<Region>,
    by_name: HashMap<String, Tensor>,
    pair: (Tensor, BTreeMap<u32, Box<Region>>),
}

/// Nested: no derive of `GpuMessage`, and no annotation.
#[derive(Serialize, Deserialize)]
struct Region {
    label: String,
    crop: Option<Tensor>,
    inner: Vec<Region>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Pair(Tensor, Option<Tensor>);

#[derive(Serialize, Deserialize, GpuMessage)]
struct Newtype(Tensor);

#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(transparent)]
struct Transparent {
    inner: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct Tick;

#[derive(Serialize, Deserialize, GpuMessage)]
struct Empty {}

#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(rename_all = "camelCase")]
struct Flat {
    #[serde(flatten)]
    region: Region,
    #[serde(flatten)]
    rest: HashMap<String, u64>,
    #[serde(skip)]
    local: Option<std::time::Instant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mask: Option<Tensor>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
struct r#Raw {
    r#type: u8,
    #[tensor(dtype = u8)]
    r#ref: Option<Tensor>,
}

#[test]
fn all_of_it_is_accepted() {
    assert_eq!(Frame::NAME, "Frame");
    assert_eq!(Newtype::NAME, "Newtype");
    assert_eq!(Raw::NAME, "Raw");
    let schemas = [
        Frame::SCHEMA,
        Pair::SCHEMA,
        Newtype::SCHEMA,
        Transparent::SCHEMA,
        Tick::SCHEMA,
        Empty::SCHEMA,
        Flat::SCHEMA,
        Raw::SCHEMA,
    ];
    for (index, schema) in schemas.iter().enumerate() {
        assert!(!schemas[index + 1..].contains(schema), "two definitions have the same schema hash");
    }
    Tick.check().unwrap();
    Raw { r#type: 1, r#ref: None }.check().unwrap();
}
