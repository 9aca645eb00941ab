//! Plays one run in this process: starts the pipeline, causes the failures, waits for the end, and judges.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tensorpost::node::{Node, NodeBuilder, Sharing, WorkerState, WorkerStatus};
use tensorpost::pipeline::{Canceller, PipelineError, Report, RunPipeline, Running};
use tensorpost::testing::leaks;

use super::build::build;
use super::history::{Logs, Place, bytes_so_far, lines_so_far};
use super::oracle::{End, Kind, Seen, Verdict, home, judge};
use super::plan::{Plan, stage_name};
use super::spec::{Ending, Fault, Spec, What, When};

/// A run that was ordered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The spec to play.
    pub spec: Spec,
    /// The device of its tensors.
    pub device: String,
    /// How long it may stand still.
    pub patience: Duration,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Why the graph was refused, if it was.
    pub refused: Option<String>,
    /// Everything that was wrong.
    pub verdicts: Vec<Verdict>,
    /// Items that were written down.
    pub items: u64,
    /// Deaths in the reports.
    pub deaths: u64,
    /// Items that the reports count as lost or left over.
    pub named: u64,
    /// How it ended, in a few words.
    pub end: String,
}

/// The names of the files in a run's folder.
pub const JOB: &str = "job.json";
/// See [`JOB`].
pub const OUTCOME: &str = "outcome.json";

/// Plays the run whose job lies in a folder, and writes its outcome there.
///
/// # Errors
/// The folder's contents are not as they should be.
pub fn run(folder: &Path) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(&std::fs::read_to_string(folder.join(JOB))?)?;
    let plan = Plan::new(&job.spec);
    let pipeline = build(&plan, folder, &job.device);
    let watch = Watch::start(folder, job.patience);
    let (mut outcome, mut marks) = (Outcome::default(), HashSet::new());
    if let Err(error) = pipeline.check() {
        outcome.refused = Some(error.to_string());
        return watch.done(&outcome);
    }
    if job.spec.runs == 0 {
        let running = pipeline.node(tuned).start();
        let end = follow(running, None, &plan, &watch, &mut outcome);
        finish(&plan, folder, end, &mut outcome, &mut marks)?;
    } else {
        let node = Arc::new(tuned(Node::builder()).start()?);
        for run in 0..job.spec.runs {
            watch.phase("starting");
            let running = node.run_pipeline(&pipeline);
            let end = follow(running, Some(&node), &plan, &watch, &mut outcome);
            watch.phase("waiting for the workers to end");
            nothing_left(&node, job.patience, &mut outcome);
            finish(&plan, folder, end, &mut outcome, &mut marks)?;
            std::fs::rename(folder.join("log"), folder.join(format!("log-{run}")))?;
            std::fs::create_dir(folder.join("log"))?;
        }
        watch.phase("shutting the node down");
        drop(node);
    }
    watch.phase("ending");
    let left = leaks().children;
    if !left.is_empty() {
        outcome.verdicts.push(Verdict { kind: Kind::Leak, what: format!("processes are left: {left:?}") });
    }
    watch.done(&outcome)
}

fn tuned(builder: NodeBuilder) -> NodeBuilder {
    // Workers are isolated on any device: a worker that dies must take no other with it.
    builder.worker_log("warn").start_deadline(Duration::from_secs(60)).sharing(Sharing::Isolated)
}

/// How the run ended, and the faults that struck.
struct Ended {
    end: End,
    struck: Vec<usize>,
    ended: bool,
}

