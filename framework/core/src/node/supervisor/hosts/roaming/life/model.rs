//! Seeded runs of one actor on hosts that come and go, and whose gateways end. The actor never works on two
//! hosts at once (HOST-10), and its home hears of its end.

use std::time::Instant;

use super::*;

/// Draws numbers, by xorshift.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A false assumption that a run makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// A host that was given up runs nothing any more.
    GivenUpIsOver,
    /// A start without an answer has not happened.
    SilenceIsNo,
    /// An actor that stopped because its host leaves is gone.
    LeavingIsTheEnd,
    /// A host whose gateway ends is lost.
    GatewayIsHost,
    /// The next gateway reports an actor's end although nobody asked it to.
    NotWatchedAgain,
    /// A start whose answer was lost with a gateway has not happened.
    LostIsNo,
    /// Such a start need not be asked for again: the actor is found if it lives there.
    LostIsUnknown,
}

#[derive(Clone, Copy, Default)]
struct Host {
    /// Whether the home counts it as a host of the node.
    is_member: bool,
    /// Whether the actor works there.
    works: bool,
    /// Whether it has stopped answering.
    is_silent: bool,
}

/// How a run went.
#[derive(Debug, PartialEq, Eq)]
enum Went {
    Well,
    WorkedTwice,
    /// The home took it for ended, although it had restarts left and its last host was gone for certain, or
    /// although it still works.
    EndedEarly,
    /// It has ended, and the home has not heard of it.
    Unheard,
}

const HOSTS: u64 = 5;

struct Run {
    draw: Draw,
    mistake: Mistake,
    hosts: [Host; HOSTS as usize],
    life: Life,
    /// Whether the host that it lives on will tell the home of its end.
    is_told: bool,
    now: Instant,
}

impl Run {
    /// Removes a host: its workers have ended, unless it was only given up.
    fn goes(&mut self, host: usize) -> Follows {
        let how = [HostEnd::Left, HostEnd::Lost, HostEnd::GivenUp][self.draw.below(3) as usize];
        self.hosts[host].is_member = false;
        self.hosts[host].works &= how == HostEnd::GivenUp;
        if how == HostEnd::Left && self.draw.below(2) == 0 {
            let is_end = self.mistake == Mistake::LeavingIsTheEnd;
            let why = if is_end { EndReason::Normal } else { EndReason::NodeStopped };
            let said = self.life.ended_on(host as u16, Some(why));
            if said != Follows::Nothing {
                return said;
            }
        }
        let how = if self.mistake == Mistake::GivenUpIsOver { HostEnd::Lost } else { how };
        self.life.host_gone(host as u16, how, "gone".to_owned(), self.now)
    }

    /// Asks a host for the next life. The question or the answer may be lost, with the host or with a
    /// gateway.
    fn begins(&mut self, host: usize) -> Follows {
        self.life.begin();
        let (came, with_gateway) = (self.draw.below(2) == 0, self.draw.below(2) == 0);
        let no = || NextLife::Failed("no".to_owned());
        let next = match self.draw.below(3) {
            0 => no(),
            1 => {
                self.hosts[host].works = true;
                NextLife::On(host as u16)
            }
            _ if !with_gateway => {
                (self.hosts[host].works, self.hosts[host].is_silent) = (came, true);
                let is_no = self.mistake == Mistake::SilenceIsNo;
                if is_no { no() } else { NextLife::Unknown(host as u16) }
            }
            _ => match self.mistake {
                Mistake::LostIsNo => {
                    self.hosts[host].works = came;
                    no()
                }
                // The life is about to begin.
                Mistake::LostIsUnknown => NextLife::Unknown(host as u16),
                _ => {
                    // The home asks again: the actor lives there already, or begins, or cannot begin.
                    let begins = came || self.draw.below(2) == 0;
                    self.hosts[host].works = begins;
                    if begins { NextLife::On(host as u16) } else { no() }
                }
            },
        };
        self.is_told = false;
        let follows = self.life.begun(next, self.now);
        if let Follows::Lives(_) = follows { self.watch(host) } else { follows }
    }

    /// Asks a host to report the actor's end.
    fn watch(&mut self, host: usize) -> Follows {
        let Host { works, is_silent, .. } = self.hosts[host];
        self.is_told = !is_silent;
        match works || is_silent {
            true => Follows::Nothing,
            false => self.life.ended_on(host as u16, None),
        }
    }

    /// Ends the gateway of the home, or of a host.
    fn gateway_ends(&mut self, host: usize) -> Follows {
        if !self.life.is_on(host as u16) {
            return Follows::Nothing;
        }
        self.is_told = false;
        match self.mistake {
            Mistake::GatewayIsHost => {
                self.life.host_gone(host as u16, HostEnd::Lost, "its gateway".to_owned(), self.now)
            }
            Mistake::NotWatchedAgain => Follows::Nothing,
            _ => self.watch(host),
        }
    }

