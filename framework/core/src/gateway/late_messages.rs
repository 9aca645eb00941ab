//! Messages that arrive for an actor of another host after its mailbox gave up its place here (`resting`).
//! Each other host is asked for a bounded number of its actors at a time. Messages for the rest wait in their
//! mailboxes for a turn.
//!
//! A late message was already accepted, so it is not refused however many there are. If processes send to
//! more actors than there are places, one process can send some hundreds of messages before it hears that
//! their places are given up.
//!
//! **Invariants.** MBX-2: each late message holds the credit of the place that it named, which bounds how
//! many wait. [`MAX_LATE`] bounds how many questions this host has open with another. A host that does not
//! answer delays only its own actors; for actors that roam, their home counts. Senders take turns, so a
//! process that makes up ids delays only its own messages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use super::run::Gateway;
use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_LATE;

/// The actors for which late messages wait; see the module.
#[derive(Default)]
pub(super) struct Late {
    /// By the host that is asked first: the actor's home.
    homes: HashMap<u16, OfHost>,
    /// Homes that may be asked for another actor.
    free: BTreeSet<u16>,
}

impl Late {
    /// Takes a message of `from` for an actor that has no mailbox. Returns whether its host is to be asked
    /// now.
    fn comes(&mut self, actor: ActorId, from: ProcessId) -> bool {
        self.homes.entry(actor.host()).or_default().comes(actor, from)
    }

    /// Takes another message for such an actor. If its host is still to be asked, the actor moves to this
    /// sender's queue if that is shorter.
    pub(super) fn comes_again(&mut self, actor: ActorId, from: ProcessId) {
        if let Some(of) = self.homes.get_mut(&actor.host()) {
            of.comes_again(actor, from);
        }
    }

    /// Returns whether the host of an actor is still to be asked.
    pub(super) fn waits(&self, actor: ActorId) -> bool {
        self.homes.get(&actor.host()).is_some_and(|of| of.places.contains_key(&actor))
    }

    /// Ends an actor's wait: it is offered, has no mailbox any more, or its host is asked by other code.
    pub(super) fn is_over(&mut self, actor: ActorId) {
        let home = actor.host();
        let Some(of) = self.homes.get_mut(&home) else { return };
        of.is_over(actor);
        if !of.places.is_empty() {
            self.free.insert(home);
        } else if of.asked.is_empty() {
            self.homes.remove(&home);
        }
    }

    /// Returns the next actor whose host is to be asked.
    fn next(&mut self) -> Option<ActorId> {
        while let Some(home) = self.free.first() {
            let next = self.homes.get_mut(home).and_then(OfHost::next);
            if next.is_some() {
                return next;
            }
            self.free.pop_first();
        }
        None
    }
}

/// The actors of one host.
#[derive(Default)]
struct OfHost {
    /// Actors whose host was asked and has not answered.
    asked: HashSet<ActorId>,
    /// By the process that sent the message, in order of arrival.
    waiting: BTreeMap<ProcessId, BTreeMap<u64, ActorId>>,
    /// The queue and position of each waiting actor.
    places: HashMap<ActorId, (ProcessId, u64)>,
    came: u64,
    /// The process that had the last turn.
    last: Option<ProcessId>,
}

impl OfHost {
    fn comes(&mut self, actor: ActorId, from: ProcessId) -> bool {
        if self.asked.len() < MAX_LATE {
            self.asked.insert(actor);
            return true;
        }
        self.wait(actor, from);
        false
    }

    fn wait(&mut self, actor: ActorId, from: ProcessId) {
        self.came += 1;
        self.waiting.entry(from).or_default().insert(self.came, actor);
        self.places.insert(actor, (from, self.came));
    }

    fn comes_again(&mut self, actor: ActorId, from: ProcessId) {
        let Some((before, number)) = self.places.get(&actor).copied() else { return };
        let waiting = |of: &ProcessId| self.waiting.get(of).map_or(0, BTreeMap::len);
        if waiting(&from) + 1 < waiting(&before) {
            self.take(before, Some(number));
            self.wait(actor, from);
        }
    }

    fn is_over(&mut self, actor: ActorId) {
        if let Some((from, number)) = self.places.remove(&actor) {
            self.take(from, Some(number));
        }
        self.asked.remove(&actor);
    }

