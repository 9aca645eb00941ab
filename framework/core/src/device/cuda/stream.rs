//! A stream on a GPU: copies, fills and clock operations, in order, with the user's kernels in between.
//!
//! The mappings and page-locked blocks that work uses are kept until a mark behind it was reached (see
//! `pending`). A later call on the stream notices that; nobody is woken for it.
//!
//! When the stream is dropped with work unfinished, a thread sleeps until the work is done, then drops the
//! things that it used and gives the clock back. Its waits end because every wait does (DEATH-1).
//!
//! A submitter that waits for room goes on before the stream is empty (`await_room`). Waiting until all work
//! was done left the GPU idle until the next message came, in this process and in all processes behind it.
//! Four stages of 100 us under MPS took 122 us an item then, and take 110 since. With these limits, a
//! submitter that waits never has a clock write put off.

#![expect(unsafe_code, reason = "implements the unsafe functions of a stream")]

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::super::{DeviceError, Keep, StreamBackend, StreamOp};
use super::Shared;
use super::abi::{MAX_BATCH, MemOp};
use super::driver::Event;
#[cfg(feature = "graphs")]
use super::graph::{KernelChain, Made};
use super::lost;
use super::pages;
use super::pending::Pending;
use super::pinned::{self, PIECE, Pinned, Word};
use super::streams::Lent;
use crate::clock::{ClockDomain, ClockError, ClockPage, OwnClock, Ticket, UnknownClock, passed};
use crate::os::Punctual;

/// The number of operations ahead of a copy, a fill or a wait at which its submitter waits (MBX-2). The
/// user's kernels are not counted, because no code here sees them.
const MOST_AHEAD: u64 = 384;

/// The number of operations that may be left when such a submitter goes on. It is not zero: the GPU should
/// have work until more has come, in this process and in those that wait for it.
const LESS_AHEAD: u64 = 320;

/// The number of operations ahead at which a clock write is put off; then one later write stands for all that
/// were put off. About 1,020 operations fit behind one that waits, kernels included. Beyond that the driver
/// would also block clock writes, which must never wait (LEASE-2).
const CROWDED: u64 = 512;

/// The shortest and the longest time between two looks for room.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

// A submitter that waits gets so much room that none of its own clock writes is put off. Otherwise the
// processes behind it would get its work in lumps.
const _: () = assert!(LESS_AHEAD < MOST_AHEAD && MOST_AHEAD < CROWDED);

/// A stream of a GPU; see [`StreamBackend`] for its contract. Its [`stream`](Self::stream) is cudarc's, for
/// kernels.
pub struct CudaStreamBackend {
    core: Arc<Core>,
    /// Given back at once: the next user's work comes behind any work that is not done.
    _lent: Lent,
}

/// The stream and all that its work uses, which outlives the [`CudaStreamBackend`] until the work is done.
pub(super) struct Core {
    stream: Arc<CudaStream>,
    order: Mutex<Order>,
    /// The word for marks.
    word: Word,
    /// The address at which the device sees the clock.
    clock_address: u64,
    // Last in the order of drops: its drop gives the clock back, and another stream may then advance it.
    clock: OwnClock,
    domain: Arc<ClockDomain>,
    shared: Arc<Shared>,
}

/// Locked while work is put on the stream, so that the notes agree with the stream's order.
struct Order {
    /// The largest value to which the stream was told to advance its clock.
    advanced: u64,
    pending: Pending<Held>,
}

/// The things that unfinished work uses.
enum Held {
    Mappings {
        _keep: Keep,
    },
    Block {
        _block: Arc<Pinned>,
        _keep: Keep,
    },
    #[cfg(feature = "graphs")]
    Graph {
        _made: Arc<Made>,
        _keep: Keep,
    },
}

/// The stream's order, locked. Things whose work is done are dropped after the lock is.
struct Entered<'a> {
    order: MutexGuard<'a, Order>,
    _done: Vec<Held>,
}

/// An operation whose clock was looked up.
enum ClockOp {
    Advance(u64),
    /// With the page, so that it stays registered until the wait is enqueued; see `pages`.
    Wait {
        at: u64,
        value: u64,
        _page: Arc<ClockPage>,
    },
}

