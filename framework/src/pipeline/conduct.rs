//! Following a running pipeline, from the start of its sources to its report. Runs on a thread of its own.
//!
//! Every actor was asked to run, and answers with its counts when it is done, so the last answer is the end. An ask that
//! fails is a death: the sources are stopped, and those behind the dead are told that nothing more comes from it, so
//! that everything else is finished and counted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::error::PipelineError;
use super::launch::Member;
use super::plan::Plan;
use super::progress::{Progress, Teller};
use super::report::{Death, Report};
use super::trace::Trace;
use super::worker::args::{Control, Event, Run};
use super::worker::meter::{Counts, Failure};
use crate::actor::{Ask, AskError, Channel, Send};
use crate::mailbox::post::AskFailure;
use crate::node::Restart;

/// What the program says to a running pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Stop the sources, finish what is under way.
    Cancel,
    /// Do not wait any longer.
    Kill,
}

/// How a pipeline is followed.
pub(super) struct Follow {
    pub(super) progress: Progress,
    pub(super) every: Duration,
    pub(super) trace: Option<PathBuf>,
    /// Whether Ctrl-C and `SIGTERM` cancel it.
    pub(super) signals: bool,
}

/// A pipeline that is followed.
struct Conductor {
    plan: Plan,
    members: Vec<Member>,
    counts: Vec<Option<Counts>>,
    latest: HashMap<(u16, u16), Counts>,
    /// What earlier lives told of themselves.
    past: Vec<Counts>,
    deaths: Vec<Death>,
    /// The first death that nobody makes up for.
    fatal_death: Option<Death>,
    failure: Option<Failure>,
    cancelled: bool,
    /// Whether the sources were told to stop.
    stopping: bool,
    killed: bool,
    began: Instant,
    trace: Option<Trace>,
}

