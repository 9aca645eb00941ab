//! Violations of a peer, and the state that the verdict leaves.

use proptest::prelude::*;

use super::*;
use crate::frame::{Hello, Partial, Resume, Run};
use crate::ids::{HostId, Life};
use crate::limits::{MAX_ARRIVING, MAX_FRAME, MAX_PARTIAL_BYTES, MAX_SPANS};

fn who(host: u16) -> HostLife {
    HostLife { host: HostId(host), life: Life(u64::from(host) + 70) }
}

fn actor(host: u16, number: u64) -> ActorId {
    ActorId::new(HostId(host), number).expect("a small number")
}

const BOUNDS: Bounds = Bounds { window: 4096, wide: 8192, piece: 16, run: 64 };

/// Frames with small numbers, so that they refer to things that exist.
fn said() -> impl Strategy<Value = Body> {
    let actors = || prop_oneof![8 => Just(actor(1, 5)), 1 => Just(actor(1, 6)), 1 => Just(actor(0, 1))];
    let spans = prop::collection::vec(1_u64..50, 0..3);
    prop_oneof![
        4 => (actors(), 0_u64..6, 0..3, spans).prop_map(|(to, correlation, kind, spans)| {
            let target = match kind {
                0 => Target::Send(to),
                1 => Target::Ask(to, correlation),
                _ => Target::Reply(correlation),
            };
            post(target, spans)
        }),
        1 => (0_u64..12, any::<bool>()).prop_map(|(post, whole)| Body::Landed { post, whole }),
        1 => prop::collection::vec(1_u64..12, 1..4).prop_map(|posts| Body::Done { posts }),
        1 => (1_u64..600).prop_map(|bytes| Body::Grant { bytes }),
        1 => (0_u64..6).prop_map(|correlation| Body::Refusal { correlation, why: Bytes::new() }),
        2 => (0_u64..12).prop_map(|post| Body::Abort { post, why: Bytes::new() }),
        1 => (actors(), 0_u32..4).prop_map(|(actor, capacity)| Body::Serve { actor, capacity }),
    ]
}

proptest! {
    /// For any frames of a peer, with the right numbers: nothing panics, and this side keeps its bounds. Each
    /// message that goes on is complete and goes on once, and the verdict accounts for every ask and every
    /// lease.
    #[test]
    fn a_liar_hurts_only_itself(
        steps in prop::collection::vec((said(), 0_u64..12, 0_u16..3, 0_u64..4, 0..6), 1..80),
    ) {
        let mut side = Session::new(who(1), who(0), BOUNDS);
        side.serve(actor(1, 5), 3).expect("one mailbox");
        let mut liar = Session::new(who(0), who(1), BOUNDS);
        let (link, _) = side.accept(&liar.dial()).expect("the first");
        let (mut seq, mut open, mut asked, mut leased) = (1, Vec::new(), 0, 0);
        let mut landed = std::collections::HashMap::<Seq, u64>::new();
        for (body, number, span, at, what) in steps {
            seq += u64::from(side.take(link, seq, body).is_ok());
            for bytes in [16, 1 + (number as u32 + at as u32) % 16] {
                let piece = Piece { post: number, span, offset: at * 16, bytes };
                if side.claim(link, &piece) == Ok(Claim::Take) {
                    *landed.entry(number).or_default() += u64::from(bytes);
                    side.landed(&piece);
                }
            }
            match what {
                0 => asked += u64::from(side.post(To::Ask(actor(0, 1)), Bytes::new(), vec![]).is_ok()),
                1 => leased += u64::from(side.post(To::Send(actor(0, 1)), Bytes::new(), vec![9]).is_ok()),
                2 => open.drain(..).for_each(|(post, _)| side.done(post)),
                _ => while side.next_frame(link).is_some() || side.next_piece(link).is_some() {},
            }
            while let Some(event) = side.next_event() {
                match event {
                    Event::Message { post, message } => {
                        let bytes: u64 = message.spans.iter().sum();
                        prop_assert_eq!(landed.remove(&post).unwrap_or(0), bytes);
                        asked -= u64::from(matches!(message.target, Target::Reply(_)));
                        let places = message.target.actor().is_some();
                        open.push((post, places));
                    }
                    Event::Refused { .. } => asked -= 1,
                    Event::Released { .. } => leased -= 1,
                    Event::Aborted { post, .. } => drop(landed.remove(&post)),
                    _ => {}
                }
            }
            prop_assert!(open.iter().filter(|(_, places)| *places).count() <= 3);
        }
        let ended = side.end();
        prop_assert_eq!((ended.asks.len() as u64, ended.released.len() as u64), (asked, leased));
    }
}

