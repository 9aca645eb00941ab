//! A worker reports waits that the clock pages contradict.

use super::*;
use crate::clock::ProcessPages;
use crate::observe::hang_probe::WaitsIn;

const LIMIT: Duration = Duration::from_secs(60);

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).unwrap()
}

/// Makes a node with workers 1 and 2, which were asked in round 1.
fn scene() -> (Broker, Hangs) {
    let mut broker = Broker::with_pages(ProcessPages::of_the_node().unwrap());
    broker.joined(ProcessId::NODE);
    let mut hangs = Hangs { round: 1, ..Hangs::default() };
    for slot in [1, 2] {
        broker.deaths.prepare(process(slot)).unwrap();
        broker.joined(process(slot));
        hangs.asked(process(slot));
    }
    (broker, hangs)
}

impl Hangs {
    fn asked(&mut self, process: ProcessId) {
        self.seen.entry(process).or_default().unanswered = Some((self.round, Instant::now()));
    }

    /// Takes worker 1's answer to a round, with these waits.
    fn hears(&mut self, broker: &Broker, waits: &[WaitProbe]) -> Result<(), String> {
        self.asked(process(1));
        let hang_probe = HangProbe { actors: Vec::new(), waits: waits.to_vec() };
        self.hang_probe(process(1), self.round, hang_probe, broker)
    }

    /// Whether worker 1 is another process's victim, `later` from now by the node's time.
    fn is_victim_in(&self, later: Duration) -> bool {
        self.is_victim(process(1), LIMIT, Instant::now() + later)
    }
}

fn wait(on: ProcessId, clock: u16, value: u64) -> WaitProbe {
    WaitProbe { waits_in: WaitsIn::Thread("main".into()), on, clock, value }
}

#[test]
fn a_wait_for_what_nobody_promised_is_a_lie_that_names_its_teller() {
    let (broker, mut hangs) = scene();
    broker.deaths.page_of(process(2)).unwrap().promise(3, 7);
    let never = ProcessId::new(7, 0).unwrap();
    let next_life = ProcessId::new(2, 1).unwrap();
    for lie in [
        wait(process(2), 3, 8),
        wait(process(2), 3, 1 << 40),
        wait(process(2), 0, 1),
        wait(process(2), u16::MAX, 0),
        wait(ProcessId::NODE, 0, 1),
        wait(never, 0, 0),
        wait(next_life, 3, 7),
    ] {
        let said = hangs.hears(&broker, std::slice::from_ref(&lie)).unwrap_err();
        assert!(said.contains("has not promised"), "{said}");
        assert!(!hangs.is_victim_in(2 * LIMIT), "{lie:?} makes nobody a victim");
    }
    // A true wait beside a false one is kept.
    hangs.hears(&broker, &[wait(process(2), 3, 8), wait(process(2), 3, 7)]).unwrap_err();
    assert!(hangs.is_victim_in(LIMIT));
}

#[test]
fn a_wait_counts_from_when_the_node_has_seen_it_and_ends_with_the_clock() {
    let (mut broker, mut hangs) = scene();
    let page = broker.deaths.page_of(process(2)).unwrap().clone();
    page.promise(3, 7);
    let waits = [wait(process(2), 3, 7)];
    hangs.hears(&broker, &waits).unwrap();
    assert!(!hangs.is_victim_in(Duration::ZERO) && hangs.is_victim_in(LIMIT));
    // The clock moves: its process is not stuck, although another waits for it.
    let first = hangs.seen[&process(1)].waits[0].since;
    page.testing_advance(3, 5);
    hangs.hears(&broker, &waits).unwrap();
    let again = &hangs.seen[&process(1)].waits[0];
    assert!(again.since > first && again.clock == Clock::Owes(5));
    let second = again.since;
    hangs.hears(&broker, &waits).unwrap();
    assert_eq!(hangs.seen[&process(1)].waits[0].since, second, "it stands again");
    page.testing_advance(3, 7);
    hangs.hears(&broker, &waits).unwrap();
    assert!(!hangs.is_victim_in(2 * LIMIT) && hangs.seen[&process(1)].waits.is_empty());
    // A process that has ended keeps nobody waiting.
    page.promise(3, 9);
    broker.left(process(2), &mut Vec::new());
    hangs.hears(&broker, &[wait(process(2), 3, 9)]).unwrap();
    assert!(!hangs.is_victim_in(2 * LIMIT));
}

#[test]
fn an_answer_that_nobody_asked_for_is_none() {
    let (broker, mut hangs) = scene();
    let answer = |hangs: &mut Hangs, of, round| hangs.hang_probe(of, round, HangProbe::default(), &broker);
    for round in [0, 2, u64::MAX] {
        answer(&mut hangs, process(1), round).unwrap_err();
    }
    answer(&mut hangs, process(1), 1).unwrap();
    answer(&mut hangs, process(1), 1).unwrap_err();
    answer(&mut hangs, process(9), 1).unwrap_err();
}
