use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A block of this many bytes.
impl Measured for u64 {
    fn bytes(&self) -> u64 {
        *self
    }
}

fn process(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).expect("a small slot")
}

fn ticket(slot: u16, value: u64) -> Ticket {
    Ticket { process: process(1), slot, value }
}

#[track_caller]
fn emptied(left: Result<Remaining, LeaseTableError>) -> Emptied {
    match left {
        Ok(Remaining::Empty(emptied)) => emptied,
        other => panic!("somebody holds it: {other:?}"),
    }
}

#[test]
fn a_line_closes_when_the_last_lease_is_back_and_once() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open(5_u64, Uses::new());
    table.grant(entry, life, process(1)).unwrap();
    table.grant(entry, life, process(1)).unwrap();
    assert_eq!(table.release_local(entry, life, &[]), Ok(Remaining::Held));
    assert_eq!(table.release(entry, life, process(1), &[]), Ok(Remaining::Held));
    let last = emptied(table.release(entry, life, process(1), &[]));
    assert_eq!(table.len(), 1, "empty is not closed (LEASE-3)");
    assert_eq!(table.close(last), Some((5, Uses::new())));
    assert_eq!(table.close(last), None);
    assert!(table.is_empty());
}

/// LEASE-3: between the two looks, the next holder came.
#[test]
fn a_hold_after_the_first_look_keeps_the_line_open() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    table.grant(entry, life, process(1)).unwrap();
    table.release_local(entry, life, &[]).unwrap();
    let first = emptied(table.release(entry, life, process(1), &[]));
    table.grant(entry, life, process(2)).unwrap();
    assert_eq!(table.close(first), None);
    let second = emptied(table.release(entry, life, process(2), &[]));
    // Another holder may have come between the two, and the thread that drained the first release does not
    // know of it.
    assert_eq!(table.close(first), None, "it was emptied anew");
    assert!(table.close(second).is_some());
}

#[test]
fn an_old_name_means_nothing() {
    let mut table = LeaseTable::default();
    let (entry, old) = table.open(1, Uses::new());
    let last = emptied(table.release_local(entry, old, &[]));
    table.close(last).unwrap();
    let (again, new) = table.open(2, Uses::new());
    assert_eq!(again, entry, "an entry is used again");
    let unknown = Err(LeaseTableError::Unknown { entry, generation: old });
    assert_eq!(table.grant(entry, old, process(1)).map(drop), unknown);
    assert_eq!(table.adopt(entry, old, process(1)), unknown);
    assert_eq!(table.release(entry, old, process(1), &[]).map(drop), unknown);
    assert_eq!(table.release_local(entry, old, &[]).map(drop), unknown);
    assert_eq!((table.block(entry, old), table.block(entry, new)), (None, Some(&2)));
    assert!(
        table.close(last).is_none() && !table.is_sole(entry, old, None) && table.is_sole(entry, new, None)
    );
    assert_eq!(
        table.grant(entry + 1, 1, process(1)),
        Err(LeaseTableError::Unknown { entry: entry + 1, generation: 1 })
    );
}

#[test]
fn nobody_gives_back_or_sends_what_it_has_not() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    table.grant(entry, life, process(1)).unwrap();
    let not_held = LeaseTableError::NotHeld { process: process(2), entry, count: 1, held: 0 };
    assert_eq!(table.release(entry, life, process(2), &[ticket(0, 9)]), Err(not_held));
    assert_eq!(table.adopt(entry, life, process(2)), Err(not_held));
    assert_eq!(table.shares(entry, life), Some((1, vec![(process(1), 1)])));
    assert!(table.uses(entry, life).is_empty(), "a lie leaves no use behind");
    table.adopt(entry, life, process(1)).unwrap();
    assert_eq!(table.shares(entry, life), Some((2, vec![(process(1), 1)])));
}

#[test]
fn of_each_clock_the_latest_use_is_kept() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::from_slice(&[ticket(0, 5)]));
    for (slot, value) in [(0, 4), (1, 7), (0, 8), (1, 7), (2, u64::MAX), (2, 3)] {
        table.grant(entry, life, process(1)).unwrap();
        table.release(entry, life, process(1), &[ticket(slot, value)]).unwrap();
    }
    // Clock values wrap around: three comes after the largest number.
    let uses = [ticket(0, 8), ticket(1, 7), ticket(2, 3)];
    assert_eq!(table.uses(entry, life).as_slice(), uses);
    let last = emptied(table.release_local(entry, life, &[]));
    assert_eq!(table.close(last).unwrap().1.as_slice(), uses);
}

#[test]
fn sole_is_who_has_the_only_lease() {
    let mut table = LeaseTable::default();
    let (entry, life) = table.open((), Uses::new());
    let (one, two) = (process(1), process(2));
    assert!(table.is_sole(entry, life, None) && !table.is_sole(entry, life, Some(one)));
    table.grant(entry, life, one).unwrap();
    // The sender's own local lease is dropped behind the grant.
    assert!(!table.is_sole(entry, life, None) && table.is_sole(entry, life, Some(one)));
    table.grant(entry, life, two).unwrap();
    assert!(!table.is_sole(entry, life, Some(one)) && !table.is_sole(entry, life, Some(two)));
    table.release(entry, life, two, &[]).unwrap();
    table.grant(entry, life, one).unwrap();
    assert!(!table.is_sole(entry, life, Some(one)), "it has two");
}