    /// Ends the actor by itself, on the host where it works.
    fn ends(&mut self, host: usize) -> Follows {
        self.hosts[host].works = false;
        match self.is_told {
            true => self.life.ended_on(host as u16, Some(EndReason::Normal)),
            false => Follows::Nothing,
        }
    }

    fn play(&mut self) -> Went {
        let mut ended = false;
        for _ in 0..40 {
            let host = self.draw.below(HOSTS) as usize;
            let Host { is_member, works, is_silent } = self.hosts[host];
            let follows = match self.draw.below(8) {
                0 | 1 if is_member => self.goes(host),
                2 if is_member && works && !is_silent => {
                    ended = true;
                    self.ends(host)
                }
                3 if is_member => self.gateway_ends(host),
                _ if is_member && !is_silent && self.life.due().is_some() => self.begins(host),
                _ => continue,
            };
            if self.hosts.iter().filter(|host| host.works).count() > 1 {
                return Went::WorkedTwice;
            }
            let may_run = self.hosts.iter().any(|host| host.works && !host.is_member);
            match follows {
                // A host that finds no such actor is right only if it has ended.
                Follows::End(None) if !ended => return Went::EndedEarly,
                // The end is right if the actor has ended, or if a lost host may still run it.
                Follows::End(_) if ended || may_run => return Went::Well,
                Follows::End(Some(EndReason::OutOfReach(_))) => return Went::Well,
                Follows::End(_) => return Went::EndedEarly,
                Follows::Lives(_) | Follows::Next(..) | Follows::Nothing => {}
            }
        }
        let is_unheard = |(number, host): (usize, &Host)| {
            self.life.is_on(number as u16) && host.is_member && !host.works && !host.is_silent
        };
        if self.hosts.iter().enumerate().any(is_unheard) { Went::Unheard } else { Went::Well }
    }
}

fn run(seed: u64, mistake: Mistake) -> Went {
    let mut hosts = [Host { is_member: true, ..Host::default() }; HOSTS as usize];
    hosts[0].works = true;
    let life = Life::first(Restart::on_failure(100), 0);
    Run { draw: Draw(seed * 2 + 1), mistake, hosts, life, is_told: true, now: Instant::now() }.play()
}

#[test]
fn it_never_works_twice_its_end_is_heard_and_each_case_is_needed() {
    let all = |mistake| (1..=5_000).map(move |seed| (seed, run(seed, mistake)));
    let bad = all(Mistake::None).find(|(_, went)| *went != Went::Well);
    assert_eq!(bad, None, "seed and outcome");
    for (mistake, outcome) in [
        (Mistake::GivenUpIsOver, Went::WorkedTwice),
        (Mistake::SilenceIsNo, Went::WorkedTwice),
        (Mistake::LeavingIsTheEnd, Went::EndedEarly),
        (Mistake::GatewayIsHost, Went::WorkedTwice),
        (Mistake::NotWatchedAgain, Went::Unheard),
        (Mistake::LostIsNo, Went::WorkedTwice),
        (Mistake::LostIsUnknown, Went::EndedEarly),
    ] {
        assert!(all(mistake).any(|(_, went)| went == outcome), "{mistake:?} makes no difference");
    }
}

#[test]
fn only_the_host_that_it_lives_on_is_believed_and_losses_are_counted() {
    let now = Instant::now();
    let mut life = Life::first(Restart::on_failure(1), 3);
    assert_eq!(life.ended_on(4, Some(EndReason::Normal)), Follows::Nothing);
    assert_eq!(life.host_gone(4, HostEnd::Lost, "lost".to_owned(), now), Follows::Nothing);
    let follows = life.host_gone(3, HostEnd::Left, "left".to_owned(), now);
    assert!(matches!(follows, Follows::Next(EndReason::OutOfReach(_), _)), "{follows:?}");
    assert!(life.is_away() && life.due().is_some());
    assert_eq!(life.begin(), 1);
    assert!(life.is_away() && life.due().is_none(), "nobody begins it a second time");
    assert_eq!(life.begun(NextLife::On(4), now), Follows::Lives(4));
    life.came_back(3);
    let follows = life.host_gone(4, HostEnd::Lost, "lost".to_owned(), now);
    assert!(matches!(follows, Follows::End(Some(EndReason::OutOfReach(_)))), "{follows:?}");
    assert_eq!(life.number(), 3);
    let mut ends = Life::first(Restart::on_failure(1), 3);
    assert_eq!(ends.ended_on(3, Some(EndReason::Normal)), Follows::End(Some(EndReason::Normal)));
}