impl CudaStreamBackend {
    pub(super) fn new(
        shared: &Arc<Shared>,
        clock: OwnClock,
        domain: Arc<ClockDomain>,
    ) -> Result<Arc<Self>, DeviceError> {
        let offset = clock.page().clock_offset(clock.slot()).ok_or_else(|| unknown(clock.ticket(0)))?;
        let clock_address = pages::address(shared, clock.page())? + offset as u64;
        let word = Word::take(shared)?;
        let mut lent = Lent::take(shared)?;
        let stream = Arc::clone(lent.stream());
        clock.leave_to_device()?;
        let order = Order { advanced: clock.value(), pending: Pending::new(word.load()) };
        let shared = Arc::clone(shared);
        let core =
            Arc::new(Core { stream, order: Mutex::new(order), word, clock_address, clock, domain, shared });
        lent.used_by(&core);
        Ok(Arc::new(CudaStreamBackend { core, _lent: lent }))
    }

    /// Returns the stream to launch kernels on. Kernels on it come after work that was submitted here before,
    /// and before work that is submitted later.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.core.stream
    }
}

#[cfg(feature = "graphs")]
impl CudaStreamBackend {
    /// Makes the context current, because the calls for a chain need it. Returns the words that launches of
    /// chains on this stream write.
    pub(crate) fn chain_words(&self) -> Result<[u64; 2], DeviceError> {
        self.core.shared.bind()?;
        Ok([self.core.clock_address, self.core.word.device_address()])
    }

    /// Launches a chain of kernels with the clock write of `value` in it, and keeps `keep` until it is done.
    /// A value is given to one launch alone, and later calls have larger ones.
    ///
    /// # Safety
    /// The chain was set for this launch. The memory that its kernels reach stays until the stream has passed
    /// `value`, for example because `keep` holds it mapped and leases see to the rest.
    pub(crate) unsafe fn launch_chain(
        &self,
        chain: &KernelChain,
        value: u64,
        keep: Keep,
    ) -> Result<(), DeviceError> {
        let core = &self.core;
        core.shared.bind()?;
        let mut entered = core.enter();
        let order = &mut *entered.order;
        if passed(order.advanced, value) {
            let what = format!("a clock write of {value}, which was made");
            return Err(DeviceError::Refused { what });
        }
        // MBX-2: each kernel counts, so that a chain does not get a stream further ahead of its GPU than
        // other work does.
        order
            .pending
            .issue(chain.len() + 1, Some(Held::Graph { _made: Arc::clone(chain.made()), _keep: keep }));
        let Some(mark) = order.pending.next_mark() else {
            return Err(DeviceError::Refused { what: "a mark behind nothing".to_owned() });
        };
        core.clock.promise(value);
        let mut writes =
            [MemOp::write(core.clock_address, value), MemOp::write(core.word.device_address(), mark)];
        // SAFETY: the caller's contract covers the kernels; for the words see `Core::submit`.
        unsafe { chain.made().launch(&core.stream, &mut writes)? };
        order.advanced = value;
        order.pending.set_mark();
        Ok(())
    }
}

fn unknown(ticket: Ticket) -> DeviceError {
    ClockError::from(UnknownClock(ticket)).into()
}

