//! The Rust actor in `python -m tensorpost.demo`: it inverts pictures, and passes them on to a Python actor.

use std::sync::Arc;

use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Address, Env, Handles, RemoteActor, WorkerProgram};
use tensorpost_core::api::message::GpuMessage;
use tensorpost_core::message::codec;
use tensorpost_core::tensor::{DeviceStream, Tensor, TensorError};

use actix::{Actor, Context, Handler, ResponseFuture};

use crate::actor::WORKER;
use crate::address::PyAddress;
use crate::context::Context as Place;
use crate::failure::exception;

/// In Python it has the same name and the same fields.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable)]
pub(crate) struct Picture {
    id: u64,
    #[tensor(dtype = f32)]
    pixels: Tensor,
}

/// See the module.
pub(crate) struct Invert {
    stream: DeviceStream,
    next: Address<Picture>,
}

impl Actor for Invert {
    type Context = Context<Self>;
}

impl RemoteActor for Invert {
    /// The interpreter, which runs the program of this extension, and the address that gets the pictures.
    type Args = (String, Address<Picture>);

    fn create((_, next): Self::Args, env: &Env) -> anyhow::Result<Self> {
        Ok(Invert { stream: env.stream(), next })
    }

    fn worker_program((interpreter, _): &Self::Args) -> Option<WorkerProgram> {
        Some(WorkerProgram {
            path: interpreter.into(),
            arguments: WORKER.map(str::to_owned).to_vec(),
            environment: Vec::new(),
            remedy: "",
        })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Picture>();
    }
}

impl Invert {
    fn inverted(&self, Picture { id, pixels }: Picture) -> Result<Picture, TensorError> {
        // In place if nothing else holds the pixels, in a copy otherwise.
        let pixels = pixels.into_mut(&self.stream).or_else(|shared| self.stream.copy(&shared.tensor));
        let mut pixels = pixels?;
        self.stream.run((pixels.of_mut::<f32>(),), |(pixels,)| {
            pixels.iter_mut().for_each(|pixel| *pixel = 1.0 - *pixel);
        })?;
        Ok(Picture { id, pixels: pixels.freeze() })
    }
}

impl Handler<Picture> for Invert {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, picture: Picture, _: &mut Context<Self>) -> Self::Result {
        let sending = self.inverted(picture).map(|picture| self.next.send(picture));
        Box::pin(async move {
            match sending {
                Ok(sending) => {
                    if let Err(error) = sending.await {
                        eprintln!("{error}");
                    }
                }
                Err(error) => eprintln!("a picture was dropped: {error}"),
            }
        })
    }
}

/// Starts the actor; it sends inverted pictures to `next`.
pub(crate) fn spawn(
    py: Python<'_>,
    node: &tensorpost_core::node::Node,
    place: &Arc<Place>,
    interpreter: String,
    next: &PyAddress,
) -> PyResult<PyAddress> {
    let failed = |why: String| exception(py, "SpawnError", why);
    let encoded = codec::encode(&next.raw, Vec::new()).map_err(|error| failed(error.to_string()))?;
    let typed = codec::decode::<Address<Picture>>(&encoded.body, Vec::new(), Some(place.transport.clone()));
    let typed = typed.map_err(|error| failed(error.to_string()))?;
    let started = py.detach(|| node.spawn::<Invert>((interpreter, typed)).name("invert").start());
    let raw = started.map_err(|error| failed(error.to_string()))?.raw_address();
    Ok(PyAddress::new(raw, Arc::clone(place)))
}
