//! Draws a spec from a seed.

use tensorpost::pipeline::OnError;

use super::plan::Plan;
use super::spec::{
    Drops, Ending, Fails, Fault, FlowId, Fork, Form, How, Op, Pick, Settings, Source, Spec, Stage, Tensors,
    Then, What, When, Work,
};
use crate::faults::plan::{Draw, mix};

/// Whether failures are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// No failures.
    None,
    /// Some failures in every run.
    Some,
    /// Some failures in every other run.
    Mixed,
}

/// The number of processes of a drawn pipeline, roughly.
const MOST_PROCESSES: u32 = 11;

/// Draws the spec of a seed.
pub fn draw(seed: u64, faults: Faults) -> Spec {
    let mut draw = Draw::new(mix(seed ^ 0x7e50_4057));
    let goes_wrong = match faults {
        Faults::None => false,
        Faults::Some => true,
        Faults::Mixed => draw.below(2) == 0,
    };
    // A spec that is too large is drawn again; the seed decides about that too.
    loop {
        let mut drawing = Drawing::new(&mut draw, goes_wrong);
        let spec = drawing.spec();
        if Plan::new(&spec).processes() <= MOST_PROCESSES {
            return spec;
        }
    }
}

struct Drawing<'d> {
    draw: &'d mut Draw,
    goes_wrong: bool,
    spec: Spec,
    /// The flows that no operator takes yet, each with the conditions on its taker.
    open: Vec<Open>,
    uniform: bool,
    pairings: u32,
}

#[derive(Clone, Copy)]
struct Open {
    flow: FlowId,
    /// The operator that takes an item has to log it: nothing else says which branch the item went.
    choice: bool,
    /// The stage before has one replica, so that another can be beside it.
    single: bool,
}

impl<'d> Drawing<'d> {
    fn new(draw: &'d mut Draw, goes_wrong: bool) -> Self {
        let spec = Spec {
            ops: Vec::new(),
            at_least_once: None,
            runs: 0,
            ending: Ending::Natural,
            faults: Vec::new(),
            progress: None,
            complete: false,
            trace: false,
            doubtful: false,
        };
        Drawing { draw, goes_wrong, spec, open: Vec::new(), uniform: false, pairings: 0 }
    }

