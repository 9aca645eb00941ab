use proptest::prelude::*;
use tensorpost_core::api::actor::ActorId;

use super::*;

/// Returns the events of this host alone.
fn events(processes: &[Process], now: u64) -> Vec<Event> {
    super::events([(None, processes, now)])
}

fn process(slot: u16, records: Vec<Record>) -> Process {
    let id = ProcessId::new(slot, 0).unwrap();
    let names = HashMap::from([((Of::Message, 7), "Frame".to_owned()), ((Of::Actor, 1), "blur".to_owned())]);
    let seen = Snapshot { records, names, ..Snapshot::default() };
    let (name, pid) = (format!("worker-{slot}"), 100 + u32::from(slot));
    Process { of: TracedProcess { process: id, name, pid, since: 1, is_new: true, ended: None }, seen }
}

fn record(at: u64, what: What) -> Record {
    Record { at, track: Track::Actor(ActorId(1)), what }
}

fn peer(slot: u16) -> ProcessId {
    ProcessId::new(slot, 0).unwrap()
}

fn sent(at: u64, to: u16, end: u64) -> Record {
    let frame = FrameId { peer: peer(to), end };
    record(at, What::Sent { form: Form::Send, key: 7, frame, bytes: 10, took: 5 })
}

fn delivered(at: u64, from: u16, end: u64) -> Record {
    let frame = FrameId { peer: peer(from), end };
    record(at, What::Delivered { form: Form::Send, key: 7, frame, actor: ActorId(1), took: 5 })
}

fn handled(at: u64, took: u64, frame: Option<FrameId>) -> Record {
    record(at, What::HandlerEnded { key: 7, frame, took })
}

fn flow_steps(events: &[Event]) -> Vec<(Step, u32, u64, u64)> {
    let flow = |event: &Event| match event {
        Event::Flow { step, pid, at, id, .. } => Some((*step, *pid, *at, *id)),
        _ => None,
    };
    events.iter().filter_map(flow).collect()
}

fn slices(events: &[Event]) -> Vec<(u64, u64, &str)> {
    let slice = |event: &'_ Event| match event {
        Event::Slice { at, took, .. } => Some((*at, *took)),
        _ => None,
    };
    let names = events.iter().filter_map(|event| match event {
        Event::Slice { name, .. } => Some(name.as_str()),
        _ => None,
    });
    events.iter().filter_map(slice).zip(names).map(|((at, took), name)| (at, took, name)).collect()
}

#[test]
fn a_send_is_linked_to_its_delivery_and_its_handler_in_the_other_process() {
    let frame = FrameId { peer: peer(1), end: 64 };
    let events = events(
        &[
            process(1, vec![sent(10, 2, 64), sent(30, 2, 128)]),
            process(2, vec![delivered(20, 1, 64), handled(25, 3, Some(frame)), delivered(40, 1, 128)]),
        ],
        100,
    );
    use Step::{Begin, End, Middle};
    assert_eq!(
        flow_steps(&events),
        [(Begin, 1, 10, 1), (Middle, 2, 20, 1), (End, 2, 25, 1), (Begin, 1, 30, 2), (End, 2, 40, 2)]
    );
    assert!(events.iter().any(|event| matches!(event, Event::Name { name, .. } if name == "actor blur")));
    assert!(slices(&events).contains(&(25, 3, "Frame")));
}

// WIRE-1: an arrow without a beginning, back in time, or a second one, is dropped.
#[test]
fn no_arrow_is_made_of_half_a_way_or_of_a_lie() {
    let frame = FrameId { peer: peer(1), end: 64 };
    let only_end = [process(2, vec![delivered(20, 1, 64), handled(25, 3, Some(frame))])];
    assert_eq!(flow_steps(&events(&only_end, 100)), []);
    let only_start = [process(1, vec![sent(10, 2, 64)])];
    assert_eq!(flow_steps(&events(&only_start, 100)), []);
    let back = [process(1, vec![sent(50, 2, 64)]), process(2, vec![delivered(20, 1, 64)])];
    assert_eq!(flow_steps(&events(&back, 100)), []);
    let twice =
        [process(1, vec![sent(10, 2, 64)]), process(2, vec![delivered(20, 1, 64), delivered(30, 1, 64)])];
    assert_eq!(flow_steps(&events(&twice, 100)).len(), 2);
}

// WIRE-1: for any records, slices lie inside each other or apart.
#[test]
fn slices_that_overlap_are_cut() {
    let records = vec![
        handled(10, 20, None),
        handled(20, 50, None),
        handled(20, 2, None),
        handled(21, u64::MAX >> 16, None),
    ];
    let events = events(&[process(1, records)], 100);
    assert_eq!(
        slices(&events).iter().map(|(at, took, _)| (*at, *took)).collect::<Vec<_>>(),
        [(10, 20), (20, 10), (20, 2), (21, 1)]
    );
}

