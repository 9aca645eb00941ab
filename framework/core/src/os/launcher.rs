//! Starts processes from a thread that has a descriptor table of its own.
//!
//! A child begins with a copy of its parent's table, and its exec closes that copy, one descriptor after the
//! other, before the program begins. Closing a descriptor that a peer sent can take as long as the peer likes
//! (see [`peer_fd`](super::peer_fd)). If such a descriptor was open even for a moment while the child was
//! made, the child hangs, and the start of an innocent worker fails. So the thread that makes children gets a
//! table of its own before the first descriptor of a peer comes. The table has the standard streams and the
//! descriptors that are given for a child.
//!
//! A process has one such table. Each [`Launcher`] has its own thread with that table, because the kernel
//! kills a child that asked for it ([`die_with_parent`](super::process::die_with_parent)) when the *thread*
//! that made it ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::fork::forks_to_execute;
use super::{PerProcess, Seqpacket};

/// Makes a child with the descriptors that were sent for it.
type MakeChild = Box<dyn FnOnce(Vec<OwnedFd>) -> io::Result<Child> + Send>;

/// The job of a launching thread, and the channel for its answer.
type Job = (MakeChild, SyncSender<io::Result<Child>>);

/// The request for one more launching thread.
type Start = (Receiver<Job>, SyncSender<io::Result<JoinHandle<()>>>);

/// The table that children are made from, as the rest of the process reaches it. It lives as long as the
/// process.
static TABLE: PerProcess<Mutex<Option<Table>>> = PerProcess::new(|| Mutex::new(None));

struct Table {
    /// Carries descriptors into the table. The sender holds the lock until they are used.
    into: Seqpacket,
    /// Leads to the thread that made the table.
    starts: Sender<Start>,
}