/// Two sides with a connection; side 1 offers two places in a mailbox.
struct Pair {
    sides: [Session; 2],
    links: [Link; 2],
}

impl Pair {
    fn new() -> Self {
        let mut sides = [Session::new(who(0), who(1), BOUNDS), Session::new(who(1), who(0), BOUNDS)];
        sides[1].serve(actor(1, 5), 2).expect("one mailbox");
        let mut pair = Pair { sides, links: [Link(0); 2] };
        pair.connect();
        pair.exchange();
        pair
    }

    /// Returns whether side 0 has the wide window.
    fn is_wide(&self) -> bool {
        self.sides[0].outbound.window() == BOUNDS.wide
    }

    fn connect(&mut self) {
        let hello = self.sides[1].dial();
        let (link, answer) = self.sides[0].accept(&hello).expect("the next attempt");
        self.links = [link, self.sides[1].answered(&answer).expect("the answer")];
    }

    /// Passes everything on, until neither side has anything to send.
    fn exchange(&mut self) {
        loop {
            let mut any = false;
            for from in [0, 1] {
                while let Some(frame) = self.sides[from].next_frame(self.links[from]) {
                    any = true;
                    self.give(1 - from, frame).expect("an honest frame");
                }
                while let Some(piece) = self.sides[from].next_piece(self.links[from]) {
                    any = true;
                    let to = &mut self.sides[1 - from];
                    assert_eq!(to.claim(self.links[1 - from], &piece), Ok(Claim::Take));
                    to.landed(&piece);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn give(&mut self, to: usize, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Numbered { seq, body } => self.sides[to].take(self.links[to], seq, body),
            Frame::Ack { received } => self.sides[to].acked(self.links[to], received),
            other => panic!("{other:?} in the middle"),
        }
    }

    /// Gives this to side 1 as the next frame of side 0.
    fn forged(&mut self, body: Body) -> Violation {
        let seq = self.sides[1].numbering.received() + 1;
        self.sides[1].take(self.links[1], seq, body).expect_err("a lie")
    }

    fn events(&mut self, side: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.sides[side].next_event()).collect()
    }
}

fn post(target: Target, spans: Vec<u64>) -> Body {
    Body::Post(Post { target, head: Bytes::new(), spans })
}

#[test]
fn lies_are_refused_and_change_nothing() {
    let mut pair = Pair::new();
    let (mailbox, elsewhere) = (actor(1, 5), actor(2, 5));
    let lies = [
        (post(Target::Send(elsewhere), vec![]), Violation::OtherHost { actor: elsewhere, own: HostId(1) }),
        (post(Target::Send(actor(1, 6)), vec![]), Violation::NotServed { actor: actor(1, 6) }),
        (post(Target::Reply(9), vec![]), Violation::NoSuchAsk { correlation: 9 }),
        (Body::Refusal { correlation: 9, why: Bytes::new() }, Violation::NoSuchAsk { correlation: 9 }),
        (Body::Landed { post: 9, whole: true }, Violation::NoSuchPost { post: 9 }),
        (Body::Abort { post: 9, why: Bytes::new() }, Violation::NoSuchPost { post: 9 }),
        (Body::Done { posts: vec![9] }, Violation::NoSuchPost { post: 9 }),
        (Body::Grant { bytes: 1 }, Violation::GivesTooMuch { found: 1, most: 0 }),
        (
            Body::Serve { actor: mailbox, capacity: 1 },
            Violation::OtherHost { actor: mailbox, own: HostId(0) },
        ),
    ];
    for (body, violation) in lies {
        assert_eq!(pair.forged(body), violation);
    }
    // Honest messages go on as before.
    assert!(pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![40]).is_ok());
    pair.exchange();
    assert!(matches!(pair.events(1)[..], [Event::Arriving { .. }, Event::Message { .. }]));
    assert!(matches!(pair.events(0)[..], [Event::Served { .. }, Event::Released { whole: true, .. }]));
}

#[test]
fn a_mailbox_is_forgotten_when_the_other_side_knows_that_it_takes_nothing_more() {
    let mut pair = Pair::new();
    for number in 10..10 + 2 * MAX_MAILBOXES as u64 {
        let mailbox = actor(1, number);
        pair.sides[1].serve(mailbox, 1).expect("not too many at a time");
        pair.exchange();
        let sent = pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![]).expect("a place");
        // The message and the withdrawal cross.
        pair.sides[1].serve(mailbox, 0).expect("it is offered");
        pair.exchange();
        pair.sides[1].done(sent.post);
        pair.exchange();
    }
}

