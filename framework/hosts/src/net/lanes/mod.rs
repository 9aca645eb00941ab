//! Lanes: ways for the bytes of spans from one host to the other, beside the control stream.
//!
//! | file | holds |
//! |---|---|
//! | `grpc` | pieces, as messages of gRPC: takes whatever there is |
//! | `nixl` | runs, which NIXL writes from memory of a GPU into memory of another |
//! | `wire` | how the streams of both are written and read |
//!
//! A peer has its lanes in the order in which they are [offered](Lane::put) a span, the last of which takes
//! all. Whoever sends a message, and whoever makes a connection, knows no more of a lane than this trait.
//!
//! **Done and failed.** A lane tells nobody but the session: the end that receives says of each part of a
//! span that it landed (HOST-8), and a message whose parts have all landed is whole whatever lanes they came
//! by. What fails on a lane that is not [needed](Lane::is_needed) goes by the next one, and the end of one
//! that is needed is the end of its connection, after which what had not landed goes again.
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

/// See the module. One direction of it is this host's to send, and the other the peer's: both are over the
/// same streams.
pub(super) trait Lane: Send + Sync {
    /// The method of gRPC by which its streams are asked for.
    fn method(&self) -> &'static str;

    /// How many streams of it a connection has, where that many were asked for.
    fn streams(&self, connections: u16) -> u16;

    /// Whether a connection is none without it.
    fn is_needed(&self) -> bool;

    /// Bytes of messages that may be on their way while it carries some.
    fn window(&self, bounds: Bounds) -> u64;

    /// Puts a span of a message that was just posted on its way, from memory of a device, in parts as large
    /// as the lane likes best. Whether it takes it.
    fn put(&self, session: &mut Session, post: Seq, span: &OnDevice) -> bool;

    /// A stream of it is there. What is said on it; what comes is taken until the stream ends.
    fn begin(
        &self,
        peer: &Arc<Peer>,
        link: Link,
        from: Incoming,
        address: SocketAddr,
    ) -> BoxStream<'static, Outgoing>;
}

/// The lanes of a host that uses NIXL, or does not.
pub(super) fn all(uses_nixl: bool) -> &'static [&'static dyn Lane] {
    if uses_nixl { &[&Nixl, &Grpc] } else { &[&Grpc] }
}

/// Whether some host has a lane by this method.
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

    /// Two sessions with a connection, of which the first has posted a message with two spans.
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

    /// The spans of the pieces that are sent by gRPC.
    fn by_grpc(session: &mut Session, link: Link) -> Vec<u16> {
        let mut all: Vec<_> =
            std::iter::from_fn(|| session.next_piece(link)).map(|Piece { span, .. }| span).collect();
        all.dedup();
        all
    }

    /// What every list of lanes has to hold for a session: each span goes by the first that takes it, and
    /// some lane takes it.
    #[test]
    fn a_span_goes_by_the_first_lane_that_takes_it() {
        const LARGE: u64 = 4 << 20;
        for (lanes, has_bulk, expected) in [
            (all(false), false, vec![0, 1]),
            (all(true), false, vec![0, 1]),
            // There is a stream of NIXL: the small one is not for it.
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
