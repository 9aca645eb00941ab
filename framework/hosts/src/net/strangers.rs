//! The places of connections that have not shown the key yet. Each costs a socket, and no stranger can hold
//! all of them.
//!
//! Used by the [doors](super::acceptor). A new connection always gets a place. If all are taken, a quarter of
//! them is freed first. Strangers lose theirs before known hosts. Among these, connections from groups with
//! more places lose theirs first (groups of one size are addresses, sites, providers), and then those that
//! have waited longest, because a host with the key shows it at once. IPv6 is grouped by /64, since one
//! machine may use any number of addresses in its own.
//!
//! *A connection that loses its place* is closed, and its host connects again. *A connection that shows the
//! key* gives its place back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::limits::{MAX_HOSTS, MAX_PROOFS, MAX_STRANGERS};
use crate::security::Nonce;

/// The trust in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Standing {
    Stranger,
    /// It comes from an address from which the key was shown before.
    Known,
    /// It has shown a proof of the key, before TLS.
    Proven,
}

/// The places; see the module.
#[derive(Clone, Default)]
pub(super) struct Strangers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By number, so in order of arrival.
    all: BTreeMap<u64, Waiting>,
    last: u64,
    /// Addresses from which the key was shown, with the number of the last connection that did.
    known: HashMap<IpAddr, u64>,
}

struct Waiting {
    from: SocketAddr,
    until: Instant,
    standing: Standing,
    groups: [u128; 3],
    held: Held,
}

/// Dropping it ends the connection.
enum Held {
    AtTheDoor(TcpStream),
    InHandshake { _place: oneshot::Sender<()> },
}

/// A connection that is sent away, if it is still at the door; a handshake closes its own.
type Gone = (SocketAddr, TcpStream);

/// The place of a connection that is about to show the key.
pub(super) struct StrangerPlace {
    all: Strangers,
    number: u64,
    from: IpAddr,
    has: oneshot::Receiver<()>,
}

impl Strangers {
    /// Gives a connection a place and a number. Also returns the connections that were sent away for it.
    pub(super) fn enter(&self, stream: TcpStream, from: SocketAddr, until: Instant) -> (u64, Vec<Gone>) {
        let mut state = self.0.lock();
        let gone = if state.all.len() >= MAX_STRANGERS { state.make_room() } else { Vec::new() };
        state.last += 1;
        let (number, address) = (state.last, from.ip().to_canonical());
        let standing = if state.known.contains_key(&address) { Standing::Known } else { Standing::Stranger };
        let held = Held::AtTheDoor(stream);
        state.all.insert(number, Waiting { from, until, standing, groups: groups(address), held });
        (number, gone)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().all.is_empty()
    }

    /// Calls `work` with a connection that waits at the door.
    pub(super) fn at<T>(&self, number: u64, work: impl FnOnce(&TcpStream) -> T) -> Option<T> {
        match &self.0.lock().all.get(&number)?.held {
            Held::AtTheDoor(stream) => Some(work(stream)),
            Held::InHandshake { .. } => None,
        }
    }

    /// Sends a connection away.
    pub(super) fn remove(&self, number: u64) -> Option<Gone> {
        self.0.lock().all.remove(&number).and_then(Waiting::gone)
    }

    /// Sends away the connections whose time at the door is up.
    pub(super) fn late(&self, now: Instant) -> Vec<Gone> {
        let is_late = |waiting: &Waiting| waiting.until <= now && matches!(waiting.held, Held::AtTheDoor(_));
        let late = self.0.lock().all.extract_if(.., |_, waiting| is_late(waiting)).collect::<Vec<_>>();
        late.into_iter().filter_map(|(_, waiting)| waiting.gone()).collect()
    }

