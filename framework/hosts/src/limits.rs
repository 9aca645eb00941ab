//! Every bound of what hosts say to each other, in one place, with the arithmetic that ties them together
//! (HOST-9).

use std::time::Duration;

/// The port of a head, unless another is named.
pub const PORT: u16 = 7117;

/// Bytes of messages that one host may have on their way to another: sent, and not yet passed on there.
/// Tensors are often as large as a power of two, so there is room for what they have beside their bytes:
/// without it, one of 128 MiB had to go alone.
pub const WINDOW: u64 = (256 << 20) + HEADS;

/// As many while a NIXL lane carries tensors: it is so fast that what each message waits for, some hundred
/// microseconds, is as long as 128 MiB take.
pub const WIDE_WINDOW: u64 = (1 << 30) + HEADS;

const HEADS: u64 = 1 << 20;

/// What a message counts of the window beside its bytes: the bookkeeping on both sides.
pub const POST_BASE: u64 = 256;

/// Bytes of a piece of a span; the last of a span is shorter. The best size for one connection with TLS
/// (measured).
pub const PIECE_BYTES: u64 = 256 << 10;

/// Largest head of a message: its key, its body where that is small, and the layouts of its tensors. 64 KiB
/// of body, and 512 tensors of 152 bytes.
pub const MAX_HEAD: usize = (64 << 10) + 512 * 152 + 1024;

/// Most spans of a message: its tensors, and a body that is too large for the head.
pub const MAX_SPANS: usize = 512 + 1;

/// Most bytes of the spans of a message together. Its pieces have a bit each in a
/// [`Resume`](crate::frame::Resume).
pub const MAX_SPAN_BYTES: u64 = 64 << 30;

/// Most messages with spans that one host may have on their way to another before they are whole there.
pub const MAX_ARRIVING: usize = 1024;

/// Most frames that a host keeps because the other has not said that it received them. Who says nothing for
/// so many is cut.
pub const MAX_UNACKED: usize = 1 << 16;

/// Frames that were received past which that is said at once; before, with whatever is said next.
pub const ACK_AT: u64 = 32;
const _: () = assert!(ACK_AT < MAX_NOTES as u64 / 2 && ACK_AT < MAX_UNACKED as u64 / 4);

/// Largest capacity of a mailbox for one host.
pub const MAX_CAPACITY: u32 = 1 << 16;

/// Most messages that one frame says to be done with.
pub const MAX_DONE: usize = 1024;

/// Most mailboxes that a host serves to another at a time.
pub const MAX_MAILBOXES: usize = 4096;

/// Largest note of one node to another (names, actors, watches), and most of them on their way.
pub const MAX_NOTE: usize = 64 << 10;
/// See [`MAX_NOTE`].
pub const MAX_NOTES: usize = 256;

/// Most bytes of the records in one frame of a host's log, and most of them. The longest record of a node has
/// 64 KiB of texts.
pub const MAX_LOG: usize = 80 << 10;
/// See [`MAX_LOG`].
pub const MAX_LOG_RECORDS: usize = 256;

/// Bytes of its log that an agent tells its head in a second. Beside what it sends at the same time they are
/// nothing.
pub const LOG_RATE: u64 = 256 << 10;

/// As many may come at once.
pub const LOG_BURST: u64 = LOG_RATE;
const _: () = assert!(LOG_BURST > 2 * MAX_LOG as u64);

/// What a record counts beside its texts, and a frame beside its records.
pub const LOG_BASE: u64 = 64;

/// What the head takes of one agent's log in a second, and at once: all that an honest one can say until the
/// verdict on it, which may come in one piece where a machine or the network stood still. Its form adds less
/// than a half to what the agent counts.
pub const LOG_RATE_HEARD: u64 = 2 * LOG_RATE;
/// See [`LOG_RATE_HEARD`].
pub const LOG_BURST_HEARD: u64 = 2 * (LOG_BURST + (HEAD_GRACE.as_secs() + 1) * LOG_RATE);

/// Bytes of log frames that wait for a connection, or for the gateway to take them; more are dropped, and
/// counted by the head.
pub const MAX_QUEUED_LOG: usize = 256 << 10;
const _: () = assert!(MAX_QUEUED_LOG > 2 * MAX_LOG);

/// Between two log frames while anything else waits to be sent.
pub const LOG_PAUSE: Duration = Duration::from_millis(100);

/// What a session has to tell its gateway, past which nothing more is heard of the other side until some of
/// it was taken. One frame can lead to [`MAX_DONE`] more.
pub const MAX_EVENTS: usize = 1 << 13;
const _: () = assert!(MAX_EVENTS > 2 * MAX_DONE);

/// Longest text that says why something was refused.
pub const MAX_WHY: usize = 4 << 10;

/// Most bytes of a [`Resume`](crate::frame::Resume). Whoever sends keeps so few messages under way that the
/// other side's fits, whatever has come of them; one of the largest kind does.
pub const MAX_RESUME_BYTES: usize = 1 << 20;
const _: () =
    assert!(MAX_PARTIAL_BYTES as u64 >= MAX_SPAN_BYTES / PIECE_BYTES / 8 + (MAX_SPANS * 16) as u64 + 10);

/// Bytes of it that messages have.
pub const MAX_PARTIAL_BYTES: usize = MAX_RESUME_BYTES - 12;

/// Largest frame of the control stream.
pub const MAX_FRAME: usize = MAX_RESUME_BYTES + (64 << 10);
const _: () = assert!(MAX_FRAME > MAX_HEAD + MAX_SPANS * 8 + 64 && MAX_FRAME > MAX_NOTE + 64);
const _: () = assert!(MAX_FRAME > MAX_LOG + 64);

