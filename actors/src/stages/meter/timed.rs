//! The time that a GPU is at a frame, from events before and behind its kernels. Nobody waits for them: they are looked at
//! when the next frame comes, and all of them at the end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use tensorpost::device::DeviceError;
use tensorpost::prelude::*;

use super::{Job, locked};

/// Frames whose kernels may still run; as many as the mailboxes let through.
#[derive(Default)]
pub(super) struct Timed(Mutex<VecDeque<Span>>);

struct Span {
    began: CudaEvent,
    ended: CudaEvent,
    job: Job,
}

impl Timed {
    pub(super) fn launch<T, E: From<TensorError>>(
        &self,
        job: &Job,
        gpu: &Gpu,
        launch: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.collect();
        let event = || {
            let event = gpu.cuda_stream()?.record_event(Some(CU_EVENT_DEFAULT));
            event.map_err(|error| TensorError::Device(failed(&error)))
        };
        let began = event()?;
        let launched = launch()?;
        let ended = event()?;
        job.parts().begun += 1;
        locked(&self.0).push_back(Span { began, ended, job: job.clone() });
        Ok(launched)
    }

    /// Takes the times of what is done. A stream does one after the other, so they come in order.
    fn collect(&self) {
        let mut spans = locked(&self.0);
        let done = spans.iter().take_while(|span| span.ended.is_complete()).count();
        let done: Vec<Span> = spans.drain(..done).collect();
        drop(spans); // a job that ends takes a lock of its own
        done.into_iter().for_each(Span::take);
    }

    /// Takes all times; the stream has been waited for. What failed on it was never done, and its frame counts as lost.
    pub(super) fn collect_all(&self) {
        let spans = std::mem::take(&mut *locked(&self.0));
        spans.into_iter().filter(|span| span.ended.is_complete()).for_each(Span::take);
    }
}

impl Span {
    fn take(self) {
        if let Ok(milliseconds) = self.began.elapsed_ms(&self.ended) {
            self.job.done(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default());
        }
    }
}

fn failed(error: &cudarc::driver::DriverError) -> DeviceError {
    DeviceError::Driver { call: "cuEventRecord", code: error.0 as i32, message: error.to_string() }
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timed({})", locked(&self.0).len())
    }
}
