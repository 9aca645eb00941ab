//! Lanes: routes for the bytes of spans from one host to the other, beside the control stream.
//!
//! | file | holds |
//! |---|---|
//! | `grpc` | pieces, as gRPC messages: takes everything |
//! | `nixl` | runs, which NIXL writes from memory of one GPU into memory of another |
//! | `wire` | how the streams of both are written and read |
//!
//! A peer holds its lanes in the order in which they are [offered](Lane::put) a span; the last one takes
//! everything. Code that sends a message or makes a connection knows no more of a lane than this trait.
//!
//! **Completion and failure.** A lane reports only to the session. The receiving end reports each part of a
//! span as landed (HOST-8), and a message whose parts have all landed is complete, whatever lanes they came
//! by. Parts that fail on a lane that is not [needed](Lane::is_needed) go by the next one. The end of a
//! needed lane ends its connection, after which parts that had not landed go again.
//!
//! **On the end of a connection** all its streams end, of every lane.

mod grpc;
pub(super) mod nixl;
pub(super) mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::stream::BoxStream;

use self::grpc::Grpc;
use self::nixl::Nixl;
use self::wire::Incoming;
use super::codec::Outgoing;
use super::peer::Peer;
use crate::ids::Seq;
use crate::session::{Bounds, Link, OnDevice, Session};

/// A lane; see the module. This host sends in one direction and the peer in the other, both over the same
/// streams.
pub(super) trait Lane: Send + Sync {
    /// Returns the gRPC method by which its streams are requested.
    fn method(&self) -> &'static str;

    /// Returns how many streams of it a connection has, if `connections` were asked for.
    fn streams(&self, connections: u16) -> u16;

    /// Returns whether a connection fails without it.
    fn is_needed(&self) -> bool;

    /// Returns the bytes of messages that may be on their way while it carries some.
    fn window(&self, bounds: Bounds) -> u64;

    /// Sends a span of a message that was just posted, from memory of a device, in parts of the lane's own
    /// size. Returns whether the lane takes it.
    fn put(&self, session: &mut Session, post: Seq, span: &OnDevice) -> bool;

    /// Begins a stream of the lane. Returns the messages to send on it, and takes incoming ones until the
    /// stream ends.
    fn begin(
        &self,
        peer: &Arc<Peer>,
        link: Link,
        from: Incoming,
        address: SocketAddr,
    ) -> BoxStream<'static, Outgoing>;
}

/// Returns the lanes of a host that uses NIXL, or does not.
pub(super) fn all(uses_nixl: bool) -> &'static [&'static dyn Lane] {
    if uses_nixl { &[&Nixl, &Grpc] } else { &[&Grpc] }
}

/// Returns whether any host has a lane by this method.
pub(super) fn is_method(method: &str) -> bool {
    all(true).iter().any(|lane| lane.method() == method)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::frame::Piece;
    use crate::ids::{ActorId, HostId, HostLife, Life};
    use crate::session::To;

    /// Makes two sessions with a connection. The first has posted a message with two spans.
    fn posted(spans: [u64; 2]) -> (Session, Link, Seq) {
        let who = |host: u16| HostLife { host: HostId(host), life: Life(70) };
        let mut sides =
            [(0, 1), (1, 0)].map(|(own, peer)| Session::new(who(own), who(peer), Bounds::default()));
        let actor = ActorId::new(HostId(1), 1).expect("a small number");
        sides[1].serve(actor, 5).expect("a mailbox");
        let hello = sides[0].dial();
        let (link, answer) = sides[1].accept(&hello).expect("the first");
        let own = sides[0].answered(&answer).expect("the answer");
        while let Some(crate::frame::Frame::Numbered { seq, body }) = sides[1].next_frame(link) {
            sides[0].take(own, seq, body).expect("it is honest");
        }
        let [mut first, _] = sides;
        let post = first.post(To::Send(actor), Bytes::new(), spans.to_vec()).expect("room").post;
        (first, own, post)
    }

    /// Returns the spans of the pieces that are sent by gRPC.
    fn by_grpc(session: &mut Session, link: Link) -> Vec<u16> {
        let mut all: Vec<_> =
            std::iter::from_fn(|| session.next_piece(link)).map(|Piece { span, .. }| span).collect();
        all.dedup();
        all
    }

    /// Checks every list of lanes for a session: each span goes by the first lane that takes it, and some
    /// lane takes it.
    #[test]
    fn a_span_goes_by_the_first_lane_that_takes_it() {
        const LARGE: u64 = 4 << 20;
        for (lanes, has_bulk, expected) in [
            (all(false), false, vec![0, 1]),
            (all(true), false, vec![0, 1]),
            // There is a stream of NIXL, and the small span is not for it.
            (all(true), true, vec![1]),
        ] {
            let (mut session, link, post) = posted([LARGE, 1000]);
            session.bulk(link, has_bulk);
            for (span, bytes) in [(0, LARGE), (1, 1000)] {
                let span = OnDevice { span, device: 3, bytes };
                assert!(
                    lanes.iter().any(|lane| lane.put(&mut session, post, &span)),
                    "nothing takes {span:?}"
                );
            }
            assert_eq!(by_grpc(&mut session, link), expected);
            let wanted = session.next_want(link).map(|want| (want.post, want.span, want.device));
            assert_eq!(wanted, has_bulk.then_some((post, 0, 3)));
        }
    }

    #[test]
    fn a_connection_needs_the_lane_that_takes_all_and_no_other() {
        for lanes in [all(false), all(true)] {
            let needed: Vec<_> = lanes.iter().map(|lane| lane.is_needed()).collect();
            assert!(needed.iter().rev().skip(1).all(|needed| !needed) && needed.last() == Some(&true));
            let grpc = lanes.last().expect("there is one");
            assert_eq!([0, 3, 1000].map(|asked| grpc.streams(asked)), [1, 3, crate::limits::MAX_LANES]);
            let bounds = Bounds::default();
            let windows = lanes.iter().map(|lane| lane.window(bounds));
            assert!(windows.clone().all(|window| (bounds.window..=bounds.wide).contains(&window)));
            assert_eq!(windows.max() == Some(bounds.wide), lanes.len() > 1);
            let methods: std::collections::HashSet<_> = lanes.iter().map(|lane| lane.method()).collect();
            assert!(methods.len() == lanes.len() && methods.iter().all(|method| is_method(method)));
        }
        assert!(!is_method(super::super::service::CONTROL));
    }
}
