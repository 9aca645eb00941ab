//! The doctor: finds out why a node cannot run on this machine, or why it is slower or smaller than it could
//! be.
//!
//! The command `tensorpost doctor` prints the report of [`examine`]. A node whose start fails adds the checks
//! of `at_start` that fail to its error.
//!
//! A check tries the operation that it is about, and reads a flag only where nothing can be tried. Operations
//! that a seccomp filter or a driver could end or hang are tried in a process of their own. The doctor starts
//! its program again for that, with a task as the last argument ([`Again`]), and each such process has a
//! deadline. A check's judgement is a function of its findings alone, so that tests can give it the findings
//! of other machines.
//!
//! DOC-1: every failure that the doctor finds names its remedy, and a test causes it.
//!
//! **On a crash** of the doctor, its processes end with it, except the keeper of an MPS daemon, which stops
//! the daemon first.
//!
//! | file | holds |
//! |---|---|
//! | `subprocess` | the doctor's own processes |
//! | `kernel` | the features of Linux that a node needs |
//! | `system` | /proc, limits, folders, programs, notes |
//! | `cgroup` | limits of memory, processors and processes of a container |
//! | `exchange` | two processes that share a device, as workers do |
//! | `gpu/` | driver, devices, MPS, toolkit |
//! | `start` | the checks of a start that failed |

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::node::DEFAULT_HOST_BUDGET;

mod cgroup;
mod exchange;
#[cfg(feature = "cuda")]
mod gpu;
mod kernel;
mod start;
mod subprocess;
mod system;

pub(crate) use start::at_start;
pub use subprocess::{Again, run_task};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works as it should.
    Ok,
    /// Works, slower or smaller than it could.
    Limited,
    /// Will not work.
    Broken,
}

/// One line of a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name, which stays the same from version to version.
    pub id: String,
    /// Its result.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// The requirement; empty where all is well.
    pub needed: String,
    /// The reason for the requirement; empty where all is well.
    pub why: String,
    /// The remedy, as a line to type where there is one; empty where all is well.
    pub fix: String,
}

impl Check {
    pub(crate) fn ok(id: impl Into<String>, found: impl Into<String>) -> Self {
        let [needed, why, fix] = Default::default();
        Check { id: id.into(), status: Status::Ok, found: found.into(), needed, why, fix }
    }

    pub(crate) fn limited(id: impl Into<String>, found: impl Into<String>) -> Self {
        Check { status: Status::Limited, ..Self::ok(id, found) }
    }

    pub(crate) fn broken(id: impl Into<String>, found: impl Into<String>) -> Self {
        Check { status: Status::Broken, ..Self::ok(id, found) }
    }

    pub(crate) fn needs(self, needed: impl Into<String>, why: impl Into<String>) -> Self {
        Check { needed: needed.into(), why: why.into(), ..self }
    }

    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Check { fix: fix.into(), ..self }
    }
}

/// The findings of the doctor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The checks, in the order in which they are best read.
    pub checks: Vec<Check>,
    /// Versions of the software that runs here, by name.
    pub versions: BTreeMap<String, String>,
}

impl Report {
    /// Returns the worst status of the checks.
    pub fn status(&self) -> Status {
        self.checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok)
    }
}

/// The settings of an examination.
#[derive(Clone, Debug)]
pub struct Options {
    /// The way to start this program again, for a check in a process of its own.
    pub again: Again,
    /// The program of `NodeBuilder::worker_program`, if it is not the node's own.
    pub worker_program: Option<PathBuf>,
    /// Processes of the node that is meant to run, itself included.
    pub processes: u64,
    /// The bytes of `NodeBuilder::host_budget`.
    pub host_budget: u64,
    /// The file of `NodeBuilder::trace`.
    pub trace: Option<PathBuf>,
    /// The folder in which `proc`, `sys` and `dev` are looked for: `/`, except in tests.
    pub root: PathBuf,
}

impl Options {
    /// Creates the usual settings: a node with three workers.
    pub fn new(again: Again) -> Self {
        Options {
            again,
            worker_program: None,
            processes: 4,
            host_budget: DEFAULT_HOST_BUDGET,
            trace: None,
            root: "/".into(),
        }
    }
}

/// Runs all checks. Takes two seconds at most where all is well, five with two GPUs.
pub fn examine(options: &Options) -> Report {
    let root = system::Root::new(&options.root);
    // The driver takes the longest, so its processes begin first.
    #[cfg(feature = "cuda")]
    let gpus = gpu::EarlyProcesses::begin(options);
    let mut checks = kernel::checks(&options.again, root.is_gvisor());
    checks.push(system::proc(&root));
    // An exchange needs all checks so far; where one of them fails, an exchange says nothing new.
    let can_exchange = checks.iter().all(|check| check.status != Status::Broken);
    let cgroup = cgroup::read(&root);
    checks.extend(system::checks(options));
    checks.extend(cgroup::judge(&cgroup, options.processes, options.host_budget));
    let bytes = exchange::bytes_for(cgroup.memory_left());
    if can_exchange {
        checks.push(exchange::on_host(&options.again, bytes));
    }
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "the driver's are added"))]
    let mut versions = system::versions(&root);
    #[cfg(feature = "cuda")]
    checks.extend(gpus.checks(options, &root, can_exchange, bytes, &mut versions));
    checks.extend(system::notes(&root));
    Report { checks, versions }
}
