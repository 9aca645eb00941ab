//! Every limit of the system, in one place, with the arithmetic that ties them together (MBX-2). The limits
//! of the node, of its protocol and of its reports are in [`node::limits`](crate::node::limits).
//! `tests/sources/dependencies.rs` enforces that.

#[cfg(feature = "hosts")]
mod hosts;

use std::time::Duration;

#[cfg(feature = "hosts")]
pub use self::hosts::*;

/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// Most processes one node can have, itself included. A process's slot is an index below this.
pub const MAX_PROCESSES: usize = 256;

/// Most streams, and so clocks, of one process, on all its devices together. A stream on the host is a
/// thread; a GPU has fewer streams, see [`CUDA_CONNECTIONS`].
pub const MAX_STREAMS: usize = 30;

/// Hardware queues that a worker for several actors asks the CUDA driver for, on each GPU: its
/// `CUDA_DEVICE_MAX_CONNECTIONS`, unless the user who starts the node has set another. Two streams in one
/// queue stall each other when one waits, so a process has at most as many streams on a GPU as it has queues,
/// less two. More queues cost time: a context takes 1.7 to 2.1 s with 32, 0.27 s with 8, 0.17 s with 4, 0.11
/// s with 2. An MPS server has some 128 queues for all its clients, so three processes fit on a GPU with 32
/// queues each, and fifteen with 8 (one H200). A worker of one actor asks for [fewer](cuda_connections).
pub const CUDA_CONNECTIONS: usize = 8;

/// Returns the hardware queues of a worker that needs `streams` streams on a GPU.
pub const fn cuda_connections(streams: usize) -> usize {
    match streams {
        0 | 1 => 3,
        many if many > MAX_STREAMS => MAX_STREAMS + 2,
        many => many + 2,
    }
}

/// Returns the streams that one process has on a GPU with this many hardware queues. One queue is for the
/// device's own stream and one for the streams that user code makes without the framework.
pub const fn cuda_streams(connections: usize) -> usize {
    let streams = if connections > 3 { connections - 2 } else { 1 };
    if streams < MAX_STREAMS { streams } else { MAX_STREAMS }
}

/// Most steps queued on a host stream; a submitter of work then waits. (A CUDA stream takes about as many.)
pub const MAX_STREAM_STEPS: usize = 1024;

/// Most actors that one process hosts at the same time.
pub const MAX_ACTORS: usize = 256;

/// Messages of one sending process that may wait unhandled in one mailbox, unless the actor says otherwise.
pub const DEFAULT_MAILBOX: u32 = 128;

/// Largest capacity of a mailbox, in messages per sending process.
pub const MAX_MAILBOX: u32 = 1 << 16;

/// Bytes of the data ring between an ordered pair of processes.
pub const RING_BYTES: usize = 1 << 20;

/// Bytes that the two rings of a link, one way, may have touched and keep while the link is silent. If they
/// touched more, their memory is given back. With the three pages of its words a silent link then takes less
/// than 64 KiB.
pub const IDLE_RING_BYTES: usize = 48 << 10;

/// How often a process looks for links that were silent since the last such look, and for chunks that were
/// empty.
pub const IDLE_CHECK: Duration = Duration::from_secs(5);

/// The same where nothing moves, but another process holds memory of this one and may release it without a
/// message.
pub const LATE_IDLE_CHECK: Duration = Duration::from_secs(60);

/// Number of fresh ring memories that a process offers at one such look: each costs it some 30 us.
pub const MAX_OFFERS_PER_LOOK: usize = 64;

/// Largest body in bytes that travels inside the ring; a larger one travels as a host lease.
pub const MAX_INLINE_BODY: usize = 64 << 10;

/// Largest encoded message body in bytes.
pub const MAX_BODY: usize = 64 << 20;

/// Bytes that a decoded message may take for each byte of its body, besides [`DECODED_BASE`]. A `String` or a
/// `Vec` takes at least 24 and may have one byte in the body; the content that serde buffers for an untagged
/// enum takes 32.
pub const DECODED_PER_BYTE: usize = 32;