#[test]
fn a_flood_is_refused_at_every_bound() {
    let mut pair = Pair::new();
    let link = pair.links[1];
    let mailbox = actor(1, 5);
    for seq in [1, 2] {
        pair.sides[1].take(link, seq, post(Target::Ask(mailbox, seq), vec![])).expect("two places");
    }
    let full = Violation::OverCapacity { actor: mailbox, capacity: 2 };
    assert_eq!(pair.forged(post(Target::Send(mailbox), vec![])), full);
    pair.sides[1].done(1);
    assert_eq!(pair.forged(post(Target::Ask(mailbox, 2), vec![])), Violation::AsksTwice { correlation: 2 });
    // A message beyond the window goes alone, and here another one takes part of the window.
    let beyond = Violation::OverWindow { bytes: 8192, left: 4096 - 256 };
    assert_eq!(pair.forged(post(Target::Send(mailbox), vec![1 << 20])), beyond);
    // The wide window is for hosts with a bulk lane.
    let more = || post(Target::Send(mailbox), vec![4000]);
    let over = Violation::OverWindow { bytes: 256 + 8 + 4000, left: 4096 - 256 };
    assert_eq!(pair.forged(more()), over);
    pair.sides[1].takes_window(BOUNDS.wide);
    let seq = pair.sides[1].numbering.received() + 1;
    pair.sides[1].take(link, seq, more()).expect("there is room");

    let bounds = Bounds { window: 1 << 30, wide: 1 << 30, piece: 16, run: 64 };
    let mut side = Session::new(who(1), who(0), bounds);
    side.serve(mailbox, MAX_CAPACITY).expect("one mailbox");
    let mut dialled = Session::new(who(0), who(1), bounds);
    let (link, _) = side.accept(&dialled.dial()).expect("the first");
    for seq in 1..=MAX_ARRIVING as Seq {
        side.take(link, seq, post(Target::Send(mailbox), vec![1])).expect("below the bound");
    }
    let next = MAX_ARRIVING as Seq + 1;
    let many = Violation::TooMany { what: "messages that are not whole", most: MAX_ARRIVING };
    assert_eq!(side.take(link, next, post(Target::Send(mailbox), vec![1])), Err(many));
    // A host that takes answers without end and acknowledges none is cut.
    let other = actor(1, 6);
    side.serve(other, MAX_CAPACITY).expect("another mailbox");
    let silent = (next..).find_map(|seq| {
        let taken = side.take(link, seq, post(Target::Ask(other, seq), vec![]));
        while let Some(event) = side.next_event() {
            if let Event::Message { post, .. } = event {
                side.done(post);
            }
        }
        taken.err()
    });
    assert_eq!(silent, Some(Violation::Unacknowledged { frames: MAX_UNACKED }));
}

