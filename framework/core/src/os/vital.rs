//! Threads that the process cannot do without. When such a thread panics, its work is never done, but other
//! threads wait for it, in this process and in others. So a worker then tells its node and ends, and its
//! waiters are released as after any death (DEATH-1).

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::{Birth, stack};

type Hook = Box<dyn Fn(&str, Blame) + Send + Sync>;

/// The reason why a process cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The process lost a GPU, and perhaps the processes that share the GPU lost it too.
    Gpu,
    /// A fault of the process's own.
    Own,
}

/// The hook, with the process that it ends; it never ends a forked child.
static HOOK: OnceLock<(Birth, Hook)> = OnceLock::new();
static TOLD: AtomicBool = AtomicBool::new(false);

/// Sets the hook that is called, once, when this process cannot go on. The hook gets the reason and ends the
/// process soon. It may be called under locks, so it must not block. The first hook stays. The user's own
/// program has none, because we must not end it.
pub fn on_failure(hook: impl Fn(&str, Blame) + Send + Sync + 'static) {
    let _ = HOOK.set((Birth::here(), Box::new(hook)));
}

/// Tells the hook that this process cannot go on. Returns whether the process is going to end.
pub fn fail(why: &str) -> bool {
    tell(why, Blame::Own)
}

/// Tells the hook, as [`fail`] does, that a GPU was lost.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without GPUs none is lost"))]
pub fn fail_with_gpu(why: &str) -> bool {
    tell(why, Blame::Gpu)
}

fn tell(why: &str, blame: Blame) -> bool {
    let Some((_, hook)) = HOOK.get().filter(|(birth, _)| !birth.is_inherited()) else { return false };
    if !TOLD.swap(true, Ordering::Relaxed) {
        hook(why, blame);
    }
    true
}

/// Parks until the process exits. Called after [`fail`] has returned true.
pub fn await_end() -> ! {
    loop {
        thread::park();
    }
}

/// Starts a thread that the process cannot do without. If `body` panics, a worker ends. Any other program is
/// aborted, because the panic is a fault of the framework and nothing sound can follow.
///
/// # Errors
/// As for [`thread::Builder::spawn`].
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = name.to_owned();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        stack::watch();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            let why = format!("its thread `{thread}` panicked: {}", panic_text(panic.as_ref()));
            if fail(&why) {
                await_end();
            }
            tracing::error!("{why}");
            std::process::abort();
        }
    })
}

thread_local! {
    /// The number of panics of this thread, and the text of the last one.
    static PANICS: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// Notes a panic of this thread, so that an error can quote it. Called by the panic hook.
pub fn note_panic(text: &str) {
    // An ending thread has no such cell any more. A panic inside this function would borrow it twice, and is
    // noted already.
    let _ = PANICS.try_with(|panics| {
        if let Ok(mut panics) = panics.try_borrow_mut() {
            *panics = (panics.0 + 1, text.to_owned());
        }
    });
}

/// Returns how many panics of this thread were noted.
pub fn panics() -> u64 {
    PANICS.try_with(|panics| panics.borrow().0).unwrap_or(0)
}

/// Returns the text of the last panic of this thread, where one was noted.
pub fn last_panic() -> Option<String> {
    let last = PANICS.try_with(|panics| {
        let panics = panics.borrow();
        (panics.0 > 0).then(|| panics.1.clone())
    });
    last.ok().flatten()
}

/// Returns the text of a panic, if it has one.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}
