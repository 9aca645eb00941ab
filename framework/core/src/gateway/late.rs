//! Messages that come late, for actors of other hosts that have no place here any more (`resting`): the hosts of so many actors are
//! asked at a time, and the messages of all others wait in their mailboxes until it is their turn.
//!
//! A message that comes late was accepted, so it is not refused because many do: where processes send to more actors than there are
//! places, a process can send some hundreds before it hears that their places are given up.
//!
//! **Invariants.** MBX-2: each such message has the credit of the place that it named, which bounds how many wait; how many questions
//! another host has from this one is bounded by [`MAX_LATE`]. Senders take turns: who makes up ids waits behind his own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use super::run::Gateway;
use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_LATE;

/// See the module.
#[derive(Default)]
pub(super) struct Late {
    /// Whose host was asked, and has not answered.
    asked: HashSet<ActorId>,
    /// By the process whose message came first, in the order in which they came.
    waiting: BTreeMap<ProcessId, BTreeMap<u64, ActorId>>,
    /// Where each of these is.
    places: HashMap<ActorId, (ProcessId, u64)>,
    came: u64,
    /// Whose turn was the last.
    last: Option<ProcessId>,
}

impl Late {
    /// A message of `from` came for an actor that has no mailbox. Whether its host is to be asked now.
    fn comes(&mut self, actor: ActorId, from: ProcessId) -> bool {
        if self.asked.len() < MAX_LATE {
            self.asked.insert(actor);
            return true;
        }
        self.came += 1;
        self.waiting.entry(from).or_default().insert(self.came, actor);
        self.places.insert(actor, (from, self.came));
        false
    }

    /// Whether the host of an actor is still to be asked.
    pub(super) fn waits(&self, actor: ActorId) -> bool {
        self.places.contains_key(&actor)
    }

    /// An actor is offered, has no mailbox any more, or its host is asked by somebody else.
    fn is_over(&mut self, actor: ActorId) {
        if let Some((from, number)) = self.places.remove(&actor) {
            self.take(from, Some(number));
        }
        self.asked.remove(&actor);
    }

    /// The next whose host is to be asked.
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

    /// Takes the one with this number, or the first, of those that `from` has sent to.
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
    /// A message of a process came for an actor that has no mailbox here.
    pub(super) fn comes_late(&mut self, actor: ActorId, from: ProcessId) {
        if self.late.comes(actor, from) {
            self.want(actor);
        }
    }

    /// An actor is offered, has no mailbox any more, or its host is asked by somebody else.
    pub(super) fn late_no_more(&mut self, actor: ActorId) {
        self.late.is_over(actor);
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
    use super::super::{Door, begin};
    use super::*;
    use crate::testing::Cluster;
    use crate::transport::hosts::{Beginning, Nixl, Settings};
    use crate::transport::inbox::LocalCredits;

    fn process(number: u16) -> ProcessId {
        ProcessId::new(number, 0).expect("a process")
    }

    fn actor(number: usize) -> ActorId {
        // 1 is the one that starts others.
        ActorId::numbered(5, 2 + number as u64)
    }

    /// So many are asked for.
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
        assert!(late.asked.is_empty() && late.places.is_empty() && late.waiting.is_empty());
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
        assert!(late.places.is_empty() && late.waiting.is_empty());
        // It comes again.
        assert!(late.comes(actor(1000), process(2)));
    }

    /// The gateway of a head.
    fn alone() -> Beginning {
        let settings = Settings {
            is_head: true,
            head: "127.0.0.1:0".to_owned(),
            name: "head".to_owned(),
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
        let gateway = begin::start(transport, &alone(), None, stream, to.clone()).await;
        let mut gateway = gateway.unwrap_or_else(|why| panic!("{why}"));
        gateway.begin_with(silent(5));
        // The place was given up, and is another's by now: all of these come late.
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
            while let Ok(command) = commands.try_recv() {
                gateway.take(command);
            }
        };
        take_all(&mut gateway);
        let waiting =
            |gateway: &Gateway| gateway.mailboxes.values().map(|mailbox| mailbox.queue.len()).sum::<usize>();
        assert_eq!((waiting(&gateway), transport.stats().dead_letters), (MANY, 0));
        assert_eq!(gateway.late.asked.len(), MAX_LATE);
        // MBX-2: none has more than it had credits for.
        place.actor = actor(0);
        assert!(cluster.try_send(0, &place, 0).is_err());
        // Their host says of each that was asked for that it has ended, and of nobody else.
        for ended in 1..=MANY {
            let asked = *gateway.late.asked.iter().next().expect("another has its turn");
            gateway.ended(asked, None);
            assert_eq!(waiting(&gateway), MANY - ended);
        }
        assert!(gateway.mailboxes.is_empty() && gateway.late.asked.is_empty());
        take_all(&mut gateway);
        cluster.try_send(0, &place, 0).expect("the credits are back");
    }
}
