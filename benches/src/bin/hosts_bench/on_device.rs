//! The same tensors in the memory of a device, from one host to the other: two programs of this machine, on
//! one device.
//!
//! Copies of one byte on the actors' own streams write and check only the first and the last byte of each
//! tensor, so that only the way between the hosts is timed. These copies are work of two more processes on
//! the GPUs all the same; actors that are told to leave the bytes alone show its cost.

use std::sync::atomic::AtomicBool;

use tensorpost::prelude::*;

use crate::actors::{Block, Came, Pour, Poured, pour_all};

/// A [`Source`](crate::actors::Source) of tensors in a device's memory.
pub(crate) struct DeviceSource {
    stream: DeviceStream,
    /// A byte of each value, on the device.
    values: Tensor,
    touches: bool,
}

#[actor]
impl DeviceSource {
    fn create(touches: bool, env: &Env) -> anyhow::Result<Self> {
        let stream = env.stream();
        let values: Vec<u8> = (0..=u8::MAX).collect();
        let values = stream.from_slice(&[values.len()], &values)?.freeze();
        Ok(DeviceSource { stream, values, touches })
    }

    #[handler]
    fn pour(&mut self, pour: Pour) -> ResponseFuture<Result<Poured, String>> {
        let (stream, values, touches) = (self.stream.clone(), self.values.clone(), self.touches);
        Box::pin(async move {
            let make = async |number: u64| {
                let mut data = stream.empty_when_free(DType::U8, &[pour.bytes]).await?;
                let value = usize::from(number as u8);
                let value = values.slice(0, value..=value)?;
                for at in [0, pour.bytes - 1].into_iter().filter(|_| touches) {
                    stream.copy_into(&mut data, at, &value)?;
                }
                anyhow::Ok(data.freeze())
            };
            let poured = pour_all(&pour, &AtomicBool::new(false), make).await;
            poured.map_err(|error| format!("a stream of tensors on {}: {error:#}", stream.name()))
        })
    }
}

/// A [`Sink`](crate::actors::Sink) of tensors in a device's memory, which has to be its own device.
pub(crate) struct DeviceSink {
    stream: DeviceStream,
    touches: bool,
    came: u64,
    wrong: u64,
}

#[actor]
impl DeviceSink {
    fn create(touches: bool, env: &Env) -> Self {
        DeviceSink { stream: env.stream(), touches, came: 0, wrong: 0 }
    }

    #[handler]
    fn block(&mut self, Block { number, data }: Block) {
        let whole = !self.touches || self.ends(&data).is_ok_and(|ends| ends == [number as u8; 2]);
        self.wrong += u64::from(number != self.came || !whole);
        self.came += 1;
    }

    #[handler]
    fn came(&self, _: Came) -> (u64, u64) {
        (self.came, self.wrong)
    }

    /// Returns the first and the last byte, once the tensor is ready. Fails where it is on another device.
    fn ends(&self, data: &Tensor) -> anyhow::Result<[u8; 2]> {
        let mut ends = [0; 2];
        for (end, at) in ends.iter_mut().zip([0, data.len().saturating_sub(1)]) {
            let byte = self.stream.download::<u8>(&data.slice(0, at..=at)?)?;
            anyhow::ensure!(byte.len() == 1, "{} bytes are one", byte.len());
            *end = byte[0];
        }
        Ok(ends)
    }
}
