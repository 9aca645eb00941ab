//! Spare workers on a device: they have opened it, and under MPS they share the fate of its clients.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorpost::node::{Sharing, Spawned, WorkerId, WorkerState, WorkerStatus};
use tensorpost::prelude::*;
use tensorpost_tests::harness::Builder;
use tensorpost_tests::wait::until;

use crate::device;
use crate::faults::{Doubler, doubles, doubles_at_last};

const SOON: Restart = Restart::on_failure(5).backoff(Duration::from_millis(1), Duration::from_millis(5));

fn status(node: &Node, worker: WorkerId) -> WorkerStatus {
    node.supervisor().worker(worker).expect("it was started")
}

/// The process that waits for it, when it is ready.
fn until_spare(node: &Node, doubler: &Spawned<Doubler>) -> u32 {
    let is_ready = WorkerState::Spare { of: doubler.worker(), ready: true };
    let mut pid = None;
    until("there is a spare", || {
        pid = node.workers().into_iter().find(|worker| worker.state == is_ready).map(|spare| spare.pid);
        pid.is_some()
    });
    pid.expect("it was found")
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), Signal::KILL).expect("it runs");
}

/// Kills its process while a spare waits, and says when it serves again. The process, and that of the spare.
fn killed_and_back(node: &Node, stream: &DeviceStream, doubler: &Spawned<Doubler>) -> (u32, u32) {
    doubles(node, stream, &doubler.address());
    let (before, spare) = (status(node, doubler.worker()).pid, until_spare(node, doubler));
    let start = Instant::now();
    kill(before);
    doubles_at_last(node, stream, &doubler.address(), 1);
    println!("it serves again after {:?}", start.elapsed());
    (before, spare)
}

pub(crate) fn a_worker_goes_on_in_a_spare_that_has_opened_the_device(builder: Builder) {
    let (device, _) = device();
    let node = builder.start().unwrap();
    let stream = node.stream(&device).unwrap();
    let doubler = node.spawn::<Doubler>(()).device(device).restart(SOON).spares(1).start().unwrap();
    for _ in 0..2 {
        let (_, spare) = killed_and_back(&node, &stream, &doubler);
        assert_eq!(status(&node, doubler.worker()).pid, spare);
    }
}

/// DEATH-2: a spare is a client of the server that its worker may have taken down.
pub(crate) fn spares_end_with_their_mps_group_and_are_replaced(builder: Builder) {
    let (device, is_gpu) = device();
    if !is_gpu {
        println!("the host has no MPS");
        return;
    }
    let node = builder.sharing(Sharing::Mps).start().unwrap();
    let stream = node.stream(&device).unwrap();
    let doubler = node.spawn::<Doubler>(()).device(device).restart(SOON).spares(1).start().unwrap();
    for restarts in 1..=2 {
        let (before, spare) = killed_and_back(&node, &stream, &doubler);
        let now = status(&node, doubler.worker());
        assert!(now.pid != before && now.pid != spare && now.restarts == restarts, "{now:?}");
        assert_ne!(until_spare(&node, &doubler), spare);
    }
}
