//! The head's list of the hosts of its node.

use std::net::SocketAddr;

use parking_lot::Mutex;

use super::{Admitted, Member, Request};
use crate::ids::{HostId, HostLife};
use crate::limits::MAX_HOSTS;

/// The hosts of a node.
#[derive(Debug)]
pub struct Roster {
    head: HostLife,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    /// The last number that was given out. None is given twice: two lives of a host are two hosts.
    last: u16,
    closed: bool,
}

/// Why a host is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The node has the most hosts that it can have.
    #[error("the node has {MAX_HOSTS} hosts, and takes no more: start another node for the rest")]
    Full,
    /// The numbers are used up by hosts that joined and left.
    #[error("the node has given {} numbers to hosts, and has no more: start it again", u16::MAX)]
    NoNumber,
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Closed,
    /// A head cannot join itself.
    #[error("it asks with the life of the head, which takes no host of its own")]
    Itself,
}

impl Roster {
    /// Makes a roster with the head alone.
    pub fn new(head: HostLife) -> Self {
        Roster { head, state: Mutex::default() }
    }

    /// Makes the roster of a head whose gateway replaces another, with the hosts that are there and the last
    /// number that was given out.
    pub fn resuming(head: HostLife, members: Vec<Member>, last: u16) -> Self {
        let last = members.iter().map(|member| member.who.host.0).fold(last, u16::max);
        Roster { head, state: Mutex::new(State { members, last, closed: false }) }
    }

    /// Admits the host that asks from this address. The flag is `true` if it is new.
    ///
    /// # Errors
    /// The host is not admitted.
    pub fn admit(&self, request: &Request, from: SocketAddr) -> Result<(Admitted, bool), NotAdmitted> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NotAdmitted::Closed);
        }
        if request.life == self.head.life {
            return Err(NotAdmitted::Itself);
        }
        let known =
            state.members.iter().find(|member| member.who.life == request.life).map(|member| member.who);
        let (you, new) = match known {
            Some(you) => (you, false),
            None => (self.number(&mut state, request, from)?, true),
        };
        let others = state.members.iter().filter(|member| member.who != you).cloned().collect();
        Ok((Admitted { you, head: self.head, others }, new))
    }

    fn number(
        &self,
        state: &mut State,
        request: &Request,
        from: SocketAddr,
    ) -> Result<HostLife, NotAdmitted> {
        if state.members.len() + 1 >= MAX_HOSTS {
            return Err(NotAdmitted::Full);
        }
        state.last = state.last.checked_add(1).ok_or(NotAdmitted::NoNumber)?;
        let who = HostLife { host: HostId(state.last), life: request.life };
        let name = request.name.clone();
        state.members.push(Member { who, name, address: request.address(from) });
        Ok(who)
    }

    /// Returns the hosts beside the head, in the order in which they joined.
    pub fn members(&self) -> Vec<Member> {
        self.state.lock().members.clone()
    }

    /// Removes a host that was lost or has left.
    pub fn remove(&self, host: HostId) -> Option<Member> {
        let mut state = self.state.lock();
        let at = state.members.iter().position(|member| member.who.host == host)?;
        Some(state.members.remove(at))
    }

    /// Admits no more hosts.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Life;

    fn request(life: u64) -> Request {
        Request { life: Life(life), name: format!("n{life}"), port: 7000, advertise: None }
    }

    fn from() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 9], 55_555))
    }

    #[test]
    fn each_life_gets_one_number_and_no_number_comes_twice() {
        let roster = Roster::new(HostLife { host: HostId::HEAD, life: Life(1) });
        let (first, new) = roster.admit(&request(5), from()).expect("a place");
        assert_eq!((first.you.host, new, first.others.len()), (HostId(1), true, 0));
        let (again, new) = roster.admit(&request(5), from()).expect("as before");
        assert_eq!((again.you, new), (first.you, false), "its answer was lost");
        let (second, _) = roster.admit(&request(6), from()).expect("a place");
        assert_eq!(second.you.host, HostId(2));
        assert_eq!(
            second.others,
            [Member { who: first.you, name: "n5".to_owned(), address: "10.0.0.9:7000".to_owned() }]
        );
        assert_eq!(roster.remove(HostId(2)).map(|member| member.who), Some(second.you));
        assert_eq!(roster.admit(&request(7), from()).expect("a place").0.you.host, HostId(3));
        assert_eq!(roster.members().len(), 2);
        assert_eq!(roster.admit(&request(1), from()), Err(NotAdmitted::Itself));
        roster.close();
        assert_eq!(roster.admit(&request(8), from()), Err(NotAdmitted::Closed));
    }

    #[test]
    fn no_number_comes_twice_with_another_gateway() {
        let head = HostLife { host: HostId::HEAD, life: Life(1) };
        let roster = Roster::new(head);
        let (first, _) = roster.admit(&request(5), from()).expect("a place");
        roster.admit(&request(6), from()).expect("a place");
        // The node knew only the number of the second host.
        let first_alone = roster.members()[..1].to_vec();
        let next = Roster::resuming(head, first_alone, 2);
        let (again, new) = next.admit(&request(5), from()).expect("as before");
        assert_eq!((again.you, new), (first.you, false));
        assert_eq!(next.admit(&request(6), from()).expect("a place").0.you.host, HostId(3));
        let known = Roster::resuming(head, next.members(), 0);
        assert_eq!(known.admit(&request(7), from()).expect("a place").0.you.host, HostId(4));
    }

    #[test]
    fn there_is_an_end_to_hosts_and_to_numbers() {
        let roster = Roster::new(HostLife { host: HostId::HEAD, life: Life(0) });
        for life in 1..MAX_HOSTS as u64 {
            roster.admit(&request(life), from()).expect("a place");
        }
        assert_eq!(roster.admit(&request(99_999), from()), Err(NotAdmitted::Full));
        let mut last = MAX_HOSTS as u64 - 1;
        (1..last).for_each(|host| drop(roster.remove(HostId(host as u16)).expect("it was taken in")));
        let ended = loop {
            roster.remove(HostId(last as u16)).expect("the one that is there");
            match roster.admit(&request(last + 1), from()) {
                Ok(_) => last += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((ended, last), (NotAdmitted::NoNumber, u64::from(u16::MAX)));
    }

    #[test]
    fn a_host_is_reached_where_the_head_sees_it_or_where_it_says() {
        let said = |advertise: &str| Request { advertise: Some(advertise.to_owned()), ..request(1) };
        assert_eq!(request(1).address(from()), "10.0.0.9:7000");
        let mapped = SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0x0a00, 9], 1));
        assert_eq!(request(1).address(mapped), "10.0.0.9:7000");
        assert_eq!(said("a.b:80").address(from()), "a.b:80");
        assert_eq!(said("a.b:0").address(from()), "a.b:7000");
    }
}
