//! The node's means for the death of a process: the clock pages that it prepared, the epoch page, and the
//! rounds.
//!
//! The node makes a worker's page before it starts the worker, and keeps it mapped writable. It does so for
//! one purpose: to release the worker's clocks after its death, when every process has marked the values that
//! depend on them (DEATH-1, DEATH-3). While the worker lives, the node writes nothing to its page
//! (ONE-WRITER).

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::broker::{Complaint, Delivery};
use super::limits::{MAX_RELEASED_PAGES, MAX_REPORTED_RANGES};
use super::taint::{Act, Rounds};
use crate::clock::taint::{EpochPage, TaintRange, TaintUpdate};
use crate::clock::{ClockPage, ProcessPages, is_released};
use crate::ids::ProcessId;
use crate::limits::MAX_STREAMS;
use crate::transport::control_channel::FromNode;

/// How often the pages of dead processes are checked again, and how many times.
const PAGE_CHECKS: Duration = Duration::from_secs(1);
const LOOKS: u32 = 10;

#[derive(Default)]
pub(crate) struct Deaths {
    rounds: Rounds,
    /// `None` if only the bookkeeping is wanted.
    epoch_page: Option<Arc<EpochPage>>,
    /// The clocks of the node's own process.
    own: Option<Arc<ClockPage>>,
    /// The pages of workers that live, or whose clocks are not released yet.
    pages: HashMap<ProcessId, Arc<ClockPage>>,
    released: Vec<Released>,
    /// Ranges reported since the last release.
    reported: HashMap<ProcessId, usize>,
}

struct Released {
    page: Arc<ClockPage>,
    look_at: Instant,
    looks: u32,
}

impl Deaths {
    pub(crate) fn with_pages(pages: ProcessPages) -> Self {
        let ProcessPages { clocks, epoch_page } = pages;
        Deaths { epoch_page: Some(epoch_page), own: Some(clocks), ..Deaths::default() }
    }

    /// Makes the clock page of a process that is about to start.
    pub(crate) fn prepare(&mut self, process: ProcessId) -> io::Result<()> {
        self.pages.insert(process, ClockPage::prepare()?);
        Ok(())
    }

    /// Publishes the number of processes.
    pub(crate) fn say_processes(&self, count: usize) {
        if let Some(epoch_page) = &self.epoch_page {
            epoch_page.set_processes(count);
        }
    }

    /// Publishes that this process passes on the messages of other hosts.
    #[cfg(feature = "hosts")]
    pub(crate) fn say_gateway(&self, gateway: ProcessId) {
        if let Some(epoch_page) = &self.epoch_page {
            epoch_page.set_gateway(gateway);
        }
    }

