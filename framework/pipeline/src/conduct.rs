//! Follows a running pipeline, from the start of its sources to its report, on a thread of its own.
//!
//! The conductor asks every actor to run. Each answers with its counts when it is done, so the last answer is
//! the end. An ask that fails is a death: the conductor stops the sources and tells the stages behind the
//! dead actor that nothing more comes from it, so that everything else is finished and counted.
//!
//! The conductor never waits for one thing alone: it polls its sends together with the answers that it waits
//! for. A send may stand in a queue behind an ask of the conductor's own, which moves only when it is polled.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tensorpost_core::api::actor::{Ask, AskError, AskFailure, Channel, Registry, SendFuture};
use tensorpost_core::api::fork::Inert;
use tensorpost_core::api::node::{ProcessId, Restart, SelfReport, Supervisor};
use tokio::sync::mpsc;

use super::error::PipelineError;
use super::launch::{Further, Member};
use super::plan::Plan;
use super::progress::{Progress, Reporter};
use super::report::{Death, Report};
use super::standstill::StandstillDetector;
use super::trace::Trace;
use super::worker::args::{Control, Directive, Event, Run};
use super::worker::meter::{Counts, Failure};

mod autoscale;
mod causes;
mod closing;
mod lives;
mod member_events;
mod orders;
mod orphans;
mod scaling;
mod standstill;
mod stop;

use causes::{Deaths, is_kept_from_its_next_life, is_killed_by_the_node, process_of};
use lives::LifeCounts;
use member_events::Tellers;
use orders::{Orders, OutsideOrder};
use scaling::Scaling;
use stop::Stop;

/// A command of the program to a running pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Stop the sources, finish the items under way.
    Cancel,
    /// Stop the sources, finish the items under way, and do not wait longer than until then.
    Finish(Instant),
    /// Do not wait any longer.
    Kill,
    /// Have so many replicas of this stage.
    Scale(usize, u32),
}

/// The settings with which a pipeline is followed.
pub(super) struct Follow {
    pub(super) progress: Progress,
    pub(super) every: Duration,
    pub(super) trace: Option<PathBuf>,
    /// Whether lost or left-over items are an error, even if a death explains them.
    pub(super) complete: bool,
    /// When nothing has moved for so long, the log reports it.
    pub(super) hang_limit: Duration,
    /// How often actors report their progress.
    pub(super) told_every: Duration,
    /// Whether Ctrl-C and `SIGTERM` cancel it.
    pub(super) signals: bool,
    /// Why its workers take turns on a GPU that several of them use.
    pub(super) time_slices: Option<String>,
    /// Whether the node goes on, and only the pipeline's workers end with it.
    pub(super) lets_go: bool,
    /// The supervisor of its workers.
    pub(super) supervisor: Arc<Supervisor>,
    /// Knows when the node shuts down.
    pub(super) registry: Registry,
}

/// A pipeline that is followed.
struct Conductor {
    plan: Plan,
    members: Vec<Member>,
    counts: Vec<Option<Counts>>,
    /// The reports of members, of this life and of earlier ones.
    told: LifeCounts,
    tellers: Tellers,
    deaths: Deaths,
    /// Members that have died and do not come back, each with the process that it was in, if that is known.
    exited: HashMap<usize, Option<ProcessId>>,
    failure: Option<Failure>,
    stop: Stop,
    began: Instant,
    supervisor: Arc<Supervisor>,
    lets_go: bool,
    trace: Option<Trace>,
    detector: StandstillDetector,
    /// Shows watchers of the console the parts that hold up the others.
    self_report: SelfReport,
    /// See [`Report::time_slices`].
    time_slices: Option<String>,
    /// Orders on their way to members. They are polled together with everything else: a send that waits for
    /// its place in a mailbox may wait behind a [`Run`], which takes its own place only when it is polled.
    sends: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    scaling: Scaling,
}