#[test]
fn the_window_is_wide_while_a_lane_for_bulk_carries_spans() {
    let mut pair = Pair::new();
    let mailbox = actor(1, 6);
    pair.sides[1].serve(mailbox, 20).expect("a second mailbox");
    pair.exchange();
    // Each message counts 2,000 bytes.
    let post = |pair: &mut Pair| {
        let sent = pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![2000 - 8 - 256]);
        let full = PostError::NoWindow { host: HostId(1), window: if pair.is_wide() { 8192 } else { 4096 } };
        sent.map(|posted| posted.post).map_err(|error| assert_eq!(error, full))
    };
    let posts = |pair: &mut Pair| std::iter::from_fn(|| post(pair).ok()).collect::<Vec<_>>();
    assert_eq!(posts(&mut pair).len(), 2);
    let link = pair.links[0];
    pair.sides[0].bulk_carries(true);
    assert!(post(&mut pair).is_err(), "this connection has no such lane");
    pair.events(0);
    pair.sides[0].bulk(link, true);
    pair.sides[1].takes_window(BOUNDS.wide);
    pair.sides[0].bulk_carries(true);
    assert_eq!(pair.events(0), [Event::Window], "who waits hears of it");
    let sent = posts(&mut pair);
    assert_eq!(sent.len(), 2);
    pair.exchange();

    // Messages beyond the narrow window finish like any others.
    pair.sides[0].bulk_carries(false);
    pair.sides[1].done(sent[0]);
    pair.exchange();
    assert!(post(&mut pair).is_err());
    pair.sides[1].done(sent[1]);
    pair.exchange();
    assert!(post(&mut pair).is_err(), "4,000 are on their way");
    pair.sides[0].bulk_carries(true);
    assert_eq!(posts(&mut pair).len(), 2);
    // Another connection begins with the narrow window.
    pair.connect();
    assert!(post(&mut pair).is_err() && !pair.is_wide());
}

/// HOST-4: however many spans the messages under way have, the other side can list the landed pieces of all
/// of them.
#[test]
fn what_is_under_way_fits_in_what_is_said_of_it_with_another_connection() {
    let bounds = Bounds { window: 1 << 30, wide: 1 << 30, piece: 16, run: 64 };
    let mailbox = actor(1, 5);
    for spans in [1, 64, MAX_SPANS] {
        let mut sides = [Session::new(who(0), who(1), bounds), Session::new(who(1), who(0), bounds)];
        sides[1].serve(mailbox, MAX_CAPACITY).expect("one mailbox");
        let mut pair = Pair { sides, links: [Link(0); 2] };
        pair.connect();
        pair.exchange();
        let posts = std::iter::from_fn(|| {
            pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![1; spans]).ok().map(|posted| posted.post)
        });
        let posts: Vec<_> = posts.collect();
        let listed = MAX_PARTIAL_BYTES / Partial::bytes_of(std::iter::repeat_n(1, spans));
        assert_eq!((posts.len(), listed < MAX_ARRIVING), (listed.min(MAX_ARRIVING), spans > 1));
        // Their frames have come, and none of their pieces has.
        let (from, to) = (pair.links[0], pair.links[1]);
        while let Some(frame) = pair.sides[0].next_frame(from) {
            if let Frame::Numbered { seq, body } = frame {
                pair.sides[1].take(to, seq, body).expect("below the bounds");
            }
        }
        let again = pair.sides[1].dial();
        assert_eq!(again.resume.partial.len(), posts.len());
        let encoded = crate::frame::encode(&Frame::Hello(again.clone()));
        assert!(encoded.len() <= MAX_FRAME);
        assert_eq!(crate::frame::decode(encoded), Ok(Frame::Hello(again)));
        // A waiting sender hears when a message has gone.
        pair.connect();
        pair.exchange();
        assert!(pair.events(0).contains(&Event::Window));
        assert!(pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![1; spans]).is_ok());
    }
}

#[test]
fn a_place_is_given_back_once_and_says_of_which_message() {
    let mut pair = Pair::new();
    let mailbox = actor(1, 5);
    let posts =
        [0; 2].map(|_| pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![]).expect("a place").post);
    pair.exchange();
    let twice = Body::Done { posts: vec![posts[0], posts[0]] };
    let seq = pair.sides[0].numbering.received() + 1;
    let refused = pair.sides[0].take(pair.links[0], seq, twice);
    assert_eq!(refused, Err(Violation::NoSuchPost { post: posts[0] }));
    pair.events(0);
    // They may finish in any order.
    pair.sides[1].done(posts[1]);
    pair.exchange();
    assert!(pair.events(0).contains(&Event::Done { post: posts[1] }));
    pair.sides[1].done(posts[0]);
    pair.exchange();
    assert!(pair.events(0).contains(&Event::Done { post: posts[0] }));
    assert!(pair.sides[0].is_at_rest() && pair.sides[1].is_at_rest());
}