    fn chance(&mut self, of_100: usize) -> bool {
        self.draw.below(100) < of_100
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.draw.below(all.len())]
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.draw.below((most - least + 1) as usize) as u64
    }

    fn spec(&mut self) -> Spec {
        if self.chance(if self.goes_wrong { 45 } else { 30 }) {
            self.spec.at_least_once = Some(self.one_of(&[1, 2, 4, 8, 16, 32, 64, 256]));
        }
        self.uniform = self.chance(20);
        let sources = if self.chance(25) { 2 } else { 1 };
        (0..sources).for_each(|_| self.source());
        for _ in 0..self.between(1, 6) {
            self.operator();
        }
        while self.open.len() > 4 {
            self.merge();
        }
        while let Some(open) = self.open.pop() {
            self.sink(open);
        }
        if self.chance(15) {
            self.spec.runs = 1 + self.draw.below(3) as u32;
        }
        if self.chance(20) {
            self.spec.progress = Some(self.one_of(&[1, 5, 50]));
        }
        self.spec.trace = self.chance(5);
        self.ending();
        self.spec.complete = self.chance(10);
        if self.goes_wrong {
            self.faults();
        }
        self.spec.clone()
    }

    fn push(&mut self, takes: Vec<FlowId>, what: What, settings: Settings) -> usize {
        self.spec.ops.push(Op { takes, what, settings });
        self.spec.ops.len() - 1
    }

    fn open(&mut self, at: usize, choice: bool, single: bool) {
        let op = &self.spec.ops[at];
        for output in 0..op.what.outputs(&op.settings) {
            self.open.push(Open { flow: (at, output), choice, single });
        }
    }

    fn take(&mut self) -> Option<Open> {
        (!self.open.is_empty()).then(|| {
            let at = self.draw.below(self.open.len());
            self.open.swap_remove(at)
        })
    }

    fn source(&mut self) {
        let count = match self.draw.below(10) {
            0 => self.between(0, 3),
            1..8 => self.between(10, 80),
            _ => self.between(80, 200),
        };
        let closure = self.chance(25);
        let mut settings = Settings { restart: self.restart(60), ..Settings::default() };
        settings.own_thread = self.chance(5);
        if self.chance(8) {
            settings.replicas = 2;
        }
        let mut fails = Vec::new();
        if !closure && self.chance(8) && count > 0 {
            fails.push(self.between(0, count - 1));
            settings.on_error = self.one_of(&[OnError::Skip, OnError::Skip, OnError::Fail]);
        }
        let tensors = Tensors {
            seed: self.draw.bits() as u32,
            count: if self.uniform { self.between(1, 2) as u8 } else { self.one_of(&[0, 1, 1, 1, 2, 3]) },
            nested: self.chance(25),
            views: self.chance(40),
            empty: self.chance(30),
            large: self.chance(10),
            uniform: self.uniform,
        };
        let slow = if self.chance(40) { self.between(1, 300) } else { 0 };
        let every = if self.chance(15) { self.between(100, 3_000) } else { 0 };
        let what = What::Source(Source { count, tensors, closure, fails, slow, every });
        let at = self.push(Vec::new(), what, settings);
        self.open(at, false, settings.replicas == 1);
    }

    fn restart(&mut self, of_100: usize) -> Option<u32> {
        (self.goes_wrong && self.chance(of_100)).then(|| self.between(1, 4) as u32)
    }

    fn operator(&mut self) {
        match self.draw.below(100) {
            0..36 => self.stage(),
            36..44 => self.batch(),
            44..50 => self.window(),
            50..69 => self.fork(),
            69..75 => self.merge(),
            75..85 => self.pair(),
            85..97 => self.iterate(),
            _ => self.source(),
        }
    }

    fn settings(&mut self, open: Open, in_loop: bool) -> Settings {
        let mut settings = Settings { restart: self.restart(70), ..Settings::default() };
        settings.beside = open.single && self.chance(25);
        if !settings.beside && self.chance(25) {
            settings.replicas = self.between(2, 3) as u32;
            settings.pick = match self.draw.below(10) {
                0..4 => Pick::Turns,
                4..6 => Pick::Least,
                6..9 => Pick::Key(self.between(1, 6)),
                _ if in_loop || open.choice => Pick::Turns,
                _ => Pick::All,
            };
            settings.ordered = settings.pick != Pick::All && !in_loop && self.chance(40);
        }
        settings.own_thread = self.chance(6);
        if self.chance(20) {
            settings.mailbox = Some(self.between(1, 6) as u32);
        }
        // Only at most once, outside of loops, and where the takers' logs are not the only record of the
        // branch that an item went.
        let drops =
            self.spec.at_least_once.is_none() && !in_loop && !open.choice && settings.pick != Pick::All;
        let which = self.one_of(&[Drops::Oldest, Drops::Newest]);
        settings.drops = (drops && self.chance(20)).then_some(which);
        // With at-least-once delivery and a half that waits for its partner, nobody can see a stage that
        // waits for bytes.
        if self.chance(8) && (self.spec.at_least_once.is_none() || self.pairings == 0) {
            settings.max_bytes = Some(self.one_of(&[1, 100, 1_000, 100_000]));
        }
        settings
    }

    /// Draws the settings of the stage behind a helper. That stage must not go to all replicas or drop: the
    /// logs could not tell that from packs that came several times or not at all.
    fn pack_settings(&mut self, open: Open, in_loop: bool) -> Settings {
        let settings = Settings { drops: None, ..self.settings(open, in_loop) };
        if settings.pick == Pick::All { Settings { pick: Pick::Turns, ..settings } } else { settings }
    }

    fn work(&mut self, forms: &[Form]) -> Stage {
        let work = match self.draw.below(8) {
            0..2 => Work::Pass,
            2 => Work::Check,
            3..7 => Work::Add(self.draw.bits() >> 40),
            _ => Work::Copy,
        };
        let mut stage = Stage { form: self.one_of(forms), work, ..Stage::default() };
        if self.chance(25) {
            stage.slow = self.between(1, 300);
        }
        if self.chance(25) {
            stage.late = self.between(1, 500);
        }
        stage.keeps = self.chance(10);
        stage
    }

    fn fails(&mut self, stage: &mut Stage, settings: &mut Settings, in_loop: bool) {
        if matches!(stage.form, Form::Filter(_)) || !self.chance(30) {
            return;
        }
        let every = self.between(2, 20);
        let mut times = self.one_of(&[1, 1, 2, 100]);
        let retries = self.between(1, 3) as u32;
        settings.on_error = match self.draw.below(12) {
            0 => OnError::Fail,
            1..4 => OnError::Skip,
            4 => OnError::Retry(retries),
            5..8 => OnError::RetryThenSkip(retries),
            8..10 => OnError::DeadLetter,
            _ => OnError::RetryThenDeadLetter(retries),
        };
        if matches!(settings.on_error, OnError::Retry(_)) && self.chance(70) {
            times = 1;
        }
        stage.fails = Some(Fails { every, at: self.between(0, every - 1), times });
        settings.dead = settings.on_error.keeps() && !in_loop && self.chance(80);
    }

    fn stage(&mut self) {
        let Some(open) = self.take() else { return };
        let forms = [
            Form::Map,
            Form::Filter(self.between(2, 6)),
            Form::FlatMap(self.between(2, 4)),
            Form::Apply,
            Form::Apply,
            Form::Typed,
            Form::Typed,
            Form::Hold(self.between(1, 5) as u32),
        ];
        let mut stage = self.work(&forms);
        let mut settings = self.settings(open, false);
        self.fails(&mut stage, &mut settings, false);
        let pairs_again = self.spec.at_least_once.is_some() && self.pairings > 0;
        let moves =
            matches!(settings.pick, Pick::Turns | Pick::Least) && !matches!(stage.form, Form::Hold(_));
        settings.scales = settings.replicas > 1 && moves && !pairs_again && self.chance(50);
        let at = self.push(vec![open.flow], What::Stage(stage), settings);
        self.open(at, false, settings.replicas == 1);
    }

    /// Draws a time limit for a batch of this many items. Without a limit, batches may wait for ever where
    /// fewer items can be under way.
    fn within(&mut self, in_loop: bool) -> Option<u64> {
        let doubtful = self.spec.at_least_once.is_some() || in_loop || self.has_loop();
        if doubtful {
            if self.chance(4) && !in_loop {
                self.spec.doubtful = true;
                return None;
            }
            return Some(self.between(1, 10));
        }
        self.chance(40).then(|| self.between(1, 10))
    }

    fn has_loop(&self) -> bool {
        self.spec.ops.iter().any(|op| matches!(op.what, What::Loop { .. }))
    }

    fn batch(&mut self) {
        let Some(open) = self.take() else { return };
        // Only batches of one source are gathered: items of another may have another shape.
        let sources = self.spec.ops.iter().filter(|op| matches!(op.what, What::Source { .. })).count();
        let gathers = self.uniform && sources == 1 && self.chance(60);
        let then = match self.draw.below(2) {
            _ if gathers => Then::Gather,
            0 if !open.choice => Then::Unbatch,
            _ => Then::Pack,
        };
        let (of, within, restart) = (self.between(1, 8) as u32, self.within(false), self.restart(70));
        let packing = Open { single: open.single, ..open };
        let settings = self.pack_settings(packing, false);
        let settings = if then == Then::Unbatch { Settings::default() } else { settings };
        let at = self.push(vec![open.flow], What::Batch { of, within, then, restart }, settings);
        self.open(at, false, settings.replicas == 1);
    }

    fn window(&mut self) {
        if self.spec.at_least_once.is_some() || self.has_loop() {
            // A window has no time at which it gives up.
            if !self.chance(10) {
                return;
            }
            self.spec.doubtful = true;
        }
        let Some(open) = self.take() else { return };
        if open.choice {
            return self.open.push(open);
        }
        let (of, restart) = (self.between(1, 5) as u32, self.restart(70));
        let settings = self.pack_settings(open, false);
        let at = self.push(vec![open.flow], What::Window { of, restart }, settings);
        self.open(at, false, settings.replicas == 1);
    }

    fn fork(&mut self) {
        let Some(open) = self.take() else { return };
        if open.choice {
            return self.open.push(open);
        }
        let (fork, ways) = match self.draw.below(10) {
            0..4 => (Fork::All, self.between(2, 3)),
            4..6 => (Fork::Turns, self.between(2, 3)),
            6 => (Fork::Least, 2),
            7 => (Fork::Key(self.between(1, 6)), self.between(2, 3)),
            _ => (Fork::Split(self.between(2, 4)), 2),
        };
        let choice = matches!(fork, Fork::Turns | Fork::Least | Fork::Key(_));
        let at = self.push(vec![open.flow], What::Fork(fork, ways as u8), Settings::default());
        self.open(at, choice, open.single);
    }

    fn two(&mut self) -> Option<(Open, Open)> {
        let fit: Vec<usize> = (0..self.open.len()).filter(|at| !self.open[*at].choice).collect();
        if fit.len() < 2 {
            return None;
        }
        let first = self.one_of(&fit);
        let second = self.one_of(&fit.into_iter().filter(|at| *at != first).collect::<Vec<_>>());
        let flows = (self.open[first], self.open[second]);
        self.open.retain(|open| open.flow != flows.0.flow && open.flow != flows.1.flow);
        Some(flows)
    }

    fn merge(&mut self) {
        let Some((first, second)) = self.two() else {
            // Branches of a fork that chooses; each gets a stage of its own first.
            return self.stage();
        };
        let at = self.push(vec![first.flow, second.flow], What::Merge, Settings::default());
        self.open(at, false, false);
    }

    fn pair(&mut self) {
        let uses_bytes = self.spec.ops.iter().any(|op| op.settings.max_bytes.is_some());
        // `PIPELINES.md` says that nobody sees such a pipeline stand still.
        if self.spec.at_least_once.is_some() && (self.pairings > 0 || uses_bytes) {
            return;
        }
        if self.open.len() < 2 {
            self.fork();
        }
        let Some((left, right)) = self.two() else { return };
        self.pairings += 1;
        let restart = self.restart(70);
        let what = if self.chance(60) {
            What::Zip { restart }
        } else {
            What::Join { modulus: self.one_of(&[0, 0, 1, 3, 7, 20]), restart }
        };
        let settings = self.pack_settings(Open { single: true, ..left }, false);
        let at = self.push(vec![left.flow, right.flow], what, settings);
        self.open(at, false, settings.replicas == 1);
    }

    fn body(&mut self, depth: u32) -> Vec<Op> {
        let in_line = Open { flow: (0, 0), choice: false, single: false };
        let op = |what, settings| Op { takes: Vec::new(), what, settings };
        let turn = self.work(&[Form::Map, Form::Apply, Form::Typed]);
        let mut body = vec![op(What::Stage(turn), self.settings(in_line, true))];
        for _ in 0..self.draw.below(3) {
            let single = body.last().is_some_and(|op| op.settings.replicas == 1);
            let settings = self.pack_settings(Open { single, ..in_line }, true);
            match self.draw.below(10) {
                0 if depth == 0 => body.push(self.loop_of(depth + 1)),
                1 => {
                    let (of, within) = (self.between(1, 4) as u32, self.within(true));
                    let then = self.one_of(&[Then::Unbatch, Then::Pack]);
                    let settings = if then == Then::Unbatch { Settings::default() } else { settings };
                    let restart = self.restart(70);
                    body.push(op(What::Batch { of, within, then, restart }, settings));
                }
                _ => {
                    let forms = [Form::Map, Form::Apply, Form::Typed, Form::Filter(self.between(2, 9))];
                    let (mut stage, mut settings) = (self.work(&forms), settings);
                    self.fails(&mut stage, &mut settings, true);
                    body.push(op(What::Stage(stage), settings));
                }
            }
        }
        body
    }

    fn loop_of(&mut self, depth: u32) -> Op {
        let bound = self.one_of(&[1, 2, 3, 4, 8, 16]);
        let rounds = self.between(1, 4);
        let body = self.body(depth);
        Op { takes: Vec::new(), what: What::Loop { bound, rounds, body }, settings: Settings::default() }
    }

    fn iterate(&mut self) {
        let Some(open) = self.take() else { return };
        if open.choice {
            return self.open.push(open);
        }
        let Op { what, settings, .. } = self.loop_of(0);
        let at = self.push(vec![open.flow], what, settings);
        self.open(at, false, false);
    }

    fn sink(&mut self, open: Open) {
        let settings = Settings { ordered: false, ..self.settings(open, false) };
        let slow = if self.chance(20) { self.between(1, 400) } else { 0 };
        let what = What::Sink { closure: self.chance(25), slow };
        self.push(vec![open.flow], what, settings);
    }

    fn when(&mut self) -> When {
        let plan = Plan::new(&self.spec);
        let writing: Vec<_> =
            plan.all().iter().filter(|op| super::plan::writes(&op.op.what)).map(|op| op.number).collect();
        if self.chance(70) {
            When::Items(self.one_of(&writing), self.between(1, 40) as usize)
        } else {
            When::Micros(self.between(0, 60_000))
        }
    }

    fn ending(&mut self) {
        self.spec.ending = match self.draw.below(100) {
            0..80 => Ending::Natural,
            80..90 => Ending::Cancel(self.when()),
            90..95 => Ending::Kill(self.when()),
            _ => Ending::Drop(self.when()),
        };
    }

    fn faults(&mut self) {
        let plan = Plan::new(&self.spec);
        let parts: Vec<(u16, u32)> = plan
            .all()
            .iter()
            .filter(|op| super::plan::writes(&op.op.what))
            .map(|op| (op.number, op.op.settings.replicas))
            .collect();
        for _ in 0..self.one_of(&[1, 1, 1, 1, 2, 2, 3]) {
            let (op, _) = self.one_of(&parts);
            if self.chance(60) {
                let how = match self.draw.below(10) {
                    0..3 => How::Abort,
                    3 => How::Exit,
                    4..6 => How::Panic,
                    6 => How::Late(self.between(1, 60)),
                    _ => How::InKernel(self.between(0, 8)),
                };
                let times = self.one_of(&[1, 1, 1, 2, 3]);
                let at = self.between(0, 40);
                self.spec.faults.push(Fault::Inside { op, at, how, times });
                continue;
            }
            let victim = |drawing: &mut Self| {
                let (op, replicas) = drawing.one_of(&parts);
                (op, drawing.draw.below(replicas as usize) as u32)
            };
            let victims = (0..self.one_of(&[1, 1, 1, 2, 3])).map(|_| victim(self)).collect();
            let stop = self.chance(25).then(|| self.between(1, 60));
            let when = self.when();
            self.spec.faults.push(Fault::Outside { when, victims, stop });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all(faults: Faults, seeds: u64) -> Vec<Spec> {
        (0..seeds).map(|seed| draw(seed, faults)).collect()
    }

    #[test]
    fn a_seed_says_everything() {
        assert_eq!(all(Faults::Mixed, 50), all(Faults::Mixed, 50));
        assert_ne!(draw(1, Faults::Some), draw(2, Faults::Some));
        for spec in all(Faults::Some, 100) {
            assert_eq!(Spec::from_json(&spec.to_json()).unwrap(), spec);
        }
    }

    /// Returns the first word of a value's debug text: its variant.
    fn variant(value: &impl std::fmt::Debug) -> String {
        format!("{value:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
    }

    #[test]
    fn every_operator_and_setting_is_drawn() {
        let mut seen = BTreeSet::new();
        let mut note = |what: &str, value: String| {
            seen.insert(format!("{what} {value}"));
        };
        for spec in all(Faults::Some, 300) {
            for op in Plan::new(&spec).all() {
                let settings = op.op.settings;
                note("op", variant(&op.op.what));
                note("pick", variant(&settings.pick));
                note("error", variant(&settings.on_error));
                for (what, is) in [
                    ("ordered", settings.ordered),
                    ("scales", settings.scales),
                    ("beside", settings.beside),
                    ("thread", settings.own_thread),
                    ("mailbox", settings.mailbox.is_some()),
                    ("drops", settings.drops.is_some()),
                    ("bytes", settings.max_bytes.is_some()),
                    ("dead", settings.dead),
                    ("restart", settings.restart.is_some()),
                    ("nested", op.depth > 1),
                ] {
                    if is {
                        note("has", what.into());
                    }
                }
                match &op.op.what {
                    What::Stage(stage) => {
                        note("form", variant(&stage.form));
                        note("work", variant(&stage.work));
                    }
                    What::Source(source) if source.every > 0 => note("has", "every".into()),
                    What::Fork(fork, _) => note("fork", variant(fork)),
                    What::Batch { then, .. } => note("then", variant(then)),
                    _ => {}
                }
            }
            for fault in &spec.faults {
                note("fault", variant(fault));
                if let Fault::Inside { how, .. } = fault {
                    note("how", variant(how));
                }
            }
            note("ending", variant(&spec.ending));
        }
        let wanted = "op Source|op Stage|op Batch|op Window|op Fork|op Merge|op Zip|op Join|op Loop|op Sink|\
            pick Turns|pick Least|pick Key|pick All|error Fail|error Skip|error Retry|error RetryThenSkip|\
            error DeadLetter|error RetryThenDeadLetter|has ordered|has scales|has beside|has thread|has mailbox|has drops|has every|has bytes|has dead|\
            has restart|has nested|form Map|form Filter|form FlatMap|form Apply|form Typed|form Hold|work Pass|\
            work Check|work Add|work Copy|fork All|fork Turns|fork Least|fork Key|fork Split|then Unbatch|then Pack|\
            then Gather|fault Inside|fault Outside|how Abort|how Exit|how Panic|how Late|how InKernel|\
            ending Natural|ending Cancel|ending Kill|ending Drop";
        let missing: Vec<_> = wanted.split('|').filter(|what| !seen.contains(*what)).collect();
        assert!(missing.is_empty(), "{missing:?} of {seen:?}");
    }
}
