use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("a small slot")
}

fn ticket(slot: u16, value: u64) -> Ticket {
    Ticket { process: process(1), slot, value }
}

#[track_caller]
fn emptied(left: Result<Left, BookError>) -> Emptied {
    match left {
        Ok(Left::Empty(emptied)) => emptied,
        other => panic!("somebody holds it: {other:?}"),
    }
}

#[test]
fn a_line_closes_when_the_last_lease_is_back_and_once() {
    let mut book = Book::default();
    let (line, life) = book.open("block", Uses::new());
    book.grant(line, life, process(1)).unwrap();
    book.grant(line, life, process(1)).unwrap();
    assert_eq!(book.release_local(line, life, &[]), Ok(Left::Held));
    assert_eq!(book.release(line, life, process(1), &[]), Ok(Left::Held));
    let last = emptied(book.release(line, life, process(1), &[]));
    assert_eq!(book.len(), 1, "empty is not closed (LEASE-3)");
    assert_eq!(book.close(last), Some(("block", Uses::new())));
    assert_eq!(book.close(last), None);
    assert!(book.is_empty());
}

/// LEASE-3: between the two looks, the next holder came.
#[test]
fn a_hold_after_the_first_look_keeps_the_line_open() {
    let mut book = Book::default();
    let (line, life) = book.open((), Uses::new());
    book.grant(line, life, process(1)).unwrap();
    book.release_local(line, life, &[]).unwrap();
    let first = emptied(book.release(line, life, process(1), &[]));
    book.grant(line, life, process(2)).unwrap();
    assert_eq!(book.close(first), None);
    let second = emptied(book.release(line, life, process(2), &[]));
    // Another holder may have come between the two: whoever drained the first release knows nothing of it.
    assert_eq!(book.close(first), None, "it was emptied anew");
    assert!(book.close(second).is_some());
}

#[test]
fn an_old_name_means_nothing() {
    let mut book = Book::default();
    let (line, old) = book.open(1, Uses::new());
    let last = emptied(book.release_local(line, old, &[]));
    book.close(last).unwrap();
    let (again, new) = book.open(2, Uses::new());
    assert_eq!(again, line, "a line is used again");
    let unknown = Err(BookError::Unknown { line, generation: old });
    assert_eq!(book.grant(line, old, process(1)).map(drop), unknown);
    assert_eq!(book.adopt(line, old, process(1)), unknown);
    assert_eq!(book.release(line, old, process(1), &[]).map(drop), unknown);
    assert_eq!(book.release_local(line, old, &[]).map(drop), unknown);
    assert_eq!((book.block(line, old), book.block(line, new)), (None, Some(&2)));
    assert!(book.close(last).is_none() && !book.is_sole(line, old, None) && book.is_sole(line, new, None));
    assert_eq!(
        book.grant(line + 1, 1, process(1)),
        Err(BookError::Unknown { line: line + 1, generation: 1 })
    );
}

#[test]
fn nobody_gives_back_or_sends_what_it_has_not() {
    let mut book = Book::default();
    let (line, life) = book.open((), Uses::new());
    book.grant(line, life, process(1)).unwrap();
    let not_held = BookError::NotHeld { process: process(2), line, count: 1, held: 0 };
    assert_eq!(book.release(line, life, process(2), &[ticket(0, 9)]), Err(not_held));
    assert_eq!(book.adopt(line, life, process(2)), Err(not_held));
    assert_eq!(book.shares(line, life), Some((1, vec![(process(1), 1)])));
    assert!(book.uses(line, life).is_empty(), "a lie leaves no use behind");
    book.adopt(line, life, process(1)).unwrap();
    assert_eq!(book.shares(line, life), Some((2, vec![(process(1), 1)])));
}

#[test]
fn of_each_clock_the_latest_use_is_kept() {
    let mut book = Book::default();
    let (line, life) = book.open((), Uses::from_slice(&[ticket(0, 5)]));
    for (slot, value) in [(0, 4), (1, 7), (0, 8), (1, 7), (2, u64::MAX), (2, 3)] {
        book.grant(line, life, process(1)).unwrap();
        book.release(line, life, process(1), &[ticket(slot, value)]).unwrap();
    }
    // Cyclically: three comes after the largest number.
    let uses = [ticket(0, 8), ticket(1, 7), ticket(2, 3)];
    assert_eq!(book.uses(line, life).as_slice(), uses);
    let last = emptied(book.release_local(line, life, &[]));
    assert_eq!(book.close(last).unwrap().1.as_slice(), uses);
}

#[test]
fn sole_is_who_has_the_only_lease() {
    let mut book = Book::default();
    let (line, life) = book.open((), Uses::new());
    let (one, two) = (process(1), process(2));
    assert!(book.is_sole(line, life, None) && !book.is_sole(line, life, Some(one)));
    book.grant(line, life, one).unwrap();
    // The sender's own local lease is dropped behind the grant.
    assert!(!book.is_sole(line, life, None) && book.is_sole(line, life, Some(one)));
    book.grant(line, life, two).unwrap();
    assert!(!book.is_sole(line, life, Some(one)) && !book.is_sole(line, life, Some(two)));
    book.release(line, life, two, &[]).unwrap();
    book.grant(line, life, one).unwrap();
    assert!(!book.is_sole(line, life, Some(one)), "it has two");
}

