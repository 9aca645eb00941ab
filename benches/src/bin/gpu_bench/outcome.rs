//! Replies that carry an error as text, and small help for handlers.

use tensorpost::prelude::*;

/// A reply, or the reason why there is none.
pub(crate) type Outcome<T> = Result<T, String>;

/// Makes an error of a missing value.
pub(crate) trait Text<T> {
    fn text(self, what: &'static str) -> anyhow::Result<T>;
}

impl<T> Text<T> for Option<T> {
    fn text(self, what: &'static str) -> anyhow::Result<T> {
        self.ok_or_else(|| anyhow::anyhow!(what))
    }
}

/// Sends now, or as soon as there is room.
pub(crate) fn post<A, M>(address: &Address<M>, message: M, ctx: &mut Context<A>)
where
    A: Actor<Context = Context<A>>,
    M: GpuMessage,
{
    let Err(error) = address.try_send(message) else { return };
    let (address, message) = (address.clone(), error.message);
    let send = async move {
        if let Err(error) = address.send(message).await {
            eprintln!("a message was lost: {error}");
        }
    };
    ctx.spawn(actix::fut::wrap_future(send));
}

/// Returns the nanoseconds of the clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
