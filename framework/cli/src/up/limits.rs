//! Every bound and time of `tensorpost up`, in one place.

use std::time::Duration;

/// The port of a head, as in `tensorpost_hosts::limits`. The command does not depend on that crate, because
/// its connections are a large part of a build.
pub(super) const PORT: u16 = 7117;

/// Most hosts of a node, as in that crate.
pub(super) const MAX_HOSTS: usize = 1024;

/// Longest name of a host, and of a user.
pub(super) const MAX_NAME: usize = 255;

/// Bytes of a node's key.
pub(super) const KEY_BYTES: usize = 32;

/// Longest file with certificates, or with a certificate's key, that is read.
pub(super) const MAX_PEM: u64 = 1 << 20;

/// Most hosts that are named in a line of `up` itself; the others are counted.
pub(super) const MAX_LISTED: usize = 16;

/// Longest line of a host that is shown whole; a longer one becomes several.
pub(super) const MAX_LINE: usize = 16 << 10;

/// Widest name that other names are aligned with.
pub(super) const MAX_ALIGNED: usize = 24;

/// How often a host gets a beat, which says that it is still looked after.
pub(super) const BEAT: Duration = Duration::from_secs(5);

/// A host that has heard nothing for this many beats ends its program.
pub(super) const SILENCE_IN_BEATS: u32 = 4;

/// For this many beats after the head's end the other hosts may end by themselves: an agent gives up a silent
/// head after 10 s.
pub(super) const FOLLOW_IN_BEATS: u32 = 3;
const _: () = assert!(BEAT.as_secs() * FOLLOW_IN_BEATS as u64 > 10);

/// A program that was asked to end and has not ended is killed after this time.
pub(super) const WITHIN: &str = "30s";

/// A host is given up if its program was killed and nothing is heard of the host for this long.
pub(super) const KILLED: Duration = Duration::from_secs(10);

/// How long `up` waits for the last output of a connection that has ended: another process may hold its
/// pipes.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// After this time `up` names the hosts that are not ready; this long after the start it names those that
/// have not joined.
pub(super) const SLOW: Duration = Duration::from_secs(10);

/// How long hosts may tidy up that were prepared for a start that does not come.
pub(super) const TIDY: Duration = Duration::from_secs(5);

/// Most events from hosts that may wait to be handled; beyond that, the hosts' threads wait.
pub(super) const MAX_EVENTS: usize = 1024;

/// The options for ssh behind those of the user, which come first and so win: no terminal there, no
/// questions, and the end of a dead connection within about 20 seconds.
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