/// LEASE-4: eviction drops the leases of a dead holder from every entry.
#[test]
fn a_dead_holder_leaves_every_line() {
    let mut table = LeaseTable::default();
    let entries: Vec<_> = (0_u64..4).map(|n| table.open(n, Uses::new())).collect();
    for (n, (entry, life)) in entries.iter().enumerate() {
        for shared in 0..n {
            assert_eq!(table.grant(*entry, *life, process(1)), Ok(shared > 0), "every grant after the first");
        }
        if n != 2 {
            table.release_local(*entry, *life, &[]).unwrap();
        }
    }
    table.grant(entries[3].0, entries[3].1, process(2)).unwrap();
    let found: Vec<_> = table.evict(process(1)).iter().map(|left| (left.entry, left.generation)).collect();
    assert_eq!(found, [entries[1]], "two has a local lease, three another holder");
    assert_eq!(table.shares(entries[3].0, entries[3].1), Some((0, vec![(process(2), 1)])));
    assert!(table.evict(process(1)).is_empty());
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

    /// LEASE-1: the lease table counts leases by holder, for every sequence of operations, under current and
    /// outdated names.
    #[test]
    fn the_lease_table_counts_like_a_map(steps in prop::collection::vec((step(), any::<prop::sample::Index>()), 1..80)) {
        let mut table = LeaseTable::default();
        let mut names: Vec<(u32, u32)> = Vec::new();
        // By name: local leases, and those of others.
        let mut model: BTreeMap<(u32, u32), (u32, BTreeMap<u16, u32>)> = BTreeMap::new();
        // How each entry was emptied last.
        let mut emptied: BTreeMap<(u32, u32), Emptied> = BTreeMap::new();
        let is_empty = |left| match left {
            Remaining::Held => None,
            Remaining::Empty(emptied) => Some(emptied),
        };
        for (step, which) in steps {
            if names.is_empty() || matches!(step, Step::Open) {
                let name = table.open(names.len() as u64, Uses::new());
                let newest = table.by_age().last().map(|entry| *entry.block);
                prop_assert_eq!(newest, Some(names.len() as u64));
                prop_assert!(!names.contains(&name), "a name is never given twice");
                names.push(name);
                model.insert(name, (1, BTreeMap::new()));
                continue;
            }
            let name @ (entry, life) = names[which.index(names.len())];
            let row = model.get_mut(&name);
            match step {
                Step::Open => {}
                Step::Grant(to) => {
                    prop_assert_eq!(table.grant(entry, life, process(to)).is_ok(), row.is_some());
                    if let Some(row) = row {
                        *row.1.entry(to).or_default() += 1;
                    }
                }
                Step::Adopt(from) => {
                    let row = row.filter(|row| row.1.contains_key(&from));
                    prop_assert_eq!(table.adopt(entry, life, process(from)).is_ok(), row.is_some());
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
                    let found = table.release(entry, life, process(from), &[]).ok().map(is_empty);
                    prop_assert_eq!(found.map(|found| found.is_some()), left);
                    emptied.extend(found.flatten().map(|last| (name, last)));
                }
                Step::ReleaseLocal => {
                    let row = row.filter(|row| row.0 > 0);
                    let left = row.map(|row| {
                        row.0 -= 1;
                        row.0 == 0 && row.1.is_empty()
                    });
                    let found = table.release_local(entry, life, &[]).ok().map(is_empty);
                    prop_assert_eq!(found.map(|found| found.is_some()), left);
                    emptied.extend(found.flatten().map(|last| (name, last)));
                }
                Step::Close => {
                    let empty = row.is_some_and(|row| row.0 == 0 && row.1.is_empty());
                    let closed = emptied.get(&name).and_then(|last| table.close(*last));
                    prop_assert_eq!(closed.is_some(), empty);
                    if empty {
                        model.remove(&name);
                    }
                }
                Step::Evict(dead) => {
                    let expected: Vec<_> = model
                        .iter_mut()
                        .filter_map(|(name, row)| {
                            let had = row.1.remove(&dead).is_some();
                            (had && row.0 == 0 && row.1.is_empty()).then_some(*name)
                        })
                        .collect();
                    let last = table.evict(process(dead)).into_iter().map(|last| ((last.entry, last.generation), last));
                    let found: BTreeMap<_, _> = last.collect();
                    prop_assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected);
                    emptied.extend(found);
                }
            }
            prop_assert_eq!(table.len(), model.len());
            // The sums kept beside the entries agree with a walk through all of them.
            let sum = |has: &dyn Fn(&EntryReport<'_, u64>) -> bool| {
                let sum = |sum: Sum, entry: EntryReport<'_, u64>| {
                    Sum { bytes: sum.bytes + entry.block, tensors: sum.tensors + 1 }
                };
                table.report().filter(|entry| has(entry)).fold(Sum::default(), sum)
            };
            prop_assert_eq!(table.open_sum(), sum(&|_| true));
            prop_assert_eq!(table.local_sum(), sum(&|entry| entry.local > 0));
            prop_assert_eq!(table.lent_sum(), sum(&|entry| !entry.holders.is_empty()));
            for slot in 1..4 {
                let kept = table.sums_of_others().find(|(holder, _)| *holder == process(slot));
                let held = sum(&|entry| entry.holders.iter().any(|(holder, _)| *holder == process(slot)));
                prop_assert_eq!(kept.map_or(Sum::default(), |(_, sum)| sum), held);
            }
            let ages: Vec<_> = table.by_age().map(|entry| *entry.block).collect();
            prop_assert!(ages.is_sorted(), "from the oldest on: {:?}", ages);
            prop_assert_eq!(ages.len(), model.len());
            for name in &names {
                let shares = model.get(name).map(|(local, others)| {
                    (*local, others.iter().map(|(slot, count)| (process(*slot), *count)).collect::<Vec<_>>())
                });
                let found = table.shares(name.0, name.1).map(|(local, mut others)| {
                    others.sort();
                    (local, others)
                });
                prop_assert_eq!(found, shares);
            }
        }
    }
}