/// A thread that makes children. When it is dropped, the kernel kills those children that asked for it.
#[derive(Debug)]
pub struct Launcher {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Launcher {
    /// Starts the thread. The first one of a process makes the table too, so call it before a peer can send
    /// anything.
    ///
    /// # Errors
    /// The system has no thread or no descriptors to give.
    pub fn start() -> io::Result<Self> {
        let mut table = TABLE.get().lock();
        let table = match &mut *table {
            Some(table) => table,
            none => none.insert(Table::make()?),
        };
        let (jobs, taken) = channel();
        let (reply, answer) = sync_channel(1);
        table.starts.send((taken, reply)).map_err(|_| ended())?;
        let thread = answer.recv().map_err(|_| ended())??;
        Ok(Launcher { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Calls `make` on the launcher's thread to make a child. `make` gets copies of all descriptors in
    /// `given`, in their order, under other numbers. Descriptor numbers of this thread have no meaning in
    /// `make`, nor those of `make` here, so the child must have no pipes. Waits until the child's program
    /// begins.
    ///
    /// # Errors
    /// Those of `make`; where the descriptors cannot be sent.
    pub fn launch(
        &self,
        given: &[BorrowedFd<'_>],
        make: impl FnOnce(Vec<OwnedFd>) -> io::Result<Child> + Send + 'static,
    ) -> io::Result<Child> {
        let table = TABLE.get().lock();
        let (Some(table), Some(jobs)) = (&*table, &self.jobs) else { return Err(ended()) };
        table.into.send(&[0], given)?;
        let (reply, answer) = sync_channel(1);
        jobs.send((Box::new(make), reply)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The thread has no result: errors and panics went to the caller that asked.
            let _ = thread.join();
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that starts processes has ended")
}

impl Table {
    fn make() -> io::Result<Self> {
        let (into, from) = Seqpacket::pair()?;
        let from = OwnedFd::from(from);
        let number = from.as_raw_fd();
        let (starts, taken) = channel();
        let (reply, answer) = sync_channel(1);
        std::thread::Builder::new().name("tp-table".to_owned()).spawn(move || {
            let left = leave_table(number);
            // From here on this thread's descriptors are no longer the process's.
            forks_to_execute();
            match Seqpacket::from_fd(from) {
                Ok(from) => {
                    let _ = reply.send(left);
                    start_threads(&Arc::new(from), &taken);
                }
                Err(error) => drop(reply.send(Err(error))),
            }
        })?;
        match answer.recv().map_err(|_| ended())? {
            Ok(()) => drop(own(number)),
            Err(error) => tracing::warn!(
                %error,
                "workers are started from the process's own table of descriptors: one that sends the node a descriptor \
                 that closes slowly can hold up the start of another. `close_range` (Linux 5.9) is missing or forbidden"
            ),
        }
        Ok(Table { into, starts })
    }
}

/// Starts launching threads until the process ends; they share this thread's table.
fn start_threads(from: &Arc<Seqpacket>, starts: &Receiver<Start>) {
    for (jobs, reply) in starts {
        let from = Arc::clone(from);
        let thread = std::thread::Builder::new().name("tp-launch".to_owned()).spawn(move || {
            forks_to_execute();
            jobs.iter().for_each(|(make, reply)| drop(reply.send(make_child(&from, make))));
        });
        let _ = reply.send(thread);
    }
}

fn make_child(from: &Seqpacket, make: MakeChild) -> io::Result<Child> {
    let packet = from.recv(&mut Vec::new())?;
    if packet.starved {
        return Err(rustix::io::Errno::MFILE.into());
    }
    // Catch a panic: the children of this thread must not be killed because one could not be made.
    catch_unwind(AssertUnwindSafe(|| make(packet.fds)))
        .unwrap_or_else(|_| Err(io::Error::other("what makes the process panicked")))
}

/// Gives the calling thread a table of its own, with the standard streams and `kept`.
#[expect(unsafe_code, reason = "Rust knows one table of descriptors")]
fn leave_table(kept: RawFd) -> io::Result<()> {
    let close_range = |first: RawFd, last: u32, flags: libc::c_uint| {
        // SAFETY: with `CLOSE_RANGE_UNSHARE` the call closes nothing in the process's table, and the second
        // call is made only when this thread has left that table. This thread owns no descriptor but `kept`,
        // and borrows none from elsewhere.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // With this flag the kernel does not copy the descriptors in the range, so nothing is closed here.
    close_range(kept + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > 3 {
        close_range(3, kept.unsigned_abs() - 1, 0)?;
    }
    Ok(())
}

/// Returns the process's copy of a descriptor whose owner has left the process's table.
#[expect(unsafe_code, reason = "it has no owner here any more")]
fn own(number: RawFd) -> OwnedFd {
    // SAFETY: the number was open when the table was copied and its owner can close it only in the copy, so
    // it is open here and nobody else's.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    /// Returns whether a child that is made by `launch` has the descriptor `number`.
    fn has(number: RawFd, launch: impl FnOnce(Command) -> io::Result<Child>) -> bool {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("test -e /proc/self/fd/{number}")).stdin(Stdio::null());
        launch(command).unwrap().wait().unwrap().success()
    }

    #[test]
    fn a_child_has_nothing_of_the_process_but_what_it_is_given() {
        let launcher = Launcher::start().unwrap();
        let memory = memfd_create("for a child", MemfdFlags::CLOEXEC).unwrap();
        // Clear close-on-exec, so that the child would have the descriptor if it were in its table.
        fcntl_setfd(&memory, FdFlags::empty()).unwrap();
        let number = memory.as_raw_fd();
        assert!(has(number, |mut command| command.spawn()), "as children usually are");
        assert!(!has(number, |mut command| launcher.launch(&[], move |_| command.spawn())));

        let given = launcher.launch(&[memory.as_fd()], |mut given| {
            let memory = given.pop().expect("one was given");
            Command::new("/bin/sh").arg("-c").arg("echo -n hello").stdout(Stdio::from(memory)).spawn()
        });
        assert!(given.unwrap().wait().unwrap().success());
        assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, 5);
    }

    #[test]
    fn an_error_and_a_panic_are_told_and_the_next_launch_works() {
        let launcher = Launcher::start().unwrap();
        let error = launcher.launch(&[], |_| Command::new("/does/not/exist").spawn()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(
            launcher.launch(&[], |_| Command::new("/bin/true").spawn()).unwrap().wait().unwrap().success()
        );
        launcher.launch(&[], |_| panic!("as told")).unwrap_err();
        assert!(
            launcher.launch(&[], |_| Command::new("/bin/true").spawn()).unwrap().wait().unwrap().success()
        );
    }
}
