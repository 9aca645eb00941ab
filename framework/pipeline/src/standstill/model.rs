//! A model of waiting: tiny pipelines in every order of events. It shows that nobody waits for ever.
//!
//! Production code decides wherever it can. [`Plan`] says which pipelines are refused, how many places a
//! mailbox has, which end may pass which answer, and which forks a `zip` hears. The real `Reorder` restores
//! orders, and the real [`StandstillDetector`](super::StandstillDetector) judges.
//!
//! The rest follows the modules of `worker` in single steps. A source makes an item. An actor hands a result
//! over, or takes a message. A call keeps, drops, multiplies or fails. An end is sent, and is answered. A
//! member dies, and begins anew. Ctrl-C comes. Answers and calls take no time: they only make others wait
//! longer, which they may do in the model anyway. [`clock`] has the times that this leaves out.
//! Not in the model: a `join` by keys, bounds of bytes, replicas that come and go, other hosts, and sources
//! that begin anew.
//!
//! The model visits all states, breadth first. These must hold:
//!
//! * Where nothing can happen any more, all have ended. Where a shape may stand still (`Shape::stands`), the
//!   detector finds that, and names only stages for which the others wait.
//! * While something can still happen, the detector finds nothing: the end of a time, or a new life.
//! * Without a death nobody needs the conductor's reminder.
//! * An end can be reached from each state, after Ctrl-C too.
//! * At an end each item has come as often as promised, in order where that is promised. An item that did
//!   not come was named.
//!
//! Then each [`Flaw`] takes a rule of production away, and the model must find a state that breaks one of
//! these.

use tensorpost_core::api::node::Restart;

use crate::pairs::Pairs;
use crate::plan::{Kind, Plan, RESULTS, StagePlan, Tap};
use crate::worker::args::Select;

mod clock;
mod explore;
mod faults;
mod shapes;
mod steps;
mod world;

/// The rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// `Plan::mailbox`: items that a stage keeps have places of their own.
    NoPlaces,
    /// `Plan::settles_first`: the end passes answers that come only after it.
    EndBehindAnswers,
    /// `Plan::mistakes`: what could wait for itself is refused.
    NotRefused,
    /// `Part::give_up`: a stage that fails gives up the items that it keeps.
    KeepsOnFailure,
    /// `Conductor::died`: the stages behind a member that does not come back are told.
    UntoldDeath,
    /// `ForkTracker`: a fork tells a `zip` which partners do not come.
    UntoldPartners,
    /// `Core::nothing_of`: the restorer of an order is told of an item of which nothing comes.
    UntoldGaps,
    /// `Core::waits`: a stage reports that it goes on after some time.
    UntoldTime,
}

/// The calls of a stage.
#[derive(Clone, Copy)]
enum Act {
    Source,
    Sink,
    /// Makes so many results of an item, by its number.
    Makes(fn(u8) -> usize),
    /// Packs so many items into one.
    Batch(usize),
    /// As a batch that is also packed when some time has passed.
    Timed(usize),
    /// Emits each item, from this many on, together with those before it.
    Window(usize),
    /// A stage of the user: keeps items until there are so many, and emits all of them. The plan does not
    /// know that.
    Hold(usize),
    /// A batch of so many that fails for good on the item of the first number.
    Fails(u8, usize),
    /// Pairs items of the same id.
    Zip,
}

/// The way of a result at a fork.
#[derive(Clone, Copy)]
enum Route {
    All,
    /// To one branch, by its number.
    ByNumber,
    /// Back into the loop, until it has gone around so often.
    Rounds(u8),
}

/// A pipeline, and the promises that it is held to.
struct Shape {
    plan: Plan,
    /// By stage.
    acts: Vec<Act>,
    routes: Vec<Route>,
    /// Items that each source makes.
    items: u8,
    /// How often an item comes to the sinks, by its number.
    often: fn(u8) -> usize,
    /// Whether it comes in order.
    in_order: bool,
    /// The stages of which a member may die, and the deaths in one run.
    mortal: Vec<usize>,
    deaths: u8,
    /// Whether it may stand still.
    stands: bool,
}