/// LEASE-4.
#[test]
fn a_dead_holder_leaves_every_line() {
    let mut book = Book::default();
    let lines: Vec<_> = (0..4).map(|n| book.open(n, Uses::new())).collect();
    for (n, (line, life)) in lines.iter().enumerate() {
        for shared in 0..n {
            assert_eq!(book.grant(*line, *life, process(1)), Ok(shared > 0), "every grant after the first");
        }
        if n != 2 {
            book.release_local(*line, *life, &[]).unwrap();
        }
    }
    book.grant(lines[3].0, lines[3].1, process(2)).unwrap();
    let found: Vec<_> = book.evict(process(1)).iter().map(|left| (left.line, left.generation)).collect();
    assert_eq!(found, [lines[1]], "two has a local lease, three another holder");
    assert_eq!(book.shares(lines[3].0, lines[3].1), Some((0, vec![(process(2), 1)])));
    assert!(book.evict(process(1)).is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Grant(u16),
    Adopt(u16),
    Release(u16),
    ReleaseLocal,
    Close,
    Evict(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Open),
        (1_u16..4).prop_map(Step::Grant),
        (1_u16..4).prop_map(Step::Adopt),
        (1_u16..4).prop_map(Step::Release),
        Just(Step::ReleaseLocal),
        Just(Step::Close),
        (1_u16..4).prop_map(Step::Evict),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

    /// LEASE-1: the book is a count by holder, whatever is done to it in whatever order, by names old and new.
    #[test]
    fn the_book_counts_like_a_table(steps in prop::collection::vec((step(), any::<prop::sample::Index>()), 1..80)) {
        let mut book = Book::default();
        let mut names: Vec<(u32, u32)> = Vec::new();
        // By name: local leases, and those of others.
        let mut table: BTreeMap<(u32, u32), (u32, BTreeMap<u16, u32>)> = BTreeMap::new();
        // How each was emptied last.
        let mut emptied: BTreeMap<(u32, u32), Emptied> = BTreeMap::new();
        let is_empty = |left| match left {
            Left::Held => None,
            Left::Empty(emptied) => Some(emptied),
        };
        for (step, which) in steps {
            if names.is_empty() || matches!(step, Step::Open) {
                let name = book.open((), Uses::new());
                prop_assert!(!names.contains(&name), "a name is never given twice");
                names.push(name);
                table.insert(name, (1, BTreeMap::new()));
                continue;
            }
            let name @ (line, life) = names[which.index(names.len())];
            let row = table.get_mut(&name);
            match step {
                Step::Open => {}
                Step::Grant(to) => {
                    prop_assert_eq!(book.grant(line, life, process(to)).is_ok(), row.is_some());
                    if let Some(row) = row {
                        *row.1.entry(to).or_default() += 1;
                    }
                }
                Step::Adopt(from) => {
                    let row = row.filter(|row| row.1.contains_key(&from));
                    prop_assert_eq!(book.adopt(line, life, process(from)).is_ok(), row.is_some());
                    if let Some(row) = row {
                        row.0 += 1;
                    }
                }
                Step::Release(from) => {
                    let row = row.filter(|row| row.1.contains_key(&from));
                    let left = row.map(|row| {
                        let count = row.1.entry(from).or_default();
                        *count -= 1;
                        if *count == 0 {
                            row.1.remove(&from);
                        }
                        row.0 == 0 && row.1.is_empty()
                    });
                    let found = book.release(line, life, process(from), &[]).ok().map(is_empty);
                    prop_assert_eq!(found.map(|found| found.is_some()), left);
                    emptied.extend(found.flatten().map(|last| (name, last)));
                }
                Step::ReleaseLocal => {
                    let row = row.filter(|row| row.0 > 0);
                    let left = row.map(|row| {
                        row.0 -= 1;
                        row.0 == 0 && row.1.is_empty()
                    });
                    let found = book.release_local(line, life, &[]).ok().map(is_empty);
                    prop_assert_eq!(found.map(|found| found.is_some()), left);
                    emptied.extend(found.flatten().map(|last| (name, last)));
                }
                Step::Close => {
                    let empty = row.is_some_and(|row| row.0 == 0 && row.1.is_empty());
                    let closed = emptied.get(&name).and_then(|last| book.close(*last));
                    prop_assert_eq!(closed.is_some(), empty);
                    if empty {
                        table.remove(&name);
                    }
                }
                Step::Evict(dead) => {
                    let expected: Vec<_> = table
                        .iter_mut()
                        .filter_map(|(name, row)| {
                            let had = row.1.remove(&dead).is_some();
                            (had && row.0 == 0 && row.1.is_empty()).then_some(*name)
                        })
                        .collect();
                    let last = book.evict(process(dead)).into_iter().map(|last| ((last.line, last.generation), last));
                    let found: BTreeMap<_, _> = last.collect();
                    prop_assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected);
                    emptied.extend(found);
                }
            }
            prop_assert_eq!(book.len(), table.len());
            for name in &names {
                let shares = table.get(name).map(|(local, others)| {
                    (*local, others.iter().map(|(slot, count)| (process(*slot), *count)).collect::<Vec<_>>())
                });
                let found = book.shares(name.0, name.1).map(|(local, mut others)| {
                    others.sort();
                    (local, others)
                });
                prop_assert_eq!(found, shares);
            }
        }
    }
}