/// Follows a pipeline to its end, and causes the failures of the spec.
fn follow(
    running: Result<Running, PipelineError>,
    node: Option<&Arc<Node>>,
    plan: &Plan,
    watch: &Watch,
    outcome: &mut Outcome,
) -> Ended {
    let running = match running {
        Ok(running) => running,
        Err(error) => {
            return Ended { end: End::Error(format!("{error:#}")), struck: Vec::new(), ended: false };
        }
    };
    watch.phase("running");
    let mut director = Director::new(plan, &watch.folder);
    let workers = || node.map(|node| &**node).or(running.node()).map(Node::workers).unwrap_or_default();
    let canceller = running.canceller();
    let mut hung = false;
    let mut ends = (0, director.begin);
    while !running.is_finished() {
        director.strike(&workers);
        director.scale(&running);
        if director.wants_end(&running, &canceller) {
            break;
        }
        // Items that go around for ever count as progress too. A machine with more work than cores is only
        // slow: items still come in, or out.
        let mut endless = ends.1.elapsed() > watch.patience * 3;
        if endless && !hung {
            let now = watch.at_the_ends(plan);
            endless = now == ends.0;
            ends = (now, Instant::now());
        }
        if (watch.is_hung() || endless) && !hung {
            hung = true;
            watch.note_hang(endless, outcome, plan, &workers());
            running.kill();
            watch.phase("ending after it was killed because it hung");
        }
        thread::sleep(Duration::from_millis(1));
    }
    director.release();
    let (struck, ended) = (director.struck.clone(), director.ended);
    if matches!(plan.spec.ending, Ending::Drop(_)) && ended {
        watch.phase("dropping it");
        drop(running);
        return Ended { end: End::Dropped, struck, ended };
    }
    if !hung {
        watch.phase("ending");
    }
    let result = running.wait();
    if let (true, Err(error), Some(verdict)) = (hung, &result, outcome.verdicts.last_mut()) {
        // The error lists what each process waited for.
        verdict.what += &format!("; {error}");
    }
    let end = match result {
        Ok(report) => End::Fine(report),
        Err(PipelineError::Failed { failure, report }) => {
            End::Failed(format!("{} on {:?}: {}", failure.stage, failure.id, failure.why), *report)
        }
        Err(PipelineError::Died { stage, replica, report, .. }) => End::Died(stage, replica, *report),
        Err(PipelineError::Killed { report }) => End::Killed(*report),
        Err(PipelineError::Incomplete { report }) => End::Incomplete(*report),
        Err(error) => match error.report() {
            Some(report) => End::Other(error.to_string(), report.clone()),
            None => End::Error(error.to_string()),
        },
    };
    Ended { end, struck, ended }
}

/// Judges a run that has ended.
fn finish(
    plan: &Plan,
    folder: &Path,
    Ended { end, mut struck, ended }: Ended,
    outcome: &mut Outcome,
    marks: &mut HashSet<String>,
) -> anyhow::Result<()> {
    let names = std::fs::read_dir(folder)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    // Faults that struck in an earlier run of the node do not count for this one.
    for mark in names.filter(|name| name.starts_with("fault-")) {
        let fault: Option<usize> = mark.split('-').nth(1).and_then(|fault| fault.parse().ok());
        if marks.insert(mark) {
            struck.extend(fault);
        }
    }
    let logs = Logs::read(&folder.join("log"))?;
    let wrong = std::fs::read_to_string(folder.join("wrong")).unwrap_or_default();
    let wrong: Vec<String> = wrong.lines().map(str::to_owned).collect();
    outcome.items += logs.count();
    if let Some(report) = end.report() {
        outcome.deaths += report.deaths.len() as u64;
        outcome.named += report.lost_count + report.left_over_count;
        std::fs::write(folder.join("report.txt"), report.to_string())?;
        std::fs::write(folder.join("report.json"), report.to_json())?;
    }
    outcome.end = end_in_words(&end);
    // A verdict says already whether the run was hanging; items that are missing then are no news.
    if outcome.verdicts.iter().any(|verdict| verdict.kind == Kind::Hang) {
        return Ok(());
    }
    let seen = Seen { logs, end, wrong, struck, ended };
    outcome.verdicts.extend(judge(plan, &seen));
    Ok(())
}

fn end_in_words(end: &End) -> String {
    let deaths = |report: &Report| {
        let deaths: Vec<_> = report.deaths.iter().map(|death| death.stage.as_str()).collect();
        if deaths.is_empty() { String::new() } else { format!(", deaths: {}", deaths.join(" ")) }
    };
    match end {
        End::Fine(report) => format!("ok{}", deaths(report)),
        End::Failed(why, report) => format!("failed: {why}{}", deaths(report)),
        End::Died(stage, replica, report) => format!("{stage} {replica} died{}", deaths(report)),
        End::Killed(report) => format!("killed{}", deaths(report)),
        End::Incomplete(report) => format!("incomplete{}", deaths(report)),
        End::Other(error, _) | End::Error(error) => error.clone(),
        End::Dropped => "dropped".into(),
    }
}

