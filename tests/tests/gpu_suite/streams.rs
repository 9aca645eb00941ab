//! How many streams a process has on a GPU, and how many processes the GPU takes.

use tensorpost::node::{Sharing, Spawned};
use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;

use super::device;

/// The workers of one actor that one server of MPS has to take.
const MANY: usize = 40;

/// "How many streams can you make beside your own, and what does the error for one more say?"
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = (usize, String))]
struct Make;

/// "Copy this."
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Tensor)]
pub(crate) struct Copied(pub(crate) Tensor);

pub(crate) struct Maker(Env);

impl Actor for Maker {
    type Context = Context<Self>;
}

impl RemoteActor for Maker {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        Ok(Maker(env.clone()))
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Make>().message::<Copied>();
    }
}

impl Handler<Make> for Maker {
    type Result = MessageResult<Make>;

    fn handle(&mut self, _: Make, _: &mut Context<Self>) -> Self::Result {
        let mut made = Vec::new();
        loop {
            match self.0.stream().with_new_stream() {
                Ok(stream) => made.push(stream),
                Err(error) => return MessageResult((made.len(), error.to_string())),
            }
            assert!(made.len() < 64, "there is no end to streams");
        }
    }
}

impl Handler<Copied> for Maker {
    type Result = MessageResult<Copied>;

    fn handle(&mut self, Copied(tensor): Copied, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.0.stream().copy(&tensor).expect("there is room").freeze())
    }
}

pub(crate) fn spawn(node: &Node, device: &Device, streams: usize) -> Result<Spawned<Maker>, String> {
    node.spawn::<Maker>(())
        .device(device.clone())
        .streams(streams)
        .start()
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

/// MBX-2: a worker that a spawn made has the streams that were asked for, and its error says how to get more.
pub(crate) fn a_worker_has_as_many_streams_as_its_spawn_says(builder: Builder) {
    let (device, is_gpu) = device();
    let node = builder.start().unwrap();
    for streams in [1, 2, 5] {
        let maker = spawn(&node, &device, streams).unwrap();
        let (more, refused) = node.block_on(maker.ask(Make)).unwrap();
        println!("{more} more of {streams}: {refused}");
        assert!(!is_gpu || (more == streams - 1 && refused.contains("`.streams(n)`")), "{more} {refused}");
    }
}

/// Forty workers of one actor serve on one GPU under MPS. Workers that ask for more streams are refused past
/// some number, with the reason.
pub(crate) fn forty_workers_share_a_gpu_under_mps(builder: Builder) {
    let (device, is_gpu) = device();
    let builder = if is_gpu { builder.sharing(Sharing::Mps) } else { builder };
    let node = builder.start().unwrap();
    let makers: Vec<_> = (0..MANY)
        .map(|number| spawn(&node, &device, 1).unwrap_or_else(|error| panic!("worker {number}: {error}")))
        .collect();
    let stream = node.stream(&device).unwrap();
    let one = |value: usize| stream.from_slice(&[1], &[value as f32]).unwrap().freeze();
    let asks: Vec<_> =
        makers.iter().enumerate().map(|(value, maker)| maker.ask(Copied(one(value)))).collect();
    for (value, copied) in node.block_on(futures_util::future::join_all(asks)).into_iter().enumerate() {
        assert_eq!(stream.download::<f32>(&copied.unwrap()).unwrap(), [value as f32]);
    }
    if !is_gpu {
        return;
    }
    let refused = (MANY..200).find_map(|number| Some((number, spawn(&node, &device, 6).err()?)));
    let (number, refused) = refused.expect("there is no end to workers");
    println!("worker {number}: {refused}");
    assert!(refused.contains("CUDA_DEVICE_MAX_CONNECTIONS") && refused.contains("MPS"), "{refused}");
    // The workers that exist go on.
    node.block_on(makers[0].ask(Copied(one(3)))).unwrap();
}