impl Core {
    fn enter(&self) -> Entered<'_> {
        let mut order = self.order.lock();
        let done = order.pending.reach(self.word.load());
        Entered { order, _done: done }
    }

    /// Drops the things whose work is done. If another thread has the stream locked, that thread does it.
    pub(super) fn let_go_of_done(&self) {
        let Some(mut order) = self.order.try_lock() else { return };
        let done = order.pending.reach(self.word.load());
        drop(order);
        // Memory that was mapped for this work alone is unmapped here, with nothing locked.
        drop(done);
    }

    /// Returns the stream's order, locked, if the stream has no work and no other thread has it locked.
    pub(super) fn hold_if_idle(&self) -> Result<Option<MutexGuard<'_, impl Sized>>, DeviceError> {
        let Some(order) = self.order.try_lock() else { return Ok(None) };
        self.shared.bind()?;
        Ok(self.shared.driver.is_idle(&self.stream)?.then_some(order))
    }

    /// As [`enter`](Self::enter), with the context current, and waits while too much is ahead (MBX-2).
    fn enter_with_room(&self) -> Result<Entered<'_>, DeviceError> {
        self.shared.bind()?;
        loop {
            let entered = self.enter();
            if entered.order.pending.ahead() < MOST_AHEAD {
                return Ok(entered);
            }
            drop(entered);
            self.await_room()?;
        }
    }

    /// Sleeps until no more than [`LESS_AHEAD`] operations are ahead.
    fn await_room(&self) -> Result<(), DeviceError> {
        let since = Instant::now();
        let _punctual = Punctual::begin();
        while self.enter().order.pending.ahead() > LESS_AHEAD {
            // Marks stop if the stream has failed; this call then returns the error.
            self.shared.driver.is_idle(&self.stream)?;
            thread::sleep((since.elapsed() / 8).clamp(NAPS[0], NAPS[1]));
        }
        Ok(())
    }

    /// Sleeps until all work submitted so far is done.
    fn finish(&self) -> Result<(), DeviceError> {
        self.shared.finish(&self.stream, || {
            let mut entered = self.enter();
            let mark = entered.order.pending.next_mark();
            self.mark(&mut entered.order, mark)
        })?;
        // This drops the held things.
        drop(self.enter());
        Ok(())
    }

    /// Enqueues a mark, if there is one to enqueue.
    fn mark(&self, order: &mut Order, mark: Option<u64>) -> Result<(), DeviceError> {
        let Some(mark) = mark else { return Ok(()) };
        let mut op = [MemOp::write(self.word.device_address(), mark)];
        // SAFETY: the word is this stream's until the stream is done, and only the stream writes it.
        unsafe { self.shared.driver.batch(&self.stream, &mut op)? };
        order.pending.set_mark();
        Ok(())
    }

    /// Counts an operation that was put on the stream.
    fn issued(&self, order: &mut Order) -> Result<(), DeviceError> {
        let mark = order.pending.due_mark();
        self.mark(order, mark)
    }

    /// Checks a batch before any of it is enqueued: looks up its clocks, and leaves out waits that are over.
    fn steps(&self, ops: &[StreamOp]) -> Result<SmallVec<[ClockOp; 8]>, DeviceError> {
        let mut steps = SmallVec::new();
        for op in ops {
            let ticket = match *op {
                StreamOp::Advance(value) => {
                    steps.push(ClockOp::Advance(value));
                    continue;
                }
                StreamOp::Wait(ticket) => ticket,
            };
            let page = self.domain.page_of(ticket.process).ok_or_else(|| unknown(ticket))?;
            let clock = page.load(ticket.slot).ok_or_else(|| unknown(ticket))?;
            if passed(clock, ticket.value) {
                continue;
            }
            let offset = page.clock_offset(ticket.slot).ok_or_else(|| unknown(ticket))?;
            let at = pages::address(&self.shared, &page)? + offset as u64;
            steps.push(ClockOp::Wait { at, value: ticket.value, _page: page });
        }
        Ok(steps)
    }

    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError> {
        let steps = self.steps(ops)?;
        if steps.is_empty() {
            return Ok(());
        }
        self.shared.bind()?;
        let mut entered = self.enter();
        let order = &mut *entered.order;
        let mut batch: SmallVec<[MemOp; 8]> = SmallVec::new();
        let mut advanced = order.advanced;
        for step in &steps {
            match *step {
                ClockOp::Wait { at, value, .. } => batch.push(MemOp::wait(at, value)),
                ClockOp::Advance(value) => {
                    self.clock.promise(value);
                    // Clocks never go back.
                    if !passed(advanced, value) {
                        batch.push(MemOp::write(self.clock_address, value));
                        advanced = value;
                    }
                }
            }
        }
        order.pending.issue(batch.len(), None);
        let mark =
            if advanced == order.advanced { order.pending.due_mark() } else { order.pending.cheap_mark() };
        batch.extend(mark.map(|mark| MemOp::write(self.word.device_address(), mark)));
        for part in batch.chunks_mut(MAX_BATCH) {
            // SAFETY: the steps have the pages of their waits, and once the waits are enqueued, pages stay
            // registered until no stream has work. The clock and the word belong to this core, which stays
            // until the stream is done, and only this stream writes them (ONE-WRITER).
            unsafe { self.shared.driver.batch(&self.stream, part)? };
        }
        order.advanced = advanced;
        if mark.is_some() {
            order.pending.set_mark();
        }
        Ok(())
    }

    /// Returns whether nothing that the core keeps is used any more.
    fn is_through(&self, order: &Order) -> bool {
        order.pending.is_empty() && passed(self.clock.value(), self.clock.promised())
    }
}

impl crate::device::sealed::Sealed for CudaStreamBackend {}

impl StreamBackend for CudaStreamBackend {
    fn clock_slot(&self) -> u16 {
        self.core.clock.slot()
    }

    fn submit(&self, ops: &[StreamOp]) -> Result<(), DeviceError> {
        self.core.submit(ops)
    }

    fn has_room(&self) -> bool {
        // A lost stream never gets room, and blocks nobody: every call fails at once.
        self.core.enter().order.pending.ahead() < CROWDED || lost::is_lost()
    }

