//! The stream of a [NIXL lane](crate::nixl), and the work for it: copies, and calls of NIXL.
//!
//! The stream is one more connection beside the lanes, and ends with its link; its end alone ends nothing
//! else. The state belongs to the peer, under the lock of its session. Each end of a route has a thread
//! ([`engine`]), because NIXL may block at will; copies run where the stream does.
//!
//! *When the stream ends*, spans that went by NIXL go by gRPC, and the arenas are closed. *When the peer is
//! dropped*, agents end with their threads, and keep their arenas until then.

mod engine;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::Code;

use self::engine::Order;
use super::super::codec::Outgoing;
use super::super::peer::Peer;
use super::Lane;
use super::wire::Incoming;
use crate::ids::Seq;
use crate::limits::{NIXL_DEADLINE, NIXL_LEAST, NIXL_SLOTS, PIECE_BYTES};
use crate::nixl::{Arena, At, Do, Heard, NixlUse, Say, Sizes, decode, encode};
use crate::refused::Kind;
use crate::session::{Bounds, Link, OnDevice, Session};

/// How often the lane checks whether something takes too long.
const OVERDUE_CHECKS: Duration = Duration::from_millis(50);
const _: () = assert!(OVERDUE_CHECKS.as_millis() * 10 < NIXL_DEADLINE.as_millis());

/// The NIXL lane; see the module.
pub(super) struct Nixl;

impl Lane for Nixl {
    fn method(&self) -> &'static str {
        "/tensorpost.Hosts/Nixl"
    }

    fn streams(&self, _: u16) -> u16 {
        1
    }

    fn is_needed(&self) -> bool {
        false
    }

    fn window(&self, bounds: Bounds) -> u64 {
        bounds.wide
    }

    fn put(&self, session: &mut Session, post: Seq, span: &OnDevice) -> bool {
        // Asking for a slot takes longer than sending a small span.
        span.bytes >= NIXL_LEAST && session.widen(post, span.span, span.device)
    }

    fn begin(
        &self,
        peer: &Arc<Peer>,
        link: Link,
        from: Incoming,
        address: SocketAddr,
    ) -> BoxStream<'static, Outgoing> {
        begin(peer, link, from, address)
    }
}

/// The parts of a peer's NIXL lane beside its state.
pub(in crate::net) struct NixlEnds {
    pub(super) using: NixlUse,
    pub(in crate::net) sizes: Sizes,
    /// The order queues of the threads, by end and route.
    engines: Mutex<HashMap<(Way, u8), mpsc::Sender<Order>>>,
    /// Arenas that others write, and those of this host that are read.
    arenas: Mutex<HashMap<(Way, At), Arc<dyn Arena>>>,
    /// The runtime for copies: that of the last stream.
    runtime: Mutex<Option<Handle>>,
}

/// The end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// The end that the other host writes to.
    In,
    /// The end that writes.
    Out,
}

impl NixlEnds {
    pub(in crate::net) fn new(using: NixlUse, bounds: Bounds) -> Self {
        let (engines, arenas, runtime) = (Mutex::default(), Mutex::default(), Mutex::default());
        // A slot has room for the largest run.
        let (slot, ballast) = (bounds.run, PIECE_BYTES as u32);
        let sizes = Sizes { slot, slots: NIXL_SLOTS, ballast, lanes: using.lanes };
        NixlEnds { using, sizes, engines, arenas, runtime }
    }

    fn arena(&self, way: Way, at: At) -> Option<Arc<dyn Arena>> {
        self.arenas.lock().get(&(way, at)).cloned()
    }

    fn order(&self, way: Way, at: At, order: Order) -> bool {
        self.engines.lock().get(&(way, at.route)).is_some_and(|engine| engine.send(order).is_ok())
    }
}

/// Begins the stream. Returns the frames to send on it.
fn begin(peer: &Arc<Peer>, link: Link, from: Incoming, address: SocketAddr) -> BoxStream<'static, Outgoing> {
    if let Some(ends) = &peer.nixl {
        *ends.runtime.lock() = Handle::try_current().ok();
    }
    peer.nixl(|lane, session, now| lane.up(link, session, now));
    tokio::spawn(hear(Arc::clone(peer), link, from, address));
    tokio::spawn(look(Arc::clone(peer), link));
    stream::unfold(Arc::clone(peer), move |peer| async move {
        let said = peer.next_say(link).await?;
        let rest = match &said {
            // Real bytes, so that encryption and sending are as slow as for a tensor.
            Say::Ballast { bytes, .. } => Bytes::from(vec![0; *bytes as usize]),
            _ => Bytes::new(),
        };
        Some((Outgoing { head: encode(&said), rest }, peer))
    })
    .boxed()
}

