//! Child processes that end when this one ends.

use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};

/// A child, which is killed when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        Ok(Process(command.spawn()?))
    }

    /// Returns how it has ended, if it has.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a child has ended; [`Process::ended`] then tells which.
pub(crate) fn wait_for_any() -> anyhow::Result<()> {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(Errno::INTR) => {}
            done => return Ok(done.map(|_| ())?),
        }
    }
}

/// Ends this process with the one that has started it, however that one ends.
pub(crate) fn end_with_parent() -> anyhow::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