#[test]
fn pieces_that_a_message_does_not_have_are_refused() {
    let mut pair = Pair::new();
    let (to, link) = (&mut pair.sides[1], pair.links[1]);
    to.take(link, 1, post(Target::Send(actor(1, 5)), vec![40])).expect("one place");
    let piece = |span, offset, bytes| Piece { post: 1, span, offset, bytes };
    for wrong in [piece(1, 0, 16), piece(0, 8, 16), piece(0, 48, 16), piece(0, 32, 16), piece(0, 0, 8)] {
        let Piece { post, span, offset, bytes } = wrong;
        let refused = Violation::NoSuchPiece { post, span, offset, bytes };
        assert_eq!(to.claim(link, &wrong), Err(refused));
    }
    assert_eq!(to.claim(link, &piece(0, 32, 8)), Ok(Claim::Take), "the last is shorter");
    assert_eq!(to.claim(link, &piece(0, 32, 8)), Ok(Claim::Drop), "once");
    assert_eq!(to.claim(link, &Piece { post: 2, ..piece(0, 0, 16) }), Ok(Claim::Wait), "its message comes");
}

/// A piece may come again by another connection, so it is no lie. It is not written, and nothing of it is
/// kept.
#[test]
fn pieces_of_a_message_that_is_whole_or_over_leave_nothing() {
    let mut pair = Pair::new();
    let mailbox = actor(1, 5);
    let posts =
        [0; 2].map(|_| pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![40]).expect("a place").post);
    pair.exchange();
    let pieces = [(0, 0, 16), (0, 32, 8), (1, 0, 16), (u16::MAX, u64::MAX, u32::MAX)];
    let come_again = |pair: &mut Pair| {
        let (to, link) = (&mut pair.sides[1], pair.links[1]);
        for post in posts {
            for (span, offset, bytes) in pieces {
                let piece = Piece { post, span, offset, bytes };
                assert_eq!(to.claim(link, &piece), Ok(Claim::Drop));
                to.landed(&piece);
            }
            assert!(!to.claim_run(link, &Run { post, span: 0, offset: 0, bytes: 16 }));
        }
    };
    let went_on = |event: &Event| matches!(event, Event::Message { .. });
    assert_eq!(pair.events(1).iter().filter(|event| went_on(event)).count(), 2);
    come_again(&mut pair);
    assert_eq!(pair.events(1), [], "each goes on once");
    posts.into_iter().for_each(|post| pair.sides[1].done(post));
    come_again(&mut pair);
    pair.exchange();
    assert_eq!(pair.events(1), []);
    assert!(pair.sides[0].is_at_rest() && pair.sides[1].is_at_rest());
}

#[test]
fn another_session_or_an_older_attempt_is_refused() {
    let mut pair = Pair::new();
    let replayed = pair.sides[1].dial();
    pair.sides[0].accept(&replayed).expect("the next attempt");
    let again = Violation::Replayed { found: 2, current: 2 };
    assert_eq!(pair.sides[0].accept(&replayed), Err(again.clone()));
    assert!(again.is_late());
    let next = Hello { attempt: 3, ..replayed };
    let life = HostLife { life: Life(1), ..who(1) };
    for wrong in [
        Hello { from: life, ..next.clone() },
        Hello { to: who(3), ..next.clone() },
        // From this side itself, as an attacker might send it back.
        Hello { from: who(0), to: who(1), ..next.clone() },
    ] {
        let refused = pair.sides[0].accept(&wrong).expect_err("not of this session");
        assert!(matches!(refused, Violation::OtherSession { .. }), "{refused}");
    }
    let received = Resume { received: 99, ..Resume::default() };
    let ahead = Violation::Received { found: 99, least: 0, most: 0 };
    assert_eq!(pair.sides[0].accept(&Hello { resume: received, ..next.clone() }), Err(ahead));
    // A message that was never sent cannot have landed.
    let partial = vec![crate::frame::Partial { post: 1, spans: vec![crate::frame::Bits::new(1)] }];
    let resume = Resume { received: 0, partial };
    let unknown = Err(Violation::NoSuchPost { post: 1 });
    assert_eq!(pair.sides[0].accept(&Hello { resume, ..next.clone() }), unknown);
    assert!(pair.sides[0].accept(&next).is_ok());
}

