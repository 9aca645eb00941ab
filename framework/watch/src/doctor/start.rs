//! The checks after a start that failed: those that take no time, run in this process, and harm nothing. The
//! checks that fail are added to the error's own text.

use std::fmt::Write;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::system::Root;
use super::{Check, Status, cgroup, system};

/// Returns the obstacles to a node's or a worker's start, to be put behind an error's text; empty where none
/// was found. `program` is the program of the workers, if that is not the node's own; `said` is the remedy
/// that the error names itself, which is not repeated.
pub(crate) fn at_start(program: Option<&Path>, host_budget: u64, said: &str) -> String {
    let root = Root::new(Path::new("/"));
    let mut checks =
        vec![system::proc(&root), system::files(getrlimit(Resource::Nofile).maximum), system::tasks()];
    checks.extend(program.map(system::worker_program));
    // Two processes: the node and the worker that did not start.
    checks.extend(cgroup::judge(&cgroup::read(&root), 2, host_budget));
    text(&checks, said)
}

fn text(checks: &[Check], said: &str) -> String {
    let mut text = String::new();
    for check in checks.iter().filter(|check| check.status == Status::Broken) {
        let Check { id, found, needed, fix, .. } = check;
        // Formatting into a string does not fail.
        let _ = write!(text, "; the doctor finds {id}: {found}, needed: {needed}");
        if !said.contains(fix) {
            let _ = write!(text, ": {fix}");
        }
    }
    if !text.is_empty() {
        text.push_str("; `tensorpost doctor` looks further");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_is_said_and_nothing_else() {
        let broken = Check::broken("descriptors", "32").needs("64", "why").fix("ulimit -n");
        let limited = Check::limited("cgroup.cpu", "0.5");
        assert_eq!(
            text(&[Check::ok("proc", "there"), limited, broken.clone()], ""),
            "; the doctor finds descriptors: 32, needed: 64: ulimit -n; `tensorpost doctor` looks further"
        );
        assert!(!text(&[broken], "; ulimit -n").contains("ulimit"), "the error has said it");
        assert_eq!(text(&[Check::ok("proc", "there")], ""), "");
        assert!(at_start(Some(Path::new("/is/not/there")), 1, "").contains("/is/not/there"));
    }
}
