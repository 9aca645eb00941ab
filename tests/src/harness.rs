//! The `main` of a test binary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use parking_lot::RwLock;
use tensorpost::node::{Node, NodeBuilder};

/// How long one case may take. Each takes seconds at most; the bound is for a machine that does other work
/// too.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The settings of a case's node.
pub type Builder = NodeBuilder;

/// A test, whose name says what it shows.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    run: fn(Builder),
    possible: fn() -> Result<(), String>,
    deadline: Duration,
    alone: bool,
}

impl Case {
    /// Makes a case. The name begins with that of the program, which is not shown.
    pub const fn new(name: &'static str, run: fn(Builder)) -> Self {
        Case { name, run, possible: || Ok(()), deadline: DEADLINE, alone: false }
    }

    /// Runs the case only where `possible` says that it can be run. Elsewhere the case counts as ignored, not
    /// as passed, with the reason that `possible` gave.
    pub const fn only_where(self, possible: fn() -> Result<(), String>) -> Self {
        Case { possible, ..self }
    }

    /// Gives the case up after `deadline` instead.
    pub const fn within(self, deadline: Duration) -> Self {
        Case { deadline, ..self }
    }

    fn shown(&self) -> &'static str {
        self.name.split_once("::").map_or(self.name, |(_, name)| name)
    }
}

/// Makes each case run while no other one does, for cases that look at the process as a whole.
pub fn alone(cases: Vec<Case>) -> Vec<Case> {
    cases.into_iter().map(|case| Case { alone: true, ..case }).collect()
}

/// Makes [`Case`]s of functions, under their own names and those of their modules.
#[macro_export]
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        vec![$($crate::harness::Case::new(concat!(module_path!(), "::", stringify!($case)), $case)),*]
    };
}

/// Makes one program of modules, each of which has `cases`.
#[macro_export]
macro_rules! modules {
    ($($module:ident),* $(,)?) => {
        fn cases() -> Vec<$crate::harness::Case> {
            [$($module::cases()),*].concat()
        }
    };
}

/// Runs the cases and exits.
pub fn run(cases: Vec<Case>) -> ! {
    run_with(cases, Arguments::from_args)
}

/// Runs cases of which many wait for seconds, as for the grace period of a host that is silent: it is [`run`]
/// with more of them at a time.
pub fn run_waiting(cases: Vec<Case>) -> ! {
    run_with(cases, || {
        let mut arguments = Arguments::from_args();
        arguments.test_threads.get_or_insert(4 * cores());
        arguments
    })
}

/// Runs one case after the other, all on the same thread: it is [`run`] without concurrency.
pub fn run_one_by_one(cases: Vec<Case>) -> ! {
    run_with(cases, || Arguments { test_threads: Some(1), ..Arguments::from_args() })
}

/// Silences panics that a case provokes on purpose: dozens of them would hide the line of an unexpected one.
fn hush_asked_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload_as_str().is_some_and(|text| text.starts_with("it was told to panic")) {
            before(info);
        }
    }));
}

/// Whether this process runs `main` of its program: workers do not.
pub static MAIN_HAS_BEGUN: AtomicBool = AtomicBool::new(false);

fn run_with(cases: Vec<Case>, arguments: fn() -> Arguments) -> ! {
    MAIN_HAS_BEGUN.store(true, Ordering::Relaxed);
    hush_asked_panics();
    crate::user::be_another_if_told();
    if std::env::var_os("RUST_LOG").is_some() {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .try_init();
    }
    // Cases that may not run beside others come last, so that the others are waited for only once.
    let (alone, beside): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.alone);
    let trials = beside
        .into_iter()
        .chain(alone)
        .map(|case| Trial::ignorable_test(case.shown(), move || in_turn(case)))
        .collect();
    let mut arguments = arguments();
    // Most cases wait for processes that start and end.
    arguments.test_threads.get_or_insert(2 * cores());
    libtest_mimic::run(&arguments, trials).exit()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Each running case holds it shared; a case that runs alone holds it exclusively.
static RUNNING: RwLock<()> = RwLock::new(());

/// Runs a case when it may run.
fn in_turn(case: Case) -> Result<Completion, Failed> {
    if case.alone {
        let _alone = RUNNING.write();
        watched(case)
    } else {
        let _beside = RUNNING.read();
        watched(case)
    }
}

/// Runs a case on a thread of its own, and gives it up at the deadline.
fn watched(case: Case) -> Result<Completion, Failed> {
    if let Err(why_not) = (case.possible)() {
        return Ok(Completion::ignored_with(why_not));
    }
    let (done, ended) = channel::<()>();
    let thread = std::thread::Builder::new().name(case.shown().into()).spawn(move || {
        let _done = done; // drops when the case is over, by a panic too
        (case.run)(Node::builder());
    })?;
    match ended.recv_timeout(case.deadline) {
        Err(RecvTimeoutError::Timeout) => Err(format!("not done after {:?}", case.deadline).into()),
        _ => thread.join().map(|()| Completion::Completed).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").into()
        }),
    }
}
