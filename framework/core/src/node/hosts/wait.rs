//! Waiting for futures: the answers of other hosts.

use std::io;

/// Waits on this thread, or on a new one if this thread belongs to an async runtime.
pub(in crate::node) fn wait_for<F: Future<Output: Send> + Send>(future: F) -> io::Result<F::Output> {
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(future))
    };
    if tokio::runtime::Handle::try_current().is_err() {
        return wait();
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(wait);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
