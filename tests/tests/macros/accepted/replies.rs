//! Reply types: none, plain, with tensors, a `Result`. Also checks that actix sees the same ones.

use tensorpost::{__private::actix, prelude::*};

#[derive(Serialize, Deserialize, GpuMessage)]
struct NoReply;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Stats)]
struct Measure {
    pixels: Tensor,
}

#[derive(Serialize, Deserialize)]
struct Stats {
    mean: f32,
    histogram: Tensor,
}

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Result<Vec<Tensor>, String>, name = "split/v2")]
struct Split(Tensor);

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = ::tensorpost)]
#[gpu_message(reply = (u32, [u8; 4]))]
struct Moved;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = "tensorpost")]
struct Quoted;

fn reply_is<M: GpuMessage<Reply = R> + actix::Message<Result = R>, R>() {}

#[test]
fn all_of_it_is_accepted() {
    reply_is::<NoReply, ()>();
    reply_is::<Measure, Stats>();
    reply_is::<Split, Result<Vec<Tensor>, String>>();
    reply_is::<Moved, (u32, [u8; 4])>();
    reply_is::<Quoted, ()>();
    assert_eq!(Split::NAME, "split/v2");
}
