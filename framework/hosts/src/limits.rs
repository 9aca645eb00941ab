//! Every bound of the communication between hosts, in one place, with the arithmetic that ties them together
//! (HOST-9).

use std::time::Duration;

/// The port of a head, unless another one is named.
pub const PORT: u16 = 7117;

/// Bytes of messages that one host may have on their way to another: sent, and not yet passed on there.
/// Tensors are often as large as a power of two, so `HEADS` leaves room for the rest of their messages:
/// without it, a tensor of 128 MiB had to go alone.
pub const WINDOW: u64 = (256 << 20) + HEADS;

/// The same while a NIXL lane carries tensors. The lane is so fast that in the few hundred microseconds that
/// each message waits it could send 128 MiB.
pub const WIDE_WINDOW: u64 = (1 << 30) + HEADS;

const HEADS: u64 = 1 << 20;

/// The charge of a message in the window beside its bytes: the bookkeeping on both sides.
pub const POST_BASE: u64 = 256;

/// Bytes of a piece of a span; the last piece of a span may be shorter. The best size for one connection with
/// TLS (measured).
pub const PIECE_BYTES: u64 = 256 << 10;

/// The largest head of a message: its key, a small body, and the layouts of its tensors. 64 KiB of body, and
/// 512 tensors of 152 bytes.
pub const MAX_HEAD: usize = (64 << 10) + 512 * 152 + 1024;

/// The most spans of a message: its tensors, and a body that is too large for the head.
pub const MAX_SPANS: usize = 512 + 1;

/// The most bytes that the spans of a message have together. Each piece has a bit in a
/// [`Resume`](crate::frame::Resume).
pub const MAX_SPAN_BYTES: u64 = 64 << 30;

/// The most messages with spans that one host may have on their way to another before they are complete
/// there.
pub const MAX_ARRIVING: usize = 1024;

/// The most frames that a host keeps because the other has not acknowledged them. If there are more, the
/// connection is cut.
pub const MAX_UNACKED: usize = 1 << 16;

/// After this many received frames an acknowledgement is sent at once. Below that it goes with the next
/// frame.
pub const ACK_AT: u64 = 32;
const _: () = assert!(ACK_AT < MAX_NOTES as u64 / 2 && ACK_AT < MAX_UNACKED as u64 / 4);

/// The largest capacity of a mailbox for one host.
pub const MAX_CAPACITY: u32 = 1 << 16;

/// The most messages that one frame reports as done.
pub const MAX_DONE: usize = 1024;

/// The most mailboxes that a host serves to another at a time.
pub const MAX_MAILBOXES: usize = 4096;

/// The largest note of one node to another (names, actors, watches). [`MAX_NOTES`] bounds how many may be on
/// their way.
pub const MAX_NOTE: usize = 64 << 10;
/// See [`MAX_NOTE`].
pub const MAX_NOTES: usize = 256;

/// The most bytes of records in one frame of a host's log. [`MAX_LOG_RECORDS`] bounds their number. The
/// longest record of a node has 64 KiB of texts.
pub const MAX_LOG: usize = 80 << 10;
/// See [`MAX_LOG`].
pub const MAX_LOG_RECORDS: usize = 256;

/// Bytes of its log that an agent sends its head in a second. That is negligible beside its other traffic.
pub const LOG_RATE: u64 = 256 << 10;

/// Bytes of its log that an agent may send at once.
pub const LOG_BURST: u64 = LOG_RATE;
const _: () = assert!(LOG_BURST > 2 * MAX_LOG as u64);

/// The charge of a record beside its texts, and of a frame beside its records.
pub const LOG_BASE: u64 = 64;

/// Bytes of one agent's log that the head takes in a second. [`LOG_BURST_HEARD`] is the number that it takes
/// at once. That is everything that an honest agent can send until the verdict on it, and it may come in one
/// piece after a machine or the network stood still. The encoding adds less than half to what the agent
/// counts.
pub const LOG_RATE_HEARD: u64 = 2 * LOG_RATE;
/// See [`LOG_RATE_HEARD`].
pub const LOG_BURST_HEARD: u64 = 2 * (LOG_BURST + (HEAD_GRACE.as_secs() + 1) * LOG_RATE);

/// Bytes of log frames that wait for a connection, or for the gateway to take them. Further frames are
/// dropped, and counted by the head.
pub const MAX_QUEUED_LOG: usize = 256 << 10;
const _: () = assert!(MAX_QUEUED_LOG > 2 * MAX_LOG);

/// The pause between two log frames while anything else waits to be sent.
pub const LOG_PAUSE: Duration = Duration::from_millis(100);

/// The most events that wait for the gateway of a session. At this bound the session reads nothing more of
/// the other side until some were taken. One frame can lead to [`MAX_DONE`] more.
pub const MAX_EVENTS: usize = 1 << 13;
const _: () = assert!(MAX_EVENTS > 2 * MAX_DONE);

/// The longest text that says why something was refused.
pub const MAX_WHY: usize = 4 << 10;

/// The most bytes of a [`Resume`](crate::frame::Resume). A sender keeps so few messages under way that the
/// other side's `Resume` fits, whatever pieces have landed. One message of the largest kind fits.
pub const MAX_RESUME_BYTES: usize = 1 << 20;
const _: () =
    assert!(MAX_PARTIAL_BYTES as u64 >= MAX_SPAN_BYTES / PIECE_BYTES / 8 + (MAX_SPANS * 16) as u64 + 10);

/// Bytes of a `Resume` that are left for messages.
pub const MAX_PARTIAL_BYTES: usize = MAX_RESUME_BYTES - 12;

