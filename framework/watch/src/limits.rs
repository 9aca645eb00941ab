//! Bounds of the graph, and of the live page.

/// Edges that another host may have in the graph of senders and receivers: drawing takes time with the square
/// of the number of edges.
pub(crate) const MAX_HOST_EDGES: usize = 512;

/// Edges of all other hosts together; each has the same share.
pub(crate) const MAX_ALL_HOSTS_EDGES: usize = 8 * MAX_HOST_EDGES;

/// Connections of the live page that are served at a time.
pub(crate) const MAX_LIVE_CONNECTIONS: usize = 64;

/// Longest header of a request for it, in bytes.
pub(crate) const MAX_LIVE_HEADER: usize = 8 << 10;

/// Most fields of a header.
pub(crate) const MAX_LIVE_FIELDS: usize = 64;

/// Snapshots that the live page keeps, for rates.
pub(crate) const MAX_LIVE_SNAPSHOTS: usize = 16;
