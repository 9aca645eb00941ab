//! What to do about an error of the system that says that it has too little of something.
//!
//! The system's words name what is missing and not which limit to raise. Errors of this crate that carry one of the system's
//! add it.

use std::io;

use rustix::io::Errno;

/// What to raise, to be put behind the text of `error`; empty where nothing is known to help.
pub fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "; raise the limit of open files (ulimit -n)",
        Some(Errno::NFILE) => "; raise the system's limit of open files (fs.file-max)",
        Some(Errno::NOMEM) => "; raise the limit of memory (ulimit -v, memory.max of the cgroup) or use less",
        Some(Errno::NOSPC | Errno::DQUOT) => "; make room on the disk",
        Some(Errno::FBIG) => "; raise the limit of file size (ulimit -f)",
        _ => "",
    }
}

/// As [`remedy`], for an error of starting a process or a thread.
pub fn remedy_of_start(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            "; raise the limit of processes and threads (ulimit -u, pids.max of the cgroup, kernel.threads-max)"
        }
        Some(Errno::ACCESS | Errno::NOEXEC) => "; is it a program, and may it be executed?",
        Some(Errno::NOENT) => "; is the path right?",
        _ => remedy(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_names_what_to_raise() {
        let of = |errno: Errno| remedy(&errno.into());
        assert!(of(Errno::MFILE).contains("ulimit -n"));
        assert!(of(Errno::NOMEM).contains("ulimit -v"));
        assert_eq!(of(Errno::AGAIN), "", "of a socket it says nothing about processes");
        assert!(remedy_of_start(&Errno::AGAIN.into()).contains("ulimit -u"));
        assert!(remedy_of_start(&Errno::MFILE.into()).contains("ulimit -n"));
        assert_eq!(remedy(&io::Error::other("unknown")), "");
    }
}
