//! The errors of pipelines.

use tensorpost_core::api::device::DeviceError;
use tensorpost_core::api::fork::INHERITED;
use tensorpost_core::api::node::{ActorError, NodeError, SpawnError};

use super::report::Report;
use super::worker::meter::Failure;

/// A mistake in a pipeline as it was written down. It is found before a process starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The pipeline has no source.
    #[error("it has no source; begin it with `.source::<…>(…)`")]
    NoSource,
    /// A stage makes something that no stage takes.
    #[error("nothing takes {what} of stage `{stage}`; end the flow with `.sink::<…>(…)`, or take it out")]
    Unconnected {
        /// The stage.
        stage: String,
        /// The output that is not taken.
        what: String,
    },
    /// Two stages have the same name.
    #[error("two stages are called `{stage}`; give one of them another name with `.named(…)`")]
    DuplicateName {
        /// The name.
        stage: String,
    },
    /// There is no such device.
    #[error("stage `{stage}` cannot run on `{device}`: {source}")]
    Device {
        /// The stage.
        stage: String,
        /// The device as it was written.
        device: String,
        /// The reason.
        source: DeviceError,
    },
    /// A number is out of range.
    #[error("stage `{stage}` has {what} = {value}; it can be {least} to {most}")]
    OutOfRange {
        /// The stage.
        stage: String,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least that it may be.
        least: u64,
        /// The most that it may be.
        most: u64,
    },
    /// Batches and windows that may together keep all items that a source may have under way under
    /// at-least-once delivery.
    #[error(
        "{}`{stage}` may keep {retained} items of a source until more come, and at most {most} may be unacknowledged, so it may \
         wait for ever; let at least {} be (`at_least_once({})`), or give batches a time with `within`",
        if *.stages > 1 { "the batches and windows up to " } else { "stage " }, .retained + 1, .retained + 1
    )]
    Retained {
        /// The last of them.
        stage: String,
        /// Items of one source that they may keep together.
        retained: u64,
        /// Items of it that may be unacknowledged.
        most: u64,
        /// How many batches and windows there are.
        stages: usize,
    },
    /// Settings that do not go together.
    #[error("stage `{stage}`: {why}")]
    Conflict {
        /// The stage.
        stage: String,
        /// The settings that do not go together, and the remedy.
        why: &'static str,
    },
}

/// Why a pipeline did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The pipeline has mistakes; no process was started.
    #[error("pipeline `{pipeline}` cannot run: {}", list(.mistakes))]
    Graph {
        /// Its name.
        pipeline: String,
        /// All mistakes.
        mistakes: Vec<Mistake>,
    },
    /// The node did not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// This process was forked from the program in which the pipeline runs.
    #[error("{INHERITED}")]
    Forked,
    /// A stage's worker did not start.
    #[error("no worker for stage `{stage}`: {source}")]
    Worker {
        /// The stage.
        stage: String,
        /// The reason.
        source: SpawnError,
    },
    /// A stage could not be made.
    #[error("stage `{stage}` did not start: {source}")]
    Start {
        /// The stage.
        stage: String,
        /// The reason.
        source: ActorError,
    },
    /// The system refused the thread that follows the pipeline, or a resource that the thread needs.
    #[error("the pipeline cannot be followed: {0}")]
    System(#[from] std::io::Error),
    /// A stage failed on an item, and its errors fail the pipeline. Items under way in other stages were
    /// finished.
    #[error("stage `{}` failed on {}: {}{}", .failure.stage, item(.failure), .failure.why, lost(.report))]
    Failed {
        /// The stage, the item and the error.
        failure: Failure,
        /// The report until then.
        report: Box<Report>,
    },
    /// A stage's process, or its actor, ended. Items under way in other stages were finished.
    #[error("{}`{stage}` (replica {replica}) died: {why}{}{}", what_died(.report, .stage), hint(.report, .stage, *.replica), lost(.report))]
    Died {
        /// The stage.
        stage: String,
        /// The number of the replica.
        replica: u16,
        /// The known cause.
        why: String,
        /// The report until then; it names the items that were lost.
        report: Box<Report>,
    },
    /// The pipeline ran to its end, but not every item came there. Either items were lost and no death
    /// explains that, or the program asked for [`require_complete`](super::Pipeline::require_complete) and
    /// the report [is not complete](Report::is_complete).
    #[error("pipeline `{}` is not complete: {}", .report.pipeline, .report.incomplete().unwrap_or_default())]
    Incomplete {
        /// The report, with the items that did not come to their end.
        report: Box<Report>,
    },
    /// [`Running::scale`](super::Running::scale) asked for a number that is not allowed. The pipeline goes on
    /// as it was.
    #[error("the number of replicas of stage `{stage}` stays as it is: {why}")]
    Scale {
        /// The stage.
        stage: String,
        /// The reason, and the remedy.
        why: String,
    },
    /// Nothing moved any more and no stage was at work, so the pipeline was ended: some of its stages wait
    /// for each other, or for items that a limit keeps away. If a failure or a death came before that, it is
    /// the error instead.
    #[error("the pipeline stands still: {why}{}", waiting(.report))]
    StandsStill {
        /// The cause, and what to change.
        why: String,
        /// The report until then; [`Report::waiting`] says what each replica waited for.
        report: Box<Report>,
    },
    /// The pipeline was told to end at once, or did not end when it was told to.
    #[error("the pipeline was killed{}", waiting(.report))]
    Killed {
        /// The report until then, as far as it is known.
        report: Box<Report>,
    },
}

