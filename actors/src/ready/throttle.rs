//! A limit on the rate.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tensorpost::prelude::*;

/// How many items a [`Throttle`] lets through.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThrottleArgs {
    /// Items a second, above 0.
    pub per_second: f64,
}

/// Lets a limited number of items through per second, evenly: for a source that simulates a camera, or a sink
/// that must not be flooded. Items that are held up stay where they are, so the stages before slow down too.
/// Use one replica, in a worker of its own.
///
/// ```
/// use std::time::Instant;
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, Throttle, ThrottleArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// // In a pipeline: `.stage::<Throttle<Named>>(ThrottleArgs { per_second: 30.0 })`. To try it out:
/// let mut stage = Throttle::new(ThrottleArgs { per_second: 1000.0 })?;
/// let (mut out, began) = (Out::new(), Instant::now());
/// for id in 0..11 {
///     stage.process(Named::new(id, "n", stream.zeros(DType::U8, &[1])?.freeze()), &mut out)?;
/// }
/// assert!(began.elapsed().as_millis() >= 10);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Throttle<T> {
    between: Duration,
    /// When the next may pass.
    next: Option<Instant>,
    types: PhantomData<fn(T) -> T>,
}

impl<T> Throttle<T> {
    /// Creates the stage.
    ///
    /// # Errors
    /// A rate that is no number above 0.
    pub fn new(args: ThrottleArgs) -> anyhow::Result<Self> {
        let between = Duration::try_from_secs_f64(1.0 / args.per_second).ok();
        let between = between.filter(|_| args.per_second > 0.0);
        ensure!(between.is_some(), "{} items a second is no rate; give a number above 0", args.per_second);
        Ok(Throttle { between: between.unwrap_or_default(), next: None, types: PhantomData })
    }
}

impl<T: Item> Stage for Throttle<T> {
    type Args = ThrottleArgs;
    type In = T;
    type Out = T;

    fn create(args: ThrottleArgs, _: &Env) -> anyhow::Result<Self> {
        Self::new(args)
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        let now = Instant::now();
        let due = self.next.unwrap_or(now);
        // The stage really waits for time to pass; holding the item back slows its senders down.
        std::thread::sleep(due.saturating_duration_since(now));
        // Do not catch up after a pause.
        self.next = due.max(now).checked_add(self.between);
        out.emit(item);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rates_are_rates() {
        for per_second in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(Throttle::<()>::new(ThrottleArgs { per_second }).is_err(), "{per_second}");
        }
        assert!(Throttle::<()>::new(ThrottleArgs { per_second: 0.5 }).is_ok());
    }
}