/// Largest frame of a lane: a piece and its name.
pub const MAX_LANE_FRAME: usize = PIECE_BYTES as usize + 32;

/// Most parts in which HTTP/2 may bring one. An honest host's are as long as [`LANE_FRAME`] lets them be, but
/// where a window ends.
pub const MAX_LANE_PARTS: usize = 64;

/// Longest frame of HTTP/2 that a lane takes, in bytes: each costs its sender a write to the socket, and its
/// receiver a buffer; without this the standard has 16 KiB.
pub const LANE_FRAME: u32 = 256 << 10;

/// Pieces whose bytes a lane waits for at a time: one is sent while the next is copied out of a GPU.
pub const READ_AHEAD: usize = 2;

/// Most lanes of a connection between two hosts.
pub const MAX_LANES: u16 = 8;

/// Bytes of a slot of an arena, and so of the largest run that a NIXL lane writes at once: the best size
/// (measured: 16 MiB take a fifth longer).
pub const NIXL_SLOT: u64 = 32 << 20;
const _: () = assert!(NIXL_SLOT.is_multiple_of(PIECE_BYTES));

/// Slots of an arena.
pub const NIXL_SLOTS: u8 = 8;

/// Most routes from one host to another, a device of one to a device of the other: each has an arena on
/// either side.
pub const MAX_NIXL_ROUTES: u8 = 8;

/// Longest metadata of an agent of NIXL: where it is reached, and the keys of one arena. Seen were 450 bytes,
/// with one network card.
pub const MAX_NIXL_METADATA: usize = 16 << 10;

/// Most spans that a host asks another to make room for in its arenas at a time; more are a breach of the
/// protocol.
pub const MAX_NIXL_WANTS: usize = MAX_ARRIVING * 4;

/// Spans with less go by gRPC: asking for a slot takes longer than they do.
pub const NIXL_LEAST: u64 = 1 << 20;

/// What a write of one slot may take. It is chosen where it is faster than gRPC, so that is a broken lane,
/// and NIXL itself says "in progress" for minutes (measured).
pub const NIXL_DEADLINE: Duration = Duration::from_secs(2);

/// What making and probing a route may take, with an agent on either side, the keys of an arena, and twice a
/// slot.
pub const NIXL_PROBE_DEADLINE: Duration = Duration::from_secs(20);

/// A route that broke so often is used no more in the life of its session.
pub const MAX_NIXL_BREAKS: u8 = 3;

// With its offer it is one frame of a stream; so is a part of what gRPC is measured with.
const _: () = assert!(MAX_NIXL_METADATA + 256 < MAX_LANE_FRAME);

/// A gateway that says so many things which it must not is given up, with its session.
pub const MAX_VIOLATIONS: u32 = 8;

/// Connections of which nobody knows yet who they are, at a time. At 20,000 new ones a second a host has 20
/// ms to show its key: three quarters of them are kept where room is made.
pub const MAX_STRANGERS: usize = 512;
const _: () = assert!(MAX_STRANGERS.is_multiple_of(4));

/// Connections that the system keeps for a listener until it takes them. Past that a host waits a second to
/// try again.
pub const ACCEPT_BACKLOG: i32 = 4096;

/// Proofs of the key that are remembered so that nobody says one again.
pub const MAX_PROOFS: usize = 8192;

/// Connections of a listener at a time that have shown the key: those of most hosts with all their lanes.
pub const MAX_CONNECTIONS: usize = MAX_HOSTS * (MAX_LANES as usize + 1);

/// A connection on which nothing came for so long is broken: beats come each [`BEAT`], from one side at
/// least, and are answered.
pub const LINK_SILENCE: Duration = Duration::from_secs(4);
const _: () = assert!(LINK_SILENCE.as_secs() < AGENT_GRACE.as_secs() / 2);

/// How long a connection may take to say who it is.
pub const INTRODUCTION: Duration = Duration::from_secs(5);

/// Between two beats.
pub const BEAT: Duration = Duration::from_secs(1);

/// An agent whose beats were not answered for so long ends its workers.
pub const AGENT_GRACE: Duration = Duration::from_secs(10);

/// The head speaks its verdict on a host that it has not heard for so long. The difference is what an agent
/// has to end its workers, and what the two machines' clocks may drift apart in that time.
pub const HEAD_GRACE: Duration = Duration::from_secs(15);
const _: () = assert!(HEAD_GRACE.as_secs() >= AGENT_GRACE.as_secs() + 5);

/// Beats of an agent that nobody has answered, which it remembers. Older ones cannot be answered in time.
pub const MAX_BEATS: usize = 16;
const _: () = assert!(MAX_BEATS as u64 * BEAT.as_secs() > AGENT_GRACE.as_secs());

/// Two clocks drift apart by a nanosecond in so many, at most: 100 us in a second.
pub const CLOCK_DRIFT: u64 = 10_000;

/// How long a host tries to join.
pub const JOIN_DEADLINE: Duration = Duration::from_secs(120);

/// Most hosts of a node.
pub const MAX_HOSTS: usize = 1024;

/// Longest name or address of a host.
pub const MAX_NAME: usize = 255;

/// Most arguments of a program that are compared, and bytes of one of them.
pub const MAX_ARGUMENTS: usize = 4096;
/// See [`MAX_ARGUMENTS`].
pub const MAX_ARGUMENT: usize = 64 << 10;
