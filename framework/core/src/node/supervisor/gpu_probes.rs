//! Finds out whether a worker that was killed took its GPU with it, under MPS.
//!
//! A client that is killed in the middle of a kernel costs all other clients of its server their context. A
//! client that is killed between two kernels, or while its streams wait, costs them nothing. Only the other
//! clients can tell the two cases apart. They lose their context before the node sees the end of the dead
//! process (30 ms before, on an H100), and the driver refuses the next work that they put on the GPU. An idle
//! stream shows nothing, however often one asks the driver.
//!
//! So [`GpuProbes::ask_who_has_lost`] has the workers on the dead worker's GPUs put some work on them
//! and report when it is done. The next lives of all workers that were on them wait for the reports, a few
//! milliseconds. If a worker reports instead that it has lost a GPU, all of them end as one round (`groups`),
//! and these next lives wait for that round too. A worker that is busy may report the loss before the node
//! sees the end of the dead worker: then nobody is asked.
//!
//! **Invariants.** A death that took nothing from others ends nobody and charges no restart. If a GPU is
//! lost, no client of it begins its next life before the last of the old clients has ended: the server
//! refuses a client that starts earlier.
//!
//! **If a worker does not answer**, the supervisor waits for [`GPU_LOOK_PATIENCE`]: the worker may be
//! stopped, or wait in the driver. If it has lost the GPU, it finds that when it goes on, and reports it
//! then. **When it ends**, the supervisor waits for it no longer. A peer that lies (WIRE-1) can report a lost
//! GPU, as it can at any time, and costs the workers that share the GPU a restart;
//! [`Sharing::Mps`](crate::node::Sharing::Mps) says what sharing means.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::ids::{DeviceId, ProcessId};
use crate::node::control::Down;
use crate::node::limits::GPU_LOOK_PATIENCE;

use super::WorkerId;
use super::node_state::NodeState;
use super::part::Part;
use super::record::Worker;
use super::run::SupervisorState;

/// The question that one death causes.
struct GpuProbe {
    number: u64,
    gpus: HashSet<DeviceId>,
    /// Why others end if a GPU is lost, and when the next lives begin.
    text: String,
    at: Instant,
    /// The processes that have not answered.
    asked: HashSet<ProcessId>,
    until: Instant,
}

/// The open questions.
#[derive(Default)]
pub(super) struct GpuProbes {
    last: u64,
    pending: Vec<GpuProbe>,
}

impl Part for GpuProbes {
    fn next_event(&self) -> Option<Instant> {
        self.pending.iter().map(|probe| probe.until).min()
    }

    /// Goes on without the processes that have not answered in time.
    fn tick(&mut self, now: Instant) {
        self.pending.retain(|probe| probe.until > now);
    }

    fn stalled(&mut self, lost: Duration) {
        self.pending.iter_mut().for_each(|probe| probe.until += lost);
    }

    fn left(&mut self, process: ProcessId) {
        self.pending.iter_mut().for_each(|probe| probe.asked.retain(|asked| *asked != process));
        self.drop_done();
    }
}

impl GpuProbes {
    /// Whether a question about any of these GPUs is open.
    fn are_about(&self, gpus: &HashSet<DeviceId>) -> bool {
        self.pending.iter().any(|probe| !probe.gpus.is_disjoint(gpus))
    }

    /// Takes a process's answer.
    pub(super) fn answered(&mut self, process: ProcessId, number: u64) {
        let of_it = self.pending.iter_mut().filter(|probe| probe.number == number);
        of_it.for_each(|probe| probe.asked.retain(|asked| *asked != process));
        self.drop_done();
    }

    fn drop_done(&mut self) {
        self.pending.retain(|probe| !probe.asked.is_empty());
    }

    /// Takes the open questions about any of these GPUs. Returns all GPUs of these questions, why others end,
    /// and when the next lives begin.
    fn take_about(&mut self, gpus: &HashSet<DeviceId>) -> Option<(HashSet<DeviceId>, String, Instant)> {
        let mut about = gpus.clone();
        let mut taken: Vec<GpuProbe> = Vec::new();
        // It ends because each turn takes one question.
        while let Some(at) = self.pending.iter().position(|probe| !probe.gpus.is_disjoint(&about)) {
            let probe = self.pending.swap_remove(at);
            about.extend(&probe.gpus);
            taken.push(probe);
        }
        let at = taken.iter().map(|probe| probe.at).max()?;
        let text = taken.into_iter().min_by_key(|probe| probe.number)?.text;
        Some((about, text, at))
    }
}

