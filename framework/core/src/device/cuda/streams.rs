//! The driver's streams of one GPU, of which this process makes only as many as can wait at once, and never destroys one.
//!
//! The driver deals streams out to hardware queues as they are made, and whatever shares its queue with a stream that
//! waits is held up as long. With streams that are made and destroyed, two that are alive could end up in one queue though
//! there are few. A stream that comes free may still have work to do; its next user comes behind that, which is why those
//! that are through go first.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use parking_lot::Mutex;

use super::super::DeviceError;
use super::Shared;
use super::stream::Core;

pub(super) struct Streams {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    made: usize,
    /// With the last user's work, which is gone when that is done.
    idle: VecDeque<(Arc<CudaStream>, Weak<Core>)>,
}

impl Streams {
    pub(super) fn new(limit: usize) -> Self {
        Streams { limit, state: Mutex::default() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }
}

/// One of the driver's streams; given back when dropped.
pub(super) struct Lent {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    core: Weak<Core>,
}

impl Lent {
    /// A stream that nobody uses.
    ///
    /// # Errors
    /// [`DeviceError::NoStream`], or what the driver says.
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self, DeviceError> {
        let Streams { limit, state } = &shared.streams;
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

    /// Says what runs on it.
    pub(super) fn used_by(&mut self, core: &Arc<Core>) {
        self.core = Arc::downgrade(core);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.shared.streams.state.lock();
        state.idle.push_back((Arc::clone(&self.stream), Weak::clone(&self.core)));
    }
}
