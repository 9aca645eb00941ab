//! The spec of a random run: a graph, its settings, and its failures. It is plain data, for replay and
//! shrinking.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One output of an operator: the operator's place in [`Spec::ops`], and the index of the output.
pub type FlowId = (usize, u8);

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The operators, each after those that it takes from.
    pub ops: Vec<Op>,
    /// [`Pipeline::at_least_once`](tensorpost::prelude::Pipeline::at_least_once).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least_once: Option<u32>,
    /// How often the pipeline runs on one node, one run after the other; 0: once, on a node of its own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub runs: u32,
    /// How it ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ending: Ending,
    /// The faults of the run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub faults: Vec<Fault>,
    /// Milliseconds between two reports of progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// [`Pipeline::require_complete`](tensorpost::prelude::Pipeline::require_complete).
    #[serde(default, skip_serializing_if = "is_default")]
    pub complete: bool,
    /// Whether a trace is written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub trace: bool,
    /// The run may be refused before the start, or work: either is right.
    #[serde(default, skip_serializing_if = "is_default")]
    pub doubtful: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

/// An operator, with its input flows and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The flows that it takes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub takes: Vec<FlowId>,
    /// Its kind.
    pub what: What,
    /// How its stage is tuned: for operators with helpers, the stage behind the helper.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: Settings,
}

/// The kind of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Makes items.
    Source(Source),
    /// Takes one item at a time.
    Stage(Stage),
    /// `batch` or `gather`, and the further way of the batch.
    Batch {
        /// Items in a batch.
        of: u32,
        /// After this many milliseconds a batch that is not full goes on.
        within: Option<u64>,
        /// The further way of the batch.
        then: Then,
        /// Restarts of the helper.
        restart: Option<u32>,
    },
    /// `window`, and a stage that goes on with the newest item.
    Window {
        /// Items in a window.
        of: u32,
        /// Restarts of the helper.
        restart: Option<u32>,
    },
    /// One flow becomes several.
    Fork(Fork, u8),
    /// Several flows become one.
    Merge,
    /// `zip`, and a stage that goes on with the left item.
    Zip {
        /// Restarts of the helper.
        restart: Option<u32>,
    },
    /// `join` by the number modulo this, and a stage that goes on with the left item.
    Join {
        /// The modulus; 0: by the number itself.
        modulus: u64,
        /// Restarts of the helper.
        restart: Option<u32>,
    },
    /// `iterate`: `body` is a line of operators, of which the first is a stage.
    Loop {
        /// Items in the loop.
        bound: u32,
        /// An item makes `1 + number % rounds` rounds.
        rounds: u64,
        /// The operators in it.
        body: Vec<Op>,
    },
    /// Takes items for good.
    Sink {
        /// A closure (`for_each`) instead of a type.
        closure: bool,
        /// Microseconds for each item.
        slow: u64,
    },
}

/// A source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The number of items.
    pub count: u64,
    /// The tensors in them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tensors: Tensors,
    /// A closure (`items`) instead of a type.
    #[serde(default, skip_serializing_if = "is_default")]
    pub closure: bool,
    /// Numbers before which it fails once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fails: Vec<u64>,
    /// Microseconds for each item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow: u64,
    /// `every(..)` this many microseconds; 0: as fast as it can.
    #[serde(default, skip_serializing_if = "is_default")]
    pub every: u64,
}

/// The tensors of an item. Their content follows from this and the item's number; see
/// [`recipe`](super::recipe).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensors {
    /// The seed of dtypes, shapes and views.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: u32,
    /// The most tensors in an item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub count: u8,
    /// Some are in a nested struct, in an option, in a list.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nested: bool,
    /// Some are slices, permuted, broadcast.
    #[serde(default, skip_serializing_if = "is_default")]
    pub views: bool,
    /// Some have no elements.
    #[serde(default, skip_serializing_if = "is_default")]
    pub empty: bool,
    /// Some are large.
    #[serde(default, skip_serializing_if = "is_default")]
    pub large: bool,
    /// All items have the same first tensor, apart from its content: they can be gathered.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uniform: bool,
}

/// A stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// How it is written.
    pub form: Form,
    /// Its work on the tensors.
    #[serde(default, skip_serializing_if = "is_default")]
    pub work: Work,
    /// Microseconds for each item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow: u64,
    /// Microseconds that its work on the stream takes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub late: u64,
    /// Items on which it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<Fails>,
    /// Keeps handles on the tensors of the last items.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keeps: bool,
}

/// How a stage is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// `map`.
    #[default]
    Map,
    /// `filter`: the items with `number % k == 0` end here.
    Filter(u64),
    /// `flat_map`: `number % k` copies of each.
    FlatMap(u64),
    /// `apply`.
    Apply,
    /// `stage::<..>`.
    Typed,
    /// A type that holds this many items, for five milliseconds at most, and then emits them in order.
    Hold(u32),
}

/// A stage's work on the tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Nothing.
    #[default]
    Pass,
    /// Compares them with their recipe.
    Check,
    /// Adds this to each element, in place where it may.
    Add(u64),
    /// Copies them on the stream.
    Copy,
}

/// Items on which a stage fails: those with `number % every == at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fails {
    /// The modulus.
    pub every: u64,
    /// The rest.
    pub at: u64,
    /// How often it fails; for ever from 100 on.
    pub times: u32,
}

/// The further way of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// `unbatch`.
    Unbatch,
    /// A stage makes one item of it.
    Pack,
    /// It was gathered; a stage makes one item of it.
    Gather,
}

