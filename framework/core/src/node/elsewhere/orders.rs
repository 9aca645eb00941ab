//! What a host says about workers that it had another one start.
//!
//! Used by [`Supervisor`]. An order is an ask of the other host's starter, made at once, so that orders of
//! one caller keep their order. A thread waits for the answers, of one order to a host after the other, and
//! asks again where a gateway has ended: no worker stays on another host because nobody heard that it was let
//! go of. So an order may come twice. All but [`Order::Kill`] change nothing the second time; that ends the
//! worker's next life, if a policy has begun one meanwhile.
//!
//! **Invariants.** MBX-2: a host that is there and answers no order holds up its own for [`LONGEST`] each,
//! and nobody else's.
//!
//! **Threads.** One, from the first order on. **On the loss** of the host its workers end, and its orders
//! with them. **On the end** of the node the thread ends.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::heard::until_heard;
use super::{Request, starter};
use crate::actor::Ask;
use crate::ids::DeviceId;
use crate::node::supervisor::{Supervisor, WorkerId};
use crate::node::wait::wait_for;
use crate::transport::Transport;

/// How long to wait until a host has heard one: longer than a gateway takes to come back, and a verdict.
const LONGEST: Duration = Duration::from_mins(1);

/// What is to become of a worker: as the [`Supervisor`]'s methods with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum Order {
    Kill,
    Retire,
    AskToStop,
    LetGo,
    KeepSpares(u32, DeviceId),
}

/// An order that a host was asked to obey.
struct Given {
    host: u16,
    worker: u64,
    order: Order,
    asked: Ask<Request>,
}

/// Orders of this host that others may not have heard. See the module.
#[derive(Default)]
pub(in crate::node) struct Orders(Mutex<Option<UnboundedSender<Given>>>);

impl Orders {
    fn follow(&self, transport: Weak<Transport>, given: Given) {
        let mut follower = self.0.lock();
        let given = match &*follower {
            Some(follower) => match follower.send(given) {
                Ok(()) => return,
                Err(unsaid) => unsaid.0,
            },
            None => given,
        };
        let (sender, orders) = unbounded_channel();
        let thread = std::thread::Builder::new().name("tensorpost-orders".to_owned());
        match thread.spawn(move || run(&transport, orders)) {
            Ok(_) => {
                // It listens.
                let _ = sender.send(given);
                *follower = Some(sender);
            }
            Err(error) => {
                let Given { host, worker, order, .. } = given;
                tracing::warn!(host, worker, ?order, %error, "whether a host has heard this is not known");
            }
        }
    }
}

fn run(transport: &Weak<Transport>, mut orders: UnboundedReceiver<Given>) {
    let follow = async move {
        let mut under_way = FuturesUnordered::new();
        let mut behind: HashMap<u16, VecDeque<Given>> = HashMap::new();
        loop {
            tokio::select! {
                given = orders.recv() => match given {
                    Some(given) => match behind.entry(given.host) {
                        Entry::Occupied(mut waiting) => waiting.get_mut().push_back(given),
                        Entry::Vacant(none) => {
                            none.insert(VecDeque::new());
                            under_way.push(hear(transport, given));
                        }
                    },
                    None => return,
                },
                Some(host) = under_way.next(), if !under_way.is_empty() => {
                    match behind.get_mut(&host).and_then(VecDeque::pop_front) {
                        Some(next) => under_way.push(hear(transport, next)),
                        None => drop(behind.remove(&host)),
                    }
                }
            }
        }
    };
    if let Err(error) = wait_for(follow) {
        tracing::error!(%error, "whether other hosts have heard what becomes of their workers is not known");
    }
}

/// The host, when it has heard an order, or never will.
async fn hear(transport: &Weak<Transport>, Given { host, worker, order, asked }: Given) -> u16 {
    let heard = until_heard(transport, host, asked, || Request::Order(worker, order));
    match tokio::time::timeout(LONGEST, heard).await {
        Ok(Ok(_) | Err(None)) => {}
        Ok(Err(Some(error))) => {
            tracing::debug!(host, worker, ?order, %error, "a host does not hear what becomes of a worker");
        }
        Err(_) => {
            tracing::warn!(host, worker, ?order, "a host does not answer what is said of a worker of its own")
        }
    }
    host
}

impl Supervisor {
    /// Has the host of a worker do this with it, if that is another one. Does not wait, and nobody hears of
    /// it where that host is lost: its workers end too.
    pub(in crate::node) fn tell_host_of(&self, worker: WorkerId, order: Order) -> bool {
        let Some((host, worker)) = worker.elsewhere() else { return false };
        let Some(transport) = self.elsewhere() else { return true };
        let asked = starter(&transport, host).ask(Request::Order(worker, order));
        let given = Given { host, worker, order, asked };
        self.shared().all_hosts.orders.follow(Arc::downgrade(&transport), given);
        true
    }
}
