//! Remedies for errors of the system that report a shortage.
//!
//! The system's words name the shortage, but not the limit to raise. Errors of this crate that carry such an
//! error add the remedy. The doctor finds the same shortages before anything fails; each remedy is one text,
//! which both give.

use std::io;

use rustix::io::Errno;

/// Too few descriptors in a process.
pub const OPEN_FILES: &str = "raise the limit of open files (ulimit -n 65536; for a container --ulimit nofile=65536; for a \
                              systemd unit LimitNOFILE=65536)";

/// Too few descriptors in the system.
pub const SYSTEM_FILES: &str = "raise the system's limit of open files (sysctl -w fs.file-max=1000000)";

/// Too little memory.
pub const MEMORY: &str = "raise the limit of memory (ulimit -v, memory.max of the cgroup, --memory of a container) or use \
                          less (`host_budget`)";

/// No room on a disk.
pub const DISK: &str = "make room on the disk, or name a folder on another one";

/// A file may not grow.
pub const FILE_SIZE: &str = "raise the limit of file size (ulimit -f unlimited)";

/// Too few processes and threads.
pub const PROCESSES: &str = "raise the limit of processes and threads (ulimit -u, pids.max of the cgroup, --pids-limit of a \
                             container, kernel.threads-max)";

/// A file that does not run.
pub const EXECUTABLE: &str = "is it a program, and may it be executed?";

/// A file that is not there.
pub const PATH: &str = "is the path right?";

/// `/proc` cannot be used.
pub const PROC: &str = "mount /proc (mount -t proc proc /proc); in a container, do not mask it";

/// The remedy where the program of MPS is missing.
pub const MPS_PROGRAM: &str = "install nvidia-cuda-mps-control, which is in NVIDIA's driver package (nvidia-compute-utils; in a \
                               container NVIDIA_DRIVER_CAPABILITIES=compute,utility), and have PATH name its folder";

/// The remedy for a folder in which nothing can be made.
pub const FOLDER: &str = "name a folder that this user may write to";

/// Returns the remedy, to be put behind the text of `error`; empty where none is known.
pub fn remedy(error: &io::Error) -> String {
    text(known(error))
}

/// Returns the remedy, as [`remedy`] does, for an error of starting a process or a thread.
pub fn remedy_of_start(error: &io::Error) -> String {
    text(known_of_start(error))
}

/// Returns the remedy for `error`, if one is known.
pub fn known(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some(OPEN_FILES),
        Errno::NFILE => Some(SYSTEM_FILES),
        Errno::NOMEM => Some(MEMORY),
        Errno::NOSPC | Errno::DQUOT => Some(DISK),
        Errno::FBIG => Some(FILE_SIZE),
        _ => None,
    }
}

/// Returns the remedy, as [`known`] does, for an error of starting a process or a thread.
pub fn known_of_start(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => Some(PROCESSES),
        Errno::ACCESS | Errno::NOEXEC => Some(EXECUTABLE),
        Errno::NOENT => Some(PATH),
        _ => known(error),
    }
}

fn text(remedy: Option<&'static str>) -> String {
    remedy.map_or_else(String::new, |remedy| format!("; {remedy}"))
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
