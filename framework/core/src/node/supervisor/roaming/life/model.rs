//! Seeded runs of one actor on hosts that come and go. At no moment does it work twice (HOST-10).

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

/// What is taken for granted that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// That a host which was given up runs nothing any more.
    GivenUpIsOver,
    /// That a start which was not answered has not happened.
    SilenceIsNo,
    /// That an actor which stopped because its host leaves is gone.
    LeavingIsTheEnd,
}

#[derive(Clone, Copy, Default)]
struct Host {
    /// Whether the home counts it as one of the node.
    is_member: bool,
    /// Whether the actor works there.
    works: bool,
}

/// How a run went.
#[derive(Debug, PartialEq, Eq)]
enum Went {
    Well,
    WorkedTwice,
    /// It ended although it had restarts left, and its last host was gone for certain.
    EndedEarly,
}

fn run(seed: u64, mistake: Mistake) -> Went {
    const HOSTS: u64 = 5;
    let mut draw = Draw(seed * 2 + 1);
    let mut hosts = [Host { is_member: true, works: false }; HOSTS as usize];
    hosts[0].works = true;
    let mut life = Life::first(Restart::on_failure(100), 0);
    let now = Instant::now();
    for _ in 0..40 {
        let host = draw.below(HOSTS) as usize;
        let follows = match draw.below(4) {
            // A host goes: its workers have ended, unless it was only given up.
            0 if hosts[host].is_member => {
                hosts[host].is_member = false;
                let how = [Gone::Left, Gone::Lost, Gone::GivenUp][draw.below(3) as usize];
                hosts[host].works &= how == Gone::GivenUp;
                if how == Gone::Left && draw.below(2) == 0 && mistake != Mistake::LeavingIsTheEnd {
                    let said = life.ended_on(host as u16, Some(EndReason::NodeStopped));
                    assert_eq!(said, Follows::Nothing);
                }
                if how == Gone::Left
                    && mistake == Mistake::LeavingIsTheEnd
                    && matches!(life.ended_on(host as u16, Some(EndReason::Normal)), Follows::End(_))
                {
                    return Went::EndedEarly;
                }
                let how = if mistake == Mistake::GivenUpIsOver { Gone::Lost } else { how };
                life.host_gone(host as u16, how, "gone".to_owned(), now)
            }
            // The next life is begun, if one is due, on a host that counts as one of the node.
            _ if life.due().is_some() && hosts[host].is_member => {
                life.begin();
                let answer = draw.below(4);
                // An answer may be lost, on its way there or back.
                hosts[host].works |= answer < 2;
                life.begun(
                    match answer {
                        0 => NextLife::On(host as u16),
                        1 | 2 if mistake == Mistake::SilenceIsNo => NextLife::Failed("silence".to_owned()),
                        1 | 2 => NextLife::Unknown(host as u16),
                        _ => NextLife::Failed("no room".to_owned()),
                    },
                    now,
                )
            }
            _ => continue,
        };
        if hosts.iter().filter(|host| host.works).count() > 1 {
            return Went::WorkedTwice;
        }
        match follows {
            // Only that of a host that may still run it.
            Follows::End(_) if hosts.iter().any(|host| host.works) => return Went::Well,
            Follows::End(Some(EndReason::OutOfReach(_))) => return Went::Well,
            Follows::End(_) => return Went::EndedEarly,
            Follows::Lives(_) | Follows::Next(..) | Follows::Nothing => {}
        }
    }
    Went::Well
}

#[test]
fn it_never_works_twice_and_each_case_is_needed() {
    let all = |mistake| (1..=5_000).map(move |seed| (seed, run(seed, mistake)));
    let bad = all(Mistake::None).find(|(_, went)| *went != Went::Well);
    assert_eq!(bad, None, "seed and outcome");
    for (mistake, outcome) in [
        (Mistake::GivenUpIsOver, Went::WorkedTwice),
        (Mistake::SilenceIsNo, Went::WorkedTwice),
        (Mistake::LeavingIsTheEnd, Went::EndedEarly),
    ] {
        assert!(all(mistake).any(|(_, went)| went == outcome), "{mistake:?} makes no difference");
    }
}

#[test]
fn only_the_host_that_it_lives_on_is_believed_and_losses_are_counted() {
    let now = Instant::now();
    let mut life = Life::first(Restart::on_failure(1), 3);
    assert_eq!(life.ended_on(4, Some(EndReason::Normal)), Follows::Nothing);
    assert_eq!(life.host_gone(4, Gone::Lost, "lost".to_owned(), now), Follows::Nothing);
    let follows = life.host_gone(3, Gone::Left, "left".to_owned(), now);
    assert!(matches!(follows, Follows::Next(EndReason::OutOfReach(_), _)), "{follows:?}");
    assert!(life.is_away() && life.due().is_some());
    assert_eq!(life.begin(), 1);
    assert!(life.is_away() && life.due().is_none(), "nobody begins it a second time");
    assert_eq!(life.begun(NextLife::On(4), now), Follows::Lives(4));
    life.came_back(3);
    let follows = life.host_gone(4, Gone::Lost, "lost".to_owned(), now);
    assert!(matches!(follows, Follows::End(Some(EndReason::OutOfReach(_)))), "{follows:?}");
    assert_eq!(life.number(), 3);
    let mut ends = Life::first(Restart::on_failure(1), 3);
    assert_eq!(ends.ended_on(3, Some(EndReason::Normal)), Follows::End(Some(EndReason::Normal)));
}
