//! Checks that a private MPS daemon starts and serves, as a node's does with `Sharing::Mps`. Without MPS,
//! `Sharing::Isolated` works.
//!
//! The process of this check keeps the daemon and stops it, even if the doctor dies: it is not killed with
//! the doctor.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::watch::mps::{CONTROL, Daemon, Folder, PIPES};
use tensorpost_core::api::watch::remedies::{FOLDER, MPS_PROGRAM};
use tensorpost_core::api::watch::trial;

use super::super::Check;
use super::super::subprocess::{End, LONG, Running, Task, await_end, say};
use super::again;

/// How long the daemon may take to answer.
const DAEMON_STARTS: Duration = Duration::from_secs(10);
/// How long the doctor waits for the daemon to end; the daemon ends without the doctor too.
const QUIT: Duration = Duration::from_millis(500);

/// The result of the try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Tried {
    /// The folder of its pipes cannot be made.
    NoFolder(String),
    NoDaemon(String),
    /// The daemon answers, but its client fails.
    NoClient(String),
    Serves,
}

/// Starts a daemon and a client of it.
pub(in crate::doctor) fn run() {
    let folder = match Folder::create(&std::env::temp_dir()) {
        Ok(folder) => folder,
        Err(why) => return say(&Tried::NoFolder(why)),
    };
    let daemon = match Daemon::start(folder.path(), DAEMON_STARTS) {
        Ok(daemon) => daemon,
        Err(why) => return say(&Tried::NoDaemon(why)),
    };
    let environment = [(PIPES, folder.path().as_os_str().to_owned())];
    let client = again().start_with(Task::MpsClient, LONG, std::process::Stdio::null(), &environment);
    let served = client.and_then(|mut client| client.next::<Result<(), String>>());
    say(&match served {
        Ok(Ok(())) => Tried::Serves,
        Ok(Err(why)) => Tried::NoClient(why),
        Err(end) => Tried::NoClient(end.text()),
    });
    await_end();
    drop(daemon);
}

/// Uses the first GPU.
pub(in crate::doctor) fn run_client() {
    say(&trial::gpu::use_first());
    // Exit without destructors: the server frees a client's resources.
    std::process::exit(0);
}

/// Returns the result that the process of the check sends; the process then stops the daemon.
pub(super) fn hear(running: Result<Running, End>) -> Result<Tried, String> {
    let mut running = running.map_err(|end| end.text())?;
    let tried = running.next().map_err(|end| end.text());
    running.leave(QUIT);
    tried
}

/// Judges the result; `None` where there is no program to start.
pub(super) fn judge(tried: Option<Result<Tried, String>>) -> Check {
    let id = "mps";
    let limited = |found: String| {
        Check::limited(id, found).needs(
            "a private MPS daemon",
            "with Sharing::Mps kernels of several workers overlap; Sharing::Isolated works without",
        )
    };
    match tried {
        None => limited(format!("{CONTROL} is not in PATH")).fix(MPS_PROGRAM),
        Some(Ok(Tried::Serves)) => Check::ok(id, "a private daemon starts and serves"),
        Some(Ok(Tried::NoFolder(why))) => {
            limited(format!("the folder of its pipes cannot be made: {why}")).fix(format!("{FOLDER}: export TMPDIR=/tmp"))
        }
        Some(Ok(Tried::NoDaemon(why))) => limited(format!("the daemon does not start: {why}")).fix(format!(
            "{CONTROL} -f shows why; echo quit | {CONTROL} ends another user's daemon; in a container --ipc=host or none of both"
        )),
        Some(Ok(Tried::NoClient(why))) => limited(format!("the daemon does not serve: {why}"))
            .fix("nvidia-smi -c 0; in a container, the daemon and its clients need one IPC namespace and one user"),
        Some(Err(why)) => limited(format!("it could not be tried: {why}")).fix(format!("{CONTROL} -f shows why")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::doctor::Status;
    use crate::doctor::system::find_program;

    #[test]
    fn what_of_it_fails_is_named() {
        assert_eq!(judge(Some(Ok(Tried::Serves))).status, Status::Ok);
        for (tried, fix) in [
            (None, "PATH"),
            (Some(Ok(Tried::NoFolder("/proc: no".to_owned()))), "TMPDIR"),
            (Some(Ok(Tried::NoDaemon("ended at once".to_owned()))), "-f"),
            (Some(Ok(Tried::NoClient("805".to_owned()))), "nvidia-smi -c 0"),
            (Some(Err("it did not answer in time and was killed".to_owned())), "-f"),
        ] {
            let check = judge(tried);
            assert!(check.status == Status::Limited && check.fix.contains(fix), "{check:?}");
        }
    }

    #[test]
    fn what_it_needs_is_tried() {
        assert!(Folder::create(Path::new("/proc")).is_err(), "nothing can be made there");
        assert_eq!(find_program(CONTROL, Some("/is/not/there:/proc".as_ref())), None);
        assert!(find_program("sh", std::env::var_os("PATH").as_deref()).is_some());
    }
}
