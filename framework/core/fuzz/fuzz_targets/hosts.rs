//! Anything that another host says over its control stream and its lanes (WIRE-1, HOST-3, HOST-8, HOST-9).

#![no_main]

mod growth;

use std::collections::HashMap;

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tensorpost_hosts::frame::{Body, Frame, Piece, Post, Target, decode, decode_piece, encode};
use tensorpost_hosts::ids::{ActorId, HostId, HostLife, Life};
use tensorpost_hosts::introduction::{Introduction, PROTOCOL};
use tensorpost_hosts::session::{Bounds, Claim, Event, Session, To};

#[derive(Arbitrary, Debug)]
enum Step {
    /// As a frame, in its right number where it has one.
    Frame(Vec<u8>),
    Introduction(Vec<u8>),
    Lane(Vec<u8>),
    Says(Said),
    Piece {
        post: u8,
        span: u8,
        at: u8,
        bytes: u8,
    },
    /// A connection, with a greeting that says this of what was received.
    Connects {
        ahead: u8,
        attempt: u8,
    },
    /// The honest side.
    Asks,
    Sends,
    Done,
    Pumps,
}

/// Input that meets existing state.
#[derive(Arbitrary, Debug)]
enum Said {
    Post { to: u8, correlation: u8, kind: u8, spans: Vec<u8> },
    Landed { post: u8, whole: bool },
    Done { posts: Vec<u8> },
    Grant { bytes: u16 },
    Refusal { correlation: u8 },
    Abort { post: u8 },
    Serve { actor: u8, capacity: u8 },
    Note(Vec<u8>),
    Ack { received: u8 },
}

const BOUNDS: Bounds = Bounds { window: 8192, piece: 16, run: 64 };
const CAPACITY: u32 = 3;

fn who(host: u16) -> HostLife {
    HostLife { host: HostId(host), life: Life(u64::from(host) + 1) }
}

fn actor(number: u8) -> ActorId {
    let host = HostId(u16::from(number % 4 / 2));
    ActorId::new(host, u64::from(number % 2) + 1).expect("a small number")
}

impl Said {
    fn frame(self, seq: u64) -> Frame {
        let body = match self {
            Said::Post { to, correlation, kind, spans } => {
                let correlation = u64::from(correlation % 8);
                let target = match kind % 3 {
                    0 => Target::Send(actor(to)),
                    1 => Target::Ask(actor(to), correlation),
                    _ => Target::Reply(correlation),
                };
                let spans = spans.into_iter().take(4).map(|bytes| u64::from(bytes).max(1)).collect();
                Body::Post(Post { target, head: Bytes::new(), spans })
            }
            Said::Landed { post, whole } => Body::Landed { post: u64::from(post % 16), whole },
            Said::Done { posts } => {
                Body::Done { posts: posts.into_iter().take(4).map(|post| u64::from(post % 16)).collect() }
            }
            Said::Grant { bytes } => Body::Grant { bytes: u64::from(bytes).max(1) },
            Said::Refusal { correlation } => {
                Body::Refusal { correlation: u64::from(correlation % 8), why: Bytes::new() }
            }
            Said::Abort { post } => Body::Abort { post: u64::from(post % 16), why: Bytes::new() },
            Said::Serve { actor: number, capacity } => {
                Body::Serve { actor: actor(number), capacity: u32::from(capacity % 4) }
            }
            Said::Note(note) => Body::Note(note.into()),
            Said::Ack { received } => return Frame::Ack { received: received.into() },
        };
        Frame::Numbered { seq, body }
    }
}

/// The honest side, and what it has seen.
struct Side {
    session: Session,
    link: tensorpost_hosts::session::Link,
    attempt: u64,
    seq: u64,
    landed: HashMap<u64, u64>,
    open: Vec<(u64, bool)>,
    asked: usize,
    leased: usize,
}

impl Side {
    fn new() -> Self {
        let mut session = Session::new(who(1), who(0), BOUNDS);
        session.serve(actor(2), CAPACITY).expect("one mailbox");
        let hello = Session::new(who(0), who(1), BOUNDS).dial();
        let (link, _) = session.accept(&hello).expect("the first");
        let (landed, open) = (HashMap::new(), Vec::new());
        Side { session, link, attempt: 1, seq: 0, landed, open, asked: 0, leased: 0 }
    }