/// Bytes that any decoded message may take.
pub const DECODED_BASE: usize = 1 << 20;

/// Most tensors in one message.
pub const MAX_TENSORS: usize = 512;

/// Most parts that a tensor can be split into. Joining compares each part with every other.
pub const MAX_PARTS: usize = 1024;

/// Deepest nesting of a message body, in MessagePack containers.
pub const MAX_NESTING: usize = 64;

/// Most calls inside each other while a message is decoded. A container of the body takes one, and so do an
/// option and a newtype around it.
pub const MAX_DECODE_CALLS: u16 = 4 * MAX_NESTING as u16;

/// Bytes of stack that decoding may take before it ends with an error: half of a thread's default stack. (An
/// untagged enum makes such an error for each variant that does not fit.)
pub const MAX_DECODE_STACK: usize = 1 << 20;

/// Bytes that a nil, or an empty list or map, counts for where serde buffers it before its type is known: a
/// byte can become a value of any size there.
pub const DECODED_NIL: usize = 256;

/// Most types in one portable schema, counted as often as they occur in it. A schema is text that two
/// programs compare, and this many lines are more than anybody reads.
pub const MAX_SCHEMA_TYPES: usize = 1 << 14;

/// Slots of the return ring between an ordered pair of processes. Slots take memory only once they were
/// written, which is rare beyond [`RETURN_LAP`].
pub const RETURN_SLOTS: usize = 1 << 17;

/// Slots of the return ring that are written in turn while the owner keeps up.
pub const RETURN_LAP: usize = 1 << 8;

/// Unread entries of the return ring at which a sleeping owner is woken.
pub const RETURN_BACKLOG: usize = 1 << 12;

/// Most leases that an owner grants to one process at the same time. A receiver may keep as many tensors of
/// one sender: a replay buffer, or a list of results.
#[doc(hidden)]
pub const MAX_GRANTED: usize = RETURN_SLOTS / 4;

/// Most leases of one owner that one process may hold when it takes a forwarded one. Each has its slot in the
/// return ring, besides the slots of leases that the owner may still grant and of forwards under way.
pub const MAX_FORWARDED: usize = RETURN_SLOTS - MAX_GRANTED - MAX_FORWARDS;

/// Most leases of one owner that one process passes on before the owner has read the notices of it.
pub const MAX_FORWARDS: usize = RETURN_SLOTS / 8;

/// Different receivers of one forwarder that are counted for one lease. With more, the owner counts the
/// forwarder as forwarding to anybody, which is allowed, and so needs bounded memory for its notices.
pub const MAX_FORWARD_RECEIVERS: usize = 16;

/// Most tickets that the release of one lease carries over the wire; more streams are joined into the first.
pub const MAX_RELEASE_TICKETS: usize = 4;

/// Largest packet in bytes on a control socket.
pub const MAX_PACKET: usize = 64 << 10;

/// Bytes of portable schemas that a worker shows with its greeting, which has to fit one packet with
/// everything else.
pub const MAX_INTERFACE_BYTES: usize = MAX_PACKET / 2;

/// Most descriptors that one packet on a control socket carries. The kernel takes up to 253.
pub const MAX_PACKET_FDS: usize = 16;

/// Dead processes for which the last values of their clocks are remembered. They take about 300 bytes each,
/// in every process.
pub const MAX_CERTIFICATES: usize = 1 << 12;

/// Ranges of one clock's values that are known to be tainted, before the oldest are merged.
pub const MAX_TAINT_RANGES: usize = 16;

/// Messages and notices of one process that another cannot take, before that one gives up the sender. Each
/// costs the receiver some of its time. [`FORGIVEN_A_SECOND`] of them are forgiven each second, because a
/// program may send wrong messages, and be told so, for as long as it likes.
pub const MAX_REFUSED: u32 = 1 << 13;

/// Refused messages and notices of one process that are forgiven each second, see [`MAX_REFUSED`].
pub const FORGIVEN_A_SECOND: u32 = 1 << 8;

