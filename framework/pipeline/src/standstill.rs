//! Detects that a running pipeline no longer moves, and says what its stages wait for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::limits::ON_THE_WAY;
use super::plan::{Kind, Plan};
use super::report::Waiting;
use super::worker::meter::Counts;
use super::worker::waits::Wait;

mod culprits;
#[cfg(test)]
mod model;
mod verdict;

/// When nothing has moved for so long, and no member is in a call, the conductor repeats to the members the
/// orders that a new life may not know. If nothing is on its way either, pairs let halves go then whose
/// partners do not come. That may set things in motion again.
pub(super) const REMIND: Duration = Duration::from_secs(2);

/// The last reports of the actors, by stage and replica.
pub(super) struct StandstillDetector {
    limit: Duration,
    /// How often actors report. An actor that has been silent for longer is in a call, or its process is
    /// stopped.
    every: Duration,
    told: HashMap<(u16, u16), Told>,
    /// Replicas that have not reported yet, with the times when they began.
    new: HashMap<(u16, u16), Instant>,
    began: Instant,
    /// When anything last moved.
    moved: Instant,
    /// When the log reports it; `None` if the limit is so long that this is never.
    due: Option<Instant>,
}

struct Told {
    at: Instant,
    waits: Vec<Wait>,
    moves: Moves,
    /// How long its longest call took.
    longest: Duration,
}

/// The counts that change when an actor does something.
type Moves = [u64; 7];

fn moves(counts: &Counts) -> Moves {
    let Counts { items_in, items_out, errors, retries, skipped, lost, left_over, .. } = *counts;
    [items_in, items_out, errors, retries, skipped, lost, left_over]
}

impl StandstillDetector {
    pub(super) fn new(limit: Duration, every: Duration) -> Self {
        let now = Instant::now();
        StandstillDetector {
            limit,
            every,
            told: HashMap::new(),
            new: HashMap::new(),
            began: now,
            moved: now,
            due: now.checked_add(limit),
        }
    }

    /// Notes the report of an actor.
    pub(super) fn told(&mut self, counts: &Counts, waits: Vec<Wait>) {
        self.told_at(counts, waits, Instant::now());
    }

    fn told_at(&mut self, counts: &Counts, waits: Vec<Wait>, at: Instant) {
        let moves = moves(counts);
        self.new.remove(&(counts.stage, counts.replica));
        let told = Told { at, waits, moves, longest: counts.calls.quantile(1.0).unwrap_or_default() };
        let before = self.told.insert((counts.stage, counts.replica), told);
        // The first report of a replica that has done nothing is no movement.
        if moves != before.map_or([0; 7], |before| before.moves) {
            self.moved_at(at);
        }
    }

    /// Forgets the replica that was here before: another begins.
    pub(super) fn forget(&mut self, member: (u16, u16)) {
        self.told.remove(&member);
        self.new.insert(member, Instant::now());
    }

    /// Whether a member is in a call of its own, or waits for room at the next stages.
    pub(super) fn is_at_work(&self, member: (u16, u16), now: Instant) -> (bool, bool) {
        let told = self.told.get(&member);
        let waits_for_room = |told: &Told| told.waits.iter().any(|wait| matches!(wait, Wait::Room { .. }));
        let is_silent = self.is_silent(member, now);
        (is_silent, !is_silent && told.is_some_and(waits_for_room))
    }

    /// Returns when anything last moved.
    pub(super) fn moved(&self) -> Instant {
        self.moved
    }

    /// Notes that something moved.
    pub(super) fn move_on(&mut self) {
        self.moved_at(Instant::now());
    }

    fn moved_at(&mut self, at: Instant) {
        (self.moved, self.due) = (at, at.checked_add(self.limit));
    }

    /// Returns what each of `members`, which have not ended, waits for, if it is time to say so: nothing has
    /// moved for the limit, and none of them goes on by itself.
    pub(super) fn report(&self, plan: &Plan, members: &[(u16, u16)], now: Instant) -> Option<Vec<Waiting>> {
        let due = self.due.is_some_and(|due| now >= due) && !members.is_empty();
        (due && !self.any_goes_on(members, now)).then(|| self.waiting(plan, members, &[], now))
    }

