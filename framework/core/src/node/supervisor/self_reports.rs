//! The reports of pipelines on themselves, for the console.
//!
//! Only a pipeline knows which of its stages the others wait for. The thread that follows it has a
//! [`SelfReport`], which it renews at each of its looks, and each snapshot for the console has the lines of
//! all self-reports. The drop of one takes its lines away, also after a panic of that thread.

use std::sync::Arc;

use super::{Shared, Supervisor};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_HANGS};
use crate::observe::text::shown;

/// The report of a running pipeline on itself.
#[doc(hidden)]
pub struct SelfReport {
    shared: Arc<Shared>,
    number: u64,
}

impl Supervisor {
    /// Begins a self-report, which has no lines yet.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn self_report(&self) -> SelfReport {
        let shared = self.shared();
        let mut self_reports = shared.self_reports.lock();
        let number = self_reports.last_key_value().map_or(0, |(last, _)| last + 1);
        self_reports.insert(number, Vec::new());
        drop(self_reports);
        SelfReport { shared, number }
    }
}

impl SelfReport {
    /// Replaces the lines: one for each part of the pipeline that holds up the others.
    pub fn set(&self, lines: Vec<String>) {
        // WIRE-1, MBX-2: a worker may have said what is in them, and the answer to a watcher has a bound
        // (CON-3).
        let lines = lines.into_iter().take(MAX_HANGS).map(|line| shown(line, MAX_FAILURE_TEXT)).collect();
        self.shared.self_reports.lock().insert(self.number, lines);
    }
}

impl Drop for SelfReport {
    fn drop(&mut self) {
        self.shared.self_reports.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_plain_and_go_with_their_report() {
        let shared = Shared::new().unwrap();
        let self_report = SelfReport { shared: Arc::clone(&shared), number: 0 };
        self_report.set(vec!["\u{1b}".repeat(2 * MAX_FAILURE_TEXT); MAX_HANGS + 1]);
        let lines = shared.self_reports.lock()[&0_u64].clone();
        assert_eq!(lines.len(), MAX_HANGS);
        assert!(lines.iter().all(|line| line.starts_with("\\u{1b}") && line.len() == MAX_FAILURE_TEXT));
        drop(self_report);
        assert!(shared.self_reports.lock().is_empty());
    }
}
