//! Enums in all four of serde's representations.

use tensorpost::prelude::*;

#[derive(Serialize, Deserialize, GpuMessage)]
enum External {
    Stop,
    Blur(Tensor),
    Blend(Tensor, #[tensor(dtype = f32)] Option<Tensor>),
    Crop {
        #[tensor(shape = [3, _, _], device = cuda)]
        images: Vec<Tensor>,
        size: u32,
    },
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(tag = "kind")]
enum Internal {
    Stop,
    Blur(Inner),
    Crop {
        #[tensor(dtype = bf16)]
        image: Tensor,
    },
}

#[derive(Serialize, Deserialize)]
struct Inner {
    image: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(tag = "kind", content = "body", rename_all = "snake_case")]
enum Adjacent {
    Stop,
    Blur(Tensor),
    Crop { image: Tensor },
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[serde(untagged)]
enum Untagged {
    Crop {
        image: Tensor,
    },
    /// Every field of every variant may be checked.
    Blur(#[tensor(device = host)] Box<Tensor>),
    Stop,
}

/// All variants have checks: the generated match has no arm left over.
#[derive(Serialize, Deserialize, GpuMessage)]
enum AllChecked {
    A(#[tensor(dtype = u8)] Tensor),
    B {
        #[tensor(dtype = i64)]
        x: Tensor,
    },
}

#[derive(Serialize, Deserialize, GpuMessage)]
enum Never {}

#[test]
fn all_of_it_is_accepted() {
    External::Stop.check().unwrap();
    External::Crop { images: Vec::new(), size: 3 }.check().unwrap();
    Internal::Stop.check().unwrap();
    Adjacent::Stop.check().unwrap();
    Untagged::Stop.check().unwrap();
    assert_eq!(AllChecked::NAME, "AllChecked");
    assert_eq!(Never::NAME, "Never");
    assert_ne!(External::SCHEMA, Adjacent::SCHEMA);
    assert_ne!(Internal::SCHEMA, Untagged::SCHEMA);
}
