//! The messages that both halves know; `tests/types_of_rust.py` has them in Python.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::message::{GpuMessage, Portable};
use tensorpost_core::tensor::Tensor;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = u64)]
pub(crate) struct Image {
    pub(crate) id: u64,
    #[tensor(dtype = f32, shape = [3, _, _], device = host)]
    pub(crate) pixels: Tensor,
    #[tensor(dtype = u8)]
    pub(crate) extras: BTreeMap<String, Vec<Tensor>>,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
pub(crate) struct Scalars {
    pub(crate) integers: (u8, u16, u32, u64, i8, i16, i32, i64),
    pub(crate) sizes: (usize, isize),
    pub(crate) floats: [f64; 2],
    pub(crate) single: f32,
    pub(crate) truth: bool,
    pub(crate) letter: char,
    pub(crate) text: String,
    pub(crate) nothing: (),
    pub(crate) other: String,
    pub(crate) patience: Duration,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, name = "Job \"1\"", reply = Result<Tree, String>)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Job {
    pub(crate) each_way: Vec<Way>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<u8>,
    #[serde(default)]
    pub(crate) absent: Option<u8>,
    pub(crate) tree: Tree,
    pub(crate) told: Told,
    #[serde(skip)]
    #[expect(dead_code, reason = "it is not on the wire, which is what it shows")]
    pub(crate) here: u8,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) enum Way {
    Unit,
    Newtype(u8),
    Tuple(u8, Option<i8>),
    #[serde(rename = "a struct")]
    Struct {
        deep: BTreeMap<u8, [bool; 2]>,
    },
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
pub(crate) struct Tree {
    pub(crate) value: i64,
    pub(crate) children: Vec<Tree>,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
#[serde(tag = "kind", content = "what", rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Told {
    NotYet,
    OneLine(String),
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) enum Level {
    Low,
    #[serde(rename = "very high")]
    High,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Stop;

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Pair(pub(crate) u16, pub(crate) Option<String>);

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Wrapped(pub(crate) i32);

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Circle {
    pub(crate) radius: f64,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
#[serde(tag = "figure")]
pub(crate) enum Figure {
    Round(Circle),
    Square { side: f32, level: Level },
    Nothing,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
#[serde(untagged)]
pub(crate) enum Loose {
    Named { name: String, tensor: Box<Tensor> },
    Both(u8, bool),
    Number(i64),
    Nothing,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) enum Expression {
    Leaf(u32),
    Add { left: Box<Expression>, right: Box<Expression> },
    Call(Box<Function>),
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) body: Option<Expression>,
}

type Curves = BTreeMap<u8, Vec<(f32, Option<f64>)>>;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = Level)]
pub(crate) struct Everything {
    pub(crate) stop: Stop,
    pub(crate) pair: Pair,
    pub(crate) wrapped: Wrapped,
    pub(crate) figures: Vec<Figure>,
    pub(crate) loose: Vec<Loose>,
    pub(crate) expression: Expression,
    pub(crate) function: Function,
    #[serde(with = "serde_bytes")]
    pub(crate) raw: Vec<u8>,
    #[serde(with = "serde_bytes")]
    pub(crate) maybe_raw: Option<Vec<u8>>,
    pub(crate) names: BTreeSet<String>,
    pub(crate) levels: BTreeMap<i16, Level>,
    pub(crate) nested: BTreeMap<String, Curves>,
    #[tensor(shape = [_, _], device = host)]
    pub(crate) tensor: Tensor,
    #[tensor(dtype = i64)]
    pub(crate) maybe: Option<Tensor>,
    pub(crate) unit: Empty,
}

/// `()` is nil; this is an empty list.
#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = tensorpost_core)]
pub(crate) struct Empty();
