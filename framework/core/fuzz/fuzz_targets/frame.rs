//! Any bytes as a frame (WIRE-1): parsing, tensors over its leases, and its body as a message. The checksum
//! is made right half of the time, or nothing behind it would ever be reached.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use tensorpost_core::lease::Lease;
use tensorpost_core::message::codec;
use tensorpost_core::message::wire::{Frame, Tables};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::{Cluster, forge};

#[derive(Deserialize)]
#[expect(dead_code, reason = "decoded, and not looked at")]
enum Message {
    Nothing,
    One(Tensor),
    Many { tensors: Vec<Option<Tensor>>, names: std::collections::BTreeMap<String, (u8, f64)> },
    Deeper(Box<Message>),
}

thread_local! {
    /// Real leases for the tensors to stand on, of 0, 4 and 4096 bytes.
    static LEASES: RefCell<Option<(Cluster, Vec<Lease>)>> = const { RefCell::new(None) };
}

fn look(frame: &Frame<'_>) {
    LEASES.with_borrow_mut(|leases| {
        let (_, leases) = leases.get_or_insert_with(|| {
            let cluster = Cluster::new(1);
            let lease = |bytes| {
                cluster.stream(0).zeros(DType::U8, &[bytes]).expect("memory").freeze().lease().clone()
            };
            let leases = [0, 4, 4096].map(lease).to_vec();
            (cluster, leases)
        });
        let entries: Vec<_> =
            (0..frame.leases.len()).map(|n| (leases[n % leases.len()].clone(), None)).collect();
        let Ok(tensors) = codec::testing_tensors(&entries, frame.tensors) else { return };
        for tensor in &tensors {
            // Every accepted tensor lies in its allocation.
            let span = tensor.layout().bytes_span(tensor.dtype()).expect("it was checked");
            assert!(span.end as u64 <= tensor.lease().bytes());
            if tensor.len() < 1 << 16 {
                let _ = tensor.to_vec::<f32>();
                let _ = tensor.to_vec::<u8>();
                let _ = tensor.to_vec::<bool>();
            }
        }
        let _ = codec::decode::<Message>(frame.body, tensors, None);
    });
}

fuzz_target!(|data: &[u8]| {
    let Some((how, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if how & 1 == 1 {
        forge::seal(&mut bytes, 0);
    }
    if let Ok(frame) = Frame::parse(&bytes, &mut Tables::default(), 0) {
        look(&frame);
    }
});
