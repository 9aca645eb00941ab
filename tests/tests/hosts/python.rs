//! Actors and stages of Python on another host: that host starts its own interpreter.
//!
//! The test needs no interpreter with the package: another program stands in for it. The program writes down
//! how it was started, and goes on as a worker of Rust. An actor of Python then reports that this worker is
//! not one of Python.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tensorpost::actor::Python;
use tensorpost::node::ActorError;
use tensorpost::pipeline::PipelineError;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::until;

use crate::{Other, address, head};

#[derive(Clone, Debug, Serialize, Deserialize, GpuMessage)]
#[gpu_message(portable)]
struct Frame {
    number: u64,
}

struct Frames;

impl Source for Frames {
    type Args = ();
    type Out = Frame;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Frames)
    }

    fn next(&mut self) -> anyhow::Result<Option<Frame>> {
        Ok(None)
    }
}

struct Seen;

impl Sink for Seen {
    type Args = ();
    type In = Frame;

    fn create((): (), _: &Env) -> anyhow::Result<Self> {
        Ok(Seen)
    }

    fn consume(&mut self, _: Frame) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Writes a program that stands in for an interpreter. For each start it writes a line into `log`: its
/// parent, a variable, and its arguments.
fn stand_in(at: &Path, log: &Path) {
    let program = std::env::current_exe().expect("this program");
    let script = format!(
        "#!/bin/sh\necho \"$PPID $GREETING $*\" >>'{}'\nexec '{}'\n",
        log.display(),
        program.display()
    );
    std::fs::write(at, script).expect("a file");
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).expect("a program");
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn another_host_starts_its_own_interpreter(builder: Builder) {
    let folder = tempfile::tempdir().expect("a folder");
    let (interpreter, log) = (folder.path().join("python"), folder.path().join("log"));
    stand_in(&interpreter, &log);
    let node = head(builder);
    let other =
        Other::serving_with(&node, &address(&node), &[("TENSORPOST_PYTHON", interpreter.as_os_str())]);
    let hosts = node.hosts().expect("hosts");
    let lens = || Python::actor("app:Lens").args((0.5,)).env("GREETING", "hello");

    // That host knows its interpreter; this one does not even have such a variable.
    let error = node.spawn::<Python>(lens()).on(&hosts[1]).start().expect_err("a worker of Rust");
    let text = error.to_string();
    assert!(matches!(error, ActorError::Elsewhere { .. }) && text.contains("host 1 `other`"), "{text}");
    assert!(text.contains("`app:Lens` is an actor of Python, and this worker is none"), "{text}");
    let started = format!("{} hello -P -m tensorpost.worker", other.id());
    assert_eq!(lines(&log), vec![started.clone()], "its node started it");

    // A stage of a pipeline fails in the same way.
    let flow = Pipeline::new("python").source::<Frames>(()).python::<Frame>(lens()).on(&hosts[1]);
    let pipeline = flow.sink::<Seen>(()).pipeline();
    let error = node.run_pipeline(&pipeline).expect_err("a worker of Rust");
    let text = error.to_string();
    assert!(matches!(error, PipelineError::Start { .. }) && text.contains("host 1 `other`"), "{text}");
    assert_eq!(lines(&log), vec![started.clone(), started]);
    until("the workers have ended", || other.workers().is_empty());

    // An interpreter that is named is that host's as well. Where it is missing, or is no interpreter, the
    // error says so, and names the remedy.
    for (named, why) in [("/is/not/there/python", "No such file"), ("/bin/false", "exit status: 1")] {
        let error = node.spawn::<Python>(lens().interpreter(named)).on(&hosts[1]).start();
        let text = error.expect_err("it is no interpreter").to_string();
        assert!(text.contains("host 1 `other`") && text.contains(why), "{text}");
        assert!(
            text.contains("has the package `tensorpost`") && text.contains("TENSORPOST_PYTHON"),
            "{text}"
        );
    }
    assert!(node.shutdown(Duration::from_secs(10)).expect("a report").is_clean());
}

pub(crate) fn cases() -> Vec<Case> {
    cases![another_host_starts_its_own_interpreter]
}
