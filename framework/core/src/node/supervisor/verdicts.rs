//! The judgements of pipelines on themselves, for the console.
//!
//! Only a pipeline knows which of its stages the others wait for. The thread that follows it has a
//! [`Verdict`], which it renews at each of its looks, and each look of the console has the lines of all
//! verdicts. The drop of a verdict takes its lines away, also after a panic of that thread.

use std::sync::Arc;

use super::{Shared, Supervisor};
use crate::node::limits::{MAX_FAILURE_TEXT, MAX_HANGS};
use crate::observe::text::shown;

/// The judgement of a running pipeline on itself.
#[doc(hidden)]
pub struct Verdict {
    shared: Arc<Shared>,
    number: u64,
}

impl Supervisor {
    /// Begins a judgement, which has no lines yet.
    #[doc(hidden)] // for the pipelines, which are another crate
    pub fn verdict(&self) -> Verdict {
        let shared = self.shared();
        let mut verdicts = shared.verdicts.lock();
        let number = verdicts.last_key_value().map_or(0, |(last, _)| last + 1);
        verdicts.insert(number, Vec::new());
        drop(verdicts);
        Verdict { shared, number }
    }
}

impl Verdict {
    /// Replaces the lines: one for each part of the pipeline that holds up the others.
    pub fn is(&self, lines: Vec<String>) {
        // WIRE-1, MBX-2: a worker may have said what is in them, and the answer to a watcher has a bound
        // (CON-3).
        let lines = lines.into_iter().take(MAX_HANGS).map(|line| shown(line, MAX_FAILURE_TEXT)).collect();
        self.shared.verdicts.lock().insert(self.number, lines);
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.shared.verdicts.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_plain_and_go_with_their_verdict() {
        let shared = Shared::new().unwrap();
        let verdict = Verdict { shared: Arc::clone(&shared), number: 0 };
        verdict.is(vec!["\u{1b}".repeat(2 * MAX_FAILURE_TEXT); MAX_HANGS + 1]);
        let lines = shared.verdicts.lock()[&0_u64].clone();
        assert_eq!(lines.len(), MAX_HANGS);
        assert!(lines.iter().all(|line| line.starts_with("\\u{1b}") && line.len() == MAX_FAILURE_TEXT));
        drop(verdict);
        assert!(shared.verdicts.lock().is_empty());
    }
}