    /// Lets a connection that has sent its opening into the handshake. Returns the connection, its place, and
    /// how long it may hold that.
    pub(super) fn begin(
        &self,
        number: u64,
        is_proven: bool,
    ) -> Option<(TcpStream, SocketAddr, Instant, StrangerPlace)> {
        let mut state = self.0.lock();
        let waiting = state.all.get_mut(&number)?;
        if is_proven {
            waiting.standing = Standing::Proven;
        }
        let (place, has) = oneshot::channel();
        match std::mem::replace(&mut waiting.held, Held::InHandshake { _place: place }) {
            Held::AtTheDoor(stream) => {
                let (from, until) = (waiting.from, waiting.until);
                Some((
                    stream,
                    from,
                    until,
                    StrangerPlace { all: self.clone(), number, from: from.ip().to_canonical(), has },
                ))
            }
            Held::InHandshake { .. } => None,
        }
    }
}

impl State {
    /// Frees a quarter of the places. Freeing one at a time would scan all of them for each connection of a
    /// flood.
    fn make_room(&mut self) -> Vec<Gone> {
        let mut shares: HashMap<(Standing, usize, u128), u32> = HashMap::new();
        let newest_first = self.all.iter().rev();
        let mut ranked: Vec<_> = newest_first
            .map(|(number, waiting)| {
                let standing = waiting.standing;
                // How many of its address, its site and its provider came after it.
                let mut ranks = [0; 3];
                for (level, (rank, group)) in ranks.iter_mut().zip(waiting.groups).enumerate() {
                    let share = shares.entry((standing, level, group)).or_default();
                    *rank = *share;
                    *share += 1;
                }
                (Reverse(standing), ranks, Reverse(*number))
            })
            .collect();
        ranked.sort_unstable();
        let last = ranked.split_off(MAX_STRANGERS / 4 * 3);
        let gone = last.into_iter().filter_map(|(.., Reverse(number))| self.all.remove(&number));
        gone.filter_map(Waiting::gone).collect()
    }
}

impl Waiting {
    /// A connection in its handshake is told there.
    fn gone(self) -> Option<Gone> {
        match self.held {
            Held::AtTheDoor(stream) => Some((self.from, stream)),
            Held::InHandshake { .. } => None,
        }
    }
}

impl StrangerPlace {
    /// Records that its connection has shown the key.
    pub(super) fn shows_key(self) {
        let mut state = self.all.0.lock();
        state.known.insert(self.from, self.number);
        if state.known.len() > MAX_HOSTS {
            let oldest = state.known.iter().min_by_key(|(_, number)| **number).map(|(from, _)| *from);
            oldest.and_then(|from| state.known.remove(&from));
        }
    }

    /// Runs `work` as long as the connection has its place.
    pub(super) async fn within<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            // Work that is done counts before the loss of the place.
            biased;
            done = work => Some(done),
            // Nothing is ever sent: it resolves when the sender is dropped.
            _ = &mut self.has => None,
        }
    }
}

impl Drop for StrangerPlace {
    fn drop(&mut self) {
        self.all.0.lock().all.remove(&self.number);
    }
}

/// The proofs of the key that were shown: an eavesdropper can repeat one.
#[derive(Default)]
pub(super) struct Proofs {
    all: HashSet<Nonce>,
    in_order: VecDeque<Nonce>,
}

impl Proofs {
    /// Returns whether no proof with this nonce was shown before.
    pub(super) fn is_new(&mut self, nonce: Nonce) -> bool {
        if !self.all.insert(nonce) {
            return false;
        }
        self.in_order.push_back(nonce);
        if self.in_order.len() > MAX_PROOFS
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.all.remove(&oldest);
        }
        true
    }
}