    /// Returns how long nothing has moved; zero if one of `members`, which have not ended, goes on by itself
    /// or waits for an actor outside of the pipeline.
    pub(super) fn still_for(&self, members: &[(u16, u16)], now: Instant) -> Duration {
        if self.any_goes_on(members, now) || self.any_waits_outside(members) {
            return Duration::ZERO;
        }
        now.saturating_duration_since(self.moved)
    }

    /// Whether `members`, which have not ended, may give up what they wait for: nothing of it is on its way,
    /// as far as can be known. `may_be_on_the_way` says that something may move although no member reports
    /// it, such as an item between two hosts whose link is cut for a while.
    pub(super) fn nothing_comes(
        &self,
        members: &[(u16, u16)],
        may_be_on_the_way: bool,
        now: Instant,
    ) -> bool {
        let least = if may_be_on_the_way { ON_THE_WAY } else { REMIND };
        self.still_for(members, now) >= least
    }

    /// Whether any member waits for an actor outside of the pipeline.
    fn any_waits_outside(&self, members: &[(u16, u16)]) -> bool {
        let outside = |wait: &Wait| matches!(wait, Wait::Actor { .. } | Wait::Actors(_));
        let told = members.iter().filter_map(|member| self.told.get(member));
        told.flat_map(|told| &told.waits).any(outside)
    }

    /// Whether any member may be in a call, or waits for a time: that of a source's next item, or the time at
    /// which a stage is called without an item.
    ///
    /// A member that is not silent yet may have gone into a call at the last movement. So each must have told
    /// that it waits, some time after that movement: what was on its way to it has come by then.
    fn any_goes_on(&self, members: &[(u16, u16)], now: Instant) -> bool {
        let waits = |told: &Told| {
            let after = told.at.saturating_duration_since(self.moved);
            after >= self.every / 2 && !told.waits.contains(&Wait::Time)
        };
        let goes_on =
            |member: &(u16, u16)| self.is_silent(*member, now) || !self.told.get(member).is_some_and(waits);
        members.iter().any(goes_on)
    }

    /// Notes that the log has reported it. It reports again only after twice the time.
    pub(super) fn said(&mut self, now: Instant) -> Duration {
        let still = now.saturating_duration_since(self.moved);
        self.due = now.checked_add(still);
        still
    }

    fn is_silent(&self, member: (u16, u16), now: Instant) -> bool {
        self.heard(member).is_none_or(|at| now.saturating_duration_since(at) > self.patience())
    }

    /// Returns when a member last reported. A new replica has time for its first report.
    fn heard(&self, member: (u16, u16)) -> Option<Instant> {
        self.told.get(&member).map(|told| told.at).or_else(|| self.new.get(&member).copied())
    }

    /// How long the report of an actor that is in no call may take.
    fn patience(&self) -> Duration {
        3 * self.every + Duration::from_millis(200)
    }

    /// Returns what each of `members` waits for, as far as it has reported.
    ///
    /// Members that are in a call of their own come first: the others wait for them, directly or indirectly.
    /// The members in `deaf` have not heard an order, so they are in a call too.
    pub(super) fn waiting(
        &self,
        plan: &Plan,
        members: &[(u16, u16)],
        deaf: &[(u16, u16)],
        now: Instant,
    ) -> Vec<Waiting> {
        let waiting = members.iter().map(|member| {
            let told = self.told.get(member);
            let in_call = deaf.contains(member) || self.is_silent(*member, now);
            let what = match told {
                _ if in_call => {
                    format!("a call of its own to return: `{}`", call_of(plan, usize::from(member.0)))
                }
                Some(told) if !told.waits.is_empty() => {
                    let texts: Vec<_> = told.waits.iter().map(|wait| in_words(plan, wait)).collect();
                    texts.join(", and for ")
                }
                _ => "its next item".to_owned(),
            };
            Waiting { stage: name(plan, usize::from(member.0)), replica: member.1, in_call, what }
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|waiting| !waiting.in_call);
        waiting
    }
}

/// Returns the name of a stage. A correct actor reports only stages of its plan; any other number is shown as
/// `?`.
fn name(plan: &Plan, stage: usize) -> String {
    plan.stages.get(stage).map_or("?", |stage| stage.name.as_str()).to_owned()
}

/// Returns the name of the call in which a stage stands.
fn call_of(plan: &Plan, stage: usize) -> &'static str {
    match plan.stages.get(stage).map(|stage| stage.kind) {
        Some(Kind::Source) => "next",
        Some(Kind::Sink) => "consume",
        Some(Kind::Stage) | None => "process",
    }
}