/// Follows a pipeline to its end.
pub(super) async fn conduct(
    plan: Plan,
    settings: Follow,
    members: Vec<Member>,
    further: HashMap<usize, Further>,
    mut events: Channel<Event>,
    commands: mpsc::UnboundedReceiver<Command>,
) -> Result<Report, PipelineError> {
    let mut reporter = Reporter::new(settings.progress.clone());
    let mut conductor = Conductor {
        counts: vec![None; members.len()],
        told: LifeCounts::default(),
        tellers: Tellers::default(),
        deaths: Deaths::default(),
        exited: HashMap::new(),
        failure: None,
        stop: Stop::default(),
        supervisor: Arc::clone(&settings.supervisor),
        lets_go: settings.lets_go,
        began: Instant::now(),
        trace: settings.trace.is_some().then(Trace::default),
        detector: StandstillDetector::new(settings.hang_limit, settings.told_every),
        self_report: settings.supervisor.self_report(),
        time_slices: settings.time_slices.clone(),
        sends: FuturesUnordered::new(),
        scaling: Scaling::new(&plan, &members, further),
        plan,
        members,
    };
    // Sources last: every stage is asked by then, so no end can come before its receiver takes part in the
    // run.
    let mut runs = FuturesUnordered::new();
    let sources_last = [false, true];
    for sources in sources_last {
        for (index, member) in
            conductor.members.iter().enumerate().filter(|(_, member)| member.source == sources)
        {
            runs.push(run(index, conductor.brief(index), member.run()));
        }
    }
    let mut ticks = tokio::time::interval(settings.every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    let mut looks = tokio::time::interval(settings.told_every.max(Duration::from_millis(10)));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut orders = Orders::new(commands, settings.signals, settings.registry.stopping())?;
    while !runs.is_empty() && !conductor.stop.killed {
        let kill_at = conductor.stop.kill_at;
        tokio::select! {
            Some((index, answer)) = runs.next() => match answer {
                Ok(counts) => {
                    if !conductor.scaling.leaves(&conductor.members[index]) {
                        conductor.detector.move_on();
                    }
                    conductor.finished(index, counts);
                }
                Err(error) => {
                    conductor.detector.move_on();
                    if causes::is_lost_on_the_way(&error) || conductor.died(index, &error) {
                        let before = conductor.brief(index);
                        runs.push(run(index, before, conductor.members[index].run()));
                    }
                }
            },
            // The result does not matter: a member that does not come back, or has ended, need not hear the
            // order.
            Some(_) = conductor.sends.next() => {}
            Some(()) = conductor.stop.next_heard() => {}
            () = reached(kill_at) => conductor.command(Command::Kill),
            Ok((from, event)) = events.recv_from() => conductor.event(from, event),
            order = orders.next() => conductor.order(order),
            Some(step) = conductor.scaling.next() => if let Some(index) = conductor.scaled(step) {
                let before = conductor.brief(index);
                runs.push(run(index, before, conductor.members[index].run()));
                conductor.opened(index);
            },
            _ = looks.tick() => {
                conductor.check_for_standstill();
                conductor.scale_by_backlog();
            }
            _ = ticks.tick(), if !settings.progress.is_off() => conductor.tell(&mut reporter, false),
        }
    }
    drop(runs);
    conductor.self_report.set(Vec::new());
    conductor.scale_no_more();
    conductor.scaling.forget_steps();
    conductor.count_again(&mut events, &mut orders).await;
    // An actor sends all its events before it answers, so all events of members that answered are in the
    // channel by now.
    while let Some((from, event)) = events.try_recv_from() {
        conductor.event(from, event);
    }
    conductor.tell(&mut reporter, true);
    conductor.close().await;
    if let (Some(trace), Some(path)) = (&conductor.trace, &settings.trace) {
        // The run is over, and its report counts for more than its trace.
        if let Err(error) = trace.write(path, &conductor.plan) {
            let (pipeline, path) = (&conductor.plan.name, path.display());
            tracing::error!(
                target: "tensorpost::pipeline", pipeline,
                "the trace could not be written to {path}: {error}; is the folder there, and is there room?"
            );
        }
    }
    conductor.outcome(settings.complete)
}

/// Resolves at this time; never without one.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Asks a member to run, after it was told `before`. Resolves to the member and its answer.
async fn run(
    index: usize,
    before: Vec<SendFuture<Control>>,
    ask: Ask<Run>,
) -> (usize, Result<Counts, AskError<Run>>) {
    for send in before {
        // A member that does not come back fails the ask below too.
        let _ = send.await;
    }
    (index, ask.await)
}

impl Conductor {
    /// Returns the final counts of each actor, or the latest that are known.
    fn known_counts(&self) -> impl Iterator<Item = &Counts> {
        let last = self.members.iter().zip(&self.counts).filter_map(|(member, counts)| {
            let latest = || self.told.latest(member.stage as u16, member.replica);
            counts.as_ref().or_else(latest)
        });
        last.chain(self.told.past())
    }

    fn all_counts(&self) -> Vec<Counts> {
        self.known_counts().cloned().collect()
    }

    /// Shows the progress.
    fn tell(&self, reporter: &mut Reporter, last: bool) {
        let replicas = self.scaling.replicas(&self.plan);
        reporter.tell(&self.plan, self.began.elapsed(), &self.all_counts(), &replicas, last);
    }

    /// Returns the members that run and have not ended. A replica that opens has no items and reports nothing
    /// yet.
    fn unfinished(&self) -> Vec<(u16, u16)> {
        let members = self.members.iter().enumerate();
        let unfinished = |index: usize| self.counts[index].is_none() && !self.exited.contains_key(&index);
        let members =
            members.filter(|(index, member)| unfinished(*index) && !self.scaling.is_opening(member));
        members.map(|(_, member)| (member.stage as u16, member.replica)).collect()
    }

    /// Returns, for each sender of a member that has ended or does not come back, the order which says that
    /// nothing more comes from it.
    fn over_before(&self, index: usize) -> impl Iterator<Item = Directive> + '_ {
        let is_over = |other: &usize| self.exited.contains_key(other) || self.counts[*other].is_some();
        let over = (0..self.members.len()).filter(is_over);
        over.filter(move |other| self.sends_to(*other, index)).map(move |other| self.exited(other, index))
    }

    fn order(&mut self, order: OutsideOrder) {
        match order {
            OutsideOrder::Command(command) => self.command(command),
            // The second signal kills the pipeline.
            OutsideOrder::Signal if self.stop.cancelled => self.command(Command::Kill),
            OutsideOrder::Signal => {
                self.stop.signalled = Some(Instant::now());
                self.command(Command::Cancel);
            }
            OutsideOrder::NodeStops => {
                self.stop.node_stops = true;
                self.stop_sources();
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Cancel => {
                self.stop.cancelled = true;
                self.stop_sources();
            }
            Command::Finish(deadline) => {
                self.stop.by(deadline);
                self.command(Command::Cancel);
            }
            Command::Kill => self.kill(),
            Command::Scale(stage, count) => self.scale(stage, count),
        }
    }

    /// Ends the pipeline now. Notes what members wait for before they are gone.
    fn kill(&mut self) {
        self.stop.killed = true;
        let (unfinished, now) = (self.unfinished(), Instant::now());
        let deaf = self.members.iter().enumerate();
        let deaf = deaf.filter(|(index, member)| member.source && self.stop.is_deaf(*index));
        let deaf: Vec<_> = deaf.map(|(_, member)| (member.stage as u16, member.replica)).collect();
        self.stop.stood_in.get_or_insert_with(|| self.detector.waiting(&self.plan, &unfinished, &deaf, now));
    }

    fn stop_sources(&mut self) {
        self.stop.sources_told = true;
        self.scale_no_more();
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| member.source) {
            self.stop.tell(index, member.ask(Directive::Stop));
            // A source that is in a call learns of it by `Env::is_stopping`, which another thread sets.
            self.supervisor.ask_to_stop(member.worker);
        }
    }

    /// Notes a death, and tells the stages behind the dead member. Returns whether the actor comes back.
    fn died(&mut self, index: usize, error: &AskError<Run>) -> bool {
        if self.stop.node_stops && is_killed_by_the_node(error) {
            // The members that the shutdown has waited for in vain are to blame, not the first that dies. So
            // all that have not ended are noted now.
            self.kill();
            return false;
        }
        let member = &self.members[index];
        let stage = self.plan.stages[member.stage].name.clone();
        let why = match error {
            AskError::NotSent(error) => error.reason.to_string(),
            AskError::NoReply(failure) => failure.to_string(),
            _ => "it did not answer".to_owned(),
        };
        let (of, replica) = (member.stage, member.replica);
        let dead = |replica: u16| self.deaths.is_gone(&stage, replica);
        let takes_items = |other: &&Member| self.scaling.takes_items(other.stage, other.replica);
        let others = self.members.iter().filter(|other| other.stage == of && other.replica != replica);
        let mut others = others.filter(takes_items);
        // Its senders send again, to another replica; a source has no senders.
        let replaced =
            self.plan.at_least_once.is_some() && !member.source && others.any(|other| !dead(other.replica));
        // If it is not known yet, the next ask tells: it fails if there is no next life.
        let comes_back = match error {
            AskError::NoReply(AskFailure::ProcessExited(exited)) => exited.restarts,
            AskError::NoReply(_) => true,
            _ => false,
        };
        let restarts = comes_back && self.plan.restart(of) != Restart::never();
        // The node already logs a line about each restart, with the worker's name and the reason.
        macro_rules! say {
            ($level:ident) => {
                tracing::$level!(target: "tensorpost::pipeline", stage, replica, why, "a stage died")
            };
        }
        if restarts {
            say!(debug);
        } else {
            say!(warn);
        }
        let elsewhere = self.members[index].worker.is_of_another_host();
        let death = Death { stage, replica, why, restarted: restarts };
        let death = self.deaths.note(index, elsewhere, error, death);
        if restarts {
            self.told.ended(of as u16, replica);
            return true;
        }
        // If an actor died and its process goes on, the answer does not say which process that is.
        let lives = || self.supervisor.worker(self.members[index].worker).map(|worker| worker.process);
        self.exited.insert(index, process_of(error).or_else(lives));
        self.scaling.gone(of, replica);
        // If the shutdown has kept the next life from beginning, that is no failure: the items for that life
        // are named as lost.
        if !replaced && !is_kept_from_its_next_life(error) {
            self.deaths.fatal.get_or_insert(death);
            self.stop_sources();
        }
        for other in 0..self.members.len() {
            let waits = self.counts[other].is_none() && !self.exited.contains_key(&other);
            if waits && self.sends_to(index, other) {
                // If it has died too, its own ask reports that, and its next life is told when it begins.
                self.tell_exited(index, other);
            }
        }
        self.tell_of_orphans(index);
        false
    }

    /// Notes that a member is done: all its items and ends were answered.
    fn finished(&mut self, index: usize, counts: Counts) {
        let counts = self.as_of(index, counts);
        self.told.is_at(&counts);
        self.counts[index] = Some(counts);
        // A receiver's life that had answered the end may have died since; its next life would wait for that
        // end.
        for (other, member) in self.members.iter().enumerate() {
            if self.counts[other].is_none() && self.sends_to(index, other) && self.has_died(other) {
                self.send(member.send(self.exited(index, other)));
            }
        }
        self.may_have_left(index);
    }

    /// Whether any life of a member has died.
    fn has_died(&self, index: usize) -> bool {
        let member = &self.members[index];
        let stage = &self.plan.stages[member.stage].name;
        self.deaths.of(stage, member.replica)
    }

    /// Returns the order that tells a member that nothing more comes from another.
    fn exited(&self, index: usize, to: usize) -> Directive {
        let member = &self.members[index];
        let dead = self.exited.get(&index);
        let (orphans, with) = (dead.is_some() && self.leaves_orphans(index), dead.copied().flatten());
        // HOST-1: on another host that number belongs to another process.
        let with = with.filter(|_| !self.members[to].worker.is_of_another_host());
        Directive::Exited { lanes: member.lanes.clone(), orphans, with }
    }

    /// Whether items go from one member to another.
    fn sends_to(&self, from: usize, to: usize) -> bool {
        let [from, to] = [from, to].map(|member| self.members[member].stage);
        self.plan.edges.iter().any(|edge| edge.from.stage == from && edge.to == to)
    }

    /// Returns the orders that a member's new life must get before it runs: its earlier life knew them, or
    /// had them in its mailbox.
    fn brief(&self, index: usize) -> Vec<SendFuture<Control>> {
        let member = &self.members[index];
        // A source that was told to stop must not begin anew.
        let stop = (self.stop.sources_told && member.source).then_some(Directive::Stop);
        // These senders send no end, and the new life would wait for one.
        let over = self.over_before(index).chain(self.empty_before(index));
        let all = stop.into_iter().chain(self.places_behind(index)).chain(over);
        all.map(|directive| member.send(directive)).collect()
    }

    /// Returns the orders that a member must get before it counts again: those of [`brief`](Self::brief), and
    /// which items no source makes again.
    fn last_brief(&self, index: usize) -> Vec<SendFuture<Control>> {
        let mut brief = self.brief(index);
        let member = &self.members[index];
        brief.extend(self.not_made_again(index).map(|missing| member.send(missing)));
        brief
    }

    /// After a death, asks the members that are done for their counts again: items that were sent again may
    /// have come after their answers. A member that begins anew may take as long as a run, so sends, events
    /// and orders are handled here as during the run.
    async fn count_again(&mut self, events: &mut Channel<Event>, orders: &mut Orders<'_>) {
        if self.deaths.all.is_empty() || self.stop.killed {
            return;
        }
        // A member that has died since it was done begins anew, and is told that all others are done too.
        let asks = self.members.iter().enumerate().filter(|(index, _)| self.counts[*index].is_some());
        let mut asks: FuturesUnordered<_> =
            asks.map(|(index, member)| run(index, self.last_brief(index), member.run())).collect();
        while !asks.is_empty() && !self.stop.killed {
            let kill_at = self.stop.kill_at;
            tokio::select! {
                Some((index, answer)) = asks.next() => {
                    if let Ok(counts) = answer {
                        let counts = self.as_of(index, counts);
                        self.told.is_at(&counts);
                        let life = counts.life;
                        let before = self.counts[index].replace(counts);
                        if let Some(before) = before.filter(|before| before.life != life) {
                            self.told.keep(before);
                        }
                    }
                }
                Some(_) = self.sends.next() => {}
                // A source that died since it was done has not heard the order, and its next life takes no
                // other message before it.
                Some(()) = self.stop.next_heard() => {}
                // If the channel filled up, an actor that has spans to report could not end.
                Ok((from, event)) = events.recv_from() => self.event(from, event),
                () = reached(kill_at) => self.command(Command::Kill),
                order = orders.next() => self.order(order),
            }
        }
    }

    /// Makes the result of the run. `complete` says whether lost or left-over items are an error even if a
    /// death explains them.
    fn outcome(mut self, complete: bool) -> Result<Report, PipelineError> {
        self.name_causes();
        #[cfg(feature = "hosts")]
        let lost_hosts = self.on_lost_hosts();
        let mut report = Report::new(&self.plan, self.began.elapsed(), &self.all_counts(), &self.deaths.all);
        self.scaling.report(&mut report);
        report.cancelled = self.stop.cancelled;
        report.waiting = self.stop.stood_in.unwrap_or_default();
        #[cfg(feature = "hosts")]
        {
            report.lost_hosts = lost_hosts;
        }
        report.time_slices = self.time_slices;
        if let Some(what) = report.incomplete() {
            tracing::warn!(target: "tensorpost::pipeline", pipeline = report.pipeline, what, "a run is incomplete");
        }
        let fatal = self.counts.iter().flatten().find_map(|counts| counts.fatal.clone());
        let report = Box::new(report);
        if self.stop.killed && self.stop.stands_still.is_none() {
            return Err(PipelineError::Killed { report });
        }
        // A death comes first: failures after it are caused by it.
        if let Some(Death { stage, replica, why, .. }) = self.deaths.fatal {
            return Err(PipelineError::Died { stage, replica, why, report });
        }
        match (self.failure.or(fatal), self.stop.stands_still) {
            (Some(failure), _) => Err(PipelineError::Failed { failure, report }),
            (None, Some(why)) => Err(PipelineError::StandsStill { why, report }),
            // A loss that no death explains is a defect, of a message type or of this library, and no
            // success.
            (None, None) if report.lost_unexplained > 0 || (complete && !report.is_complete()) => {
                Err(PipelineError::Incomplete { report })
            }
            (None, None) => Ok(*report),
        }
    }
}

/// The program's handle to the conductor.
#[derive(Clone, Debug)]
pub(super) struct Handle(pub(super) Arc<Inert<mpsc::UnboundedSender<Command>>>);

impl Handle {
    pub(super) fn give(&self, command: Command) {
        // In a forked child of the program the channel belongs to the parent.
        if !self.0.is_inherited() {
            // A pipeline that has ended needs no command.
            let _ = self.0.send(command);
        }
    }
}