#[test]
fn what_another_gateway_says_is_of_another_session() {
    let mut pair = Pair::new();
    let lane = pair.sides[1].lane_hello();
    assert_eq!(pair.sides[0].lane(&lane), Ok(pair.links[0]));
    let (second, third) = (Gateway(2), Gateway(3));
    // A lane belongs to the two gateways of its connection.
    for other in [Hello { to_gateway: second, ..lane.clone() }, Hello { gateway: second, ..lane.clone() }] {
        assert!(pair.sides[0].lane(&other).is_err(), "{other:?}");
    }
    // A greeting to an earlier or a later gateway of this side hears which one is here, and is not accepted.
    let hello = pair.sides[1].dial();
    let refused = pair.sides[0].accept(&Hello { to_gateway: second, ..hello.clone() });
    assert_eq!(refused, Err(Violation::OtherGateway { found: second, own: Gateway::FIRST }));
    let here = pair.sides[0].introduce(&hello);
    assert_eq!(
        (here.gateway, here.to_gateway, here.attempt),
        (Gateway::FIRST, Gateway::FIRST, hello.attempt)
    );
    pair.connect();

    // The next gateway ends the session; later frames of any of its gateways are late.
    let next = Hello { gateway: third, to_gateway: Gateway::UNKNOWN, ..hello.clone() };
    let found = Err(Violation::NextGateway { found: third, current: Gateway::FIRST });
    assert_eq!(pair.sides[0].accept(&next), found);
    pair.sides[0].renew();
    assert!(pair.sides[0].accept(&next).expect_err("it is over").is_late());
    assert!(pair.sides[0].has_ended());
    // The session with the next gateway accepts nothing of earlier ones.
    let mut side = Session::of_gateways((who(0), Gateway::FIRST), (who(1), third), BOUNDS);
    let late =
        side.accept(&Hello { gateway: second, attempt: 99, ..hello }).expect_err("there was a later one");
    assert!(late.is_late(), "{late}");
    assert!(side.accept(&next).is_ok());
}

#[test]
fn the_verdict_names_what_was_under_way() {
    let mut pair = Pair::new();
    let mailbox = actor(1, 5);
    let asked = pair.sides[0].post(To::Ask(mailbox), Bytes::new(), vec![40]).expect("a place");
    let sent = pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![8]).expect("a place");
    let full = pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![]);
    assert_eq!(full, Err(PostError::Full { actor: mailbox }));
    // The messages arrive, and their pieces do not.
    while let Some(frame) = pair.sides[0].next_frame(pair.links[0]) {
        pair.give(1, frame).expect("honest");
    }
    let ended = pair.sides[0].end();
    let correlation = asked.correlation.expect("an ask");
    assert_eq!(ended.asks, [(correlation, Some(mailbox))]);
    assert_eq!(ended.released, [asked.post, sent.post]);
    let ended = pair.sides[1].end();
    assert_eq!(ended.aborted, [asked.post, sent.post]);
    // The verdict is final.
    let lost = Err(PostError::Ended { host: HostId(1) });
    assert_eq!(pair.sides[0].post(To::Send(mailbox), Bytes::new(), vec![]), lost);
    let hello = pair.sides[1].dial();
    assert!(matches!(pair.sides[0].accept(&hello), Err(Violation::OtherSession { .. })));
}

#[test]
fn notes_arrive_in_order_and_are_few_at_a_time() {
    let mut pair = Pair::new();
    let note = |number: usize| Bytes::from(number.to_string());
    for number in 0..MAX_NOTES {
        assert!(pair.sides[0].note(note(number)));
    }
    assert!(!pair.sides[0].note(note(MAX_NOTES)));
    pair.connect();
    pair.exchange();
    let said: Vec<Event> = (0..MAX_NOTES).map(|number| Event::Note(note(number))).collect();
    assert_eq!(pair.events(1), said);
    // The sender of the refused note is told, once.
    assert_eq!(pair.events(0).last(), Some(&Event::NoteRoom));
    assert!(pair.sides[0].note(note(MAX_NOTES)));
    pair.exchange();
    assert_eq!(pair.events(0), []);
}
