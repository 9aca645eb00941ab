//! The parts of a pipeline that hold up the others, in words, for the console.
//!
//! Used by the conductor, at each look. A stage that waits for another is a victim and is not named. Nothing
//! holds up a pipeline of which a source makes no item now, or of which a part waits for a time: it is idle.
//! A call is slow, and does not hang, until it takes twice as long as the longest one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{REMIND, StandstillDetector, name};
use crate::plan::{Kind, Plan};
use crate::worker::waits::Wait;

impl StandstillDetector {
    /// Returns a line for each part of `members`, which have not ended, that holds up the others. `may_go_on`
    /// says that they may move although none of them reports it.
    pub(crate) fn culprits(
        &self,
        plan: &Plan,
        members: &[(u16, u16)],
        may_go_on: bool,
        now: Instant,
    ) -> Vec<String> {
        // By thread: while one stage is in a call, all that share its thread are silent.
        let mut silent: BTreeMap<_, Vec<(u16, u16)>> = BTreeMap::new();
        for member in members.iter().filter(|member| self.is_silent(**member, now)) {
            silent.entry(thread_of(plan, *member)).or_default().push(*member);
        }
        if !silent.is_empty() {
            return silent.values().filter_map(|of| self.in_call(plan, of, now)).collect();
        }
        let still = now.saturating_duration_since(self.moved);
        // Before the reminder has been answered, a half at a `zip` may still be let go.
        let is_early = still < REMIND + self.patience();
        if members.is_empty() || may_go_on || is_early || self.any_goes_on(members, now) {
            return Vec::new();
        }
        let outside = self.waits_of(members).filter_map(|(stage, wait)| outside(plan, stage, wait));
        let outside: BTreeSet<_> = outside.collect();
        let cause = if outside.is_empty() {
            self.cause(plan, members)
        } else {
            let all: Vec<_> = outside.into_iter().collect();
            format!("everything waits for {}", all.join(", and for "))
        };
        vec![format!("nothing has moved for {} s: {cause}", still.as_secs())]
    }

    /// Returns the line for a thread whose stages are `silent`, if one of them has been in a call for too
    /// long.
    fn in_call(&self, plan: &Plan, silent: &[(u16, u16)], now: Instant) -> Option<String> {
        // It makes no item now, as a camera or a queue may do for any time.
        if silent.iter().any(|(stage, _)| plan.stages[usize::from(*stage)].kind == Kind::Source) {
            return None;
        }
        let heard = silent.iter().map(|member| self.heard(*member).unwrap_or(self.began)).max()?;
        let longest = silent.iter().filter_map(|member| self.told.get(member)).map(|told| told.longest).max();
        let lasts = now.saturating_duration_since(heard);
        if lasts <= self.patience().max(2 * longest.unwrap_or_default()) {
            return None;
        }
        let names: Vec<_> = silent.iter().map(|member| called(plan, *member)).collect();
        let who = match names.as_slice() {
            [one] => one.clone(),
            all => format!("one of {}, which share a thread,", all.join(", ")),
        };
        Some(format!(
            "{who} has been in a call of its own for {} s, and the others wait for it",
            lasts.as_secs()
        ))
    }
}

/// Returns the thread that a member is in: the stage and the replica that it belongs to, and whether it is
/// theirs alone.
fn thread_of(plan: &Plan, (stage, replica): (u16, u16)) -> (usize, u16, bool) {
    let index = usize::from(stage);
    let here = &plan.stages[index];
    match here.beside {
        Some(_) if !here.own_thread => (plan.home(index), 0, false),
        _ => (index, replica, here.own_thread),
    }
}

fn called(plan: &Plan, (stage, replica): (u16, u16)) -> String {
    let name = name(plan, usize::from(stage));
    if plan.stages[usize::from(stage)].replicas > 1 {
        format!("`{name}`.{replica}")
    } else {
        format!("`{name}`")
    }
}