/// Follows a pipeline to its end.
pub(super) async fn conduct(
    plan: Plan,
    settings: Follow,
    members: Vec<Member>,
    mut events: Channel<Event>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> Result<Report, PipelineError> {
    let mut teller = Teller::new(settings.progress.clone());
    let mut conductor = Conductor {
        counts: vec![None; members.len()],
        latest: HashMap::new(),
        past: Vec::new(),
        deaths: Vec::new(),
        fatal_death: None,
        failure: None,
        cancelled: false,
        stopping: false,
        killed: false,
        began: Instant::now(),
        trace: settings.trace.is_some().then(Trace::default),
        plan,
        members,
    };
    let mut runs = FuturesUnordered::new();
    let sources_last = [false, true];
    for sources in sources_last {
        for (index, member) in
            conductor.members.iter().enumerate().filter(|(_, member)| member.source == sources)
        {
            runs.push(run(index, None, member.run.ask(Run)));
        }
    }
    let mut ticks = tokio::time::interval(settings.every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let mut signals = if settings.signals { Some(Signals::new()?) } else { None };
    while !runs.is_empty() && !conductor.killed {
        tokio::select! {
            Some((index, answer)) = runs.next() => match answer {
                Ok(counts) => conductor.counts[index] = Some(counts),
                Err(error) => {
                    if conductor.died(index, &error).await {
                        // A source that is to make nothing more must not begin anew.
                        let stop = conductor.stopping && conductor.members[index].source;
                        let stop = stop.then(|| conductor.members[index].control.send(Control::Stop));
                        runs.push(run(index, stop, conductor.members[index].run.ask(Run)));
                    }
                }
            },
            Ok(event) = events.recv() => conductor.event(event).await,
            Some(command) = commands.recv() => conductor.command(command).await,
            Some(()) = Signals::next(&mut signals) => {
                let command = if conductor.cancelled { Command::Kill } else { Command::Cancel };
                conductor.command(command).await;
            }
            _ = ticks.tick(), if !settings.progress.is_off() => {
                teller.tell(&conductor.plan, conductor.began.elapsed(), &conductor.all_counts());
            }
        }
    }
    drop(runs);
    conductor.count_again().await;
    // An actor tells all before it answers, so what was told is here.
    while let Some(event) = events.try_recv() {
        conductor.event(event).await;
    }
    teller.tell(&conductor.plan, conductor.began.elapsed(), &conductor.all_counts());
    conductor.close().await;
    if let (Some(trace), Some(path)) = (&conductor.trace, &settings.trace) {
        trace.write(path, &conductor.plan)?;
    }
    conductor.outcome()
}

/// A member's answer, with the member. Before it, it is told something else.
async fn run(
    index: usize,
    before: Option<Send<Control>>,
    ask: Ask<Run>,
) -> (usize, Result<Counts, AskError<Run>>) {
    if let Some(before) = before {
        // One that does not come back does not answer either.
        let _ = before.await;
    }
    (index, ask.await)
}

/// Ctrl-C and `SIGTERM`.
struct Signals(Signal, Signal);

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals(signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    }

    /// The next one, if they are waited for.
    async fn next(signals: &mut Option<Self>) -> Option<()> {
        let Signals(interrupt, terminate) = signals.as_mut()?;
        tokio::select! {
            signal = interrupt.recv() => signal,
            signal = terminate.recv() => signal,
        }
    }
}

impl Conductor {
    /// The last counts of each actor, or the latest that are known.
    fn all_counts(&self) -> Vec<Counts> {
        let last = self.members.iter().zip(&self.counts).filter_map(|(member, counts)| {
            let latest = || self.latest.get(&(member.stage as u16, member.replica)).cloned();
            counts.clone().or_else(latest)
        });
        last.chain(self.past.iter().cloned()).collect()
    }

    async fn event(&mut self, event: Event) {
        match event {
            Event::Progress(counts) => {
                self.latest.insert((counts.stage, counts.replica), *counts);
            }
            Event::Failed(failure) => {
                self.failure.get_or_insert(failure);
                self.stop_sources().await;
            }
            Event::Spans { stage, replica, pid, spans } => {
                if let Some(trace) = &mut self.trace {
                    trace.add(stage, replica, pid, spans);
                }
            }
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Cancel => {
                self.cancelled = true;
                self.stop_sources().await;
            }
            Command::Kill => self.killed = true,
        }
    }

    async fn stop_sources(&mut self) {
        self.stopping = true;
        for member in self.members.iter().filter(|member| member.source) {
            // A source that has ended makes nothing either.
            let _ = member.control.send(Control::Stop).await;
        }
    }

    /// Notes a death; true if the actor comes back.
    async fn died(&mut self, index: usize, error: &AskError<Run>) -> bool {
        let member = &self.members[index];
        let stage = self.plan.stages[member.stage].name.clone();
        let why = match error {
            AskError::NotSent(error) => error.reason.to_string(),
            AskError::NoReply(failure) => failure.to_string(),
            AskError::TimedOut => "it did not answer".to_owned(),
        };
        tracing::warn!(target: "tensorpost::pipeline", stage, replica = member.replica, why, "a stage died");
        let (of, replica) = (member.stage, member.replica);
        let dead = |replica: u16| {
            self.deaths.iter().any(|dead| dead.stage == stage && dead.replica == replica && !dead.restarted)
        };
        let mut others = self.members.iter().filter(|other| other.stage == of && other.replica != replica);
        // Those who sent to it send again, to another; a source has nobody who would.
        let replaced =
            self.plan.at_least_once.is_some() && !member.source && others.any(|other| !dead(other.replica));
        // Where nobody knows yet, the next ask is not sent if there is no next life.
        let comes_back = match error {
            AskError::NoReply(AskFailure::Gone(departed)) => departed.restarts,
            AskError::NoReply(_) => true,
            AskError::NotSent(_) | AskError::TimedOut => false,
        };
        let restarts = comes_back && self.plan.restart(of) != Restart::never();
        let death = Death { stage, replica, why, restarted: restarts };
        if restarts {
            self.past.extend(self.latest.remove(&(of as u16, replica)));
            self.deaths.push(death);
            return true;
        }
        self.deaths.push(death.clone());
        if !replaced {
            self.fatal_death.get_or_insert(death);
            self.stop_sources().await;
        }
        let member = &self.members[index];
        let lanes = member.lanes.clone();
        for (other, member) in self.members.iter().enumerate() {
            let waits = self.counts[other].is_none() && other != index;
            if waits
                && self
                    .plan
                    .edges
                    .iter()
                    .any(|edge| edge.to == member.stage && edge.from.stage == self.members[index].stage)
            {
                // One that has died too is noticed by itself.
                let _ = member.control.send(Control::Gone(lanes.clone())).await;
            }
        }
        false
    }

    /// After a death some had more to do when they had answered already: what was sent again.
    async fn count_again(&mut self) {
        if self.deaths.is_empty() || self.killed {
            return;
        }
        let asks = self.members.iter().enumerate().filter(|(index, _)| self.counts[*index].is_some());
        let asks: Vec<_> = asks.map(|(index, member)| (index, member.run.ask(Run))).collect();
        for (index, ask) in asks {
            if let Ok(counts) = ask.await {
                self.counts[index] = Some(counts);
            }
        }
    }

    async fn close(&self) {
        for (member, counts) in self.members.iter().zip(&self.counts) {
            if counts.is_some() {
                // One that has died since is closed.
                let _ = member.control.try_send(Control::Close);
            }
        }
    }

    fn outcome(self) -> Result<Report, PipelineError> {
        let mut report = Report::new(&self.plan, self.began.elapsed(), &self.all_counts());
        report.cancelled = self.cancelled;
        report.deaths = self.deaths.clone();
        let fatal = self.counts.iter().flatten().find_map(|counts| counts.fatal.clone());
        let report = Box::new(report);
        if self.killed {
            return Err(PipelineError::Killed { report });
        }
        // A death first: what fails after it, fails because of it.
        if let Some(Death { stage, replica, why, .. }) = self.fatal_death {
            return Err(PipelineError::Died { stage, replica, why, report });
        }
        match self.failure.or(fatal) {
            Some(failure) => Err(PipelineError::Failed { failure, report }),
            None => Ok(*report),
        }
    }
}

/// How the program speaks to the conductor.
#[derive(Clone, Debug)]
pub(super) struct Baton(pub(super) Arc<mpsc::UnboundedSender<Command>>);

impl Baton {
    pub(super) fn give(&self, command: Command) {
        // A pipeline that has ended needs no command.
        let _ = self.0.send(command);
    }
}