impl Shape {
    fn new(at_least_once: Option<u32>, items: u8) -> Self {
        let mut plan = Plan::new("model".to_owned());
        plan.at_least_once = at_least_once;
        Shape {
            plan,
            acts: Vec::new(),
            routes: Vec::new(),
            items,
            often: |_| 1,
            in_order: false,
            mortal: Vec::new(),
            deaths: 0,
            stands: false,
        }
    }

    /// A source, stages one behind the other, and a sink.
    fn line(at_least_once: Option<u32>, items: u8, acts: &[Act]) -> Self {
        let mut shape = Shape::new(at_least_once, items);
        let mut last = shape.add(Act::Source, "source", &[]);
        for act in acts {
            last = shape.add(*act, "stage", &[last]);
        }
        shape.add(Act::Sink, "sink", &[last]);
        shape
    }

    /// Adds a stage with the smallest mailbox that there is.
    fn add(&mut self, act: Act, name: &str, taps: &[Tap]) -> Tap {
        let kind = match act {
            Act::Source => Kind::Source,
            Act::Sink => Kind::Sink,
            _ => Kind::Stage,
        };
        let mut stage = StagePlan::new(kind, name);
        stage.mailbox = Some(1);
        if let Act::Batch(count) | Act::Timed(count) | Act::Window(count) | Act::Fails(_, count) = act {
            stage.keeps = Some(count as u32);
            stage.packs = !matches!(act, Act::Window(_));
            stage.times_out = matches!(act, Act::Timed(_));
            stage.helper = true;
        }
        let index = self.plan.add(stage, taps);
        self.acts.push(act);
        self.routes.push(Route::All);
        Tap { stage: index, output: RESULTS, branch: 0 }
    }

    /// Gives a stage two branches.
    fn fork(&mut self, tap: Tap, route: Route) -> [Tap; 2] {
        self.routes[tap.stage] = route;
        let select = if matches!(route, Route::All) { Select::All } else { Select::RoundRobin };
        let taps = self.plan.fork(tap, 2, select);
        [taps[0], taps[1]]
    }

    /// Pairs two flows.
    fn zip(&mut self, left: Tap, right: Tap) -> Tap {
        let zip = self.add(Act::Zip, "zip", &[left, right]);
        let here = &mut self.plan.stages[zip.stage];
        here.pairs = Some(Pairs { sides: [left.stage, right.stage], by_id: true });
        here.helper = true;
        zip
    }

    /// A loop with room for `bound` items, through stages that make so many results of an item each time.
    fn looped(mut self, source: Tap, bound: u32, rounds: u8, makes: &[fn(u8) -> usize]) -> Self {
        self.plan.loops += 1;
        let entry = self.add(Act::Makes(|_| 1), "round", &[source]);
        self.plan.stages[entry.stage].window = Some(bound);
        self.plan.stages[entry.stage].helper = true;
        let mut last = entry;
        for makes in makes {
            last = self.add(Act::Makes(*makes), "work", &[last]);
        }
        let [back, done] = self.fork(last, Route::Rounds(rounds));
        self.plan.connect(back, entry.stage, true);
        self.plan.loops -= 1;
        self.add(Act::Sink, "sink", &[done]);
        self
    }

    /// Gives a stage two replicas, and restores their order.
    fn ordered(mut self, stage: usize) -> Self {
        (self.plan.stages[stage].replicas, self.plan.stages[stage].ordered) = (2, true);
        self.in_order = true;
        self
    }

    fn often(mut self, often: fn(u8) -> usize) -> Self {
        self.often = often;
        self
    }

    /// Lets a member of a stage die, which then comes back or does not.
    fn dies(mut self, stage: usize, comes_back: bool) -> Self {
        if comes_back {
            self.plan.stages[stage].restart = Some(Restart::on_failure(1));
        }
        self.mortal.push(stage);
        self.deaths = 1;
        self
    }

    fn stands(mut self) -> Self {
        self.stands = true;
        self
    }
}
