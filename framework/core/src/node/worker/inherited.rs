//! Finds the control socket that a node left for this process, if a node started it.

#![expect(unsafe_code, reason = "takes an inherited descriptor, and reads the auxiliary vector")]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_peercred, socket_type};

use super::end_at_once;
use crate::os::{Seqpacket, last_words, signals};

/// The environment variable of a worker: `<descriptor of its control socket>:<process id of the node>`. Then
/// follow `:<descriptor of its standard error>`, if the node keeps its standard error until it greets, and
/// [`LINKED`], if its node runs actors.
pub(crate) const VARIABLE: &str = "TENSORPOST_WORKER";

/// Says that the node's workers run the actors that the program links, and nothing of its `main`.
pub(crate) const LINKED: &str = ":linked";

/// Whether this program has rights that its caller does not have, as with a set-user-id bit. Then the
/// caller's environment makes it neither a worker nor a keeper.
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: this reads a value that the kernel gave the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether the process looks like a worker that is taken over before its `main`.
pub(crate) fn may_be_taken_over() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value.ends_with(LINKED))
}

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the control socket, if this process is a worker. First it ties the process to the node's life; if
/// the node has ended already, this does not return.
pub(crate) fn take() -> Option<Seqpacket> {
    let value = std::env::var(VARIABLE).ok().filter(|_| !has_more_rights())?;
    let mut numbers = value.strip_suffix(LINKED).unwrap_or(&value).split(':');
    let (descriptor, node) = (numbers.next()?.parse::<RawFd>().ok()?, numbers.next()?.parse::<u32>().ok()?);
    let own_stderr =
        numbers.next().and_then(|number| number.parse::<RawFd>().ok()).filter(|number| *number > 2);
    if descriptor < 3 || TAKEN.load(Ordering::Acquire) || !is_from(descriptor, node) {
        // A program that a worker started has the variable but not the socket, which is closed on exec below.
        return None;
    }
    if TAKEN.swap(true, Ordering::AcqRel) {
        return None;
    }
    if crate::os::process::die_with_parent(node).is_err() {
        end_at_once();
    }
    signals::leave_to_node();
    // SAFETY: `is_from` found a socket that the node made under this number. Only the node's `spawn` can have
    // put it there, and only the variable names it, so nothing else in this process owns it. `TAKEN` lets
    // only one caller get here.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    if let Some(own) = own_stderr {
        // SAFETY: as above; the node has put it there with the socket.
        let own = unsafe { OwnedFd::from_raw_fd(own) };
        // If this fails, the worker's stderr goes where nobody reads it.
        let _ = last_words::give_back(&own);
    }
    let ready = rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(std::io::Error::from);
    match ready.and_then(|()| Seqpacket::from_fd(socket)) {
        Ok(socket) => Some(socket),
        Err(error) => super::exit_with(&format!("the control socket cannot be used: {error}")),
    }
}

/// Whether `descriptor` is a socket of the right kind that the process `node` made.
fn is_from(descriptor: RawFd, node: u32) -> bool {
    // SAFETY: the number is only used for two questions to the kernel, both of which fail on a descriptor
    // that is closed or no socket; `fcntl`-like calls on whatever it is change nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let kind = matches!(socket_type(borrowed), Ok(SocketType::SEQPACKET));
    kind && socket_peercred(borrowed)
        .is_ok_and(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == node))
}
