//! Serde attributes that other languages cannot follow.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Frame {
    #[serde(flatten)]
    extras: std::collections::HashMap<String, u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

fn main() {}
