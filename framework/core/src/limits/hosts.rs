//! Limits of a node of several hosts.

/// Notes for another host that wait because that host has not acknowledged earlier ones; with more, the host
/// is given up.
pub const MAX_WAITING_NOTES: usize = 1 << 14;

/// Actors of other hosts without a place in the gateway, and with late messages, about which their hosts are
/// asked at the same time. Messages for further actors wait.
pub const MAX_LATE: usize = 1 << 8;

/// Questions of another host that this one has not answered yet; further questions get the answer that there
/// is nothing.
pub const MAX_HOST_QUESTIONS: usize = 1 << 12;

/// Actors on another host whose home asks that host, at the same time, to report what happens to them;
/// further ones wait.
pub const MAX_WATCHED_AT_ONCE: usize = 1 << 8;

/// Hosts that have left the node and about whose end the head tells another host's next gateway: the last to
/// join.
pub const MAX_GONE_TOLD: usize = 1 << 10;

/// Longest text that tells another host why something did not work, in bytes.
pub const MAX_HOST_TEXT: usize = 2 << 10;

/// Gateways that another host may start within a minute: more than a node allows itself (`node/limits.rs`). A
/// host with more is given up.
pub const MAX_RENEWALS: usize = 16;

/// Threads of the gateway that wait for tensors that are not ready yet.
pub const MAX_GATEWAY_WAITS: usize = 64;

/// Page-locked slots that a gateway has on a GPU for each direction, one piece in each: 8 MiB, taken when a
/// tensor of that GPU first leaves this host, or comes to it. A transfer that finds no free slot waits; a
/// slot that is on its way out comes back with its connection at the latest.
pub const GATEWAY_SLOTS: usize = 32;
