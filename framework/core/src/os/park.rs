//! Waiting for a future on this thread, without a runtime.

/// Blocks the thread until `future` is done. It needs no runtime and may be called inside one. The budget by
/// which tokio makes a task yield does not count here: the future would wait for a scheduler that this call
/// keeps from running.
pub fn block_on<F: Future>(future: F) -> F::Output {
    pollster::block_on(tokio::task::unconstrained(future))
}
