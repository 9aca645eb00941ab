//! Whether a GPU went with a worker that was killed, under MPS.
//!
//! A client that is killed in the middle of a kernel costs all other clients of its server their context; one
//! that is killed between two kernels, or while its streams wait, costs them nothing. Which of the two it was
//! nobody can say but the others: their context is lost before the end of the dead one's process is seen (30
//! ms before, on an H100), and the next work that they put on the GPU is refused. An idle stream says nothing
//! of it, however often the driver is asked.
//!
//! So [`State::ask_who_has_lost`] has the workers on its GPUs put something on them and say when that was
//! done; the next lives of all that were on them wait for that, a few milliseconds. Where one says instead
//! that a GPU is lost to it, all of them end as one round (`groups`), for which these next lives wait too.
//! One that works may say so before the end of the dead one is seen: then nobody is asked.
//!
//! **Invariants.** Nobody is ended, and no restart is charged, for a death that took nothing from others.
//! Where a GPU is lost, no client of it begins its next life before the last of the old ones has ended: one
//! that starts earlier is refused by the server.
//!
//! **A worker that does not answer** is waited for [`GPU_LOOK_PATIENCE`]: it may be stopped, or wait in the
//! driver. If it has lost the GPU it finds that when it goes on, and says so then. **On its end** it is
//! waited for no longer. A peer that lies (WIRE-1) can say that a GPU is lost, as it can at any time, and
//! costs those that it shares the GPU with a restart; what sharing means stands at
//! [`Sharing::Mps`](crate::node::Sharing::Mps).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::ids::{DeviceId, ProcessId};
use crate::node::control::Down;
use crate::node::limits::GPU_LOOK_PATIENCE;

use super::WorkerId;
use super::record::Worker;
use super::run::State;

/// What is asked because of one death.
struct GpuLook {
    number: u64,
    gpus: HashSet<DeviceId>,
    /// Why others end, should a GPU be lost, and when the next lives begin.
    text: String,
    at: Instant,
    /// Who has not answered.
    asked: HashSet<ProcessId>,
    until: Instant,
}

/// What is asked now.
#[derive(Default)]
pub(super) struct GpuLooks {
    last: u64,
    pending: Vec<GpuLook>,
}

impl GpuLooks {
    /// Whether somebody was asked about any of these GPUs, and has not answered.
    fn are_about(&self, gpus: &HashSet<DeviceId>) -> bool {
        self.pending.iter().any(|look| !look.gpus.is_disjoint(gpus))
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        self.pending.iter().map(|look| look.until).min()
    }

    /// A process has done what it was asked for.
    pub(super) fn answered(&mut self, process: ProcessId, number: u64) {
        let of_it = self.pending.iter_mut().filter(|look| look.number == number);
        of_it.for_each(|look| look.asked.retain(|asked| *asked != process));
        self.drop_done();
    }

    /// A process has ended.
    pub(super) fn left(&mut self, process: ProcessId) {
        self.pending.iter_mut().for_each(|look| look.asked.retain(|asked| *asked != process));
        self.drop_done();
    }

    /// Goes on without those who have not answered in time.
    pub(super) fn tick(&mut self, now: Instant) {
        self.pending.retain(|look| look.until > now);
    }

    /// The node stood still for so long, and others perhaps with it.
    pub(super) fn stalled(&mut self, lost: Duration) {
        self.pending.iter_mut().for_each(|look| look.until += lost);
    }

    fn drop_done(&mut self) {
        self.pending.retain(|look| !look.asked.is_empty());
    }

    /// Takes what is asked about any of these GPUs: with all GPUs of that, why others end, and when the next
    /// lives begin.
    fn take_about(&mut self, gpus: &HashSet<DeviceId>) -> Option<(HashSet<DeviceId>, String, Instant)> {
        let mut about = gpus.clone();
        let mut taken: Vec<GpuLook> = Vec::new();
        // It ends because each turn takes one.
        while let Some(at) = self.pending.iter().position(|look| !look.gpus.is_disjoint(&about)) {
            let look = self.pending.swap_remove(at);
            about.extend(&look.gpus);
            taken.push(look);
        }
        let at = taken.iter().map(|look| look.at).max()?;
        let text = taken.into_iter().min_by_key(|look| look.number)?.text;
        Some((about, text, at))
    }
}

impl State {
    /// A worker was killed: asks those on its GPUs whether they have lost them. If so, they end because of
    /// `text`, and the next lives begin `at` that time. Where nobody can be asked, those that are opening
    /// them are ended, and the rounds that they are in returned.
    pub(super) fn ask_who_has_lost(&mut self, dead: &Worker, text: &str, at: Instant) -> Vec<u64> {
        let number = self.gpu_looks.last + 1;
        let (mut asked, mut opening) = (HashSet::new(), HashSet::new());
        for worker in self.workers.iter_mut() {
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
            return self.end_together(opening, at, text, true);
        }
        self.gpu_looks.last = number;
        let (gpus, text, until) = (dead.gpus.clone(), text.to_owned(), Instant::now() + GPU_LOOK_PATIENCE);
        self.gpu_looks.pending.push(GpuLook { number, gpus, text, at, asked, until });
        Vec::new()
    }

    /// The worker in this slot has lost a GPU. Where somebody was asked because of a death on it, it went
    /// with that one: all clients of it end together.
    pub(super) fn has_lost_gpu(&mut self, index: usize) {
        let Some(worker) = self.workers.at(index) else { return };
        if let Some((gpus, text, at)) = self.gpu_looks.take_about(&worker.gpus) {
            self.gpus_were_lost(&gpus, &text, at);
        }
    }

    /// Whether a worker between two lives waits for what is said of its GPUs.
    pub(super) fn waits_for_gpus(&self, worker: WorkerId) -> bool {
        !self.gpu_looks.pending.is_empty() && self.gpu_looks.are_about(&self.restarts.devices_of(worker))
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

    fn look(number: u64, gpu: u8, asked: &[u16], now: Instant) -> GpuLook {
        GpuLook {
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
        let mut looks = GpuLooks { last: 3, pending: vec![look(1, 1, &[1, 2], now), look(2, 2, &[1], now)] };
        assert_eq!(looks.next_event(), Some(now + Duration::from_secs(1)));
        looks.answered(process(1), 3);
        looks.answered(process(3), 1);
        looks.answered(process(1), 1);
        assert!(looks.are_about(&gpus(1)) && looks.are_about(&gpus(2)) && !looks.are_about(&gpus(3)));
        looks.left(process(1));
        assert!(looks.are_about(&gpus(1)) && !looks.are_about(&gpus(2)));
        looks.stalled(Duration::from_secs(1));
        looks.tick(now + Duration::from_secs(1));
        assert!(looks.are_about(&gpus(1)));
        looks.tick(now + Duration::from_secs(2));
        assert!(!looks.are_about(&gpus(1)) && looks.next_event().is_none());
    }

    #[test]
    fn a_loss_is_of_all_deaths_on_that_gpu() {
        let now = Instant::now();
        let pending = vec![look(3, 1, &[3], now), look(2, 2, &[2], now), look(1, 1, &[1], now)];
        let mut looks = GpuLooks { last: 3, pending };
        let (about, text, at) = looks.take_about(&gpus(1)).expect("two have died on it");
        assert_eq!((about, text.as_str()), (gpus(1), "death 1"));
        assert_eq!(at, now + Duration::from_millis(3), "when the last of them may begin");
        assert!(looks.take_about(&gpus(1)).is_none() && looks.are_about(&gpus(2)));
    }
}
