//! The memory of two processes' traces with anything in it, as the node reads it and makes the file (WIRE-1,
//! MBX-2).

#![no_main]

mod growth;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tensorpost_watch::testing::Rings;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Words of small numbers, so that records meet.
    Record {
        who: u8,
        kind: u8,
        form: u8,
        took: u16,
        at: u8,
        track: u8,
        rest: [u8; 4],
    },
    /// Any words.
    Words {
        who: u8,
        words: [u64; 7],
        stamped: bool,
    },
    /// A record that begins at any time.
    Late {
        who: u8,
        kind: u8,
        at: u64,
        took: u64,
    },
    Names {
        who: u8,
        bytes: Vec<u8>,
        len: u16,
    },
    /// A name as it has to be, nearly.
    Name {
        who: u8,
        of: u8,
        id: u8,
        text: String,
    },
    Cursor {
        who: u8,
        to: u64,
    },
}

thread_local! {
    static RINGS: Rings = Rings::create();
}

fn take(rings: &Rings, step: Step) {
    match step {
        Step::Record { who, kind, form, took, at, track, rest } => {
            let head = u64::from(kind % 12) | u64::from(form % 6) << 8 | u64::from(took) << 16;
            let track = u64::from(track % 4) << 56 | u64::from(track / 4 % 4);
            let [a, b, c, d] = rest.map(|word| u64::from(word % 5));
            rings.record(who, [head, at.into(), track, a, b, c, d], true);
        }
        Step::Words { who, words, stamped } => rings.record(who, words, stamped),
        Step::Late { who, kind, at, took } => {
            let head = u64::from(kind % 11) | 1 << 8 | took << 16;
            rings.record(who, [head, at, 1 << 56 | 1, 0, 0, 0, 0], true);
        }
        Step::Names { who, bytes, len } => rings.names(who, &bytes, len.into()),
        Step::Name { who, of, id, text } => {
            let mut line = (u64::from(of % 6) << 32 | text.len() as u64).to_ne_bytes().to_vec();
            line.extend_from_slice(&u64::from(id % 8).to_ne_bytes());
            line.extend_from_slice(text.as_bytes());
            line.resize(line.len().next_multiple_of(8), 0);
            rings.names(who, &line, line.len() as u64);
        }
        Step::Cursor { who, to } => rings.cursor(who, to),
    }
}

fuzz_target!(|input: (u64, Option<u64>, Vec<Step>)| {
    let (now, ended, steps) = input;
    RINGS.with(|rings| {
        rings.clear();
        // 128 records and their names, each as an event, as JSON and as JSON read back; twice the 64 KiB of
        // names.
        growth::bounded(4 << 20, 1 << 16, || {
            for step in steps.into_iter().take(160) {
                take(rings, step);
            }
            rings.look(now, ended);
        });
    });
});
