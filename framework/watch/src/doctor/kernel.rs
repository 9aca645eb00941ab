//! The features of Linux that a node needs, each tried once in a process of its own: a seccomp filter may
//! answer with an error or with a signal.
//!
//! The process says which step it begins, so the step that ends it is known; the next process goes on behind
//! that step.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tensorpost_core::api::watch::die_with_parent;
use tensorpost_core::api::watch::remedies::{known, known_of_start};
use tensorpost_core::api::watch::trial::kernel;

use super::Check;
use super::subprocess::{Again, End, SHORT, Task, say};

/// The signal of a seccomp filter that does not answer.
const SIGSYS: i32 = 31;

/// One feature of Linux that a node needs.
struct KernelFeature {
    id: &'static str,
    /// The calls that a filter has to let through.
    calls: &'static str,
    /// The use that a node makes of it.
    why: &'static str,
    /// The first Linux that has it.
    since: &'static str,
    /// The step that it depends on: where that step fails, this one says nothing new.
    on: Option<&'static str>,
    run: fn(u32) -> io::Result<()>,
}

const STEPS: [KernelFeature; 8] = [
    KernelFeature {
        id: "kernel.memfd",
        calls: "memfd_create, ftruncate, mmap",
        why: "all shared memory is memfds",
        since: "3.17",
        on: None,
        run: |_| kernel::shared_memory(),
    },
    KernelFeature {
        id: "kernel.seals",
        calls: "fcntl(F_ADD_SEALS)",
        why: "shared memory has one writer, and seals hold everybody to that",
        since: "5.1",
        on: Some("kernel.memfd"),
        run: |_| kernel::seals(),
    },
    KernelFeature {
        id: "kernel.seqpacket",
        calls: "socketpair, sendmsg, recvmsg",
        why: "a node speaks with its workers over SEQPACKET sockets",
        since: "2.6",
        on: None,
        run: |_| kernel::packets(),
    },
    KernelFeature {
        id: "kernel.descriptors",
        calls: "sendmsg and recvmsg with SCM_RIGHTS",
        why: "memory travels between processes as a descriptor",
        since: "2.6",
        on: Some("kernel.seqpacket"),
        run: |_| kernel::descriptors(),
    },
    KernelFeature {
        id: "kernel.pidfd",
        calls: "pidfd_open, pidfd_send_signal",
        why: "a node watches its workers by pidfd",
        since: "5.3",
        on: None,
        run: |_| kernel::pidfds(),
    },
    KernelFeature {
        id: "kernel.futex",
        calls: "futex",
        why: "a process sleeps on a clock that another one advances",
        since: "2.6",
        on: Some("kernel.memfd"),
        run: |_| kernel::futexes(),
    },
    KernelFeature {
        id: "kernel.events",
        calls: "epoll_create1, epoll_ctl, epoll_wait, eventfd2, shutdown",
        why: "a message wakes the process that it is for",
        since: "4.5",
        on: None,
        run: |_| kernel::doorbells(),
    },
    KernelFeature {
        id: "kernel.parent_death",
        calls: "prctl(PR_SET_PDEATHSIG)",
        why: "no worker outlives its node",
        since: "2.4",
        on: None,
        run: die_with_parent,
    },
];

/// The messages of the process that runs the steps.
#[derive(Debug, Serialize, Deserialize)]
enum CheckMessage {
    Begins,
    Works,
    Fails { errno: Option<i32>, text: String },
}

/// The failure of a step.
#[derive(Debug)]
enum Failure {
    Error { errno: Option<i32>, text: String },
    Ended(End),
}

/// Runs the steps from `first` on, in a process of the doctor whose parent is `parent`.
pub(super) fn run(first: usize, parent: u32) {
    for step in STEPS.iter().skip(first) {
        say(&CheckMessage::Begins);
        match (step.run)(parent) {
            Ok(()) => say(&CheckMessage::Works),
            Err(error) => say(&CheckMessage::Fails { errno: error.raw_os_error(), text: error.to_string() }),
        }
    }
}

/// Tries every step.
pub(super) fn checks(again: &Again, is_gvisor: bool) -> Vec<Check> {
    let failures = try_all(again);
    let has_failed =
        |id| STEPS.iter().zip(&failures).any(|(step, failure)| step.id == id && failure.is_some());
    let mut checks = Vec::new();
    for (step, failure) in STEPS.iter().zip(&failures) {
        match failure {
            None => checks.push(Check::ok(step.id, step.calls)),
            Some(_) if step.on.is_some_and(has_failed) => {}
            Some(failure) => checks.push(judge(step, failure, is_gvisor)),
        }
    }
    checks
}

