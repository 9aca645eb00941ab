//! Gives the core its [`Watcher`], before `main` begins.
//!
//! A program names no item of this crate, and its node needs the watcher from its start on: the environment
//! may ask for a live page. So this crate has a constructor in the loader's list, as the core has one for
//! workers. It only stores a reference. A crate that is linked at all has its `#[used]` items in the program.

#![expect(unsafe_code, reason = "the loader's list of constructors is written")]

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tensorpost_core::api::observe::{Metrics, TraceError, TraceSummary};
use tensorpost_core::api::watch::serving::Serving;
use tensorpost_core::api::watch::trace::HostTrace;
use tensorpost_core::api::watch::{ProgressFile, ProgressSource, RunningDisplay, Watched, Watcher, watch_by};

use crate::doctor;
use crate::live;
use crate::progress;
use crate::series;
use crate::trace;

/// The entry in the list.
#[used]
// SAFETY: the loader calls each function in this section once, in the form of C. It may pass arguments, which
// a function without parameters ignores.
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static ENTRY: extern "C" fn() = register;

extern "C" fn register() {
    watch_by(&Nodes);
}

/// The watcher of all nodes of the process.
struct Nodes;

impl Watcher for Nodes {
    fn obstacles(&self, program: Option<&Path>, host_budget: u64, said: &str) -> String {
        doctor::at_start(program, host_budget, said)
    }

    #[cfg(feature = "cuda")]
    fn ask_shares(&self) -> Option<tensorpost_core::api::watch::AskShares> {
        crate::nvml::ask_shares()
    }

    fn serve(&self, addresses: &[SocketAddr], node: Watched) -> io::Result<(Serving, SocketAddr)> {
        live::start(addresses, node)
    }

    fn serve_as_environment_asks(&self, node: Watched) -> Option<Serving> {
        live::start_as_environment_asks(node)
    }

    fn export(&self, metrics: &Metrics) {
        series::export(metrics);
    }

    fn show_progress(&self, source: ProgressSource, file: Option<ProgressFile>) -> Option<RunningDisplay> {
        progress::show(source, file)
    }

    fn write_trace(
        &self,
        path: &Path,
        own: &HostTrace,
        others: &[(String, HostTrace)],
    ) -> Result<TraceSummary, TraceError> {
        trace::write(path, own, others)
    }
}
