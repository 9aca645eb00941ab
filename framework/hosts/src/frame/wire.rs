//! The encoding of frames. All numbers are little-endian. A frame begins with a byte that gives its kind, and
//! gRPC gives its length.
//!
//! WIRE-1: each count is compared with its limit and with the bytes that are left before memory is allocated
//! for it, so a frame makes its reader keep no more than a few times its own length. A frame that [`decode`]
//! returns is well-formed; the [session](crate::session) decides whether the other side may send it.

use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};

use crate::frame::{Bits, Body, Frame, Hello, Log, Partial, Piece, Post, Resume, Target};
use crate::ids::{ActorId, Gateway, HostId, HostLife, Life};
use crate::limits::{
    MAX_ARRIVING, MAX_CAPACITY, MAX_DONE, MAX_FRAME, MAX_HEAD, MAX_LOG, MAX_LOG_RECORDS, MAX_NOTE,
    MAX_RESUME_BYTES, MAX_SPAN_BYTES, MAX_SPANS, MAX_WHY, PIECE_BYTES,
};

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum WireError {
    /// The frame ends too early.
    #[error("the frame was cut short: {wanted} bytes are needed where {left} are left")]
    CutShort { wanted: usize, left: usize },
    /// The frame goes on too long.
    #[error("{bytes} bytes follow the frame")]
    Trailing { bytes: usize },
    /// A field has a value that it cannot have.
    #[error("the frame's {field} is {value}, which it cannot be")]
    Field { field: &'static str, value: u64 },
    /// It is not the value that belongs there, [in its one form](super::one_form).
    #[error("the frame does not hold what belongs in it, in the form in which hosts write that")]
    Form,
}

impl From<TryGetError> for WireError {
    fn from(error: TryGetError) -> Self {
        WireError::CutShort { wanted: error.requested, left: error.available }
    }
}

const HELLO: u8 = 1;
const ACK: u8 = 2;
const BEAT: u8 = 3;
const ANSWER: u8 = 4;
const LOG: u8 = 5;
const SEND: u8 = 16;
const ASK: u8 = 17;
const REPLY: u8 = 18;
const LANDED: u8 = 19;
const DONE: u8 = 20;
const GRANT: u8 = 21;
const REFUSAL: u8 = 22;
const ABORT: u8 = 23;
const SERVE: u8 = 24;
const NOTE: u8 = 25;

/// Encodes a frame. The bytes of a head or a note are copied.
pub fn encode(frame: &Frame) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    match frame {
        Frame::Hello(hello) => {
            out.put_u8(HELLO);
            put_life(&mut out, hello.from);
            put_life(&mut out, hello.to);
            out.put_u32_le(hello.gateway.0);
            out.put_u32_le(hello.to_gateway.0);
            out.put_u64_le(hello.attempt);
            put_resume(&mut out, &hello.resume);
        }
        Frame::Ack { received } => put_numbers(&mut out, ACK, &[*received]),
        Frame::Beat { number } => put_numbers(&mut out, BEAT, &[*number]),
        Frame::Answer { number, at } => put_numbers(&mut out, ANSWER, &[*number, *at]),
        Frame::Log(Log { first, count, records }) => {
            put_numbers(&mut out, LOG, &[*first]);
            out.put_u16_le(*count);
            put_text(&mut out, records);
        }
        Frame::Numbered { seq, body } => put_body(&mut out, *seq, body),
    }
    out.freeze()
}

fn put_numbers(out: &mut BytesMut, tag: u8, numbers: &[u64]) {
    out.put_u8(tag);
    numbers.iter().for_each(|number| out.put_u64_le(*number));
}

fn put_life(out: &mut BytesMut, who: HostLife) {
    out.put_u16_le(who.host.0);
    out.put_u64_le(who.life.0);
}

/// Reads the sender's gateway, which a greeting always states.
fn get_gateway(from: &mut Bytes) -> Result<Gateway, WireError> {
    match Gateway(from.try_get_u32_le()?) {
        Gateway::UNKNOWN => Err(WireError::Field { field: "gateway", value: 0 }),
        known => Ok(known),
    }
}

fn put_resume(out: &mut BytesMut, resume: &Resume) {
    out.put_u64_le(resume.received);
    out.put_u32_le(resume.partial.len() as u32);
    for partial in &resume.partial {
        out.put_u64_le(partial.post);
        out.put_u16_le(partial.spans.len() as u16);
        for bits in &partial.spans {
            out.put_u64_le(bits.len());
            bits.words().iter().for_each(|word| out.put_u64_le(*word));
        }
    }
}