/// Takes the frames of the stream until it ends.
async fn hear(peer: Arc<Peer>, link: Link, mut from: Incoming, address: SocketAddr) {
    let cut = |peer: &Arc<Peer>| peer.nixl(|lane, session, now| lane.cut(link, session, now));
    loop {
        let next = tokio::select! {
            next = from.message() => next,
            () = peer.cut_of(link) => return cut(&peer),
        };
        let lie: Box<dyn std::fmt::Display + Send> = match next {
            Ok(Some(parts)) => match decode(&parts.into_bytes()) {
                Ok(say) => match peer.take_say(link, say) {
                    Ok(()) => continue,
                    Err(lie) => Box::new(lie),
                },
                Err(error) => Box::new(error),
            },
            Err(status) if status.code() == Code::OutOfRange => Box::new(status.message().to_owned()),
            // The other streams of its connection may be fine.
            Ok(None) | Err(_) => return cut(&peer),
        };
        cut(&peer);
        return peer.violated(link, Kind::Forged, address, &lie);
    }
}

/// Checks for work that takes too long, while any is under way.
async fn look(peer: Arc<Peer>, link: Link) {
    while peer.until_nixl_waits(link).await {
        tokio::time::sleep(OVERDUE_CHECKS).await;
        peer.nixl(|lane, session, now| lane.tick(session, now));
    }
}

/// Carries out the lane's orders. Nothing here blocks.
pub(in crate::net) fn carry_out(peer: &Arc<Peer>, dos: Vec<Do>) {
    let Some(ends) = &peer.nixl else { return };
    for todo in dos {
        match todo {
            Do::Make { at, to } => engine::start(peer, Way::In, at, Order::Make { device: to }),
            Do::Connect { at, from, offer } => {
                engine::start(peer, Way::Out, at, Order::Connect { device: from, offer });
            }
            Do::CloseIn { at } => close(peer, Way::In, at),
            Do::CloseOut { at } => close(peer, Way::Out, at),
            Do::Release { at } => drop(ends.arenas.lock().remove(&(Way::In, at))),
            Do::Write { at, slot, to, bytes } => {
                // HOST-10: nothing leaves a host whose time is over.
                if peer.may_say_nothing() || !ends.order(Way::Out, at, Order::Write { slot, to, bytes }) {
                    let written = Err("this host may send nothing now".to_owned());
                    peer.heard(Heard::Written { at, slot, written });
                }
            }
            copy => spawn_copy(peer, ends, copy),
        }
    }
}

fn close(peer: &Arc<Peer>, way: Way, at: At) {
    let Some(ends) = &peer.nixl else { return };
    // Queued behind all earlier orders; the thread itself reports its end.
    let engine = ends.engines.lock().remove(&(way, at.route));
    if engine.is_none_or(|engine| engine.send(Order::Close).is_err()) {
        engine::ended(peer, way, at);
    }
}

fn spawn_copy(peer: &Arc<Peer>, ends: &NixlEnds, todo: Do) {
    // Without a stream there is nothing to copy.
    let Some(runtime) = ends.runtime.lock().clone() else { return };
    let peer = Arc::clone(peer);
    runtime.spawn(async move {
        let Some(ends) = &peer.nixl else { return };
        let arenas = &ends.using.arenas;
        match todo {
            Do::Locate { link, post, span, from, asked } => {
                let to = tokio::select! {
                    to = arenas.lands(post, span) => to,
                    () = peer.cut_of(link) => None,
                };
                peer.heard(Heard::Located { link, post, span, from, asked, to });
            }
            Do::Check { at } => {
                let (arena, slot) = (ends.arena(Way::In, at), ends.sizes.slot);
                let looked = tokio::task::spawn_blocking(move || {
                    arena.is_some_and(|arena| engine::has_pattern(&*arena, at, slot))
                });
                let sound = looked.await.unwrap_or(false);
                peer.heard(Heard::Checked { at, sound });
            }
            Do::Import { at, slot, run } => {
                let offset = u64::from(slot) * ends.sizes.slot;
                if let Some(arena) = ends.arena(Way::In, at) {
                    let passing = arenas.import(run, &arena, offset).await;
                    peer.heard(Heard::Imported { run });
                    passing.0.await;
                }
                peer.heard(Heard::Freed { at, slot });
            }
            Do::Export { at, slot, run } => {
                let offset = u64::from(slot) * ends.sizes.slot;
                let filled = match ends.arena(Way::Out, at) {
                    Some(arena) => arenas.export(run, &arena, offset).await,
                    None => false,
                };
                peer.heard(Heard::Exported { at, slot, filled });
            }
            _ => {}
        }
    });
}
