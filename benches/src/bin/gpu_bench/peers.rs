//! Two GPUs: an actor on one reads large tensors of the other, where they are or brought by `receive_on`.

use tensorpost::prelude::*;

use crate::kernels::Kernels;
use crate::outcome::{Outcome, Text, now};

/// A [`Reader`]'s work on a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    /// Nothing: `receive_on` brought it.
    Nothing,
    /// Copies it.
    Copy,
    /// Reads it with a kernel, which writes as much on its own device.
    Kernel,
}

/// One of `count` tensors. The reply to the last, sent when the GPU has finished it, is the time of that, see
/// [`now`]; to those before it is 0.
#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(reply = Outcome<u64>)]
pub(crate) struct Read {
    pub(crate) tensor: Tensor,
    pub(crate) how: How,
    pub(crate) is_last: bool,
    /// The value of every element.
    pub(crate) value: f32,
}

pub(crate) struct Reader {
    stream: DeviceStream,
    kernels: Kernels,
    /// The memory that copies and kernels write.
    own: Option<TensorMut>,
}

impl Actor for Reader {
    type Context = Context<Self>;
}

impl RemoteActor for Reader {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        Ok(Reader { kernels: Kernels::load(&stream)?, stream, own: None })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Read>();
    }
}

impl Handler<Read> for Reader {
    type Result = Outcome<u64>;

    fn handle(&mut self, read: Read, _: &mut Context<Self>) -> Self::Result {
        self.read(read).map_err(|error| format!("{error:#}"))
    }
}

impl Reader {
    fn read(&mut self, read: Read) -> anyhow::Result<u64> {
        let Read { tensor, how, is_last, value } = read;
        if how != How::Nothing {
            if self.own.is_none() {
                self.own = Some(self.stream.empty(DType::F32, tensor.shape())?);
            }
            let own = self.own.as_mut().text("no memory")?;
            match how {
                How::Copy => self.stream.copy_into(own, 0, &tensor)?,
                _ => self.kernels.bump(&self.stream, &tensor, own, std::time::Duration::ZERO)?,
            }
        }
        if !is_last {
            return Ok(0);
        }
        self.stream.synchronize()?;
        let end = now();
        // The last elements, as the reader has them.
        let last = tensor.len() - tensor.len().min(1024)..tensor.len();
        let (found, wanted) = match self.own.take() {
            Some(own) => {
                let own = own.freeze();
                let more = if how == How::Kernel { 1.0 } else { 0.0 };
                (self.stream.download::<f32>(&own.slice(0, last)?)?, value + more)
            }
            None => (self.stream.download::<f32>(&tensor.slice(0, last)?)?, value),
        };
        anyhow::ensure!(found.iter().all(|found| *found == wanted), "the tensor came wrong");
        Ok(end)
    }
}