/// Pages of dead processes that a process keeps mapped, for waits that have just been made.
pub const MAX_DEAD_PAGES: usize = 8;

/// Bytes of a pool's first chunk; later ones grow.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// Most chunks of one pool. Each takes two descriptors in the node, and one and a mapping in every reader.
pub const MAX_POOL_CHUNKS: usize = 64;

/// Names that one pool has for its chunks, including chunks that went back: no name is given twice. A pool
/// that has used half of them keeps its chunks; it takes a year to get there if a chunk goes back every four
/// seconds.
pub const POOL_CHUNK_NAMES: u32 = 1 << 24;

/// Bytes of the largest chunk that tensors share, unless the pool's budget is so large that
/// [`MAX_POOL_CHUNKS`] of this size would not take it; a larger tensor has a chunk of its own.
pub const LARGEST_SHARED_CHUNK: u64 = 1 << 30;

/// Bytes of the largest chunk that tensors share, with any budget.
pub const LARGEST_CHUNK: u64 = 1 << 40;

/// Bytes of the largest copy in host memory of a broadcast, a tensor that has more elements than its memory.
/// A peer can send one byte as any shape.
pub const MAX_BROADCAST_BYTES: u64 = 1 << 30;

/// Alignment and unit, in bytes, of every tensor in a chunk.
pub const ALLOCATION_UNIT: u64 = 512;

/// Events of a watched actor that wait for its watcher; beyond that, the oldest are dropped and counted.
pub const WATCH_EVENTS: usize = 256;

/// Actors of other hosts that a process remembers although they have ended, or have no place here any more;
/// about others it asks the node again.
pub const MAX_RESTING: usize = 1 << 10;

/// Number of waiters that may wait until a process has taken everything that was sent to it.
pub const MAX_FENCES: usize = 1 << 10;

/// Bytes that a host pool may take, unless the node says otherwise.
pub const DEFAULT_HOST_BUDGET: u64 = 4 << 30;

/// The reciprocal of the largest share of a pool's budget that a process with programs in another language
/// lends, see [`lease::pool`](crate::lease). The rest is for tensors that it makes meanwhile.
#[cfg(feature = "bindings")]
pub const LENT_SHARE: u64 = 2;

/// Most series of metrics (a name with its labels, of one actor) that the user code of one worker may have,
/// and most metrics that it may describe.
pub const MAX_METRIC_SERIES: usize = 1 << 10;

/// Most such series of all workers together, over all their lives: the recorder keeps each series for ever.
pub const MAX_NODE_METRIC_SERIES: usize = 1 << 14;

/// Longest name of a metric, or of one of its labels, in bytes.
pub const MAX_METRIC_NAME: usize = 200;

/// Most labels of a metric.
pub const MAX_METRIC_LABELS: usize = 16;

/// Bytes of a metric's name and labels, all together.
pub const MAX_METRIC_TEXT: usize = 1 << 10;

/// Distinct values of one histogram that a worker keeps until it tells the node; half of them are kept
/// exactly.
pub const MAX_METRIC_VALUES: usize = 1 << 10;

/// Distinct values of all histograms of a worker that it keeps until it tells the node.
pub const MAX_WORKER_METRIC_VALUES: usize = 1 << 16;

/// Samples of one histogram that a worker keeps until it tells the node: a recorder may take them one by one.
pub const MAX_METRIC_SAMPLES: u64 = 1 << 20;

/// Updates of metrics that may wait for a slow recorder.
pub const MAX_METRIC_UPDATES: usize = 2 * MAX_NODE_METRIC_SERIES;

/// Longest message of a log event, and longest value of a field, in bytes.
pub const MAX_LOG_TEXT: usize = 8 << 10;

/// Most fields of an event or a span.
pub const MAX_LOG_FIELDS: usize = 32;

/// Most spans that an event names, the innermost ones.
pub const MAX_LOG_SPANS: usize = 16;

/// Longest name of a field, of a target or of a file, in bytes.
pub const MAX_LOG_LABEL: usize = 512;

