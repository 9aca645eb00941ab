//! WIRE-1 against a sender that changes a body while it is read: a large body lies in memory that the sender
//! can write.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Deserializer, Serialize};
use tensorpost_core::limits::MAX_INLINE_BODY;
use tensorpost_core::testing::Cluster;

/// How many bodies were found in memory that a sender writes, and changed there.
static CHANGED: AtomicUsize = AtomicUsize::new(0);

const PATTERN: &[u8] = b"the sender of this one has it in mind to change it ";

/// A field that is read first, and that gives the sender its chance to change the rest.
#[derive(Serialize)]
struct Moment(u8);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let moment = u8::deserialize(from)?;
        CHANGED.fetch_add(change(), Relaxed);
        Ok(Moment(moment))
    }
}

#[derive(Serialize, Deserialize)]
struct Changing {
    moment: Moment,
    rest: Vec<u8>,
}

/// Changes each body in shared memory that this process can write. In a cluster of one process, every member
/// can.
fn change() -> usize {
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("its memory");
    let maps = fs::read_to_string("/proc/self/maps").expect("its mappings");
    let mut changed = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("memfd:")) {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let from = u64::from_str_radix(from, 16).expect("an address");
        let to = u64::from_str_radix(to, 16).expect("an address");
        // Goes page by page: a ring's mapping is longer than its file.
        for page in (from..to).step_by(4096) {
            let mut bytes = [0; 4096];
            if memory.read_exact_at(&mut bytes, page).is_err() {
                continue;
            }
            if bytes.windows(PATTERN.len()).any(|window| window == PATTERN) {
                memory.write_all_at(&[1; 4096], page).expect("it is written");
                changed += 1;
            }
        }
    }
    changed
}

#[test]
fn a_large_body_is_read_as_it_was_sent() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<Changing>(1, 8);
    cluster.connect();
    let rest = PATTERN.repeat(4 * MAX_INLINE_BODY / PATTERN.len());
    cluster.send(0, &to, Changing { moment: Moment(7), rest: rest.clone() });
    cluster.run_until_idle();
    let read = inbox.take_one().message;
    assert!(CHANGED.load(Relaxed) > 32, "the sender has changed it: {CHANGED:?} pages");
    assert!(read.moment.0 == 7 && read.rest == rest, "what was read has changed");
    // The sender can use the memory again once it was given back.
    drop(inbox);
    cluster.run_until_idle();
}