/// Returns the failure of each step, if it failed.
fn try_all(again: &Again) -> Vec<Option<Failure>> {
    let mut failures = Vec::new();
    while failures.len() < STEPS.len() {
        let end = match again.start(Task::Kernel { from: failures.len() }, SHORT) {
            Ok(mut running) => loop {
                match running.next::<CheckMessage>() {
                    Ok(CheckMessage::Begins) => {}
                    Ok(CheckMessage::Works) => failures.push(None),
                    Ok(CheckMessage::Fails { errno, text }) => {
                        failures.push(Some(Failure::Error { errno, text }))
                    }
                    Err(end) => break end,
                }
                if failures.len() == STEPS.len() {
                    return failures;
                }
            },
            Err(end) => end,
        };
        // Blame the step that was begun, or the first step of a process that could not begin.
        failures.push(Some(Failure::Ended(end)));
    }
    failures
}

/// Judges the failure of a step.
fn judge(step: &KernelFeature, failure: &Failure, is_gvisor: bool) -> Check {
    let errno = match failure {
        Failure::Error { errno, .. } => errno.map(Errno::from_raw_os_error),
        Failure::Ended(End::NotStarted(error)) => Errno::from_io_error(error),
        Failure::Ended(_) => None,
    };
    let signal = if let Failure::Ended(end) = failure { end.signal() } else { None };
    let found = match failure {
        Failure::Error { text, .. } => text.clone(),
        Failure::Ended(_) if signal == Some(SIGSYS) => {
            "a seccomp filter ends the process (SIGSYS)".to_owned()
        }
        Failure::Ended(end) => end.text(),
    };
    let calls = step.calls;
    let is_filtered = signal == Some(SIGSYS) || matches!(errno, Some(Errno::PERM | Errno::ACCESS));
    let lack = match failure {
        Failure::Ended(End::NotStarted(error)) => known_of_start(error),
        _ => errno.and_then(|errno| known(&io::Error::from(errno))),
    };
    // The order matters: gVisor answers with the error numbers of an old kernel, so it comes before the
    // advice to use a newer one.
    let fix = match (lack, errno) {
        (Some(lack), _) => lack.to_owned(),
        _ if is_gvisor => {
            format!(
                "gVisor (runsc) does not do this as Linux does: run the container with --runtime=runc, for {calls}"
            )
        }
        _ if is_filtered => {
            format!(
                "let {calls} through the seccomp profile (docker run --security-opt seccomp=unconfined to try)"
            )
        }
        (_, Some(Errno::NOSYS | Errno::INVAL)) => {
            format!("use Linux {} or newer (uname -r), which has {calls}", step.since)
        }
        _ => format!(
            "find out what refuses {calls}: strace -f tensorpost doctor; try docker run --security-opt seccomp=unconfined"
        ),
    };
    Check::broken(step.id, found).needs(calls, step.why).fix(fix)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::doctor::Status;

    fn error(errno: Errno) -> Failure {
        let error = io::Error::from(errno);
        Failure::Error { errno: error.raw_os_error(), text: error.to_string() }
    }

    #[test]
    fn every_step_works_here() {
        for step in &STEPS[..7] {
            (step.run)(0).unwrap_or_else(|error| panic!("{}: {error}", step.id));
        }
    }

    #[test]
    fn a_failure_names_the_call_and_what_refuses_it() {
        let [memfd, .., pidfd] = &STEPS[..5] else { panic!("there are more") };
        let check = judge(memfd, &error(Errno::PERM), false);
        assert_eq!((check.id.as_str(), check.status), ("kernel.memfd", Status::Broken));
        assert!(check.fix.contains("memfd_create") && check.fix.contains("seccomp="), "{check:?}");
        let status = Some(ExitStatus::from_raw(SIGSYS));
        let killed = Failure::Ended(End::Exited { status, last_words: String::new() });
        let check = judge(pidfd, &killed, false);
        assert!(check.found.contains("SIGSYS") && check.fix.contains("pidfd_open"), "{check:?}");
        assert!(judge(pidfd, &error(Errno::NOSYS), false).fix.contains("Linux 5.3"));
        assert!(judge(memfd, &error(Errno::MFILE), false).fix.contains("ulimit -n"));
        assert!(judge(pidfd, &error(Errno::NOSYS), true).fix.contains("--runtime=runc"));
        let check = judge(memfd, &Failure::Ended(End::Late), false);
        assert!(check.found.contains("in time") && check.fix.contains("memfd_create"), "{check:?}");
    }
}