    fn next(&mut self) -> Option<ActorId> {
        if self.asked.len() >= MAX_LATE {
            return None;
        }
        let behind = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut next = self.waiting.range((behind, Bound::Unbounded));
        let (from, _) = next.next().or_else(|| self.waiting.first_key_value())?;
        let from = *from;
        self.last = Some(from);
        let actor = self.take(from, None)?;
        self.places.remove(&actor);
        self.asked.insert(actor);
        Some(actor)
    }

    /// Takes the actor with this number, or the first one, from the queue of `from`.
    fn take(&mut self, from: ProcessId, number: Option<u64>) -> Option<ActorId> {
        let waiting = self.waiting.get_mut(&from)?;
        let taken = match number {
            Some(number) => waiting.remove(&number),
            None => waiting.pop_first().map(|(_, actor)| actor),
        };
        if waiting.is_empty() {
            self.waiting.remove(&from);
        }
        taken
    }
}

impl Gateway {
    /// Takes a message of a process for an actor that has no mailbox here.
    pub(super) fn comes_late(&mut self, actor: ActorId, from: ProcessId) {
        // While the node is reaching the actor, its offer may have come before there was a mailbox for it.
        if self.reaching.contains_key(&actor) || self.late.comes(actor, from) {
            self.want(actor);
        }
    }

