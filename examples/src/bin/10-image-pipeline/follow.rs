//! Follows the pipeline while it runs: progress, Ctrl-C, deaths.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tensorpost::node::{Supervisor, WorkerId, WorkerState};
use tensorpost::prelude::Channel;
use tensorpost_actors::stages::{End, Event, Skipped, Written};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Between two lines of progress where there is no terminal for a bar.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Why no more frames came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There were as many as asked for.
    Finished,
    /// Somebody pressed Ctrl-C.
    Stopped,
}

/// What the pipeline said.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) written: Vec<Written>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) end: End,
    /// From the start of the source until the first file was there, and until everything was.
    pub(crate) first: Option<Duration>,
    pub(crate) took: Duration,
}

/// Reads events until the pipeline has finished.
///
/// # Errors
/// A stage failed, or its process died.
pub(crate) fn follow(
    news: &mut Channel<Event>,
    supervisor: &Arc<Supervisor>,
    workers: &[WorkerId],
    frames: u64,
    since: Instant,
) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut deaths = watch(supervisor, workers);
    let mut progress = Progress::new(frames, since);
    let mut outcome = Outcome {
        ending: Ending::Finished,
        written: Vec::new(),
        skipped: Vec::new(),
        end: End { frames: 0, stages: Vec::new() },
        first: None,
        took: Duration::ZERO,
    };
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        loop {
            tokio::select! {
                // What was said before a process ended comes before its end.
                biased;
                event = news.recv() => match event.context("the node ended before the pipeline")? {
                    Event::Written(written) => {
                        outcome.first.get_or_insert_with(|| since.elapsed());
                        outcome.written.push(written);
                        progress.advance();
                    }
                    Event::Skipped(skipped) => {
                        progress.say(&format!("frame {} is left out: {}", skipped.id, skipped.why));
                        outcome.skipped.push(skipped);
                        progress.advance();
                    }
                    Event::Failed(failure) => return Err(failure.into()),
                    Event::Finished(end) => {
                        if let Some(failure) = end.stages.iter().find_map(|stage| stage.failure.clone()) {
                            return Err(failure.into());
                        }
                        outcome.end = end;
                        outcome.took = since.elapsed();
                        return Ok(());
                    }
                },
                Some(death) = deaths.recv() => bail!("{death}"),
                _ = interrupt.recv() => stop(&mut outcome, supervisor, &progress)?,
                _ = terminate.recv() => stop(&mut outcome, supervisor, &progress)?,
            }
        }
    })?;
    progress.bar.finish_and_clear();
    Ok(outcome)
}

/// The first Ctrl-C lets everything under way finish, the second does not.
fn stop(outcome: &mut Outcome, supervisor: &Arc<Supervisor>, progress: &Progress) -> anyhow::Result<()> {
    if outcome.ending == Ending::Stopped {
        supervisor.kill_all();
        bail!("stopped at once; some frames that were under way are lost");
    }
    outcome.ending = Ending::Stopped;
    progress.say("stopping: what is under way is finished; press Ctrl-C again to end at once");
    let supervisor = Arc::clone(supervisor);
    // It tells the source to stop, and waits for the rest, of which the events read here are a part.
    std::thread::Builder::new()
        .name("shutdown".into())
        .spawn(move || supervisor.shutdown(super::SHUTDOWN))?;
    Ok(())
}

/// Says which process ended, and how, when that was too early.
fn watch(supervisor: &Arc<Supervisor>, workers: &[WorkerId]) -> mpsc::Receiver<String> {
    let (deaths, news) = mpsc::channel(workers.len().max(1));
    for &worker in workers {
        let (supervisor, deaths) = (Arc::clone(supervisor), deaths.clone());
        let name = supervisor.worker(worker).map(|status| format!("`{}` (pid {})", status.name, status.pid));
        std::thread::spawn(move || {
            let Some(WorkerState::Ended { exit, why }) = supervisor.await_end(worker) else { return };
            if exit.is_some_and(|exit| exit.success()) {
                return; // as in every shutdown
            }
            let how = exit.map_or_else(|| "in an unknown way".to_owned(), |exit| format!("with {exit}"));
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            // Nobody listens any more when the pipeline has finished.
            let _ = deaths.try_send(format!("process {} ended {how}{why}", name.unwrap_or_default()));
        });
    }
    news
}

/// A bar on a terminal, a line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    since: Instant,
    lines: Option<Instant>,
}

impl Progress {
    fn new(frames: u64, since: Instant) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(frames) } else { ProgressBar::hidden() };
        bar.set_length(frames);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} frames, {per_sec}, {eta} left")
        {
            bar.set_style(style);
        }
        Progress { bar, since, lines: (!terminal).then_some(since) }
    }

    fn advance(&mut self) {
        self.bar.inc(1);
        let Some(last) = &mut self.lines else { return };
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            let rate = done as f64 / self.since.elapsed().as_secs_f64();
            eprintln!("{done} of {all} frames, {rate:.0} frames/s");
        }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }
}
