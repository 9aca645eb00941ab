//! A message made by `macro_rules!`, whose invisible groups do not change its schema.

use tensorpost::prelude::*;

macro_rules! message {
    ($name:ident { $($field:ident: $ty:ty),* } -> $reply:ty, $channels:expr) => {
        #[derive(Serialize, Deserialize, GpuMessage)]
        #[gpu_message(reply = $reply, name = "frame")]
        struct $name { $(#[tensor(shape = [$channels, _])] $field: $ty),* }
    };
}

message!(Made { pixels: Option<Tensor> } -> Vec<u8>, 3);

mod by_hand {
    use super::*;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(name = "frame", reply = Vec<u8>)]
    pub struct Written {
        #[tensor(shape = [3, _])]
        pub pixels: Option<Tensor>,
    }
}

#[test]
fn all_of_it_is_accepted() {
    assert_eq!(Made::SCHEMA, by_hand::Written::SCHEMA);
    Made { pixels: None }.check().unwrap();
    by_hand::Written { pixels: None }.check().unwrap();
}