    fn make_room(&self) -> Result<(), DeviceError> {
        while self.core.enter().order.pending.ahead() >= MOST_AHEAD {
            self.core.shared.bind()?;
            self.core.await_room()?;
        }
        Ok(())
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: u64, keep: Keep) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let core = &self.core;
        let mut entered = core.enter_with_room()?;
        entered.order.pending.issue(1, Some(Held::Mappings { _keep: keep }));
        // SAFETY: the caller's contract; `keep` holds the ranges mapped until the copy is done.
        unsafe { core.shared.driver.copy(&core.stream, dst, src, bytes as usize)? };
        core.issued(&mut entered.order)
    }

    unsafe fn fill(&self, dst: u64, bytes: u64, value: u8, keep: Keep) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let core = &self.core;
        let mut entered = core.enter_with_room()?;
        entered.order.pending.issue(1, Some(Held::Mappings { _keep: keep }));
        // SAFETY: as in `copy`.
        unsafe { core.shared.driver.fill(&core.stream, dst, bytes as usize, value)? };
        core.issued(&mut entered.order)
    }

    /// Copies through page-locked memory: with plain memory, the driver may make the caller wait for the
    /// stream.
    unsafe fn upload(&self, dst: u64, src: &[u8], keep: Keep) -> Result<(), DeviceError> {
        let core = &self.core;
        let mut dst = dst;
        for (index, piece) in src.chunks(PIECE).enumerate() {
            if index > 0 && pinned::is_short(&core.shared) {
                // MBX-2: a large upload goes at the stream's pace. Every stream gets one block, whatever
                // others have.
                core.finish()?;
            }
            let mut block = Pinned::take(&core.shared, piece.len())?;
            block.write(piece);
            let block = Arc::new(block);
            let mut entered = core.enter_with_room()?;
            let hold = Held::Block { _block: Arc::clone(&block), _keep: keep.clone() };
            entered.order.pending.issue(1, Some(hold));
            // SAFETY: the caller's contract covers the destination; the block is held until the copy is done.
            unsafe { core.shared.driver.copy(&core.stream, dst, block.address(), piece.len())? };
            if src.len() > PIECE {
                // With this mark the blocks of a large upload come back while it goes on.
                let mark = entered.order.pending.next_mark();
                core.mark(&mut entered.order, mark)?;
            }
            core.issued(&mut entered.order)?;
            dst += piece.len() as u64;
        }
        Ok(())
    }

    unsafe fn download(&self, dst: &mut [u8], src: u64) -> Result<(), DeviceError> {
        let core = &self.core;
        let mut src = src;
        for piece in dst.chunks_mut(PIECE) {
            let block = Arc::new(Pinned::take(&core.shared, piece.len())?);
            core.shared.finish(&core.stream, || {
                let mut entered = core.enter();
                let hold = Held::Block { _block: Arc::clone(&block), _keep: Keep::new() };
                entered.order.pending.issue(1, Some(hold));
                // SAFETY: the caller's contract covers the source; the block is held until the copy is done.
                unsafe { core.shared.driver.copy(&core.stream, block.address(), src, piece.len())? };
                let mark = entered.order.pending.next_mark();
                core.mark(&mut entered.order, mark)
            })?;
            // SAFETY: the copy into the block is done, and was of this length.
            unsafe { block.read(piece) };
            src += piece.len() as u64;
        }
        drop(core.enter());
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.core.finish()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaStreamBackend {
    fn drop(&mut self) {
        let core = &self.core;
        if core.is_through(&core.enter().order) {
            return;
        }
        let kept = Arc::clone(core);
        let started = core.shared.bind().and_then(|()| {
            let event = Event::create(core.shared.driver)?;
            event.record(&core.stream)?;
            let last = Arc::clone(core);
            let thread = thread::Builder::new().name(format!("tp-end-{}", core.clock.slot())).spawn(move || {
                let through = last.shared.bind().and_then(|()| event.wait());
                if let Err(error) = through {
                    // The context is lost, and with it all its work, so nothing uses the things that are
                    // dropped here.
                    tracing::warn!(%error, clock = last.clock.slot(), "a stream that was dropped did not finish");
                }
            });
            thread.map(drop).map_err(DeviceError::os("start a thread that waits for a stream"))
        });
        if let Err(error) = started {
            tracing::error!(%error, clock = core.clock.slot(), "what a stream still uses is never let go");
            std::mem::forget(kept);
        }
    }
}

impl fmt::Debug for CudaStreamBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CudaStreamBackend(cuda:{}, clock {})",
            self.core.shared.context.ordinal(),
            self.core.clock.slot()
        )
    }
}
