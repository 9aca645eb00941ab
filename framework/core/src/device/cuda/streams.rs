//! The driver's streams of one GPU. This process makes only as many as can wait at once, and never destroys
//! one.
//!
//! The driver assigns streams to hardware queues as they are made, and a waiting stream stalls the other
//! streams of its queue. So there are two streams fewer than queues. If streams were made and destroyed, the
//! driver could put two living ones into one queue although there are few. A stream that becomes free may
//! still have work to do, and its next user comes behind that work; so streams that are done are reused
//! first.
//!
//! The framework asks for eight queues rather than 32, because a context with 32 takes 2 s, and only three
//! such contexts fit on a GPU under MPS.
//!
//! An actor beyond that number *shares* a stream, and the log says so; it does not fail to start. A wait is
//! enqueued after the work that it waits for, so sharing may delay work but never makes it wrong or hang. A
//! caller that asks for a stream of its own (`DeviceStream::with_new_stream`) gets an error that names the
//! variable.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use parking_lot::{Mutex, MutexGuard};

use super::super::DeviceError;
use super::Shared;
use super::stream::Core;

pub(super) struct Streams {
    limit: usize,
    state: Mutex<State>,
    /// All cores that have used one of the streams and may have work.
    cores: Mutex<Vec<Weak<Core>>>,
}

#[derive(Default)]
struct State {
    made: usize,
    /// Free streams, each with its last user's work, which is gone when that is done.
    idle: VecDeque<(Arc<CudaStream>, Weak<Core>)>,
}

impl Streams {
    pub(super) fn new(limit: usize) -> Self {
        Streams { limit, state: Mutex::default(), cores: Mutex::default() }
    }

    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns all cores that may have work on a stream of this GPU. None is added while the guard is held.
    pub(super) fn cores(&self) -> MutexGuard<'_, Vec<Weak<Core>>> {
        self.cores.lock()
    }
}

/// A stream of the driver's; given back on drop.
pub(super) struct Lent {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    core: Weak<Core>,
}

impl Lent {
    /// Takes a stream that nobody uses.
    ///
    /// # Errors
    /// [`DeviceError::NoStream`], or the driver's error.
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self, DeviceError> {
        let Streams { limit, state, .. } = &shared.streams;
        let mut state = state.lock();
        let through = state.idle.iter().position(|(_, core)| core.strong_count() == 0);
        let idle = match through {
            Some(at) => state.idle.remove(at),
            None if state.made < *limit => None,
            None => state.idle.pop_front(),
        };
        let stream = match idle {
            Some((stream, _)) => stream,
            None if state.made < *limit => {
                shared.bind()?;
                let stream = shared.driver.stream(&shared.context)?;
                state.made += 1;
                stream
            }
            None => return Err(DeviceError::NoStream { device: shared.id, limit: *limit }),
        };
        Ok(Lent { shared: Arc::clone(shared), stream, core: Weak::new() })
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Notes the core that runs on the stream, before it runs anything.
    pub(super) fn used_by(&mut self, core: &Arc<Core>) {
        self.core = Arc::downgrade(core);
        let mut cores = self.shared.streams.cores();
        cores.retain(|core| core.strong_count() > 0);
        cores.push(Arc::downgrade(core));
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.shared.streams.state.lock();
        state.idle.push_back((Arc::clone(&self.stream), Weak::clone(&self.core)));
    }
}
