//! The verdict that a pipeline stands still for good, with the cause in words.
//!
//! Used by the conductor, at each look. The verdict needs three things. The counts of all replicas have not
//! changed for long. All have told since then that they wait. None waits for a time, for its own code or for
//! an actor outside. Then no actor is left that could end the waiting.

use std::collections::HashSet;
use std::time::Instant;

use tensorpost_core::api::message::MAX_GRANTED;

use super::{StandstillDetector, name};
use crate::limits::STANDSTILL;
use crate::plan::{Kind, Plan};
use crate::worker::waits::Wait;

/// The fraction of the hang limit after which it is a standstill: one fifth.
const PART: u32 = 5;

impl StandstillDetector {
    /// Says why none of `members`, which have not ended, can go on; `None` if one may.
    pub(crate) fn standstill(&self, plan: &Plan, members: &[(u16, u16)], now: Instant) -> Option<String> {
        let still = now.saturating_duration_since(self.moved);
        // The first reminder comes at the latest two and a half report times after the movement. Each member
        // must have had time to report since that reminder.
        let least = STANDSTILL.max(self.limit / PART).max(4 * self.every);
        let stands = still >= least
            && !members.is_empty()
            && !self.any_goes_on(members, now)
            && !self.any_waits_outside(members);
        stands.then(|| self.cause(plan, members))
    }

    /// Whether any of `members` waits for one of `stages`.
    pub(crate) fn any_waits_for(&self, members: &[(u16, u16)], stages: &HashSet<u16>) -> bool {
        self.waits_of(members).any(|(_, wait)| match wait {
            Wait::Room { stage, .. } | Wait::Answers { stage, .. } => stages.contains(stage),
            _ => false,
        })
    }

    /// Whether nothing has moved for the hang limit since `since`, even if a stage is in a call.
    pub(crate) fn is_over(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since.max(self.moved)) >= self.limit
    }

    pub(super) fn waits_of<'s>(
        &'s self,
        members: &'s [(u16, u16)],
    ) -> impl Iterator<Item = (usize, &'s Wait)> {
        members
            .iter()
            .filter_map(|member| Some((usize::from(member.0), self.told.get(member)?)))
            .flat_map(|(stage, told)| told.waits.iter().map(move |wait| (stage, wait)))
    }

    pub(super) fn cause(&self, plan: &Plan, members: &[(u16, u16)]) -> String {
        let others: Vec<_> = self
            .waits_of(members)
            .filter_map(|(stage, wait)| match wait {
                Wait::Room { stage: at, .. } => Some((stage, usize::from(*at), true)),
                Wait::Answers { stage: at, .. } => Some((stage, usize::from(*at), false)),
                _ => None,
            })
            .collect();
        if let Some(circle) = circle(&others) {
            let names: Vec<_> = circle.iter().map(|stage| format!("`{}`", name(plan, *stage))).collect();
            return format!(
                "the stages of a loop wait for each other ({}): one of them makes several items of one, and more are in \
                 the loop than its mailboxes hold; make fewer of one, begin with fewer (the bound of `iterate`), or give these \
                 stages a larger `mailbox(..)`",
                names.join(", ")
            );
        }
        let keepers = self.waits_of(members).filter_map(|(stage, wait)| match wait {
            Wait::Retained(count) => Some((*count, stage)),
            _ => None,
        });
        match keepers.max() {
            Some((count, stage)) => keeps(plan, stage, count),
            None => "each of its stages waits for others".to_owned(),
        }
    }
}

/// Describes the cause if a stage keeps items until others come.
fn keeps(plan: &Plan, stage: usize, count: usize) -> String {
    let name = name(plan, stage);
    let here = plan.stages.get(stage);
    let what = if here.is_some_and(|here| here.pairs.is_some()) { "partners" } else { "more items" };
    let mut remedies = Vec::new();
    if here.is_some_and(|here| here.pairs.is_some()) {
        remedies.push("leave out on both of its sides what one of them drops".to_owned());
    } else {
        remedies.push("let it keep fewer, or go on after some time (`within`, `wake_at`)".to_owned());
    }
    if let Some(most) = plan.at_least_once {
        remedies.push(format!("let more than {most} items be unacknowledged (`at_least_once`)"));
    }
    if here.is_some_and(|here| here.ordered && here.kind == Kind::Stage) {
        remedies.push("leave `ordered` out".to_owned());
    }
    remedies.push(format!(
        "give its items fewer tensors, because a process can hold only {MAX_GRANTED} of another"
    ));
    format!(
        "`{name}` keeps {count} items until {what} come, and none can come before it goes on; {}",
        remedies.join(", or ")
    )
}

