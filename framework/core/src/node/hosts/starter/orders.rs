//! Orders of a host about workers that another host has started for it.
//!
//! Used by the supervisor's handle. An order is an ask of the other host's starter, made at once, so that
//! orders of one caller keep their order. A thread waits for the answers, for each host one order after the
//! other, and asks again if a gateway has ended. So no worker stays on another host because the order to let
//! it go was lost. An order may therefore come twice. All but [`WorkerOrder::Kill`] change nothing the second
//! time. A second `Kill` ends the worker's next life, if a policy has begun one meanwhile.
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
use crate::node::supervisor::WorkerOrder;
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
    /// Sends an order to a host, and follows it until the host has heard it. Does not wait.
    pub(super) fn give(&self, transport: &Arc<Transport>, host: u16, worker: u64, order: WorkerOrder) {
        let asked = starter(transport, host).ask(Request::Order(worker, order));
        let (given, transport) = (Given { host, worker, order, asked }, Arc::downgrade(transport));
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
