//! The features of Linux that Tensorpost uses, without the meaning that it gives them: sealed memory,
//! mappings, wake-ups, sockets that carry descriptors, and processes.
//!
//! On a crash of another process: a mapping stays valid (the memory lives as long as anyone maps it, and its
//! seals keep it from shrinking); a socket reads as closed; a pidfd becomes readable. A futex sleeper is
//! woken by the next writer of the word or by its own timeout. Nothing here waits without a way out that its
//! caller chose.
//!
//! Descriptors are created close-on-exec, so no child inherits one by accident. [`fork`] describes the
//! descriptors of forks that execute no other program.

mod aside;
pub mod doorbell;
pub mod event;
pub mod fork;
pub mod futex;
pub mod last_words;
pub mod launcher;
#[doc(hidden)]
pub mod lock;
pub mod mapping;
pub mod memfd;
pub mod named_socket;
mod park;
pub mod peer_fd;
mod precise_sleep;
pub mod process;
pub mod remedy;
pub mod seqpacket;
pub(crate) mod signals;
mod spin;
pub(crate) mod stack;
pub mod time;
pub mod vital;

pub use aside::step_aside;
pub use doorbell::{Bell, Ear, Ears};
pub use event::EventFd;
pub use fork::{Birth, InForks, Inert, PerProcess, Private};
pub use futex::Woken;
pub use launcher::Launcher;
pub use mapping::{Access, Mapping};
pub use memfd::{BadMemfd, Memfd};
pub use park::{block_on, on_own_thread};
pub use peer_fd::PeerFd;
pub use precise_sleep::Punctual;
pub use process::{PidFd, resident_bytes};
pub use remedy::{remedy, remedy_of_start};
pub use seqpacket::Seqpacket;
pub use spin::AdaptiveSpin;
pub use time::{monotonic_ns, since_boot, sleep_until_since_boot};

/// Returns whether tests with a choice of sizes run the full size: where `TENSORPOST_THOROUGH` is set, as in
/// the nightly run.
#[cfg(any(test, feature = "testing"))]
pub fn thorough() -> bool {
    std::env::var_os("TENSORPOST_THOROUGH").is_some_and(|value| !value.is_empty())
}
