//! Every bound and time of `tensorpost up`, in one place.

use std::time::Duration;

/// The port of a head, as in `tensorpost_hosts::limits`, which the command does without: its connections are
/// a large part of a build.
pub(super) const PORT: u16 = 7117;

/// Most hosts of a node, as there.
pub(super) const MAX_HOSTS: usize = 1024;

/// Longest name of a host, and of a user.
pub(super) const MAX_NAME: usize = 255;

/// Bytes of a node's key.
pub(super) const KEY_BYTES: usize = 32;

/// Longest file with certificates or their key that is read.
pub(super) const MAX_PEM: u64 = 1 << 20;

/// Most hosts that are named in a line of `up` itself; the others are counted.
pub(super) const MAX_LISTED: usize = 16;

/// Longest line of a host that is shown whole; a longer one becomes several.
pub(super) const MAX_LINE: usize = 16 << 10;

/// Widest name that the others are aligned with.
pub(super) const MAX_ALIGNED: usize = 24;

/// How often a host hears that it is still looked after.
pub(super) const BEAT: Duration = Duration::from_secs(5);

/// A host that has heard nothing for so many beats ends its program.
pub(super) const SILENCE_IN_BEATS: u32 = 4;

/// For so many beats after the head's end the other hosts may end by themselves: an agent gives a silent head
/// up after 10 s.
pub(super) const FOLLOW_IN_BEATS: u32 = 3;
const _: () = assert!(BEAT.as_secs() * FOLLOW_IN_BEATS as u64 > 10);

/// What is asked to end and has not, is killed after this time.
pub(super) const WITHIN: &str = "30s";

/// A host whose program was killed, and of which nothing is heard for so long, is given up.
pub(super) const KILLED: Duration = Duration::from_secs(10);

/// When a connection has ended, what it still said is waited for so long: something else may hold its pipes.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// Hosts that are not ready after so long are named while they are waited for, and later those that have not
/// joined so long after the start.
pub(super) const SLOW: Duration = Duration::from_secs(10);

/// Hosts that were prepared for a start that does not come may tidy up for so long.
pub(super) const TIDY: Duration = Duration::from_secs(5);

/// Most things that hosts have said and that are not yet looked at; past that they wait.
pub(super) const MAX_EVENTS: usize = 1024;

/// What ssh is asked beside what the user says, whose own options come first and so hold: no terminal there,
/// no questions, and an end of a connection that is dead, within about 20 seconds.
pub(super) const SSH_OPTIONS: [&str; 9] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=4",
];
