//! Fault points: named places in the code at which a test can make a process end, stop, panic or wait.
//!
//! A place calls [`point`]`("transport.send.written")`. Without the feature `testing` the call does nothing;
//! with it, and no fault armed, it is one load of a flag. Programs may have points of their own, with any
//! name without `@`, `=`, `;` and `/`.
//!
//! # Arming
//! A [`Fault`] names a point, a passage of it, and an action. It is armed
//! - by the environment variable [`VARIABLE`], for the node and all its workers, each time that one of them
//!   starts: `TENSORPOST_FAULTS="blur/transport.send.written@3=kill;wire.decode=delay:20"` kills the worker
//!   `blur` when it passes that point for the third time, and has every process take 20 ms over its first
//!   decoding;
//! - by `Supervisor::arm`, for one worker that runs, and by `Supervisor::arm_starts`, for each process that
//!   is started for a worker;
//! - by `arm`, in the process that calls it.
//!
//! A fault strikes once. Passages are counted from the arming.
//!
//! # Places for points
//! A process can be killed anywhere, so a point may stand anywhere, above all between two writes to shared
//! memory. But [`Action::Panic`] unwinds through the caller. So at a place that holds a lock of the
//! framework, or on one of its threads, a panic tests the fate of the process rather than that of a handler.

#[cfg(feature = "testing")]
mod armed;
#[cfg(any(test, feature = "testing"))]
mod plan;

#[cfg(feature = "testing")]
pub use armed::{arm, armed, disarm};
#[cfg(any(test, feature = "testing"))]
pub use plan::{Action, BadFault, Fault, VARIABLE};

#[cfg(feature = "testing")]
pub(crate) use armed::arm_from_environment;

/// Every point of the framework, in the order in which a message passes them, with a description of the
/// place.
#[cfg(any(test, feature = "testing"))]
pub const POINTS: &[(&str, &str)] = &[
    ("worker.open", "a worker was welcomed and has not opened its transport"),
    ("worker.create", "an actor is about to be created"),
    ("pool.cut", "memory was cut out of a chunk and is not in the lease table"),
    ("pool.chunk.made", "a chunk was made and the node does not know it"),
    ("pool.chunk.published", "the node was told of a chunk that the pool does not have yet"),
    ("transport.link.begin", "this process's half of a link is about to be sent"),
    ("transport.link.sent", "it was sent"),
    ("transport.link.came", "the peer's half came and is not connected"),
    ("transport.link.connected", "it is connected, and its sender has not been told"),
    ("transport.link.taken", "its sender can see that it is connected, and has not been woken"),
    ("transport.send.claim", "a message was encoded; nothing was taken for it"),
    ("transport.send.claimed", "credit, room and grants were taken; the message's value is dropped"),
    (
        "transport.send.forwarded",
        "the owner of a lease can see that it is passed on, its frame is not in the ring",
    ),
    ("transport.send.granted", "the receiver is in the lease table, its frame not in the ring"),
    ("transport.send.written", "the frame is in the ring, and not to be seen"),
    ("transport.send.publish", "the frames on one link are about to be seen; those on others may be already"),
    ("transport.send.published", "the frame is to be seen, and the doorbell not rung"),
    ("turn.end", "a handler is done, and nothing of its turn is published"),
    ("transport.take.frame", "a frame was read and nothing done about it"),
    ("transport.take.owner", "the owner of a lease in a frame lives, and its link was not looked for"),
    ("transport.chunk.came", "a chunk was mapped and nobody knows it"),
    ("transport.forward.hold", "a lease on a third process's memory came, and its owner does not know"),
    ("transport.forward.held", "its owner can know; the cursor has not moved"),
    ("transport.take.cursor", "frames were taken, and their sender does not know"),
    ("wire.decode", "a message is about to be decoded"),
    ("wire.decoded", "it was"),
    ("stream.wait", "a stream is about to wait for another process's clock"),
    ("stream.waiting", "the thread of a host stream waits"),
    ("stream.advance", "a stream is about to advance its clock"),
    ("lease.release", "the last handle on another's memory is gone, and nothing posted"),
    ("lease.released", "the release is posted, and not to be seen"),
    ("lease.taken", "an owner has crossed a holder off its lease table"),
    ("pool.close_emptied", "an entry is empty, and gets its second look"),
    ("transport.drained", "everything that a dead peer had posted was read, and the node does not know"),
];

/// Passes the point `name`: runs the action that is armed for it, if one is.
#[inline(always)]
pub fn point(name: &str) {
    #[cfg(feature = "testing")]
    armed::pass(name);
    #[cfg(not(feature = "testing"))]
    let _ = name;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(folder: &std::path::Path, found: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push_str(&std::fs::read_to_string(path).expect("a source"));
            }
        }
    }

    #[test]
    fn every_point_in_the_code_is_listed_and_every_listed_one_is_in_the_code() {
        let mut text = String::new();
        sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
        let call = concat!("fault::", "point(\"");
        let mut used: Vec<_> =
            text.split(call).skip(1).map(|rest| rest.split('"').next().unwrap_or_default()).collect();
        used.sort_unstable();
        used.dedup();
        let mut listed: Vec<_> = POINTS.iter().map(|(name, _)| *name).collect();
        listed.sort_unstable();
        assert_eq!(used, listed);
    }
}