/// Describes a wait for an actor outside of the pipeline.
fn outside(plan: &Plan, stage: usize, wait: &Wait) -> Option<String> {
    let name = name(plan, stage);
    match wait {
        Wait::Actor { actor } => Some(format!("{actor}, to which `{name}` sends")),
        Wait::Actors(count) => {
            Some(format!("answers of actors outside of the pipeline to {count} messages of `{name}`"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{EVERY, counts, plan};
    use super::*;
    use crate::ItemId;
    use crate::worker::meter::Counts;

    const ALL: [(u16, u16); 4] = [(0, 0), (1, 0), (1, 1), (2, 0)];
    const LATER: Duration = Duration::from_secs(8);

    fn room() -> Vec<Wait> {
        vec![Wait::Room { stage: 2, id: ItemId { source: 0, number: 4 } }]
    }

    /// Returns the lines after [`LATER`], in which nothing has moved and `silent` have not reported.
    fn lines(plan: &Plan, silent: &[(u16, u16)], waits: impl Fn(u16) -> Vec<Wait>) -> Vec<String> {
        lines_of(plan, silent, |(stage, replica)| (counts(stage, replica, 5), waits(stage)))
    }

    fn lines_of(
        plan: &Plan,
        silent: &[(u16, u16)],
        told: impl Fn((u16, u16)) -> (Counts, Vec<Wait>),
    ) -> Vec<String> {
        let mut stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        for member in ALL {
            let (counts, waits) = told(member);
            stillness.told(&counts, waits);
        }
        let now = stillness.moved + LATER;
        let others = stillness.told.iter_mut().filter(|(member, _)| !silent.contains(member));
        others.for_each(|(_, told)| told.at = now);
        stillness.culprits(plan, &ALL, false, now)
    }

    #[test]
    fn a_pipeline_whose_source_makes_nothing_now_is_idle() {
        assert_eq!(lines(&plan(), &[(0, 0)], |_| Vec::new()), [""; 0]);
        let at_a_rate = |stage: u16| vec![if stage == 0 { Wait::Time } else { Wait::Retained(2) }];
        assert_eq!(lines(&plan(), &[], at_a_rate), [""; 0]);
        let mut plan = plan();
        plan.stages[2].beside = Some(0);
        assert_eq!(lines(&plan, &[(0, 0), (2, 0)], |_| Vec::new()), [""; 0], "it is in the source's thread");
    }

    #[test]
    fn a_stage_in_a_call_is_named_and_its_victims_are_not() {
        let waits = |stage: u16| if stage < 2 { room() } else { Vec::new() };
        assert_eq!(
            lines(&plan(), &[(2, 0)], waits),
            ["`save` has been in a call of its own for 8 s, and the others wait for it"]
        );
        let both = lines(&plan(), &[(1, 1), (2, 0)], waits);
        assert!(both.len() == 2 && both[0].starts_with("`blur`.1 has"), "{both:?}");
        let mut plan = plan();
        plan.stages[2].beside = Some(1);
        let shared = lines(&plan, &[(1, 0), (2, 0)], waits);
        assert!(
            shared.len() == 1 && shared[0].starts_with("one of `blur`.0, `save`, which share a thread,"),
            "{shared:?}"
        );
    }

    #[test]
    fn a_call_that_takes_as_long_as_others_before_it_is_slow() {
        let with = |longest: u64| {
            lines_of(&plan(), &[(2, 0)], |(stage, replica)| {
                let mut counts = counts(stage, replica, 5);
                counts.calls.note(Duration::from_secs(longest));
                (counts, Vec::new())
            })
        };
        assert_eq!((with(6).len(), with(3).len()), (0, 1));
    }

    #[test]
    fn where_all_wait_the_one_that_cannot_go_on_is_named() {
        let waits = |stage: u16| if stage < 2 { room() } else { vec![Wait::Retained(3)] };
        let found = lines(&plan(), &[], waits);
        assert!(
            found.len() == 1 && found[0].starts_with("nothing has moved for 8 s: `save` keeps 3 items"),
            "{found:?}"
        );
        assert!(!found[0].contains("`camera`") && !found[0].contains("`blur`"), "{found:?}");
        let actor = || vec![Wait::Actor { actor: "actor#7".to_owned() }];
        let found = lines(&plan(), &[], |stage| if stage < 2 { room() } else { actor() });
        assert_eq!(found, ["nothing has moved for 8 s: everything waits for actor#7, to which `save` sends"]);
    }

    #[test]
    fn what_has_moved_or_may_move_is_not_held_up() {
        let mut stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        stillness.told(&counts(1, 0, 5), room());
        let culprits = |stillness: &mut StandstillDetector, may_go_on, after: Duration| {
            let now = stillness.moved + after;
            stillness.told.values_mut().for_each(|told| told.at = now);
            stillness.culprits(&plan(), &[(1, 0)], may_go_on, now).len()
        };
        let answered = REMIND + 3 * EVERY;
        assert_eq!(culprits(&mut stillness, false, answered), 0, "a reminder may set it in motion");
        assert_eq!(culprits(&mut stillness, true, LATER), 0);
        assert_eq!(culprits(&mut stillness, false, LATER), 1);
    }
}