/// Longest record in the node, in bytes, all its texts together; a longer one loses its last fields and
/// spans.
pub const MAX_LOG_RECORD: usize = 64 << 10;

/// Longest message on a control socket that has a record in it: the texts up to their limit, and room for the
/// heads of the texts and of their places in the record.
pub const MAX_LOG_MESSAGE: usize = MAX_LOG_RECORD + (4 << 10);
const _: () = assert!((2 * MAX_LOG_FIELDS + MAX_LOG_SPANS + 16) * 16 < MAX_LOG_MESSAGE - MAX_LOG_RECORD);

/// Most sets of field names for which the node keeps a callsite, for each severity: `tracing` keeps them for
/// good.
pub const MAX_LOG_CALLSITES: usize = 128;

/// Longest name of a field in such a set, in bytes.
pub const MAX_LOG_FIELD_NAME: usize = 64;

/// Names that a process keeps for future trace rings; more are not worth it, because they would find no room
/// in a ring either.
pub const MAX_TRACE_NAMES: usize = 4096;

/// Longest name in a trace, in bytes; the rest is cut off.
pub const MAX_TRACE_NAME: usize = 200;

/// Ended processes with records that a trace keeps. Beyond that, the records of the first process to end go
/// first, and are counted.
pub const MAX_TRACE_ENDED: usize = 64;

/// Records of another host in a trace that the head takes of all hosts: 56 bytes each.
pub const MAX_HOST_TRACE_RECORDS: usize = 1 << 17;

/// Bytes of the names in such a trace.
pub const MAX_HOST_TRACE_NAMES: usize = 1 << 20;

/// Bytes of the whole of such a trace.
pub const MAX_HOST_TRACE: usize = 16 << 20;
const _: () = assert!(MAX_HOST_TRACE > MAX_HOST_TRACE_RECORDS * 56 + 6 * MAX_HOST_TRACE_NAMES);

/// Holders that the report of a pool names, the largest ones.
pub const MAX_SHOWN_HOLDERS: usize = 16;

/// Pools that a process shows: one for the host and one for each of 63 GPUs.
pub const MAX_SHOWN_POOLS: usize = 64;

// The largest frame fits the ring several times, so no frame can be refused for ever.
const _: () = assert!(MAX_INLINE_BODY + MAX_TENSORS * 256 + 4096 <= RING_BYTES / 2);
// There is room for the release of every lease, granted or forwarded, for a hold on its way (LEASE-2), and
// for forwards.
const _: () = assert!(MAX_GRANTED + MAX_FORWARDED + MAX_FORWARDS <= RETURN_SLOTS);
const _: () = assert!(RETURN_LAP * 64 < IDLE_RING_BYTES / 2 && RETURN_BACKLOG < MAX_FORWARDED);
// One message's leases can always be granted.
const _: () =
    assert!(MAX_TENSORS <= MAX_GRANTED && MAX_TENSORS <= MAX_FORWARDED && MAX_TENSORS <= MAX_FORWARDS);
// A shared chunk is counted in 32-bit numbers of units, and its power-of-two sizes fit every request.
const _: () = assert!(LARGEST_CHUNK / ALLOCATION_UNIT <= 1 << 31 && LARGEST_CHUNK.is_power_of_two());
const _: () = assert!(LARGEST_SHARED_CHUNK <= LARGEST_CHUNK && LARGEST_SHARED_CHUNK.is_power_of_two());
// The driver takes 1 to 32.
const _: () = assert!(CUDA_CONNECTIONS <= 32 && cuda_streams(32) == 30 && cuda_streams(1) == 1);
const _: () = {
    let mut streams = 1;
    while streams <= MAX_STREAMS {
        assert!(cuda_streams(cuda_connections(streams)) == streams && cuda_connections(streams) <= 32);
        streams += 1;
    }
};
const _: () = assert!(CHUNK_BYTES <= LARGEST_SHARED_CHUNK && CHUNK_BYTES.is_power_of_two());