impl SupervisorState {
    /// Handles a worker's report that it has lost a GPU. If a question about a death on that GPU is open,
    /// that death took the GPU: all its clients end together.
    pub(super) fn has_lost_gpu(&mut self, index: usize) {
        let Some(worker) = self.node.workers.at(index) else { return };
        if let Some((gpus, text, at)) = self.gpu_probes.take_about(&worker.gpus) {
            self.gpus_were_lost(&gpus, &text, at);
        }
    }
}

impl GpuProbes {
    /// Asks the workers on the GPUs of a worker that was killed whether they have lost them. If so, they end
    /// because of `text`, and the next lives begin at `at`. If no worker can be asked, the workers that are
    /// opening these GPUs are ended, and their rounds are returned.
    pub(super) fn ask_who_has_lost(
        &mut self,
        node: &mut NodeState,
        dead: &Worker,
        text: &str,
        at: Instant,
    ) -> Vec<u64> {
        let number = self.last + 1;
        let (mut asked, mut opening) = (HashSet::new(), HashSet::new());
        for worker in node.workers.iter_mut() {
            let shares = !worker.gpus.is_disjoint(&dead.gpus) && worker.process != dead.process;
            if !shares || !worker.can_go_on() {
                continue;
            }
            if worker.is_running() {
                worker.send(&Down::LookAtGpus { number }, Vec::new());
                asked.insert(worker.process);
            } else {
                opening.insert(worker.id);
            }
        }
        if asked.is_empty() {
            return node.end_together(opening, at, text, true);
        }
        self.last = number;
        let (gpus, text, until) = (dead.gpus.clone(), text.to_owned(), Instant::now() + GPU_LOOK_PATIENCE);
        self.pending.push(GpuProbe { number, gpus, text, at, asked, until });
        Vec::new()
    }

    /// Whether a worker between two lives waits for answers about its GPUs.
    pub(super) fn waits_for_gpus(&self, node: &NodeState, worker: WorkerId) -> bool {
        !self.pending.is_empty() && self.are_about(&node.restarts.devices_of(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(slot: u16) -> ProcessId {
        ProcessId::new(slot, 0).unwrap()
    }

    fn gpus(of: u8) -> HashSet<DeviceId> {
        HashSet::from([DeviceId([of; 16])])
    }

    fn probe(number: u64, gpu: u8, asked: &[u16], now: Instant) -> GpuProbe {
        GpuProbe {
            number,
            gpus: gpus(gpu),
            text: format!("death {number}"),
            at: now + Duration::from_millis(number),
            asked: asked.iter().map(|slot| process(*slot)).collect(),
            until: now + Duration::from_secs(number),
        }
    }

    #[test]
    fn a_next_life_waits_until_all_have_answered_or_ended_or_time_is_up() {
        let now = Instant::now();
        let mut probes =
            GpuProbes { last: 3, pending: vec![probe(1, 1, &[1, 2], now), probe(2, 2, &[1], now)] };
        assert_eq!(probes.next_event(), Some(now + Duration::from_secs(1)));
        probes.answered(process(1), 3);
        probes.answered(process(3), 1);
        probes.answered(process(1), 1);
        assert!(probes.are_about(&gpus(1)) && probes.are_about(&gpus(2)) && !probes.are_about(&gpus(3)));
        probes.left(process(1));
        assert!(probes.are_about(&gpus(1)) && !probes.are_about(&gpus(2)));
        probes.stalled(Duration::from_secs(1));
        probes.tick(now + Duration::from_secs(1));
        assert!(probes.are_about(&gpus(1)));
        probes.tick(now + Duration::from_secs(2));
        assert!(!probes.are_about(&gpus(1)) && probes.next_event().is_none());
    }

    #[test]
    fn a_loss_is_of_all_deaths_on_that_gpu() {
        let now = Instant::now();
        let pending = vec![probe(3, 1, &[3], now), probe(2, 2, &[2], now), probe(1, 1, &[1], now)];
        let mut probes = GpuProbes { last: 3, pending };
        let (about, text, at) = probes.take_about(&gpus(1)).expect("two have died on it");
        assert_eq!((about, text.as_str()), (gpus(1), "death 1"));
        assert_eq!(at, now + Duration::from_millis(3), "when the last of them may begin");
        assert!(probes.take_about(&gpus(1)).is_none() && probes.are_about(&gpus(2)));
    }
}
