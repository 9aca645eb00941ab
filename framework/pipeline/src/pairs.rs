//! Finds, from the plan alone, the stages that can know that a half in a `zip` or `join` gets no partner.

use super::item::ItemId;
use super::plan::{Edge, Kind, Plan, StagePlan};
use super::worker::args::{Pairing, Select};

/// The two sides of a stage that pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    /// The stages before it, left and right.
    pub(super) sides: [usize; 2],
    /// Whether items with the same id belong together; otherwise items with the same key do.
    pub(super) by_id: bool,
}

/// The receiver of a fork's reports: a `zip` or `join`, and one of its sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partner {
    /// The stage that pairs.
    pub(super) stage: usize,
    /// Whether the reports are about its left side.
    pub(super) left: bool,
    /// The fork's branches without which no item reaches that side.
    pub(super) branches: Vec<u16>,
}

/// News for a stage that pairs, about the items whose halves it may hold.
pub struct PartnerNews<'n>(pub(super) Partners<'n>);

pub(super) enum Partners<'n> {
    /// The first news.
    Begin(Pairing),
    /// Nothing more of these items comes on one side; with `again` they come again, on both sides.
    Alone { left: bool, ids: &'n [ItemId], again: bool },
    /// A source makes nothing more before one of these items is acknowledged. They are all that it has under
    /// way.
    Still { source: u16, ids: &'n [ItemId] },
    /// Nothing moves in the whole pipeline.
    Standstill,
    /// Nothing more comes on one side, except items that are sent again.
    Ended { left: bool },
}

impl Plan {
    /// Returns the stages that one output of a fork tells that a partner will not come. The fork reports an
    /// item once it is settled on branches without which nothing of it can reach one side of such a stage. If
    /// it is settled on all branches, there is nothing left to report.
    pub(super) fn partners(&self, fork: usize, output: u8) -> Vec<Partner> {
        let edges = self.edges_from(fork, output);
        // Each replica of such a stage forks every item, so none knows what the others still have of it.
        let copied = self.stages[fork].select == Select::All && self.stages[fork].replicas > 1;
        if self.at_least_once.is_none() || edges.len() < 2 || copied {
            return Vec::new();
        }
        let mut partners = Vec::new();
        let pairs = self.stages.iter().enumerate().filter_map(|(at, stage)| Some((at, stage.pairs?)));
        for (stage, pairs) in pairs {
            for (side, left) in pairs.sides.into_iter().zip([true, false]) {
                let leads = |(_, (_, edge)): &(usize, (usize, Edge))| self.reaches(edge.to, side);
                let leading: Vec<u16> = edges
                    .iter()
                    .copied()
                    .enumerate()
                    .filter(leads)
                    .map(|(branch, _)| branch as u16)
                    .collect();
                // Without these branches, nothing of an item reaches the side.
                let needed = |branches: &[u16]| {
                    let past = |edge: &Edge| {
                        let here = edge.from.stage == fork && edge.from.output == output;
                        !here || !branches.contains(&edge.from.branch)
                    };
                    !self.sources().any(|source| self.reaches(source, fork) && self.comes(source, side, past))
                };
                let alone: Vec<_> =
                    leading.iter().map(|branch| vec![*branch]).filter(|branch| needed(branch)).collect();
                let all = !leading.is_empty() && leading.len() < edges.len() && needed(&leading);
                // A branch that is needed by itself is enough to report; otherwise all that lead to the side
                // must be settled.
                let sets = if alone.is_empty() && all { vec![leading] } else { alone };
                partners.extend(sets.into_iter().map(|branches| Partner { stage, left, branches }));
            }
        }
        partners
    }

    /// Whether a `join` behind a stage judges whether its sides can go on (see `worker/fork_tracker`). A
    /// `zip` need not: forks tell it which halves stay alone.
    pub(super) fn is_joined(&self, stage: usize) -> bool {
        let by_key = |at: &usize| self.stages[*at].pairs.is_some_and(|pairs| !pairs.by_id);
        let mut joins = (0..self.stages.len()).filter(by_key);
        self.at_least_once.is_some() && joins.any(|at| at != stage && self.reaches(stage, at))
    }

    /// Whether several items with the id of one of a source may come to a side because there are several
    /// ways: branches of a fork that each get the item, or replicas that each take it. (A stage that makes
    /// several of one marks them.)
    pub(super) fn comes_several_ways(&self, side: usize) -> bool {
        // Each pair by id has a left half, so the ways through its right side make no more of them.
        let counts = |edge: &&Edge| {
            let by_right = self.stages[edge.to]
                .pairs
                .is_some_and(|pairs| pairs.by_id && pairs.sides[1] == edge.from.stage);
            !edge.feedback && !by_right
        };
        let (mut before, mut next) = (vec![false; self.stages.len()], vec![side]);
        while let Some(stage) = next.pop() {
            if !std::mem::replace(&mut before[stage], true) {
                let edges = self.edges.iter().filter(|edge| edge.to == stage).filter(counts);
                next.extend(edges.map(|edge| edge.from.stage));
            }
        }
        let several = |(stage, here): (usize, &StagePlan)| {
            let copied = here.select == Select::All && here.replicas > 1;
            let forked = here.outputs.iter().enumerate().any(|(output, of)| {
                let from = |edge: &&Edge| edge.from.stage == stage && usize::from(edge.from.output) == output;
                let leads = self.edges.iter().filter(from).filter(counts).filter(|edge| before[edge.to]);
                of.select == Select::All && leads.count() > 1
            });
            before[stage] && (copied || forked)
        };
        self.stages.iter().enumerate().any(several)
    }

    /// Returns the sources whose items can reach a stage.
    pub(super) fn sources_of(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        self.sources().filter(move |source| self.reaches(*source, stage))
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.stages.len()).filter(|stage| self.stages[*stage].kind == Kind::Source)
    }

    /// Returns the stages that pair items of a source under at-least-once delivery: halves that wait there
    /// may keep the source waiting.
    pub(super) fn pairing(&self, source: usize) -> Vec<usize> {
        if self.at_least_once.is_none() {
            return Vec::new();
        }
        let pairs = (0..self.stages.len()).filter(|stage| self.stages[*stage].pairs.is_some());
        pairs.filter(|stage| self.reaches(source, *stage)).collect()
    }

    /// Whether a path of edges leads from one stage to another.
    pub(super) fn reaches(&self, from: usize, to: usize) -> bool {
        let (mut seen, mut next) = (vec![false; self.stages.len()], vec![from]);
        while let Some(stage) = next.pop() {
            if !std::mem::replace(&mut seen[stage], true) {
                next.extend(self.edges.iter().filter(|edge| edge.from.stage == stage).map(|edge| edge.to));
            }
        }
        seen[to]
    }

    /// Whether an item of a source can come to a stage along the edges that `may` allows. A pair by id needs
    /// both halves.
    fn comes(&self, source: usize, to: usize, may: impl Fn(&Edge) -> bool) -> bool {
        let mut comes = vec![false; self.stages.len()];
        comes[source] = true;
        loop {
            let both = |stage: usize, comes: &[bool]| match self.stages[stage].pairs {
                Some(Pairs { sides, by_id: true }) => sides.iter().all(|side| comes[*side]),
                _ => true,
            };
            let edges =
                self.edges.iter().filter(|edge| comes[edge.from.stage] && !comes[edge.to] && may(edge));
            let next: Vec<_> = edges.map(|edge| edge.to).filter(|stage| both(*stage, &comes)).collect();
            if next.is_empty() {
                return comes[to];
            }
            next.into_iter().for_each(|stage| comes[stage] = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{RESULTS, Tap};
    use super::*;

    fn stage(plan: &mut Plan, kind: Kind, taps: &[Tap]) -> (usize, Tap) {
        let stage = plan.add(StagePlan::new(kind, "stage"), taps);
        (stage, Tap { stage, output: RESULTS, branch: 0 })
    }

    /// A source with two branches, which are paired again.
    fn zipped(past: bool) -> (Plan, usize, usize) {
        let mut plan = Plan::new("zipped".to_owned());
        plan.at_least_once = Some(4);
        let (source, out) = stage(&mut plan, Kind::Source, &[]);
        let branches = plan.fork(out, 2, Select::All);
        let (_, one) = stage(&mut plan, Kind::Stage, &branches[..1]);
        let (left, from_left) = if past {
            let (_, other) = stage(&mut plan, Kind::Source, &[]);
            stage(&mut plan, Kind::Stage, &[one, other])
        } else {
            stage(&mut plan, Kind::Stage, &[one])
        };
        let (right, from_right) = stage(&mut plan, Kind::Stage, &branches[1..]);
        let (zip, _) = stage(&mut plan, Kind::Sink, &[from_left, from_right]);
        plan.stages[zip].pairs = Some(Pairs { sides: [left, right], by_id: true });
        (plan, source, zip)
    }

    #[test]
    fn a_fork_tells_of_both_sides_those_that_it_leads_to() {
        let (mut plan, source, zip) = zipped(false);
        let partner = |left, branch| Partner { stage: zip, left, branches: vec![branch] };
        assert_eq!(plan.partners(source, RESULTS), [partner(true, 0), partner(false, 1)]);
        assert_eq!(plan.partners(1, RESULTS), [], "it is no fork");
        plan.at_least_once = None;
        assert_eq!(plan.partners(source, RESULTS), [], "nobody waits for an answer");
    }

    #[test]
    fn items_of_another_source_are_none_of_the_forks_business() {
        let (plan, source, zip) = zipped(true);
        assert_eq!(plan.partners(source, RESULTS).len(), 2);
        let Pairs { sides, .. } = plan.stages[zip].pairs.expect("it pairs");
        assert_eq!(sides.map(|side| plan.sources_of(side).count()), [2, 1]);
    }

    #[test]
    fn an_item_comes_by_several_ways_where_a_fork_leads_to_one_side_twice() {
        let (mut plan, source, zip) = zipped(false);
        let several = |plan: &Plan| {
            let Pairs { sides, .. } = plan.stages[zip].pairs.expect("it pairs");
            sides.map(|side| plan.comes_several_ways(side))
        };
        assert_eq!(several(&plan), [false, false]);
        assert!(!plan.is_joined(source), "forks tell a zip");
        let Pairs { sides: [left, _], .. } = plan.stages[zip].pairs.expect("it pairs");
        plan.stages[left].select = Select::All;
        plan.stages[left].replicas = 2;
        assert_eq!(several(&plan), [true, false], "both replicas take each item");
        plan.stages[left].replicas = 1;
        let taps = plan.fork(Tap { stage: source, output: RESULTS, branch: 0 }, 3, Select::All);
        plan.connect(taps[2], left, false);
        assert_eq!(several(&plan), [true, false], "two branches lead to the left");
        plan.fork(Tap { stage: source, output: RESULTS, branch: 0 }, 3, Select::RoundRobin);
        assert_eq!(several(&plan), [false, false], "each item goes to one branch");
        plan.stages[zip].pairs = plan.stages[zip].pairs.map(|pairs| Pairs { by_id: false, ..pairs });
        assert!(plan.is_joined(source) && plan.is_joined(left) && !plan.is_joined(zip));
    }

    /// A pair of two branches is one item again.
    #[test]
    fn an_item_whose_branches_were_paired_comes_once() {
        let (mut plan, source, zip) = zipped(false);
        plan.stages[zip] = StagePlan { pairs: plan.stages[zip].pairs, ..StagePlan::new(Kind::Stage, "zip") };
        let taps = plan.fork(Tap { stage: source, output: RESULTS, branch: 0 }, 3, Select::All);
        let (side, _) = stage(&mut plan, Kind::Stage, &[Tap { stage: zip, output: RESULTS, branch: 0 }]);
        assert!(!plan.comes_several_ways(side));
        plan.connect(taps[2], side, false);
        assert!(plan.comes_several_ways(side));
    }

    #[test]
    fn who_can_be_passed_by_tells_nothing() {
        let (mut plan, source, zip) = zipped(false);
        // Connects the right branch to the left side, behind another fork.
        let Pairs { sides: [left, right], .. } = plan.stages[zip].pairs.expect("it pairs");
        plan.connect(Tap { stage: right, output: RESULTS, branch: 1 }, left, false);
        let told = plan.partners(source, RESULTS);
        assert_eq!(
            told,
            [Partner { stage: zip, left: false, branches: vec![1] }],
            "to the left go both branches"
        );
    }

    /// The side to which a pair goes needs both halves of that pair, although the other side can be reached
    /// past it.
    #[test]
    fn a_pair_of_pairs_needs_all_of_their_halves() {
        let (mut plan, source, zip) = zipped(false);
        plan.stages[zip] = StagePlan { pairs: plan.stages[zip].pairs, ..StagePlan::new(Kind::Stage, "zip") };
        let taps = plan.fork(Tap { stage: source, output: RESULTS, branch: 0 }, 3, Select::All);
        let (third, from_third) = stage(&mut plan, Kind::Stage, &taps[2..]);
        let (last, _) =
            stage(&mut plan, Kind::Sink, &[Tap { stage: zip, output: RESULTS, branch: 0 }, from_third]);
        plan.stages[last].pairs = Some(Pairs { sides: [zip, third], by_id: true });
        let partner = |left, branch| Partner { stage: last, left, branches: vec![branch] };
        let told = plan.partners(source, RESULTS);
        let told: Vec<_> = told.into_iter().filter(|partner| partner.stage == last).collect();
        assert_eq!(told, [partner(true, 0), partner(true, 1), partner(false, 2)]);
    }
}
