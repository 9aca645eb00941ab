//! Plays many runs, each in a process of its own, so that a campaign sees whatever happens to that process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::draw::{Faults, draw};
use super::oracle::{Kind, Verdict};
use super::run::{JOB, Job, OUTCOME, Outcome};
use super::shrink::shrink;
use super::spec::Spec;

/// How to play the runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program whose `--child` plays one run.
    pub program: PathBuf,
    /// How many run at a time.
    pub jobs: usize,
    /// Whether failures are played.
    pub faults: Faults,
    /// The device of the tensors.
    pub device: String,
    /// How long a run may stand still.
    pub patience: Duration,
    /// The folder for the specs and logs of failed runs.
    pub keep: Option<PathBuf>,
    /// Whether specs that failed are made smaller.
    pub shrink: bool,
}

/// The seeds to play.
#[derive(Clone, Debug)]
pub enum Seeds {
    /// These seeds.
    All(std::ops::Range<u64>),
    /// The seeds from this one on, for this long.
    For(u64, Duration),
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its seed, if it was drawn from one.
    pub seed: Option<u64>,
    /// Its spec.
    pub spec: Spec,
    /// Its outcome, with the verdicts.
    pub outcome: Outcome,
}

/// The sums over all runs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Runs that ended.
    pub runs: u64,
    /// The runs that were refused before the start.
    pub refused: u64,
    /// Items that were written down.
    pub items: u64,
    /// Deaths in reports.
    pub deaths: u64,
    /// Items that reports name as lost or left over.
    pub named: u64,
    /// The runs that failed.
    pub failed: Vec<Failed>,
}

/// A run is killed when it takes this many times as long as it may stand still, and a minute.
const PATIENCES: u32 = 12;
/// Lines that a peaceful run may log although it should log nothing. Halves that are left over are right
/// where nothing else is wrong. A process fails to answer within a second where it gets no core for that
/// long.
const EXCUSED: [&str; 2] = ["a run is incomplete", "has not said in time what a death left it without"];

/// Tells runs' folders from each other.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Plays a run in a process of its own. A failed run is kept under this name, where the options say so.
///
/// # Errors
/// The folder or the process cannot be made.
pub fn play(options: &Options, spec: &Spec, name: &str) -> anyhow::Result<Outcome> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tensorpost-random-{}-{number}", std::process::id()));
    std::fs::create_dir_all(folder.join("log"))?;
    let job = Job { spec: spec.clone(), device: options.device.clone(), patience: options.patience };
    std::fs::write(folder.join(JOB), serde_json::to_string(&job)?)?;
    let said = File::create(folder.join("said"))?;
    let child = Command::new(&options.program)
        .arg("--child")
        .arg(&folder)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .spawn()?;
    let status = wait(child, options.patience * PATIENCES + Duration::from_secs(60))?;
    let mut outcome = outcome_of(&folder, status, spec);
    let left = left_behind(&folder);
    if !left.is_empty() {
        let what = format!("processes outlive the node: {left:?}");
        outcome.verdicts.push(Verdict { kind: Kind::Leak, what });
    }
    if let (Some(keep), false) = (&options.keep, outcome.verdicts.is_empty()) {
        std::fs::create_dir_all(keep)?;
        std::fs::write(keep.join(format!("{name}.json")), spec.to_json())?;
        copy(&folder, &keep.join(name))?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(outcome)
}

/// Waits until a process ends; kills it when it takes too long. Returns `None` where it was killed.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn outcome_of(folder: &Path, status: Option<ExitStatus>, spec: &Spec) -> Outcome {
    let said = std::fs::read_to_string(folder.join("said")).unwrap_or_default();
    let text = std::fs::read_to_string(folder.join(OUTCOME)).ok();
    let written = text.and_then(|text| serde_json::from_str::<Outcome>(&text).ok());
    let mut outcome = match (written, status) {
        (Some(outcome), Some(_)) => outcome,
        (_, None) => failed(Kind::Hang, format!("it was killed at the deadline; {}", tail(&said))),
        (None, Some(status)) => failed(Kind::Crash, format!("{status}; {}", tail(&said))),
    };
    if status.is_some_and(|status| !status.success()) && outcome.verdicts.is_empty() {
        outcome.verdicts.push(Verdict { kind: Kind::Crash, what: format!("{status:?}; {}", tail(&said)) });
    }
    let signs = |line: &&str| {
        [" WARN ", "ERROR ", "panicked at"].iter().any(|sign| line.contains(sign))
            && !EXCUSED.iter().any(|excused| line.contains(excused))
    };
    let complaint = said.lines().find(signs);
    if let (true, Some(complaint)) = (spec.faults.is_empty() && spec.is_peaceful(), complaint) {
        outcome.verdicts.push(Verdict { kind: Kind::Complaint, what: complaint.to_owned() });
    }
    outcome
}

fn failed(kind: Kind, what: String) -> Outcome {
    Outcome { verdicts: vec![Verdict { kind, what }], ..Outcome::default() }
}

fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(8)..].join(" | ")
}

/// Kills the processes of a run that outlive it, and returns their ids.
fn left_behind(folder: &Path) -> Vec<u32> {
    let name = folder.as_os_str().as_encoded_bytes();
    let of_run = || -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| {
            let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            command.split(|byte| *byte == 0).any(|argument| argument == name)
        })
        .collect()
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let left = of_run();
        if left.is_empty() || Instant::now() > deadline {
            for id in left.iter().filter_map(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
                let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            }
            return left;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The state that the threads of a campaign share.
struct Shared<'o> {
    options: &'o Options,
    seeds: &'o Seeds,
    next: AtomicU64,
    begin: Instant,
    tally: Mutex<Tally>,
    over: AtomicBool,
}