fn put_body(out: &mut BytesMut, seq: u64, body: &Body) {
    match body {
        Body::Post(Post { target, head, spans }) => {
            match *target {
                Target::Send(actor) => put_numbers(out, SEND, &[seq, actor.0]),
                Target::Ask(actor, correlation) => put_numbers(out, ASK, &[seq, actor.0, correlation]),
                Target::Reply(correlation) => put_numbers(out, REPLY, &[seq, correlation]),
            }
            out.put_u16_le(spans.len() as u16);
            spans.iter().for_each(|bytes| out.put_u64_le(*bytes));
            put_text(out, head);
        }
        Body::Landed { post, whole } => {
            put_numbers(out, LANDED, &[seq, *post]);
            out.put_u8(u8::from(*whole));
        }
        Body::Done { posts } => {
            put_numbers(out, DONE, &[seq]);
            out.put_u16_le(posts.len() as u16);
            posts.iter().for_each(|post| out.put_u64_le(*post));
        }
        Body::Grant { bytes } => put_numbers(out, GRANT, &[seq, *bytes]),
        Body::Refusal { correlation, why } => {
            put_numbers(out, REFUSAL, &[seq, *correlation]);
            put_text(out, why);
        }
        Body::Abort { post, why } => {
            put_numbers(out, ABORT, &[seq, *post]);
            put_text(out, why);
        }
        Body::Serve { actor, capacity } => {
            put_numbers(out, SERVE, &[seq, actor.0]);
            out.put_u32_le(*capacity);
        }
        Body::Note(note) => {
            put_numbers(out, NOTE, &[seq]);
            put_text(out, note);
        }
    }
}