/// The largest frame of the control stream.
pub const MAX_FRAME: usize = MAX_RESUME_BYTES + (64 << 10);
const _: () = assert!(MAX_FRAME > MAX_HEAD + MAX_SPANS * 8 + 64 && MAX_FRAME > MAX_NOTE + 64);
const _: () = assert!(MAX_FRAME > MAX_LOG + 64);

/// The largest frame of a lane: a piece and its name.
pub const MAX_LANE_FRAME: usize = PIECE_BYTES as usize + 32;

/// The most parts in which HTTP/2 may deliver a lane's frame. An honest host's parts are as long as
/// [`LANE_FRAME`] allows, except where a window ends.
pub const MAX_LANE_PARTS: usize = 64;

/// The longest HTTP/2 frame that a lane takes, in bytes. Each frame costs its sender a write to the socket
/// and its receiver a buffer; the standard's default is 16 KiB.
pub const LANE_FRAME: u32 = 256 << 10;

/// Pieces whose bytes a lane waits for at a time: one is sent while the next is copied out of a GPU.
pub const READ_AHEAD: usize = 2;

/// The most lanes of a connection between two hosts.
pub const MAX_LANES: u16 = 8;

/// Bytes of a slot of an arena, and so of the largest run that a NIXL lane writes at once. The best size
/// (measured: 16 MiB take a fifth longer).
pub const NIXL_SLOT: u64 = 32 << 20;
const _: () = assert!(NIXL_SLOT.is_multiple_of(PIECE_BYTES));

/// Slots of an arena.
pub const NIXL_SLOTS: u8 = 8;

/// The most routes from one host to another. A route leads from one device to another and has an arena on
/// either side.
pub const MAX_NIXL_ROUTES: u8 = 8;

/// The longest metadata of an agent of NIXL: its address, and the keys of one arena. With one network card
/// 450 bytes were seen.
pub const MAX_NIXL_METADATA: usize = 16 << 10;

/// The most spans for which a host asks another to make room in its arenas at a time. More are a violation of
/// the protocol.
pub const MAX_NIXL_WANTS: usize = MAX_ARRIVING * 4;

/// Spans with fewer bytes go by gRPC: asking for a slot takes longer than sending them.
pub const NIXL_LEAST: u64 = 1 << 20;

/// The time limit of a write of one slot. NIXL is chosen only where it is faster than gRPC, so a lane that
/// takes longer is broken; NIXL itself reports "in progress" for minutes (measured).
pub const NIXL_DEADLINE: Duration = Duration::from_secs(2);

/// The time limit for making and probing a route, with an agent on either side, the keys of an arena, and two
/// transfers of a slot.
pub const NIXL_PROBE_DEADLINE: Duration = Duration::from_secs(20);

/// A route that broke this many times is not used again in its session.
pub const MAX_NIXL_BREAKS: u8 = 3;

// The metadata and its offer are one frame of a stream; so is each part of the gRPC transfer that a probe is
// compared with.
const _: () = assert!(MAX_NIXL_METADATA + 256 < MAX_LANE_FRAME);

/// A gateway that violates the protocol this many times is given up, with its session.
pub const MAX_VIOLATIONS: u32 = 8;

/// The most connections that have not yet shown who they are. At 20,000 new ones a second a host has 20 ms to
/// show its key: three quarters of them are kept when room is made.
pub const MAX_STRANGERS: usize = 512;
const _: () = assert!(MAX_STRANGERS.is_multiple_of(4));

/// Connections that the system keeps for a listener until it accepts them. Beyond that, a host waits a second
/// before it tries again.
pub const ACCEPT_BACKLOG: i32 = 4096;

/// Proofs of the key that are remembered so that none is accepted twice.
pub const MAX_PROOFS: usize = 8192;

/// The most connections of a listener at a time that have shown the key: those of most hosts with all their
/// lanes.
pub const MAX_CONNECTIONS: usize = MAX_HOSTS * (MAX_LANES as usize + 1);

/// A connection on which nothing came for this long is broken: beats come each [`BEAT`], from one side at
/// least, and are answered.
pub const LINK_SILENCE: Duration = Duration::from_secs(4);
const _: () = assert!(LINK_SILENCE.as_secs() < AGENT_GRACE.as_secs() / 2);

/// How long a connection may take to introduce itself.
pub const INTRODUCTION: Duration = Duration::from_secs(5);

/// The time between two beats.
pub const BEAT: Duration = Duration::from_secs(1);

/// An agent whose beats were not answered for this long ends its workers.
pub const AGENT_GRACE: Duration = Duration::from_secs(10);

/// The head gives its verdict on a host that it has not heard for this long. The difference to
/// [`AGENT_GRACE`] is the time that an agent has to end its workers, and the margin for drift between the two
/// machines' clocks.
pub const HEAD_GRACE: Duration = Duration::from_secs(15);
const _: () = assert!(HEAD_GRACE.as_secs() >= AGENT_GRACE.as_secs() + 5);

/// The most unanswered beats that an agent remembers. Older ones cannot be answered in time.
pub const MAX_BEATS: usize = 16;
const _: () = assert!(MAX_BEATS as u64 * BEAT.as_secs() > AGENT_GRACE.as_secs());

/// Two clocks drift apart by at most one nanosecond in this many: 100 us in a second.
pub const CLOCK_DRIFT: u64 = 10_000;

/// How long a host tries to join.
pub const JOIN_DEADLINE: Duration = Duration::from_secs(120);

/// The most hosts of a node.
pub const MAX_HOSTS: usize = 1024;

/// The longest name or address of a host.
pub const MAX_NAME: usize = 255;

/// The most arguments of a program that are compared. [`MAX_ARGUMENT`] bounds the bytes of each.
pub const MAX_ARGUMENTS: usize = 4096;
/// See [`MAX_ARGUMENTS`].
pub const MAX_ARGUMENT: usize = 64 << 10;