/// How a flow is forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fork {
    /// `broadcast`.
    All,
    /// `round_robin`.
    Turns,
    /// `least_loaded`.
    Least,
    /// `spread_by_key` of the number modulo this.
    Key(u64),
    /// `split` of the items with `number % k == 0` from the others.
    Split(u64),
}

/// How a stage is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Replicas.
    #[serde(skip_serializing_if = "is_one")]
    pub replicas: u32,
    /// Whether their number changes all the time, from one to one more than `replicas`.
    #[serde(skip_serializing_if = "is_default")]
    pub scales: bool,
    /// The replica that takes an item.
    #[serde(skip_serializing_if = "is_default")]
    pub pick: Pick,
    /// `ordered()`.
    #[serde(skip_serializing_if = "is_default")]
    pub ordered: bool,
    /// `beside()`.
    #[serde(skip_serializing_if = "is_default")]
    pub beside: bool,
    /// `own_thread()`.
    #[serde(skip_serializing_if = "is_default")]
    pub own_thread: bool,
    /// `mailbox(..)`.
    #[serde(skip_serializing_if = "is_default")]
    pub mailbox: Option<u32>,
    /// `drop_oldest()` or `drop_newest()`.
    #[serde(skip_serializing_if = "is_default")]
    pub drops: Option<Drops>,
    /// `max_bytes_in_flight(..)`.
    #[serde(skip_serializing_if = "is_default")]
    pub max_bytes: Option<u64>,
    /// `on_error(..)`.
    #[serde(skip_serializing_if = "is_default")]
    pub on_error: tensorpost::pipeline::OnError,
    /// `dead_letters()`: a second output.
    #[serde(skip_serializing_if = "is_default")]
    pub dead: bool,
    /// `restart(on_failure(..))`.
    #[serde(skip_serializing_if = "is_default")]
    pub restart: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            replicas: 1,
            scales: false,
            pick: Pick::Turns,
            ordered: false,
            beside: false,
            own_thread: false,
            mailbox: None,
            drops: None,
            max_bytes: None,
            on_error: tensorpost::pipeline::OnError::Fail,
            dead: false,
            restart: None,
        }
    }
}

/// The items that a stage drops when it has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Drops {
    /// `drop_oldest()`.
    Oldest,
    /// `drop_newest()`.
    Newest,
}

/// The replica that takes an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pick {
    /// In turn.
    #[default]
    Turns,
    /// `to_least_loaded()`.
    Least,
    /// `by_key` of the number modulo this.
    Key(u64),
    /// `to_all()`.
    All,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself.
    #[default]
    Natural,
    /// `cancel()`.
    Cancel(When),
    /// `kill()`.
    Kill(When),
    /// The `Running` is dropped.
    Drop(When),
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// When this operator has had this many items.
    Items(u16, usize),
    /// This many microseconds after the start.
    Micros(u64),
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The process of an operator ends while it works on an item.
    Inside {
        /// The operator, by its [number](super::plan::Plan).
        op: u16,
        /// The item: the first with this number or a later one.
        at: u64,
        /// The way to end.
        how: How,
        /// How often it happens.
        times: u32,
    },
    /// A signal from outside.
    Outside {
        /// The moment.
        when: When,
        /// The victims: operators and replicas, one right after the other.
        victims: Vec<(u16, u32)>,
        /// The victims are stopped for this many milliseconds instead of killed.
        stop: Option<u64>,
    },
}

/// How a process ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// `abort()`.
    Abort,
    /// `exit(3)`.
    Exit,
    /// A panic.
    Panic,
    /// `abort()` after this many milliseconds, in which others go on.
    Late(u64),
    /// `abort()` in work on the stream, after this many milliseconds: the item may have been sent by then.
    InKernel(u64),
}

/// Writes one line: each operator with its number, its inputs, and its settings.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = super::plan::Plan::new(self);
        for (op, number) in self.ops.iter().zip(&plan.numbers) {
            let takes: Vec<_> =
                op.takes.iter().map(|(from, output)| format!("{}.{output}", plan.numbers[*from])).collect();
            write!(f, "{number} = {:?}({})", op.what, takes.join(", "))?;
            let settings = serde_json::to_string(&op.settings).map_err(|_| fmt::Error)?;
            write!(f, "{}; ", if settings == "{}" { "" } else { &settings })?;
        }
        if let Some(most) = self.at_least_once {
            write!(f, "at least once ({most}); ")?;
        }
        if self.runs > 0 {
            write!(f, "{} runs on a node; ", self.runs)?;
        }
        write!(f, "ending: {:?}; faults: {:?}", self.ending, self.faults)
    }
}

impl Spec {
    /// Returns the spec as JSON, in one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a spec is numbers and names")
    }

    /// Reads a spec from JSON.
    ///
    /// # Errors
    /// The text is no spec.
    pub fn from_json(text: &str) -> serde_json::Result<Spec> {
        serde_json::from_str(text)
    }
}

impl Spec {
    /// Returns whether nothing in it is told to fail, or to end early.
    pub fn is_peaceful(&self) -> bool {
        fn is_peaceful(op: &Op) -> bool {
            match &op.what {
                What::Source(source) => source.fails.is_empty(),
                What::Stage(stage) => stage.fails.is_none(),
                What::Loop { body, .. } => body.iter().all(is_peaceful),
                _ => true,
            }
        }
        self.faults.is_empty() && self.ending == Ending::Natural && self.ops.iter().all(is_peaceful)
    }
}

impl What {
    /// Returns the number of output flows.
    pub fn outputs(&self, settings: &Settings) -> u8 {
        match self {
            What::Sink { .. } => 0,
            What::Fork(_, ways) => *ways,
            What::Stage(_) => 1 + u8::from(settings.dead),
            _ => 1,
        }
    }
}