/// Checks a node that goes on: the workers of a pipeline that has ended exit, and leave nothing behind.
fn nothing_left(node: &Node, patience: Duration, outcome: &mut Outcome) {
    let deadline = Instant::now() + patience;
    loop {
        let alive: Vec<_> = node
            .workers()
            .into_iter()
            .filter(|worker| !matches!(worker.state, WorkerState::Exited { .. }))
            .map(|worker| format!("{} ({:?})", worker.name, worker.state))
            .collect();
        let usage = leaks();
        let held: Vec<_> = usage.held.iter().filter(|(_, count)| **count > 0).collect();
        if alive.is_empty() && held.is_empty() && usage.children.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            let what = format!(
                "after the pipeline's end: workers {alive:?}, held {held:?}, processes {:?}",
                usage.children
            );
            outcome.verdicts.push(Verdict { kind: Kind::Leak, what });
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Causes the failures.
struct Director<'p> {
    plan: &'p Plan,
    log: PathBuf,
    begin: Instant,
    struck: Vec<usize>,
    stopped: Vec<(Instant, u32)>,
    ended: bool,
    /// How often it has looked.
    looks: u32,
}

impl<'p> Director<'p> {
    fn new(plan: &'p Plan, folder: &Path) -> Self {
        let (log, begin) = (folder.join("log"), Instant::now());
        Director { plan, log, begin, struck: Vec::new(), stopped: Vec::new(), ended: false, looks: 0 }
    }

    fn has_come(&self, when: When) -> bool {
        match when {
            When::Items(op, items) => lines_so_far(&self.log, Place::of(op)) >= items,
            When::Micros(micros) => self.begin.elapsed() >= Duration::from_micros(micros),
        }
    }

    fn strike(&mut self, workers: &dyn Fn() -> Vec<WorkerStatus>) {
        self.stopped.retain(|(until, pid)| {
            let over = Instant::now() >= *until;
            if over {
                signal(*pid, Signal::CONT);
            }
            !over
        });
        for (index, fault) in self.plan.spec.faults.iter().enumerate() {
            let Fault::Outside { when, victims, stop } = fault else { continue };
            if self.struck.contains(&index) || !self.has_come(*when) {
                continue;
            }
            self.struck.push(index);
            let workers = workers();
            for (op, replica) in victims {
                let Some(pid) = self.worker_of(*op, *replica, &workers) else { continue };
                match stop {
                    Some(millis) => {
                        signal(pid, Signal::STOP);
                        self.stopped.push((Instant::now() + Duration::from_millis(*millis), pid));
                    }
                    None => signal(pid, Signal::KILL),
                }
            }
        }
    }

    /// Changes the number of replicas of stages that scale, some hundred times a second.
    fn scale(&mut self, running: &Running) {
        self.looks += 1;
        if !self.looks.is_multiple_of(7) {
            return;
        }
        let change = self.looks / 7;
        for op in self.plan.all().iter().filter(|op| op.op.settings.scales) {
            // The count neither alternates between up and down, nor is it the same for all stages.
            let count = 1 + (change * 5 + u32::from(op.number) + change / 3) % (op.op.settings.replicas + 1);
            // It may have ended.
            let _ = running.scale(&stage_name(op.number, &op.op.what), count);
        }
    }

    fn worker_of(&self, op: u16, replica: u32, workers: &[WorkerStatus]) -> Option<u32> {
        let op = self.plan.op(home(self.plan, op))?;
        let name = stage_name(op.number, &op.op.what);
        let names = [name.clone(), format!("{name}.{replica}")];
        let running = workers.iter().filter(|worker| matches!(worker.state, WorkerState::Running));
        running.filter(|worker| names.contains(&worker.name)).map(|worker| worker.pid).next()
    }

    /// Ends the pipeline if it is time. Returns whether it is to be dropped now.
    fn wants_end(&mut self, running: &Running, canceller: &Canceller) -> bool {
        let (Ending::Cancel(when) | Ending::Kill(when) | Ending::Drop(when)) = self.plan.spec.ending else {
            return false;
        };
        if self.ended || !self.has_come(when) {
            return false;
        }
        self.ended = true;
        match self.plan.spec.ending {
            Ending::Cancel(_) => canceller.cancel(),
            Ending::Kill(_) => running.kill(),
            _ => {}
        }
        matches!(self.plan.spec.ending, Ending::Drop(_))
    }

    fn release(&mut self) {
        self.stopped.drain(..).for_each(|(_, pid)| signal(pid, Signal::CONT));
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Watches for progress on a thread of its own, so also while the main thread waits for something.
struct Watch {
    folder: PathBuf,
    patience: Duration,
    state: Arc<Mutex<State>>,
}

struct State {
    phase: &'static str,
    moved: Instant,
    done: bool,
}

impl Watch {
    fn start(folder: &Path, patience: Duration) -> Watch {
        let state = State { phase: "starting", moved: Instant::now(), done: false };
        let watch = Watch { folder: folder.to_owned(), patience, state: Arc::new(Mutex::new(state)) };
        let (state, folder) = (Arc::clone(&watch.state), watch.folder.clone());
        thread::spawn(move || {
            let mut before = 0;
            loop {
                thread::sleep(Duration::from_millis(50));
                let now = bytes_so_far(&folder.join("log"));
                let mut state = state.lock();
                if now != before {
                    (before, state.moved) = (now, Instant::now());
                }
                // While the pipeline runs, the main thread looks itself, and can say more.
                let limit = if state.phase == "running" { patience * 2 } else { patience };
                if !state.done && state.moved.elapsed() > limit {
                    let what = format!("nothing moved for {limit:?} while {}: {}", state.phase, children());
                    let verdict = Verdict { kind: Kind::Hang, what };
                    let outcome = Outcome { verdicts: vec![verdict], ..Outcome::default() };
                    let _ = std::fs::write(
                        folder.join(OUTCOME),
                        serde_json::to_string(&outcome).unwrap_or_default(),
                    );
                    std::process::exit(4);
                }
            }
        });
        watch
    }

    fn phase(&self, phase: &'static str) {
        let mut state = self.state.lock();
        (state.phase, state.moved) = (phase, Instant::now());
    }

    fn is_hung(&self) -> bool {
        self.state.lock().moved.elapsed() > self.patience
    }

    /// Returns how many items sources and sinks have had by now.
    fn at_the_ends(&self, plan: &Plan) -> usize {
        let log = self.folder.join("log");
        let all =
            plan.all().into_iter().filter(|op| matches!(op.op.what, What::Source(_) | What::Sink { .. }));
        all.map(|op| lines_so_far(&log, Place::of(op.number))).sum()
    }

    fn note_hang(&self, endless: bool, outcome: &mut Outcome, plan: &Plan, workers: &[WorkerStatus]) {
        let workers = workers.iter().map(|worker| {
            format!("{} {:?} pid {}{}", worker.name, worker.state, worker.pid, state_of(worker.pid))
        });
        let workers: Vec<_> = workers.collect();
        let log = self.folder.join("log");
        let had = plan.all().into_iter().filter(|op| super::plan::writes(&op.op.what));
        let had = had.map(|op| {
            format!("{} {}", stage_name(op.number, &op.op.what), lines_so_far(&log, Place::of(op.number)))
        });
        let had: Vec<_> = had.collect();
        let why = if endless { "nothing came in or out for three times" } else { "nothing moved for" };
        let what = format!(
            "{why} {:?}; items so far: {}; workers: {}",
            self.patience,
            had.join(", "),
            workers.join("; ")
        );
        outcome.verdicts.push(Verdict { kind: Kind::Hang, what });
    }

    fn done(&self, outcome: &Outcome) -> anyhow::Result<()> {
        self.state.lock().done = true;
        Ok(std::fs::write(self.folder.join(OUTCOME), serde_json::to_string(outcome)?)?)
    }
}

fn state_of(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.map_or_else(String::new, |state| format!(" {state}"))
}

fn children() -> String {
    let children = leaks().children;
    format!("children {children:?}")
}