fn put_text(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// Decodes a frame.
///
/// # Errors
/// The bytes are not a frame.
pub fn decode(mut bytes: Bytes) -> Result<Frame, WireError> {
    within("length", bytes.len() as u64, 1, MAX_FRAME as u64)?;
    let from = &mut bytes;
    let tag = from.try_get_u8()?;
    let frame = match tag {
        HELLO => Frame::Hello(Hello {
            from: get_life(from)?,
            to: get_life(from)?,
            gateway: get_gateway(from)?,
            to_gateway: Gateway(from.try_get_u32_le()?),
            attempt: from.try_get_u64_le()?,
            resume: get_resume(from)?,
        }),
        ACK => Frame::Ack { received: from.try_get_u64_le()? },
        BEAT => Frame::Beat { number: from.try_get_u64_le()? },
        ANSWER => Frame::Answer { number: from.try_get_u64_le()?, at: from.try_get_u64_le()? },
        LOG => {
            let first = within("number of a record", from.try_get_u64_le()?, 1, u64::MAX >> 1)?;
            let count = within("records", from.try_get_u16_le()?.into(), 0, MAX_LOG_RECORDS as u64)? as u16;
            Frame::Log(Log { first, count, records: get_text(from, MAX_LOG)? })
        }
        _ => {
            let seq = within("number", from.try_get_u64_le()?, 1, u64::MAX)?;
            Frame::Numbered { seq, body: get_body(tag, from)? }
        }
    };
    whole(from, frame)
}

/// Returns `read`, if nothing is left behind it.
pub(crate) fn whole<T>(rest: &impl Buf, read: T) -> Result<T, WireError> {
    match rest.remaining() {
        0 => Ok(read),
        bytes => Err(WireError::Trailing { bytes }),
    }
}

pub(crate) fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<u64, WireError> {
    if (least..=most).contains(&value) { Ok(value) } else { Err(WireError::Field { field, value }) }
}

fn get_life(from: &mut Bytes) -> Result<HostLife, WireError> {
    Ok(HostLife { host: HostId(from.try_get_u16_le()?), life: Life(from.try_get_u64_le()?) })
}

/// Checks that enough bytes are left for `count` elements of at least `each` bytes, so that memory may be
/// allocated for them.
fn left(from: &Bytes, count: usize, each: usize) -> Result<usize, WireError> {
    match count * each {
        wanted if wanted > from.len() => Err(WireError::CutShort { wanted, left: from.len() }),
        _ => Ok(count),
    }
}

fn get_resume(from: &mut Bytes) -> Result<Resume, WireError> {
    within("length", from.len() as u64, 0, MAX_RESUME_BYTES as u64)?;
    let received = from.try_get_u64_le()?;
    let count = within("messages that are not whole", from.try_get_u32_le()?.into(), 0, MAX_ARRIVING as u64)?;
    let mut partial: Vec<Partial> = Vec::with_capacity(left(from, count as usize, 10)?);
    for _ in 0..count {
        let before = partial.last().map_or(0, |partial| partial.post);
        let post = within("message that is not whole", from.try_get_u64_le()?, before + 1, received)?;
        let spans = within("spans", from.try_get_u16_le()?.into(), 1, MAX_SPANS as u64)?;
        left(from, spans as usize, 8)?;
        let spans = (0..spans).map(|_| get_bits(from)).collect::<Result<_, _>>()?;
        partial.push(Partial { post, spans });
    }
    Ok(Resume { received, partial })
}

fn get_bits(from: &mut Bytes) -> Result<Bits, WireError> {
    let len = within("pieces of a span", from.try_get_u64_le()?, 1, MAX_SPAN_BYTES / PIECE_BYTES)?;
    let words = left(from, len.div_ceil(64) as usize, 8)?;
    let words = (0..words).map(|_| from.try_get_u64_le()).collect::<Result<Vec<_>, _>>()?;
    let last = words.last().copied().unwrap_or(0);
    Bits::from_words(words, len).ok_or(WireError::Field { field: "pieces that are there", value: last })
}

fn get_body(tag: u8, from: &mut Bytes) -> Result<Body, WireError> {
    Ok(match tag {
        SEND => {
            let target = Target::Send(ActorId(from.try_get_u64_le()?));
            Body::Post(get_post(target, from)?)
        }
        ASK => {
            let target = Target::Ask(ActorId(from.try_get_u64_le()?), from.try_get_u64_le()?);
            Body::Post(get_post(target, from)?)
        }
        REPLY => {
            let target = Target::Reply(from.try_get_u64_le()?);
            Body::Post(get_post(target, from)?)
        }
        LANDED => {
            let post = from.try_get_u64_le()?;
            let whole = within("end of a message's pieces", from.try_get_u8()?.into(), 0, 1)? == 1;
            Body::Landed { post, whole }
        }
        DONE => {
            let count = within("messages done with", from.try_get_u16_le()?.into(), 1, MAX_DONE as u64)?;
            let count = left(from, count as usize, 8)?;
            Body::Done { posts: (0..count).map(|_| from.try_get_u64_le()).collect::<Result<_, _>>()? }
        }
        GRANT => Body::Grant { bytes: within("grant", from.try_get_u64_le()?, 1, u64::MAX)? },
        REFUSAL => Body::Refusal { correlation: from.try_get_u64_le()?, why: get_text(from, MAX_WHY)? },
        ABORT => Body::Abort { post: from.try_get_u64_le()?, why: get_text(from, MAX_WHY)? },
        SERVE => Body::Serve {
            actor: ActorId(from.try_get_u64_le()?),
            capacity: within("capacity", from.try_get_u32_le()?.into(), 0, MAX_CAPACITY.into())? as u32,
        },
        NOTE => Body::Note(get_text(from, MAX_NOTE)?),
        other => return Err(WireError::Field { field: "kind", value: other.into() }),
    })
}

fn get_post(target: Target, from: &mut Bytes) -> Result<Post, WireError> {
    let count = within("spans", from.try_get_u16_le()?.into(), 0, MAX_SPANS as u64)?;
    let mut spans = Vec::with_capacity(left(from, count as usize, 8)?);
    let mut total = 0;
    for _ in 0..count {
        let bytes = within("bytes of a span", from.try_get_u64_le()?, 1, MAX_SPAN_BYTES)?;
        total = within("bytes of all spans", total + bytes, 1, MAX_SPAN_BYTES)?;
        spans.push(bytes);
    }
    Ok(Post { target, head: get_text(from, MAX_HEAD)?, spans })
}

fn get_text(from: &mut Bytes, most: usize) -> Result<Bytes, WireError> {
    let len = within("length of a text", from.try_get_u32_le()?.into(), 0, most as u64)? as usize;
    left(from, len, 1)?;
    Ok(from.split_to(len))
}

/// Encodes the part of a lane's frame before the bytes of the piece.
pub fn encode_piece(piece: &Piece) -> [u8; PIECE_HEAD] {
    let mut out = [0; PIECE_HEAD];
    let mut rest = &mut out[..];
    rest.put_u64_le(piece.post);
    rest.put_u16_le(piece.span);
    rest.put_u64_le(piece.offset);
    out
}

const PIECE_HEAD: usize = 18;

/// Decodes the name of a piece at the start of a lane's frame; its bytes remain.
///
/// # Errors
/// The bytes are not a piece.
pub fn decode_piece(frame: &mut impl Buf) -> Result<Piece, WireError> {
    let (post, span, offset) = (frame.try_get_u64_le()?, frame.try_get_u16_le()?, frame.try_get_u64_le()?);
    within("message of a piece", post, 1, u64::MAX)?;
    within("span of a piece", span.into(), 0, MAX_SPANS as u64 - 1)?;
    within("offset of a piece", offset, 0, MAX_SPAN_BYTES - 1)?;
    let bytes = within("bytes of a piece", frame.remaining() as u64, 1, PIECE_BYTES)? as u32;
    Ok(Piece { post, span, offset, bytes })
}

#[cfg(test)]
mod tests;
