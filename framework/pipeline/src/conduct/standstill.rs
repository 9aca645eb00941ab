//! The conductor's work when nothing moves.
//!
//! It reminds members of orders that a new life may not know, ends a pipeline that cannot go on, tells the
//! console which stages hold up the others, and writes to the log what each stage waits for.
//! [`StandstillDetector`](crate::standstill::StandstillDetector) judges; the conductor acts.

use std::collections::HashSet;
use std::time::Instant;

use super::Conductor;
use crate::standstill::REMIND;
use crate::worker::args::Directive;

impl Conductor {
    /// Returns the stages with a member that has ended in order. After a death it may have work once more,
    /// and reports nothing.
    fn may_work_again(&self) -> HashSet<u16> {
        let members = self.members.iter().enumerate();
        let ended = |index: usize| self.counts[index].is_some() && !self.exited.contains_key(&index);
        let ended = members.filter(|(index, _)| !self.deaths.all.is_empty() && ended(*index));
        ended.map(|(_, member)| member.stage as u16).collect()
    }

    /// Ends a pipeline that stands still for good, and says in the log what each stage waits for if it may go
    /// on.
    pub(super) fn check_for_standstill(&mut self) {
        let (now, unfinished) = (Instant::now(), self.unfinished());
        // Items between two hosts move although no stage reports it, and a replica that starts is not a
        // member yet.
        let may_be_on_the_way = self.members.iter().any(|member| member.worker.is_of_another_host())
            || self.scaling.may_move(self.detector.moved());
        if self.detector.still_for(&unfinished, now) >= REMIND {
            self.remind(self.detector.nothing_comes(&unfinished, may_be_on_the_way, now));
        }
        let may_go_on = may_be_on_the_way || self.detector.any_waits_for(&unfinished, &self.may_work_again());
        let culprits = self.detector.culprits(&self.plan, &unfinished, may_go_on, now);
        let line = |culprit: String| format!("pipeline `{}`: {culprit}", self.plan.name);
        self.self_report.set(culprits.into_iter().map(line).collect());
        if self.stop.signalled.is_some_and(|at| self.detector.is_over(at, now)) {
            return self.kill();
        }
        if !may_go_on && let Some(why) = self.detector.standstill(&self.plan, &unfinished, now) {
            let pipeline = &self.plan.name;
            tracing::error!(target: "tensorpost::pipeline", pipeline, why, "it stands still, and is ended");
            self.stop.stands_still = Some(why);
            return self.kill();
        }
        let Some(waiting) = self.detector.report(&self.plan, &unfinished, now) else { return };
        let (pipeline, seconds) = (&self.plan.name, self.detector.said(now).as_secs());
        for waiting in waiting {
            let waiting = waiting.to_string();
            tracing::warn!(target: "tensorpost::pipeline", pipeline, seconds, waiting, "nothing moves");
        }
    }

    /// Repeats to members the orders that a new life may not know, when nothing moves. A member that had
    /// ended may have died since and come back, and no answer reports that; it then waits for ends that no
    /// sender sends. If `nothing_comes`, stages go on without the partners that they wait for, and restorers
    /// without the items that were lost with a life.
    fn remind(&self, nothing_comes: bool) {
        for (index, member) in self.members.iter().enumerate() {
            for exited in self.over_before(index).chain(self.empty_before(index)) {
                // A member that has no room now is told the next time.
                member.try_send(exited);
            }
            if nothing_comes {
                member.try_send(Directive::GoOn { after_a_death: !self.deaths.all.is_empty() });
            }
        }
    }
}