/// Finds stages each of which waits for the next, and the last for the first. At least one must wait for
/// room: otherwise it is only a loop with items under way. Each wait names the stage that waits, the other
/// stage, and whether it waits for room.
fn circle(waits: &[(usize, usize, bool)]) -> Option<Vec<usize>> {
    let mut for_room = waits.iter().filter(|(.., for_room)| *for_room);
    for_room.find_map(|(begin, next, _)| {
        // A path that begins with a wait for room and leads back.
        let mut ways = vec![vec![*begin, *next]];
        let mut seen = HashSet::from([*next]);
        while let Some(way) = ways.pop() {
            let last = way.last()?;
            for (_, next, _) in waits.iter().filter(|(from, ..)| from == last) {
                if next == begin {
                    return Some(way);
                }
                if seen.insert(*next) {
                    ways.push([way.as_slice(), &[*next]].concat());
                }
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{EVERY, counts, plan};
    use super::*;
    use crate::ItemId;

    const ID: ItemId = ItemId { source: 0, number: 4 };

    /// Returns the verdict on two stages with these waits, after this time without a movement.
    fn after(still: Duration, waits: [Vec<Wait>; 2]) -> Option<String> {
        let mut stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        for (stage, waits) in (1..).zip(waits) {
            stillness.told(&counts(stage, 0, 5), waits);
        }
        let now = Instant::now() + still;
        stillness.told.values_mut().for_each(|told| told.at = now);
        stillness.standstill(&plan(), &[(1, 0), (2, 0)], now)
    }

    fn room(stage: u16) -> Vec<Wait> {
        vec![Wait::Room { stage, id: ID }]
    }

    #[test]
    fn a_standstill_is_one_where_nobody_goes_on_by_itself() {
        let long = STANDSTILL + Duration::from_millis(1);
        let keeps = || vec![Wait::Retained(3), Wait::Senders(vec![1 << 16])];
        let why = after(long, [room(2), keeps()]).expect("nothing goes on");
        assert!(why.contains("`save` keeps 3 items until more items come"), "{why}");
        assert!(why.contains(&format!("hold only {MAX_GRANTED} of another")), "{why}");
        assert_eq!(after(STANDSTILL / 2, [room(2), keeps()]), None, "it is not time");
        for goes_on in [Wait::Time, Wait::Actors(1), Wait::Actor { actor: "outside".to_owned() }] {
            assert_eq!(after(long, [room(2), [keeps(), vec![goes_on]].concat()]), None);
        }
        let mut asks = StandstillDetector::new(Duration::from_secs(30), EVERY);
        asks.told(&counts(1, 0, 5), vec![Wait::Actors(1)]);
        let now = asks.moved + long;
        asks.told.values_mut().for_each(|told| told.at = now);
        assert_eq!(asks.still_for(&[(1, 0)], now), Duration::ZERO, "an actor outside is at work");
        asks.told(&counts(1, 0, 5), room(2));
        assert!(asks.any_waits_for(&[(1, 0)], &HashSet::from([2])));
        assert!(!asks.any_waits_for(&[(1, 0)], &HashSet::from([3])));
        let mut stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        stillness.told(&counts(1, 0, 5), room(2));
        assert_eq!(stillness.standstill(&plan(), &[(1, 0)], Instant::now() + long), None, "in a call");
        assert_eq!(stillness.standstill(&plan(), &[], Instant::now() + long), None);
    }

    #[test]
    fn a_circle_is_named_by_its_stages() {
        let why = after(STANDSTILL * 2, [room(2), room(1)]).expect("nothing goes on");
        assert!(why.contains("(`blur`, `save`)") && why.contains("several items of one"), "{why}");
        assert_eq!(circle(&[(0, 1, true), (1, 2, true), (1, 3, false), (2, 1, false)]), Some(vec![1, 2]));
        assert_eq!(
            circle(&[(0, 1, true), (1, 2, false), (2, 1, false)]),
            None,
            "a loop, and who waits for it"
        );
        assert_eq!(circle(&[(0, 1, true), (1, 2, true)]), None);
    }

    #[test]
    fn what_was_signalled_is_over_when_nothing_has_moved_since() {
        let stillness = StandstillDetector::new(Duration::from_secs(30), EVERY);
        let now = Instant::now();
        let over = |signalled: u64, now_is: u64| {
            let at = |seconds| now + Duration::from_secs(seconds);
            stillness.is_over(at(signalled), at(now_is))
        };
        assert_eq!([over(100, 120), over(100, 131), over(1, 32)], [false, true, true]);
    }
}
