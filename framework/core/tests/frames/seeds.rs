//! The seeds for `fuzz/` are real frames, as a sender writes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;

use serde::Serialize;
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::{Cluster, forge};

/// As in `fuzz/fuzz_targets/frame.rs`.
#[derive(Serialize)]
enum Message {
    Nothing,
    One(Tensor),
    Many { tensors: Vec<Option<Tensor>>, names: BTreeMap<String, (u8, f64)> },
    Deeper(Box<Message>),
}

/// If this variable is set, the test writes the seeds; otherwise it compares them.
const WRITE: &str = "TENSORPOST_WRITE_SEEDS";

#[test]
fn the_seeds_of_the_fuzzers_are_what_is_sent_today() {
    let cluster = Cluster::new(2);
    let (to, inbox) = cluster.inbox::<u8>(1, 64);
    cluster.connect();
    let tensor = |shape: &[usize]| {
        let tensor = cluster.stream(0).zeros(DType::U8, shape).expect("memory").freeze();
        // A frame says which clocks to wait for. Here it names none, so that the seeds are the same every
        // time.
        tensor.to_vec::<u8>().expect("zeros");
        tensor
    };
    let names = BTreeMap::from([("a".into(), (1, 1.5)), ("b".into(), (2, -0.0))]);
    let messages = [
        ("nothing", Message::Nothing),
        ("one", Message::One(tensor(&[0]))),
        ("many", Message::Many { tensors: vec![Some(tensor(&[0, 3])), None, Some(tensor(&[2, 2]))], names }),
        ("deeper", Message::Deeper(Box::new(Message::Deeper(Box::new(Message::One(tensor(&[64, 64]))))))),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/frame");
    for (name, message) in messages {
        let (send, written) = channel();
        cluster.tamper_next(0, 1, move |frame| send.send(frame.clone()).expect("the test lives"));
        cluster.send(0, &to.of(), message);
        let mut frame = written.recv().expect("it was written");
        // Sealed as the first frame of its ring, because the fuzz target takes it for that.
        forge::seal(&mut frame, 0);
        // The first byte tells the target whether to correct the checksum.
        let seed = [&[0], frame.as_slice()].concat();
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(folder.join(name), &seed).expect("a seed is written");
        }
        let committed = std::fs::read(folder.join(name)).expect("a seed of that name");
        assert!(committed == seed, "the form of a frame has changed: set {WRITE} to write `{name}` again");
        cluster.run_until_idle();
        assert!(inbox.is_empty());
    }
}
