use super::*;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("in range")
}

fn range(of: u16, from: u64) -> TaintRange {
    TaintRange { process: process(of), slot: 0, from, to: from + 10, by: process(9) }
}

struct Node {
    rounds: Rounds,
    acts: Vec<Act>,
    now: Instant,
}

impl Node {
    fn with(living: &[u16]) -> Self {
        let mut rounds = Rounds::default();
        for slot in living {
            assert_eq!(rounds.joined(process(*slot)), None);
            rounds.ready(process(*slot));
        }
        Node { rounds, acts: Vec::new(), now: Instant::now() }
    }

    fn died(&mut self, slot: u16, values: &[u64]) {
        self.rounds.died(process(slot), values, self.now, &mut self.acts);
    }

    fn answered(&mut self, slot: u16, round: u64, ranges: &[TaintRange]) {
        self.rounds.answered(process(slot), round, ranges, self.now, &mut self.acts);
    }

    /// Returns the processes that were told of a round since the last call, each with the round, and the
    /// released ones.
    fn look(&mut self) -> (Vec<(u16, u64)>, Vec<u16>) {
        let (mut told, mut released) = (Vec::new(), Vec::new());
        for act in self.acts.drain(..) {
            match act {
                Act::Tell(to, update) => told.push((to.slot() as u16, update.round)),
                Act::Release { dead, .. } => released.extend(dead.iter().map(|dead| dead.slot() as u16)),
            }
        }
        (told, released)
    }
}

// DEATH-3: nobody is released while a process still has to hear news.
#[test]
fn the_dead_are_released_when_a_round_brings_nothing_new() {
    let mut node = Node::with(&[1, 2, 9]);
    node.died(9, &[5]);
    assert_eq!(node.look(), (vec![(1, 1), (2, 1)], vec![]));
    node.answered(1, 1, &[range(1, 7)]);
    node.answered(1, 1, &[]);
    assert_eq!(node.look(), (vec![], vec![]), "2 has not answered");
    node.answered(2, 1, &[]);
    assert_eq!(node.look(), (vec![(1, 2), (2, 2)], vec![]), "and 2 has to hear of what 1 has marked");
    node.answered(2, 2, &[]);
    node.answered(1, 2, &[]);
    assert_eq!(node.look(), (vec![], vec![9]));
    let update = node.rounds.joined(process(3)).expect("a joiner is told everything");
    assert_eq!((update.deaths.len(), update.ranges, update.round), (1, vec![range(1, 7)], 2));
}

#[test]
fn who_is_still_opening_is_told_and_not_waited_for() {
    let mut node = Node::with(&[1, 9]);
    node.rounds.joined(process(2));
    node.died(9, &[5]);
    assert_eq!(node.look().0, [(1, 1), (2, 1)]);
    node.answered(1, 1, &[]);
    assert_eq!(node.look().1, [9]);
    node.rounds.ready(process(2));
    node.died(1, &[]);
    assert_eq!(node.look(), (vec![(2, 2)], vec![]));
}

#[test]
fn a_death_in_the_middle_of_a_round_joins_in() {
    let mut node = Node::with(&[1, 2, 3, 9]);
    node.died(9, &[5]);
    node.answered(1, 1, &[]);
    node.look();
    node.died(3, &[4]);
    // DEATH-3: its end is told now, and its certificate must not come later.
    assert!(node.acts.iter().all(|act| matches!(act, Act::Tell(_, update) if update.deaths.len() == 1)));
    assert_eq!(node.look(), (vec![(1, 1), (2, 1)], vec![]));
    let update = node.rounds.joined(process(4)).expect("a joiner is told of both");
    assert_eq!((update.deaths.len(), update.round), (2, 1));
    node.rounds.died(process(4), &[], node.now, &mut node.acts);
    node.look();
    // Ranges that are marked because of it come as an additional answer.
    node.answered(1, 1, &[range(1, 7)]);
    assert_eq!(node.look(), (vec![], vec![]), "2 has not answered");
    node.answered(2, 1, &[]);
    assert_eq!(node.look(), (vec![(1, 2), (2, 2)], vec![]), "3 is told nothing more");
    assert_eq!(node.rounds.table.of(&ticket(1, 8)), Some(process(9)), "in the round that is waited for");
    node.answered(1, 2, &[]);
    node.answered(2, 2, &[]);
    assert_eq!(node.look(), (vec![], vec![9, 3, 4]));
    node.died(1, &[]);
    node.died(2, &[]);
    assert_eq!(node.look(), (vec![(2, 3)], vec![1, 2]), "nobody is left to wait for");
}

#[test]
fn who_does_not_answer_is_suspected_until_it_does() {
    let mut node = Node::with(&[1, 2, 9]);
    node.died(9, &[5]);
    node.answered(1, 1, &[]);
    node.look();
    let early = node.now;
    assert!(node.rounds.overdue(early, |_| vec![], &mut node.acts).is_empty());
    node.now += WAIT_FOR_MARKS;
    let late = node.rounds.overdue(node.now, |_| vec![0, 44], &mut node.acts);
    assert_eq!(late, [process(2)]);
    assert!(matches!(&node.acts[0], Act::Tell(_, update) if update.suspects[0].0.last == [0, 44]));
    node.look();
    node.answered(1, 2, &[]);
    assert_eq!(node.look().1, [9], "2 holds nobody up");
    // It goes on, and first answers the round that it was told first.
    node.answered(2, 1, &[range(2, 60)]);
    assert_eq!(node.look().0, [(1, 3), (2, 3)]);
    node.answered(1, 3, &[]);
    assert_eq!(node.rounds.table.of(&ticket(2, 80)), Some(process(9)), "still suspected");
    node.answered(2, 2, &[]);
    node.answered(2, 3, &[]);
    assert_eq!(node.look().0, [(1, 4), (2, 4)]);
    assert_eq!(node.rounds.table.of(&ticket(2, 80)), None);
    assert_eq!(node.rounds.table.of(&ticket(2, 60)), Some(process(9)));
}

fn ticket(of: u16, value: u64) -> crate::clock::Ticket {
    crate::clock::Ticket { process: process(of), slot: 0, value }
}

/// It may have been released, run on, and passed values that it never marked.
#[test]
fn the_certificate_of_a_suspect_is_how_far_it_had_come_when_it_was_suspected() {
    let mut node = Node::with(&[1, 2, 9]);
    node.died(9, &[5]);
    node.answered(1, 1, &[]);
    node.now += WAIT_FOR_MARKS;
    node.rounds.overdue(node.now, |_| vec![44], &mut node.acts);
    node.answered(1, 2, &[]);
    node.died(2, &[70]);
    assert_eq!(node.rounds.table.last_of(process(2), 0), Some(44));
}