fn in_words(plan: &Plan, wait: &Wait) -> String {
    match wait {
        Wait::Senders(lanes) => {
            let senders: Vec<_> = lanes
                .iter()
                .map(|lane| {
                    let from = plan.edges.get((lane >> 16) as usize).map(|edge| edge.from.stage);
                    let stage = from.map_or_else(|| "?".to_owned(), |from| name(plan, from));
                    let replicas =
                        from.and_then(|from| plan.stages.get(from)).map_or(1, |stage| stage.replicas);
                    if replicas > 1 { format!("`{stage}`.{}", lane & 0xffff) } else { format!("`{stage}`") }
                })
                .collect();
            format!("items or the end of {}", senders.join(", "))
        }
        Wait::Room { stage, id } => format!("room at `{}` for item {id}", name(plan, usize::from(*stage))),
        Wait::Answers { stage, count } => {
            format!("answers of `{}` for {count}", name(plan, usize::from(*stage)))
        }
        Wait::Actor { actor } => format!("the actor {actor} to take a message"),
        Wait::Actors(count) => format!("answers of actors for {count}"),
        Wait::Time => "the time of its next item, or call".to_owned(),
        Wait::Retained(count) => format!("more items or partners for {count} that it keeps"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{RESULTS, StagePlan, Tap};
    use super::*;

    pub(super) const EVERY: Duration = Duration::from_secs(1);

    /// `camera` to `blur`, which has two replicas, to `save`.
    pub(super) fn plan() -> Plan {
        let mut plan = Plan::new("pictures".to_owned());
        let mut tap = None;
        for (name, kind) in [("camera", Kind::Source), ("blur", Kind::Stage), ("save", Kind::Sink)] {
            let stage = plan.add(StagePlan::new(kind, name), tap.as_slice());
            tap = Some(Tap { stage, output: RESULTS, branch: 0 });
        }
        plan.stages[1].replicas = 2;
        plan
    }

    pub(super) fn counts(stage: u16, replica: u16, items_in: u64) -> Counts {
        Counts { stage, replica, items_in, ..Counts::default() }
    }

    #[test]
    fn who_waits_for_whom_is_said_in_names_when_nothing_has_moved_for_the_limit() {
        let (plan, limit) = (plan(), Duration::from_secs(10));
        let mut stillness = StandstillDetector::new(limit, EVERY);
        let begin = Instant::now();
        let members = [(1, 0), (2, 0)];
        let ends = Wait::Senders(vec![1 << 16, 1 << 16 | 1]);
        stillness.told(
            &counts(1, 0, 5),
            vec![Wait::Room { stage: 2, id: crate::ItemId { source: 0, number: 4 } }],
        );
        stillness.told(&counts(2, 0, 3), vec![Wait::Retained(2), ends.clone()]);
        assert_eq!(stillness.report(&plan, &members, begin + limit / 2), None, "it is not time");
        // Both go on reporting, and have done nothing.
        let late = Instant::now() + limit;
        for told in stillness.told.values_mut() {
            told.at = late;
        }
        let waiting = stillness.report(&plan, &members, late).expect("it is time");
        let texts: Vec<_> = waiting.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "`blur` waits for room at `save` for item #4",
                "`save` waits for more items or partners for 2 that it keeps, and for items or the end of `blur`.0, `blur`.1",
            ]
        );
        stillness.said(late);
        assert_eq!(stillness.report(&plan, &members, late + limit / 2), None, "it was said");
        stillness.told(&counts(2, 0, 4), vec![ends]);
        assert_eq!(stillness.report(&plan, &members, Instant::now()), None, "something has moved");
    }

    #[test]
    fn a_stage_in_a_call_of_its_own_is_no_hang_of_the_pipeline() {
        let (plan, limit) = (plan(), Duration::from_secs(10));
        let mut stillness = StandstillDetector::new(limit, EVERY);
        stillness.told(&counts(1, 0, 5), Vec::new());
        let late = Instant::now() + limit;
        assert_eq!(stillness.report(&plan, &[(1, 0)], late), None);
        let waiting = stillness.waiting(&plan, &[(1, 0), (0, 0)], &[], late);
        assert!(waiting.iter().all(|waiting| waiting.what.contains("a call of its own")), "{waiting:?}");
    }

    #[test]
    fn what_waits_for_a_time_is_not_still() {
        let plan = plan();
        let mut stillness = StandstillDetector::new(Duration::from_secs(10), EVERY);
        stillness.told(&counts(0, 0, 5), vec![Wait::Time]);
        stillness.told(&counts(1, 0, 5), vec![Wait::Retained(2)]);
        let late = Instant::now() + Duration::from_secs(60);
        for told in stillness.told.values_mut() {
            told.at = late;
        }
        let still = |stillness: &StandstillDetector, plan: &Plan, member| {
            (
                stillness.still_for(&[member], late) > Duration::ZERO,
                stillness.report(plan, &[member], late).is_some(),
            )
        };
        assert_eq!(still(&stillness, &plan, (0, 0)), (false, false), "a source with a pace");
        assert_eq!(still(&stillness, &plan, (1, 0)), (true, true), "a batch that waits for more");
        stillness.told(&counts(1, 0, 5), vec![Wait::Retained(2), Wait::Time]);
        stillness.told.values_mut().for_each(|told| told.at = late);
        assert_eq!(
            still(&stillness, &plan, (1, 0)),
            (false, false),
            "a batch that is sent when it is old enough"
        );
    }

    /// A link that is cut for some seconds may hold the partner of a half, or the next item of an order.
    #[test]
    fn nothing_is_given_up_that_may_be_on_its_way() {
        let mut stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        stillness.told(&counts(1, 0, 5), vec![Wait::Retained(2)]);
        let mut nothing_comes = |may_be_on_the_way: bool, after: Duration| {
            let now = stillness.moved + after;
            stillness.told.values_mut().for_each(|told| told.at = now);
            stillness.nothing_comes(&[(1, 0)], may_be_on_the_way, now)
        };
        assert!(!nothing_comes(false, REMIND / 2));
        assert!(nothing_comes(false, REMIND));
        assert!(!nothing_comes(true, ON_THE_WAY / 2), "the link may still be mended");
        assert!(nothing_comes(true, ON_THE_WAY));
    }

    #[test]
    fn replicas_that_have_done_nothing_hide_no_standstill() {
        let mut stillness = StandstillDetector::new(Duration::from_secs(10), EVERY);
        stillness.told(&counts(1, 0, 5), vec![Wait::Retained(2)]);
        let moved = stillness.moved();
        stillness.forget((1, 1));
        let begun = Instant::now();
        assert!(!stillness.is_silent((1, 1), begun), "it has time for its first report");
        assert!(stillness.is_silent((1, 1), begun + 4 * EVERY));
        stillness.told(&counts(1, 1, 0), Vec::new());
        assert_eq!(stillness.moved(), moved, "it has done nothing");
        stillness.told(&counts(1, 1, 1), Vec::new());
        assert!(stillness.moved() > moved);
    }

    #[test]
    fn who_stands_in_a_call_is_named_before_those_who_wait_for_it() {
        let plan = plan();
        let mut stillness = StandstillDetector::new(Duration::from_secs(10), EVERY);
        let members = [(2, 0), (1, 0), (0, 0)];
        for (stage, waits) in [(2, vec![Wait::Senders(vec![1 << 16])]), (1, Vec::new()), (0, Vec::new())] {
            stillness.told(&counts(stage, 0, 1), waits);
        }
        // It has not heard the order to stop; all the others have just reported.
        let waiting = stillness.waiting(&plan, &members, &[(0, 0)], Instant::now());
        let texts: Vec<_> = waiting.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "`camera` waits for a call of its own to return: `next`",
                "`save` waits for items or the end of `blur`.0",
                "`blur` waits for its next item",
            ]
        );
    }
}
