//! Dying with the parent, and naming a process so that a later one with the same number is not mistaken for
//! it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
#[cfg(any(test, feature = "inside"))]
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

/// The link to the program that this process runs.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the bytes of this process that are in memory; 0 where the kernel does not say.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Asks the kernel to kill this process when its parent, whose number is `parent`, ends.
///
/// The signal comes when the parent's *thread* that spawned this process ends, so spawn from a thread that
/// lives as long as the process. Call it first in the child. The request does not survive `exec` of a
/// set-user-id program, and a child of this process does not inherit it.
///
/// # Errors
/// `NotFound` where the parent is gone already: end the process then.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the call above; then no signal comes, but this process has another
    // parent by now.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) == i32::try_from(parent).ok() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("the parent process {parent} has ended")))
}

/// Returns the name that process lists and debuggers show: at most 15 bytes. A longer name keeps the number
/// at its end, which tells it from similar names: `tp:segmenta.12`.
fn shown_as(name: &str) -> CString {
    const MOST: usize = 15;
    let plain: String = name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    let mut shown = format!("tp:{plain}");
    if shown.len() > MOST {
        let end = plain.rfind('.').map_or("", |dot| &plain[dot..]);
        let end = if end.len() <= 6 { end } else { "" };
        shown.truncate(shown.floor_char_boundary(MOST - end.len()));
        shown.push_str(end);
    }
    // It contains no zero byte: that is a control character, which was replaced.
    CString::new(shown).unwrap_or_default()
}

/// Shows the calling thread under a name of its own.
pub fn show_thread_as(name: &str) {
    // The name is only for people who look at the process, so an error does not matter.
    let _ = rustix::thread::set_name(&shown_as(name));
}

/// Shows the process, and the calling thread, under a name of its own.
pub fn show_process_as(name: &str) {
    show_thread_as(name);
    // The process has the name of its main thread, which may not be the calling one. Where /proc is missing,
    // the old name stays.
    let _ = std::fs::write("/proc/self/comm", shown_as(name).as_bytes());
}

/// A process, named by a descriptor that never comes to mean another process. Readable when the process has
/// ended.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens the process with the number `pid`, which must be a child that was not waited for yet; otherwise
    /// the number may name another process by now.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(PidFd { fd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Sends `SIGKILL`. It is no error if the process has ended.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, for at most `timeout` (`None`: no limit). Returns whether it has
    /// ended.
    #[cfg(any(test, feature = "inside"))]
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let end = timeout.and_then(|timeout| std::time::Instant::now().checked_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns whether the process has ended. Does not wait.
    #[cfg(any(test, feature = "inside"))]
    pub fn has_exited(&self) -> io::Result<bool> {
        self.wait(Some(Duration::ZERO))
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};

    const ROLE: &str = "TENSORPOST_TEST_ROLE";

    // Other tests run beside this one, take memory and give it back.
    #[test]
    fn memory_that_is_touched_is_resident() {
        const TOUCHED: usize = 64 << 20;
        let touched = vec![1_u8; TOUCHED];
        let resident = resident_bytes();
        assert!(resident >= TOUCHED as u64, "{resident} bytes with {} touched", touched.len());
        let all = rustix::system::sysinfo();
        assert!(resident < all.totalram as u64 * u64::from(all.mem_unit), "{resident} bytes");
    }

    #[test]
    fn a_name_is_cut_where_it_tells_least() {
        let shown = |name: &str| shown_as(name).into_string().unwrap();
        assert_eq!(shown("resize.0"), "tp:resize.0");
        assert_eq!(shown("a.b\0c\n"), "tp:a.b?c?");
        assert_eq!(shown("segmentation.12"), "tp:segmentat.12");
        assert_eq!(shown("preprocessing-images"), "tp:preprocessin");
        assert_eq!(shown("ääääääää.7"), "tp:ääääää".to_owned()[..13].to_owned() + ".7");
        assert_eq!(shown("x.a-rather-long-one"), "tp:x.a-rather-l");
    }

    #[test]
    fn a_thread_is_shown_under_its_name() {
        let named = std::thread::spawn(|| {
            show_thread_as("resize.0");
            std::fs::read_to_string("/proc/thread-self/comm").unwrap()
        });
        assert_eq!(named.join().unwrap(), "tp:resize.0\n");
    }

    #[test]
    fn a_killed_process_shows_on_its_descriptor() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = PidFd::open(child.id()).unwrap();
        assert!(!pidfd.has_exited().unwrap());
        pidfd.kill().unwrap();
        assert!(pidfd.wait(Some(Duration::from_secs(20))).unwrap());
        child.wait().unwrap();
        pidfd.kill().unwrap();
        assert!(PidFd::open(u32::MAX).is_err());
    }

    /// Runs this test again, in a process of its own and in the given role.
    fn again(role: &str) -> Child {
        let name = "os::process::tests::a_child_dies_with_its_parent";
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn line_with(child: &mut Child, word: &str) -> String {
        let out = BufReader::new(child.stdout.take().unwrap());
        out.lines().map_while(Result::ok).find(|line| line.contains(word)).unwrap()
    }

    #[test]
    fn a_child_dies_with_its_parent() {
        match std::env::var(ROLE).as_deref() {
            Ok("child") => {
                let parent = std::os::unix::process::parent_id();
                assert!(die_with_parent(parent + 1).is_err());
                die_with_parent(parent).unwrap();
                println!("\nchild is ready");
                // The test holds the other end of a pipe that never says anything: only a signal ends this.
                let (_keep, other) = std::os::unix::net::UnixStream::pair().unwrap();
                let _ = (&other).read(&mut [0]);
            }
            Ok(_) => {
                let mut child = again("child");
                line_with(&mut child, "child is ready");
                println!("\nchild:{}", child.id());
                let _ = std::io::stdin().read(&mut [0]);
            }
            Err(_) => {
                let mut parent = again("parent");
                let line = line_with(&mut parent, "child:");
                let child = PidFd::open(line.rsplit(':').next().unwrap().parse().unwrap()).unwrap();
                assert!(!child.has_exited().unwrap());
                PidFd::open(parent.id()).unwrap().kill().unwrap();
                assert!(child.wait(Some(Duration::from_secs(20))).unwrap());
                parent.wait().unwrap();
            }
        }
    }
}