impl PipelineError {
    /// Returns the report of a pipeline that ran and did not finish.
    pub fn report(&self) -> Option<&Report> {
        match self {
            PipelineError::Failed { report, .. }
            | PipelineError::Died { report, .. }
            | PipelineError::Incomplete { report }
            | PipelineError::StandsStill { report, .. }
            | PipelineError::Killed { report } => Some(report),
            _ => None,
        }
    }
}

impl PipelineError {
    /// Whether the pipeline ended without waiting for its workers.
    pub(super) fn is_cut_short(&self) -> bool {
        let cut_short = |report: &Report| !report.waiting.is_empty();
        matches!(self, PipelineError::Killed { .. }) || self.report().is_some_and(cut_short)
    }
}

fn list(mistakes: &[Mistake]) -> String {
    let texts: Vec<_> = mistakes.iter().map(Mistake::to_string).collect();
    texts.join("; ")
}

fn is_source(report: &Report, stage: &str) -> bool {
    report.stage(stage).is_some_and(|stage| stage.is_source)
}

fn what_died(report: &Report, stage: &str) -> &'static str {
    if is_source(report, stage) { "source " } else { "stage " }
}

/// Returns the remedy for a death after which no other life or replica took over.
fn hint(report: &Report, stage: &str, replica: u16) -> String {
    let lost = report.lost_hosts.iter().find(|(of, at, _)| of == stage && *at == replica);
    if let Some((_, _, host)) = lost {
        let what_helps = match is_source(report, stage) {
            true => "run the pipeline again, with its source on another host",
            false => {
                "with replicas on several hosts, as `.on(Anywhere).replicas(n)` puts them, and `at_least_once(n)` it would go on \
                 without those of one host"
            }
        };
        return format!(
            "; host {host} is not of the node any more, and `.restart(..)` begins nothing anew on another; {what_helps}"
        );
    }
    let restarted = report.deaths.iter().any(|death| death.stage == stage && death.restarted);
    let hint = match (restarted, is_source(report, stage)) {
        (true, _) => "; its restarts are used up",
        (false, true) => "; with `.restart(..)` it would begin anew",
        (false, false) => "; with `.restart(..)` it would go on with the next items",
    };
    hint.to_owned()
}

fn item(failure: &Failure) -> String {
    failure.id.map_or_else(|| "no item".to_owned(), |id| format!("item {id}"))
}

fn waiting(report: &Report) -> String {
    // A replica that stands in its own code is to blame, and not those that wait for it.
    let blamed = report.waiting.iter().any(|waiting| waiting.in_call);
    let waiting: Vec<_> = report.waiting.iter().filter(|waiting| waiting.in_call || !blamed).collect();
    let texts: Vec<_> = waiting.iter().take(8).map(ToString::to_string).collect();
    let more = if waiting.len() > texts.len() { "; …" } else { "" };
    if texts.is_empty() { String::new() } else { format!("; {}{more}", texts.join("; ")) }
}

fn lost(report: &Report) -> String {
    match report.lost_count {
        0 => String::new(),
        count => {
            let named: Vec<_> = report.lost.iter().take(8).map(|lost| lost.id.to_string()).collect();
            let more = if count > named.len() as u64 { ", …" } else { "" };
            format!("; lost {count}: {}{more}", named.join(", "))
        }
    }
}
