use std::sync::atomic::Ordering;

use super::granted::{AWAY, CLOSED, Credit, Granted, NOBODY};
use crate::limits::MAX_ACTORS;
use crate::os::monotonic_ns;
use crate::transport::ring::NativeWords;
use crate::transport::wake_reasons;

/// The index of the last actor.
const INDEX: u16 = MAX_ACTORS as u16 - 1;

fn granted(at: u64) -> Granted {
    let mut granted = Granted::new(NativeWords::in_memory(MAX_ACTORS), NativeWords::in_memory(MAX_ACTORS));
    granted.actors[usize::from(INDEX)].told_at = at;
    granted
}

fn credit(capacity: u32) -> Credit {
    Credit { index: INDEX, capacity }
}

fn words(granted: &Granted) -> (Option<u64>, Option<u64>) {
    let index = usize::from(INDEX);
    (granted.credits.load(index, Ordering::Acquire), granted.mailbox_states.load(index, Ordering::Acquire))
}

#[test]
fn half_a_mailbox_makes_one_ring_and_each_credit_is_published() {
    let at = monotonic_ns();
    for (capacity, told) in [(8, [4, 8, 12]), (4, [2, 4, 6]), (5, [2, 4, 6]), (3, [1, 2, 3]), (1, [1, 2, 3])]
    {
        let mut granted = granted(at);
        let mut rings = Vec::new();
        for count in 1..=12 {
            if granted.one_more(credit(capacity), at) {
                rings.push(count);
            }
            assert_eq!(words(&granted), (Some(count), Some(NOBODY)));
        }
        assert_eq!(rings[..3], told, "a mailbox of {capacity}");
    }
}

#[test]
fn slow_handlers_tell_of_each_message() {
    let (at, tell_every) = (monotonic_ns(), wake_reasons::TELL_EVERY.as_nanos() as u64);
    let mut granted = granted(at);
    for count in 1..20 {
        assert!(granted.one_more(credit(64), at + tell_every * count));
    }
    assert!(!granted.one_more(credit(64), at + tell_every * 20 - 1));
}

#[test]
fn who_is_told_that_an_actor_has_gone_needs_no_more() {
    let at = monotonic_ns();
    let mut granted = granted(at);
    assert!(!granted.one_more(credit(8), at));
    granted.close(INDEX, AWAY);
    assert!(!granted.one_more(credit(8), at));
    assert_eq!((granted.count(INDEX), words(&granted)), (Some(AWAY), (Some(1), Some(AWAY))));
    granted.open(INDEX, 7, 5);
    assert_eq!((granted.count(INDEX), words(&granted)), (Some(5), (Some(5), Some(7))));
    granted.close(INDEX + 1, CLOSED);
    assert_eq!(granted.count(INDEX + 1), None);
}

#[test]
fn who_comes_first_says_what_it_takes_and_who_comes_next_goes_on() {
    let mut granted = granted(monotonic_ns());
    // A message that came too early was refused, and counts.
    granted.one_more(credit(0), 0);
    granted.open(INDEX, 4, 0);
    assert_eq!((granted.count(INDEX), words(&granted)), (Some(1), (Some(1), Some(4))));
    granted.close(INDEX, CLOSED);
    granted.open(INDEX, 2, 9);
    assert_eq!((granted.count(INDEX), words(&granted)), (Some(9), (Some(9), Some(2))));
    granted.open(INDEX + 1, 2, 9);
    assert_eq!(granted.count(INDEX + 1), None);
}