/// Returns the address, the site and the provider of an address, as its first bits.
fn groups(from: IpAddr) -> [u128; 3] {
    let (bits, host_bits) = match from {
        IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), [0, 8, 16]),
        IpAddr::V6(address) => (address.to_bits(), [64, 80, 96]),
    };
    host_bits.map(|low| bits >> low << low)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Connections of a test, which all share one socket, because that makes no difference.
    struct Door {
        all: Strangers,
        socket: TcpStream,
    }

    impl Door {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
            Door { all: Strangers::default(), socket }
        }

        fn enter(&self, from: &str) -> u64 {
            let (stream, from) = (
                self.socket.try_clone().expect("a descriptor"),
                SocketAddr::new(from.parse().expect("an address"), 7),
            );
            self.all.enter(stream, from, Instant::now()).0
        }

        fn begins(&self, from: &str, is_proven: bool) -> StrangerPlace {
            self.all.begin(self.enter(from), is_proven).expect("it is there").3
        }

        fn has(&self, number: u64) -> bool {
            self.all.0.lock().all.contains_key(&number)
        }
    }

    /// Checks that a host with one place keeps it, wherever a flood comes from.
    fn outlasts(honest: &str, flood: impl Fn(u32) -> String) {
        let door = Door::new();
        let one = door.enter(honest);
        let last = (0..4 * MAX_STRANGERS as u32).map(|number| door.enter(&flood(number))).last();
        assert!(door.has(one), "{honest} beside {}", flood(0));
        assert!(last.is_some_and(|last| door.has(last)), "the last has a place");
        assert!(door.all.0.lock().all.len() <= MAX_STRANGERS);
    }

    #[test]
    fn who_has_fewer_places_keeps_its_own() {
        outlasts("10.1.2.3", |_| "10.1.2.4".to_owned());
        outlasts("10.1.2.3", |number| format!("10.1.3.{}", number % 256));
        outlasts("10.1.2.3", |number| format!("10.2.{}.{}", number / 256 % 256, number % 256));
        // One machine, one site, and one provider of IPv6.
        outlasts("2001:db8::1", |number| format!("2001:db8:0:1::{number:x}"));
        outlasts("2001:db8::1", |number| format!("2001:db8:1:{number:x}::7"));
        outlasts("2001:db8::1", |number| format!("2001:db9:{number:x}::7"));
        outlasts("10.1.2.3", |number| format!("::ffff:10.1.3.{}", number % 256));
    }

    #[test]
    fn of_equals_the_one_that_waits_longest_leaves() {
        let door = Door::new();
        let left: Vec<_> = (0..=MAX_STRANGERS).map(|_| door.enter("10.1.2.3")).collect();
        let left: Vec<_> = left.into_iter().map(|number| door.has(number)).collect();
        let gone = MAX_STRANGERS / 4;
        assert!(left[..gone].iter().all(|has| !has) && left[gone..].iter().all(|has| *has));
    }

    #[test]
    fn who_is_known_or_has_shown_a_proof_outlasts_strangers_of_its_own_address() {
        let door = Door::new();
        door.begins("10.1.2.3", false).shows_key();
        let proven = door.begins("10.1.2.4", true);
        let known = door.enter("10.1.2.3");
        for _ in 0..8 * MAX_STRANGERS {
            door.enter("10.1.2.4");
        }
        assert!(door.has(proven.number) && door.has(known));
        let number = proven.number;
        drop(proven);
        assert!(!door.has(number), "its place comes back");
    }

    #[test]
    fn who_says_nothing_in_time_leaves_and_who_shows_the_key_has_more() {
        let door = Door::new();
        let (silent, shows) = (door.enter("10.1.2.3"), door.begins("10.1.2.3", true));
        assert_eq!(door.all.late(Instant::now()).len(), 1);
        assert!(!door.has(silent) && door.has(shows.number) && !door.all.is_empty());
        assert!(door.all.begin(silent, true).is_none() && door.all.begin(shows.number, true).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (door, mut proofs) = (Door::new(), Proofs::default());
        for number in 0..2 * MAX_PROOFS as u128 {
            assert!(proofs.is_new(number.to_le_bytes()));
        }
        assert!(!proofs.is_new((MAX_PROOFS as u128).to_le_bytes()));
        assert_eq!((proofs.all.len(), proofs.in_order.len()), (MAX_PROOFS, MAX_PROOFS));
        for number in 0..2 * MAX_HOSTS {
            door.begins(&format!("10.{}.{}.3", number / 256, number % 256), false).shows_key();
        }
        assert_eq!(door.all.0.lock().known.len(), MAX_HOSTS);
    }

    #[tokio::test]
    async fn who_has_lost_its_place_is_sent_away() {
        let door = Door::new();
        let mut first = door.begins("10.1.2.3", false);
        assert_eq!(first.within(async { 7 }).await, Some(7));
        for _ in 0..MAX_STRANGERS {
            door.enter("10.1.2.3");
        }
        assert_eq!(first.within(std::future::pending::<()>()).await, None);
    }
}
