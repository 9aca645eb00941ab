//! Items that came to nothing here (DEATH-3) and are left to their sender, under at-least-once delivery: it is told by the
//! answer, and sends them again. A source that has died for good does not, and nobody else knows what it had sent; so what
//! it leaves is named here.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::core::Part;
use super::meter::Cause;
use crate::pipeline::item::Tag;

/// See the module.
#[derive(Default)]
pub(super) struct Orphans {
    /// By lane, the last of them: a sender has at most as many unanswered.
    left: RefCell<HashMap<u32, Vec<(Tag, String)>>>,
    gone: RefCell<HashSet<u32>>,
}

/// Of one lane so many are remembered. A source has no more of its items under way.
const MOST: usize = crate::pipeline::limits::MAX_NAMED;

impl Orphans {
    /// An item came to nothing.
    pub(super) fn left(&self, part: &Part, tag: &Tag, why: &str) {
        let Some(lane) = tag.lane else { return };
        if self.gone.borrow().contains(&lane) {
            part.meter.lost(&part.config.stage, tag.ids(), Cause::Tainted, why);
            return;
        }
        let mut left = self.left.borrow_mut();
        let left = left.entry(lane).or_default();
        left.retain(|(other, _)| other.id != tag.id);
        if left.len() < MOST {
            left.push((tag.clone(), why.to_owned()));
        }
    }

    /// It was sent again.
    pub(super) fn came(&self, tag: &Tag) {
        let Some(lane) = tag.lane else { return };
        let mut left = self.left.borrow_mut();
        if !left.is_empty()
            && let Some(left) = left.get_mut(&lane)
        {
            left.retain(|(other, _)| other.id != tag.id);
        }
    }

    /// The sources behind these lanes have died, and do not come back.
    pub(super) fn gone(&self, part: &Part, lanes: &[u32]) {
        self.gone.borrow_mut().extend(lanes);
        for lane in lanes {
            for (tag, why) in self.left.borrow_mut().remove(lane).unwrap_or_default() {
                part.meter.lost(&part.config.stage, tag.ids(), Cause::Tainted, &why);
            }
        }
    }
}