    /// Asks for the actors whose turn it is now. Call it only between commands: a host that does not take the
    /// question is given up.
    pub(super) fn ask_for_late(&mut self) {
        while let Some(next) = self.late.next() {
            self.want(next);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::Arc;

    use tensorpost_hosts::ids::{HostId, HostLife, Life};
    use tensorpost_hosts::join::Member;
    use tokio::sync::mpsc::unbounded_channel;

    use super::super::proxy::Proxy;
    use super::super::{Door, startup};
    use super::*;
    use crate::testing::Cluster;
    use crate::transport::gateway_messages::{Beginning, Nixl, Settings};
    use crate::transport::inbox::LocalCredits;

    fn process(number: u16) -> ProcessId {
        ProcessId::new(number, 0).expect("a process")
    }

    fn actor(number: usize) -> ActorId {
        // 1 is the starter, which starts actors on its host.
        ActorId::numbered(5, 2 + number as u64)
    }

    /// As many actors as are asked for at a time.
    fn full() -> Late {
        let mut late = Late::default();
        assert!((0..MAX_LATE).all(|number| late.comes(actor(number), process(1))));
        late
    }

    // MBX-2.
    #[test]
    fn of_more_than_are_asked_for_at_a_time_each_has_its_turn() {
        let mut late = full();
        assert!((MAX_LATE..3 * MAX_LATE).all(|number| !late.comes(actor(number), process(1))));
        assert_eq!(late.next(), None);
        for number in 0..2 * MAX_LATE {
            assert!(!late.waits(actor(number + MAX_LATE - 1)) && late.waits(actor(number + MAX_LATE)));
            late.is_over(actor(number));
            assert_eq!(late.next(), Some(actor(number + MAX_LATE)));
            assert_eq!(late.next(), None);
        }
        (2 * MAX_LATE..3 * MAX_LATE).for_each(|number| late.is_over(actor(number)));
        assert_eq!(late.next(), None);
        assert!(late.homes.is_empty() && late.free.is_empty());
    }

    // WIRE-1.
    #[test]
    fn whoever_makes_ids_up_waits_behind_his_own() {
        let mut late = full();
        (1000..9000).for_each(|made_up| assert!(!late.comes(actor(made_up), process(1))));
        assert!(!late.comes(actor(9000), process(2)));
        late.is_over(actor(0));
        late.is_over(actor(1));
        let next = [late.next(), late.next()];
        assert!(next.contains(&Some(actor(9000))), "{next:?}");
        // The same for actors that others have sent to before.
        late.comes_again(actor(8999), process(2));
        late.is_over(actor(2));
        late.is_over(actor(3));
        let next = [late.next(), late.next()];
        assert!(next.contains(&Some(actor(8999))) && !late.waits(actor(8999)), "{next:?}");
    }

    // WIRE-1.
    #[test]
    fn a_host_that_does_not_answer_holds_up_no_other() {
        let mut late = full();
        assert!(!late.comes(actor(MAX_LATE), process(1)));
        assert!(late.comes(ActorId::numbered(6, 2), process(1)));
    }

    #[test]
    fn who_waits_no_more_has_no_turn() {
        let mut late = full();
        (1000..1003).for_each(|number| assert!(!late.comes(actor(number), process(1))));
        late.is_over(actor(1000));
        late.is_over(actor(1002));
        late.is_over(actor(1002));
        late.is_over(actor(0));
        assert_eq!(late.next(), Some(actor(1001)));
        late.is_over(actor(1));
        assert_eq!(late.next(), None);
        let of = &late.homes[&5];
        assert!(of.places.is_empty() && of.waiting.is_empty());
        // The actor can be asked for again.
        assert!(late.comes(actor(1000), process(2)));
    }

    /// The setup of a head's gateway.
    fn alone() -> Beginning {
        let settings = Settings {
            is_head: true,
            head: "127.0.0.1:0".to_owned(),
            name: "head".to_owned(),
            bind: None,
            advertise: None,
            port: 0,
            build_name: Some("late".to_owned()),
            key_file: None,
            join_deadline: 0,
            lanes: 1,
            nixl: Nixl::Off,
        };
        Beginning { settings, gateway: 1, left: None }
    }

    /// A host that does not answer.
    fn silent(host: u16) -> Member {
        let who = HostLife { host: HostId(host), life: Life(1) };
        Member { who, name: "silent".to_owned(), address: "127.0.0.1:9".to_owned() }
    }

    // HOST-9.
    #[tokio::test]
    async fn what_was_accepted_is_not_refused_because_much_comes_late() {
        const MANY: usize = 3 * MAX_LATE;
        let cluster = Cluster::new(2);
        let (to, mut commands) = unbounded_channel();
        let transport = cluster.transport(1);
        transport.set_gate(Arc::new(Door(to.clone())));
        let stream = cluster.stream(1).clone();
        let gateway = startup::start(transport, &alone(), None, stream, to.clone()).await;
        let mut gateway = gateway.unwrap_or_else(|why| panic!("{why}"));
        gateway.begin_with(silent(5));
        // The place has another actor by now: all of these messages are late.
        let (mut place, _inbox) = cluster.inbox::<u32>(1, MANY as u32);
        let (capacity, local) = (MANY as u32, LocalCredits::new(1));
        let proxy = Arc::new(Proxy { actor: actor(MANY), capacity, local, to });
        transport.serve_at(place.location.index, proxy).expect("a place");
        cluster.connect();
        for number in 0..MANY {
            place.actor = actor(number);
            cluster.send(0, &place, number as u32);
        }
        let mut take_all = |gateway: &mut Gateway| {
            cluster.run_until_idle();
            let mut came: Vec<_> = std::iter::from_fn(|| commands.try_recv().ok()).collect();
            assert!(gateway.take_all(&mut came, &mut Vec::new()).is_none());
        };
        take_all(&mut gateway);
        let waiting =
            |gateway: &Gateway| gateway.mailboxes.values().map(|mailbox| mailbox.queue.len()).sum::<usize>();
        assert_eq!((waiting(&gateway), transport.stats().dead_letters), (MANY, 0));
        let asked = |gateway: &Gateway| gateway.late.homes.get(&5).map_or(0, |of| of.asked.len());
        assert_eq!(asked(&gateway), MAX_LATE);
        // MBX-2: no sender has more messages under way than it had credits.
        place.actor = actor(0);
        assert!(cluster.try_send(0, &place, 0).is_err());
        // The host says of each actor that it was asked for, and of no other, that it has ended.
        for ended in 1..=MANY {
            let asked = gateway.late.homes[&5].asked.iter().next().copied();
            gateway.ended(asked.expect("another has its turn"), None);
            take_all(&mut gateway);
            assert_eq!(waiting(&gateway), MANY - ended);
        }
        assert!(gateway.mailboxes.is_empty() && asked(&gateway) == 0);
        take_all(&mut gateway);
        cluster.try_send(0, &place, 0).expect("the credits are back");
    }
}