    fn hear(&mut self, frame: Frame) {
        // With pieces of 16 bytes, a larger message has bits for memory that no message of real pieces has.
        if let Frame::Numbered { body: Body::Post(post), .. } = &frame
            && post.spans.iter().sum::<u64>() > 1 << 16
        {
            return;
        }
        match frame {
            Frame::Numbered { body, .. } => {
                let taken = self.session.take(self.link, self.seq + 1, body);
                self.seq += u64::from(taken.is_ok());
            }
            // A lie changes nothing.
            Frame::Ack { received } => drop(self.session.acked(self.link, received)),
            Frame::Hello(hello) => {
                if let Ok((link, _)) = self.session.accept(&hello) {
                    (self.link, self.attempt) = (link, hello.attempt);
                }
            }
            Frame::Beat { .. } | Frame::Answer { .. } | Frame::Log(_) => {}
        }
    }

    fn piece(&mut self, piece: &Piece) {
        if self.session.claim(self.link, piece) == Ok(Claim::Take) {
            *self.landed.entry(piece.post).or_default() += u64::from(piece.bytes);
            self.session.landed(piece);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Frame(bytes) => {
                let bytes = Bytes::from(bytes);
                if let Ok(frame) = decode(bytes.clone()) {
                    assert_eq!(encode(&frame), bytes, "another form of {frame:?}");
                    self.hear(frame);
                }
            }
            Step::Introduction(bytes) => {
                let bytes = Bytes::from(bytes);
                if let Ok(read) = Introduction::decode(bytes.clone())
                    && read.protocol == PROTOCOL
                {
                    assert_eq!(read.encode(), bytes, "another form of {read:?}");
                }
            }
            Step::Lane(bytes) => {
                if let Ok(piece) = decode_piece(&mut Bytes::from(bytes)) {
                    self.piece(&piece);
                }
            }
            Step::Says(said) => self.hear(said.frame(self.seq + 1)),
            Step::Piece { post, span, at, bytes } => {
                let offset = u64::from(at % 16) * 16;
                let bytes = u32::from(bytes % 16) + 1;
                self.piece(&Piece { post: u64::from(post % 16), span: u16::from(span % 4), offset, bytes });
            }
            Step::Connects { ahead, attempt } => {
                let mut hello = Session::new(who(0), who(1), BOUNDS).dial();
                hello.attempt = self.attempt + u64::from(attempt % 3);
                hello.resume.received = u64::from(ahead);
                self.hear(Frame::Hello(hello));
            }
            Step::Asks => {
                let asked = self.session.post(To::Ask(actor(0)), Bytes::new(), vec![]);
                self.asked += usize::from(asked.is_ok());
            }
            Step::Sends => {
                let sent = self.session.post(To::Send(actor(0)), Bytes::new(), vec![40]);
                self.leased += usize::from(sent.is_ok());
            }
            Step::Done => self.open.drain(..).for_each(|(post, _)| self.session.done(post)),
            Step::Pumps => {
                while self.session.next_frame(self.link).is_some()
                    || self.session.next_piece(self.link).is_some()
                {}
            }
        }
        while let Some(event) = self.session.next_event() {
            self.event(event);
        }
        assert!(self.open.iter().filter(|(_, places)| *places).count() <= CAPACITY as usize);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Message { post, message } => {
                let bytes: u64 = message.spans.iter().sum();
                assert_eq!(self.landed.remove(&post).unwrap_or(0), bytes, "message {post} is not whole");
                assert!(self.open.iter().all(|(other, _)| *other != post), "message {post} went on twice");
                self.asked -= usize::from(matches!(message.target, Target::Reply(_)));
                self.open.push((post, message.target.actor().is_some()));
            }
            Event::Refused { .. } => self.asked -= 1,
            Event::Released { .. } => self.leased -= 1,
            Event::Aborted { post, .. } => drop(self.landed.remove(&post)),
            Event::Arriving { .. }
            | Event::Done { .. }
            | Event::Served { .. }
            | Event::Room { .. }
            | Event::Window
            | Event::Note(_)
            | Event::NoteRoom => {}
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    // The bytes that 96 steps of at most 1.5 KiB make one side keep.
    growth::bounded(8 << 20, 1 << 12, || {
        let mut side = Side::new();
        for step in steps.into_iter().take(96) {
            side.step(step);
        }
        let ended = side.session.end();
        assert_eq!((ended.asks.len(), ended.released.len()), (side.asked, side.leased));
    });
});