#[test]
fn a_handler_that_did_not_end_lasts_until_its_process_did() {
    let began = |at, key| record(at, What::HandlerBegan { key, frame: None });
    let mut victim = process(1, vec![began(5, 7), handled(5, 2, None), began(10, 7)]);
    victim.of.ended = Some((60, "ended: signal 9".into()));
    let events = events(&[victim], 100);
    assert_eq!(slices(&events), [(5, 2, "Frame"), (10, 50, "Frame")]);
    let death =
        |event: &Event| matches!(event, Event::Instant { at: 60, name, .. } if name == "ended: signal 9");
    assert!(events.iter().any(death));
}

// WIRE-1: a worker may claim that it has begun as many handlers as its ring holds, in any order. That does
// not keep the node busy for minutes when it writes the trace.
#[test]
fn a_file_of_handlers_that_never_ended_is_made_in_time() {
    let began = |at| record(at, What::HandlerBegan { key: 7, frame: None });
    let records = (0..200_000).map(|at| if at % 2 == 0 { began(2 * at) } else { handled(2 * at, 1, None) });
    let start = std::time::Instant::now();
    let events = events(&[process(1, records.collect())], 1 << 30);
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(slices(&events).len(), 200_000);
    assert_eq!(slices(&events)[0], (0, 2, "Frame"), "until the next handler");
}

#[test]
fn leases_begin_and_end_in_pairs() {
    let lease = |entry| LeaseName { chunk: 0, entry, generation: 1 };
    let records = vec![
        record(1, What::LeaseClosed { lease: lease(9) }), // its beginning was written over
        record(2, What::LeaseOpened { lease: lease(1), bytes: 512 }),
        record(3, What::LeaseGranted { lease: lease(1), to: peer(2) }),
        record(4, What::LeaseOpened { lease: lease(2), bytes: 64 }),
        record(5, What::LeaseReturned { lease: lease(1), from: peer(2) }),
        record(6, What::LeaseClosed { lease: lease(1) }),
    ];
    let events = events(&[process(1, records)], 100);
    let steps: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Async { step, at, name, .. } => Some((*at, *step, name.as_str())),
            _ => None,
        })
        .collect();
    use Step::{Begin, End, Middle};
    assert_eq!(
        steps,
        [
            (2, Begin, "lease"),
            (3, Middle, "granted"),
            (4, Begin, "lease"),
            (5, Middle, "returned"),
            (6, End, "lease"),
            (100, End, "lease")
        ]
    );
}

#[test]
fn rows_have_numbers_of_their_own_in_the_whole_file() {
    let events = events(&[process(1, vec![handled(1, 1, None)]), process(2, vec![handled(1, 1, None)])], 9);
    let tids: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Name { pid, tid: Some(tid), .. } => Some((*pid, *tid)),
            _ => None,
        })
        .collect();
    assert_eq!(tids, [(1, 1), (2, 2)]);
}

// WIRE-1: a process may note anything, in any order; the result is a file that readers take.
proptest! {
    #[test]
    fn whatever_the_records_say_the_events_are_well_formed(
        noted in proptest::collection::vec(proptest::collection::vec(any_record(), 0..60), 1..4),
        now in 0..200u64,
    ) {
        let processes: Vec<_> =
            noted.into_iter().enumerate().map(|(index, records)| process(index as u16, records)).collect();
        let events = events(&processes, now);
        let mut around: HashMap<u32, Vec<u64>> = HashMap::new();
        let (mut flows, mut lasting) = (HashMap::new(), HashMap::new());
        for event in events {
            match event {
                Event::Slice { tid, at, took, .. } => {
                    let around = around.entry(tid).or_default();
                    while around.last().is_some_and(|end| *end <= at) {
                        around.pop();
                    }
                    prop_assert!(took > 0 && around.last().is_none_or(|end| at + took <= *end));
                    around.push(at + took);
                }
                Event::Flow { step, tid, at, id, .. } => {
                    prop_assert!(around.get(&tid).is_some_and(|around| around.iter().any(|end| *end > at)));
                    let before = flows.insert(id, (step, at));
                    prop_assert_eq!(before.is_none(), step == Step::Begin);
                    prop_assert!(before.is_none_or(|(before, then)| before != Step::End && then <= at));
                }
                Event::Async { step, id, .. } => match step {
                    Step::Begin => prop_assert!(lasting.insert(id, ()).is_none()),
                    Step::Middle => prop_assert!(lasting.contains_key(&id)),
                    Step::End => prop_assert!(lasting.remove(&id).is_some()),
                },
                _ => {}
            }
        }
        prop_assert!(flows.values().all(|(step, _)| *step == Step::End), "every arrow ends");
        prop_assert!(lasting.is_empty(), "everything that began has ended");
    }
}

/// Few different values are used, so that records meet.
fn any_record() -> impl Strategy<Value = Record> {
    let words = (1..=10u64, 0..=4u64, 0..50u64, prop_oneof![1 => Just(1 << 56 | 1), 1 => Just(2 << 56 | 1)]);
    let rest = (0..3u64, 0..3u64, 0..3u64, 0..3u64, 0..60u64);
    (words, rest).prop_filter_map("no record", |((kind, form, took, track), (a, b, c, d, at))| {
        Record::from_words([kind | form << 8 | took << 16, at, track, a, b, c, d])
    })
}
