//! Keeps the standard error of a process that is starting, for its parent.
//!
//! The child's standard error at first is memory of a fixed size; once the child has started, it puts [its
//! real one](give_back) in that place. **On a crash** before that, the parent finds the text in the memory.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{SeekFrom, seek};
use rustix::io::pread;
use rustix::stdio::{dup2_stderr, stderr};

use super::Memfd;

/// Room for a child's words.
const BYTES: u64 = 1 << 20;

/// Number of last lines that are reported.
const LINES: usize = 12;
/// Number of last bytes that are reported.
const TOLD: usize = 2 << 10;

/// See the module.
#[derive(Debug)]
pub struct LastWords(Memfd);

impl LastWords {
    /// Creates the memory for a child that is about to start.
    ///
    /// # Errors
    /// The errors of the kernel: it has no descriptor, or no memory.
    pub fn new() -> io::Result<Self> {
        Memfd::create("stderr", BYTES).map(LastWords)
    }

    /// Returns everything that the child wrote, and its last lines.
    pub fn read(&self) -> (Vec<u8>, String) {
        let all = written_to(self.0.as_fd());
        let text = String::from_utf8_lossy(&all);
        let mut lines: Vec<&str> =
            text.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES).collect();
        lines.reverse();
        let text = lines.join("\n");
        let from = text.floor_char_boundary(text.len().saturating_sub(TOLD));
        let last = text[from..].to_owned();
        (all, last)
    }
}

impl AsFd for LastWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the bytes before the file position of a descriptor; child and parent share that position.
fn written_to(fd: BorrowedFd<'_>) -> Vec<u8> {
    let len = seek(fd, SeekFrom::Current(0)).unwrap_or(0).min(BYTES);
    let mut all = vec![0; usize::try_from(len).unwrap_or(0)];
    let mut read = 0;
    while read < all.len() {
        match pread(fd, &mut all[read..], read as u64) {
            Ok(more @ 1..) => read += more,
            _ => break,
        }
    }
    all.truncate(read);
    all
}

/// Makes `own` the standard error in the place of the memory, and writes the text so far to it. The child
/// calls it.
///
/// # Errors
/// The errors of the kernel.
pub fn give_back(own: &OwnedFd) -> io::Result<()> {
    let words = written_to(stderr());
    dup2_stderr(own)?;
    io::stderr().write_all(&words)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_last_lines_of_a_child_are_told() {
        let words = LastWords::new().unwrap();
        let mut child = Command::new("/bin/sh");
        child.args(["-c", "seq 100 >&2; echo >&2; printf 'no such library' >&2; exit 7"]);
        child.stderr(Stdio::from(words.as_fd().try_clone_to_owned().unwrap()));
        assert!(!child.status().unwrap().success());
        let (all, last) = words.read();
        assert!(all.starts_with(b"1\n2\n") && all.ends_with(b"100\n\nno such library"));
        assert!(last.starts_with("90\n91\n") && last.ends_with("100\nno such library"), "{last}");
    }

    #[test]
    fn of_long_lines_the_end_is_told() {
        let words = LastWords::new().unwrap();
        let mut child = Command::new("/bin/sh");
        child.args(["-c", "head -c 5000 /dev/zero | tr '\\0' x >&2; echo end >&2"]);
        child.stderr(Stdio::from(words.as_fd().try_clone_to_owned().unwrap()));
        assert!(child.status().unwrap().success());
        let (all, last) = words.read();
        assert_eq!((all.len(), last.len()), (5004, TOLD));
        assert!(last.ends_with("xxend"), "{last}");
    }
}
