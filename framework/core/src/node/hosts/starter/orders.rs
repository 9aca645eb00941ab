//! Orders of a host about workers that another host has started for it.
//!
//! Used by [`Supervisor`]. An order is an ask of the other host's starter, made at once, so that orders of
//! one caller keep their order. A thread waits for the answers, for each host one order after the other, and
//! asks again if a gateway has ended. So no worker stays on another host because the order to let it go was
//! lost. An order may therefore come twice. All but [`WorkerOrder::Kill`] change nothing the second time. A
//! second `Kill` ends the worker's next life, if a policy has begun one meanwhile.
//!
//! **Invariants.** MBX-2: a host that runs and answers no order holds up only its own orders, for [`LONGEST`]
//! each.
//!
//! **Threads.** One, from the first order on. **On the loss** of the host its workers end, and its orders
//! with them. **On the end** of the node the thread ends.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use super::retry::{Requests, until_heard};
use super::{Request, starter};
use crate::actor::Ask;
use crate::node::hosts::wait::wait_for;
use crate::node::supervisor::{Supervisor, WorkerId, WorkerOrder};
use crate::transport::Transport;

/// How long to wait until a host has heard an order: longer than a gateway takes to come back, and the head
/// to give its verdict.
const LONGEST: Duration = Duration::from_mins(1);

/// An order that was sent to a host.
struct Given {
    host: u16,
    worker: u64,
    order: WorkerOrder,
    asked: Ask<Request>,
}

/// Orders of this host that others may not have heard. See the module.
#[derive(Default)]
pub(in crate::node) struct Orders(Mutex<Requests<Given>>);

impl Orders {
    fn follow(&self, transport: Weak<Transport>, given: Given) {
        let unheard = self.0.lock().add(given, "tp-orders", move |orders| run(&transport, orders));
        if let Some((Given { host, worker, order, .. }, error)) = unheard {
            tracing::warn!(host, worker, ?order, %error, "whether a host has heard this is not known");
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

/// Waits until a host has heard an order, or never will, and returns the host.
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
    /// Sends an order to the host of a worker, and returns true, if that is another host. Does not wait. If
    /// that host is lost, the order is lost without a notice: its workers end too.
    pub(in crate::node) fn tell_host_of(&self, worker: WorkerId, order: WorkerOrder) -> bool {
        let Some((host, worker)) = worker.host_and_number() else { return false };
        let Some(transport) = self.transport_to_hosts() else { return true };
        let asked = starter(&transport, host).ask(Request::Order(worker, order));
        let given = Given { host, worker, order, asked };
        self.shared().all_hosts.orders.follow(Arc::downgrade(&transport), given);
        true
    }
}