    /// Counts pages of processes, and processes that have reported tainted ranges since the last release.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> usize {
        self.pages.len() + self.reported.len()
    }

    /// Forgets a process that was not started after all.
    pub(crate) fn forget(&mut self, process: ProcessId) {
        self.pages.remove(&process);
    }

    /// Returns the descriptors that a process gets: its clock page, to adopt, and the epoch page.
    pub(crate) fn descriptors(&self, process: ProcessId) -> io::Result<Vec<OwnedFd>> {
        let page = self.pages.get(&process).ok_or(io::ErrorKind::NotFound)?;
        let epoch_page = self.epoch_page.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(vec![page.writable_fd()?.try_clone_to_owned()?, epoch_page.export()?])
    }

    /// Makes a read-only descriptor of the clock page that the node prepared for a process, and can release;
    /// `None` if it prepared none.
    pub(crate) fn clocks(&self, process: ProcessId) -> Option<io::Result<OwnedFd>> {
        let page = self.pages.get(&process)?;
        // The process mapped its page before it could send a link message, so the page can be sealed now.
        Some(page.seal().and_then(|()| page.export_fd()))
    }

    /// Returns the clock page of a process that has not ended.
    pub(crate) fn page_of(&self, process: ProcessId) -> Option<&Arc<ClockPage>> {
        if process == ProcessId::NODE { self.own.as_ref() } else { self.pages.get(&process) }
    }

    /// Returns the news that a joining process must get before anything else.
    pub(crate) fn joined(&mut self, process: ProcessId) -> Option<Delivery> {
        self.rounds.joined(process).map(|update| tell(process, update))
    }

    /// Notes that a process that joined begins to work.
    pub(crate) fn ready(&mut self, process: ProcessId) {
        self.rounds.ready(process);
    }

    pub(crate) fn died(&mut self, process: ProcessId, now: Instant, out: &mut Vec<Delivery>) {
        let values = self.values(process);
        let mut acts = Vec::new();
        self.rounds.died(process, &values, now, &mut acts);
        self.carry_out(acts, now, out);
    }

    pub(crate) fn answered(
        &mut self,
        by: ProcessId,
        round: u64,
        ranges: &[TaintRange],
        now: Instant,
        out: &mut Vec<Delivery>,
    ) -> Result<(), Complaint> {
        let forged = |range: &&TaintRange| {
            range.process != by || usize::from(range.slot) >= MAX_STREAMS || range.from > range.to
        };
        let mut complaint = ranges.iter().find(forged).map(|range| Complaint::ForgedTaint(*range));
        let reported = self.reported.entry(by).or_default();
        *reported += ranges.len();
        if *reported > MAX_REPORTED_RANGES {
            complaint = Some(Complaint::TooMuchTaint);
        }
        let mut acts = Vec::new();
        // Its answer still counts, so that others do not wait for a liar.
        let ranges = if complaint.is_some() { &[] } else { ranges };
        self.rounds.answered(by, round, ranges, now, &mut acts);
        self.carry_out(acts, now, out);
        complaint.map_or(Ok(()), Err)
    }

    /// Returns when to call [`tick`](Self::tick).
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let looks = self.released.iter().map(|released| released.look_at);
        looks.chain(self.rounds.deadline()).min()
    }

    /// Takes the steps that are due, and returns the processes that have not answered in time.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut Vec<Delivery>) -> Vec<ProcessId> {
        self.look_again(now);
        let mut acts = Vec::new();
        let pages = &self.pages;
        let values = |process| pages.get(&process).map_or_else(Vec::new, |page| page.values().to_vec());
        let late = self.rounds.overdue(now, values, &mut acts);
        self.carry_out(acts, now, out);
        late
    }

    /// Checks the pages of dead processes again. Under MPS the server may still carry out work of a client
    /// that died, a clock write too, which would undo the release of that clock.
    fn look_again(&mut self, now: Instant) {
        self.released.retain_mut(|released| {
            if released.look_at > now {
                return true;
            }
            if released.page.values().iter().any(|value| !is_released(*value)) {
                release(&released.page);
            }
            released.look_at = now + PAGE_CHECKS;
            released.looks += 1;
            released.looks < LOOKS
        });
    }

    fn values(&self, process: ProcessId) -> Vec<u64> {
        self.pages.get(&process).map_or_else(Vec::new, |page| page.values().to_vec())
    }

    fn carry_out(&mut self, acts: Vec<Act>, now: Instant, out: &mut Vec<Delivery>) {
        for act in acts {
            match act {
                Act::Tell(to, update) => out.push(tell(to, update)),
                Act::Release { round, dead } => {
                    self.reported.clear();
                    // In this order: a process that sees the effect of the release must also see on the epoch
                    // page that there is news.
                    if let Some(epoch_page) = &self.epoch_page {
                        epoch_page.raise(round);
                    }
                    for process in dead {
                        if let Some(page) = self.pages.remove(&process) {
                            release(&page);
                            if self.released.len() >= MAX_RELEASED_PAGES {
                                self.released.remove(0);
                            }
                            self.released.push(Released { page, look_at: now + PAGE_CHECKS, looks: 0 });
                        }
                        let message = FromNode::ClocksReleased { process };
                        out.extend(Delivery::to_all(self.rounds.living(), message));
                    }
                }
            }
        }
    }
}

fn tell(to: ProcessId, update: TaintUpdate) -> Delivery {
    Delivery::plain(to, FromNode::Taint(update))
}

fn release(page: &ClockPage) {
    if let Err(error) = page.release_all() {
        // This process prepared the page, so it can write to it. Waking is a system call that fails only for
        // bad addresses.
        tracing::error!(%error, "the clocks of a process that died could not be released");
    }
}
