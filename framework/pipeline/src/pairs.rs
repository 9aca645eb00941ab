//! Which stages can know that a half in a `zip` or `join` gets no partner, as far as the plan says.

use super::item::ItemId;
use super::plan::{Edge, Kind, Plan};
use super::worker::args::{Pairing, Select};

/// The two sides of a stage that pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    /// The stages before it, left and right.
    pub(super) sides: [usize; 2],
    /// Whether those belong together that have one id.
    pub(super) by_id: bool,
}

/// Where a fork reports to: a `zip` or `join`, and one of its sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partner {
    /// The stage that pairs.
    pub(super) stage: usize,
    /// Whether the fork knows about its left side.
    pub(super) left: bool,
    /// The fork's branches without which no item reaches that side.
    pub(super) branches: Vec<u16>,
}

/// What a stage that pairs is told about those that it has halves of.
pub struct PartnerNews<'n>(pub(super) Partners<'n>);

pub(super) enum Partners<'n> {
    /// Before anything else.
    Begin(Pairing),
    /// Nothing more comes of these on one side; `again` where they come again, on both.
    Alone { left: bool, ids: &'n [ItemId], again: bool },
    /// A source makes nothing more before one of these, which are all of its items that are under way, is
    /// acknowledged.
    Still { source: u16, ids: &'n [ItemId] },
    /// Nothing moves in the whole pipeline.
    Standstill,
    /// Nothing more comes on one side, unless it is sent again.
    Ended { left: bool },
}

impl Plan {
    /// Whom one way out of a stage tells that a partner will not come: of an item that is settled on branches
    /// without which nothing of it comes to one side of them. Where all branches are settled, there is
    /// nothing left to tell.
    pub(super) fn partners(&self, fork: usize, output: u8) -> Vec<Partner> {
        let edges = self.edges_from(fork, output);
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
                let sets = if alone.is_empty() && all { vec![leading] } else { alone };
                partners.extend(sets.into_iter().map(|branches| Partner { stage, left, branches }));
            }
        }
        partners
    }

    /// The sources whose items can reach a stage.
    pub(super) fn sources_of(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        self.sources().filter(move |source| self.reaches(*source, stage))
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.stages.len()).filter(|stage| self.stages[*stage].kind == Kind::Source)
    }

    /// The stages that pair items of a source, under at-least-once delivery: what waits there may keep the
    /// source waiting.
    pub(super) fn pairing(&self, source: usize) -> Vec<usize> {
        if self.at_least_once.is_none() {
            return Vec::new();
        }
        let pairs = (0..self.stages.len()).filter(|stage| self.stages[*stage].pairs.is_some());
        pairs.filter(|stage| self.reaches(source, *stage)).collect()
    }

    /// Whether there is a way.
    pub(super) fn reaches(&self, from: usize, to: usize) -> bool {
        let (mut seen, mut next) = (vec![false; self.stages.len()], vec![from]);
        while let Some(stage) = next.pop() {
            if !std::mem::replace(&mut seen[stage], true) {
                next.extend(self.edges.iter().filter(|edge| edge.from.stage == stage).map(|edge| edge.to));
            }
        }
        seen[to]
    }

    /// Whether an item of a source can come to a stage along edges that may be used. A pair of one id needs
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
    use super::super::plan::{RESULTS, StagePlan, Tap};
    use super::*;

    fn stage(plan: &mut Plan, kind: Kind, taps: &[Tap]) -> (usize, Tap) {
        let stage = plan.add(StagePlan::new(kind, "stage"), taps);
        (stage, Tap { stage, output: RESULTS, branch: 0 })
    }

    /// A source with two branches, and what they become in pairs.
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
    fn who_can_be_passed_by_tells_nothing() {
        let (mut plan, source, zip) = zipped(false);
        // From the right branch to the left side, behind another fork.
        let Pairs { sides: [left, right], .. } = plan.stages[zip].pairs.expect("it pairs");
        plan.connect(Tap { stage: right, output: RESULTS, branch: 1 }, left, false);
        let told = plan.partners(source, RESULTS);
        assert_eq!(
            told,
            [Partner { stage: zip, left: false, branches: vec![1] }],
            "to the left go both branches"
        );
    }

    /// What a pair needs, the side needs to which the pair goes, although there is a way past it for the
    /// other half.
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
