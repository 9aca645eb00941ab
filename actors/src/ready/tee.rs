//! A look at passing items.

use tensorpost::prelude::*;

/// The receiver of the clones of a [`Tee`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct TeeArgs<T: Item> {
    /// Gets clones of items.
    pub to: Address<T>,
    /// Shows one item out of this many, the first of them; 1 shows all.
    pub every: u64,
}

impl<T: Item> Clone for TeeArgs<T> {
    fn clone(&self) -> Self {
        TeeArgs { to: self.to.clone(), every: self.every }
    }
}

/// Passes items on and gives clones of them to an actor or a channel beside the pipeline. It never waits for
/// that receiver: an item for which there is no room is not shown. No tensor is copied, but stages behind
/// cannot write a tensor in place while the receiver looks at it. (Where both sides have to get everything,
/// `broadcast` a flow.)
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Named, Tee, TeeArgs};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// let (to, mut seen) = node.channel::<Named>()?;
/// // In a pipeline: `.stage::<Tee<Named>>(TeeArgs { to, every: 2 })`. To try it out:
/// let mut stage = Tee::new(TeeArgs { to, every: 2 });
/// let mut out = Out::new();
/// for id in 0..3 {
///     stage.process(Named::new(id, "n", stream.zeros(DType::U8, &[1])?.freeze()), &mut out)?;
/// }
/// assert_eq!(out.take().len(), 3);
/// assert_eq!((seen.blocking_recv()?.label.id, seen.blocking_recv()?.label.id), (0, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tee<T: Item> {
    args: TeeArgs<T>,
    passed: u64,
    not_shown: u64,
}

impl<T: Item> Tee<T> {
    /// Creates the stage.
    pub fn new(args: TeeArgs<T>) -> Self {
        Tee { args, passed: 0, not_shown: 0 }
    }

    /// Returns the number of items for which there was no room.
    pub fn not_shown(&self) -> u64 {
        self.not_shown
    }
}

impl<T: Item> Stage for Tee<T> {
    type Args = TeeArgs<T>;
    type In = T;
    type Out = T;

    fn create(args: TeeArgs<T>, _: &Env) -> anyhow::Result<Self> {
        Ok(Self::new(args))
    }

    fn process(&mut self, item: T, out: &mut Out<T>) -> anyhow::Result<()> {
        if self.passed.is_multiple_of(self.args.every.max(1)) && self.args.to.try_send(item.clone()).is_err()
        {
            self.not_shown += 1;
        }
        self.passed += 1;
        out.emit(item);
        Ok(())
    }
}