impl Shared<'_> {
    fn next_seed(&self) -> Option<u64> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        match self.seeds {
            Seeds::All(range) => Some(range.start + index).filter(|seed| range.contains(seed)),
            Seeds::For(first, time) => (self.begin.elapsed() < *time).then(|| first.wrapping_add(index)),
        }
    }

    fn work(&self) {
        while let Some(seed) = self.next_seed() {
            let spec = draw(seed, self.options.faults);
            let outcome = play(self.options, &spec, &format!("seed-{seed}"))
                .unwrap_or_else(|error| failed(Kind::Start, format!("{error:#}")));
            let mut tally = self.tally.lock();
            tally.runs += 1;
            tally.refused += u64::from(outcome.refused.is_some());
            tally.items += outcome.items;
            tally.deaths += outcome.deaths;
            tally.named += outcome.named;
            if !outcome.verdicts.is_empty() {
                drop(tally);
                self.failed(seed, spec, outcome);
            }
        }
    }

    fn failed(&self, seed: u64, spec: Spec, outcome: Outcome) {
        let mut text = format!("\rseed {seed} FAILED: {}\n", in_words(&outcome));
        text += &format!("  again: random_run --seed {seed}{}\n", self.options.arguments());
        let mut spec = spec;
        if self.options.shrink {
            let small = smallest(self.options, &spec, &outcome);
            text += &format!("  shrunk: {}\n", small.to_json());
            spec = small;
        }
        print!("{text}");
        self.tally.lock().failed.push(Failed { seed: Some(seed), spec, outcome });
    }

    fn progress(&self) {
        let mut told = Instant::now();
        let terminal = std::io::stdout().is_terminal();
        while !self.over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
            let every = if terminal { Duration::from_millis(500) } else { Duration::from_secs(15) };
            if told.elapsed() < every {
                continue;
            }
            told = Instant::now();
            let tally = self.tally.lock();
            let (of, left) = match self.seeds {
                Seeds::All(range) => {
                    let all = range.end - range.start;
                    let each = self.begin.elapsed().as_secs_f64() / tally.runs.max(1) as f64;
                    (format!(" of {all}"), each * all.saturating_sub(tally.runs) as f64)
                }
                Seeds::For(_, time) => {
                    (String::new(), time.saturating_sub(self.begin.elapsed()).as_secs_f64())
                }
            };
            let line = format!("{}{of} seeds, {} failed, {left:.0} s left", tally.runs, tally.failed.len());
            if terminal {
                print!("\r{line}    ");
                let _ = std::io::stdout().flush();
            } else {
                println!("{line}");
            }
        }
    }
}

/// Plays all seeds. Prints failures as they come.
pub fn campaign(options: &Options, seeds: &Seeds) -> Tally {
    let shared = Shared {
        options,
        seeds,
        next: AtomicU64::new(0),
        begin: Instant::now(),
        tally: Mutex::default(),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| shared.progress());
        thread::scope(|scope| {
            for _ in 0..options.jobs.max(1) {
                scope.spawn(|| shared.work());
            }
        });
        shared.over.store(true, Ordering::Relaxed);
    });
    if std::io::stdout().is_terminal() {
        println!();
    }
    shared.tally.into_inner()
}

/// Returns the smallest spec that fails in the same way.
pub fn smallest(options: &Options, spec: &Spec, outcome: &Outcome) -> Spec {
    /// A spec that does not fail at once may fail the next time.
    const TRIES: usize = 3;
    /// The most runs that shrinking is worth.
    const MOST: usize = 250;
    let kinds: Vec<_> = outcome.verdicts.iter().map(|verdict| verdict.kind).collect();
    // Each try waits this long for a spec that hangs.
    let patience = options.patience.min(Duration::from_secs(8));
    let options = Options { patience, keep: None, ..options.clone() };
    shrink(spec, MOST, |spec| {
        (0..TRIES).any(|_| {
            let outcome = play(&options, spec, "smaller").unwrap_or_default();
            outcome.verdicts.iter().any(|verdict| kinds.contains(&verdict.kind))
        })
    })
}

/// Says in a line why a run failed.
pub fn in_words(outcome: &Outcome) -> String {
    let all = outcome.verdicts.iter().map(|verdict| format!("{:?}: {}", verdict.kind, verdict.what));
    let shown: Vec<_> = all.take(4).collect();
    let more = outcome.verdicts.len() - shown.len();
    let more = if more > 0 { format!("; {more} more") } else { String::new() };
    format!("{}{more} (it ended: {})", shown.join("; "), outcome.end)
}

impl Options {
    /// Returns the arguments with which a seed is played again.
    fn arguments(&self) -> String {
        format!(" --faults {} --device {}", format!("{:?}", self.faults).to_lowercase(), self.device)
    }
}

impl Tally {
    /// Returns how many runs had a verdict of each kind.
    pub fn kinds(&self) -> BTreeMap<Kind, usize> {
        let mut kinds = BTreeMap::new();
        for failed in &self.failed {
            let of: std::collections::BTreeSet<_> =
                failed.outcome.verdicts.iter().map(|verdict| verdict.kind).collect();
            of.into_iter().for_each(|kind| *kinds.entry(kind).or_default() += 1);
        }
        kinds
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>10}  {:>8}  {:>10}  {:>8}  {:>10}  {:>8}",
            "seeds", "refused", "items", "deaths", "named", "failed"
        )?;
        writeln!(
            f,
            "{:>10}  {:>8}  {:>10}  {:>8}  {:>10}  {:>8}",
            self.runs,
            self.refused,
            self.items,
            self.deaths,
            self.named,
            self.failed.len()
        )?;
        for (kind, count) in self.kinds() {
            writeln!(f, "{kind:?}: {count}")?;
        }
        Ok(())
    }
}
