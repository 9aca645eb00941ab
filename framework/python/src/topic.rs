//! The topic that a Python program starts: an actor of Rust that keeps the newest version of a value. It
//! answers as `tensorpost::published::Topic` does, so readers in both languages follow it. Its worker is an
//! interpreter without the package ([`rust_workers`](crate::rust_workers)), whatever the program imports.
//!
//! The topic knows the form of the value, and no class. A version is the bytes and the tensors that came, and
//! each reader gets them as they are.
//!
//! **Invariants.** WIRE-1: a value is read by its form before it replaces the last version. The sender of a
//! malformed one is refused, and readers never see it. Each question is answered once: by a version that is
//! newer than the reader's, or from the beginning of a shutdown on by the news that no more will come, for
//! which the shutdown waits. MBX-2: a question that waits holds a place of the mailbox.
//!
//! **Locks.** Those of the state and of the last complaint, one at a time, for as long as it takes to copy a
//! version's bytes. Nothing is sent or dropped under them. The process's reader reads a value under a lock of
//! its own, with the interpreter, which no other thread of this worker keeps for longer than a value takes.
//!
//! **On the end** of the actor the version goes, and the questions that wait are told.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{actix, anyhow};
use tensorpost_core::actor::{Env, Handles, RemoteActor, WorkerProgram};
use tensorpost_core::bindings::{RawAnswer, RawMessage, RawReply, RawSink, TakesRaw, Together, Unanswered};
use tensorpost_core::limits::MAX_BODY;
use tensorpost_core::message::codec::{self, EncodeError};
use tensorpost_core::message::nesting;
use tensorpost_core::message::portable::Shape;
use tensorpost_core::node::Node;
use tensorpost_core::tensor::Tensor;

use actix::{Actor, AsyncContext as _, Context, WrapFuture as _};

use crate::address::PyAddress;
use crate::context::Context as Place;
use crate::decode;
use crate::failure::exception;
use crate::plan::Plan;
use crate::spawn::{Given, Settings};
use crate::wait;

/// The highest number that a topic believes a reader to have from an earlier topic. Any process can be a
/// reader, and no claim of a reader may use up the numbers for later versions (WIRE-1).
const MOST_HEARD: u64 = 1 << 62;

/// How long after a complaint the next ones are left out of the log: other processes cause them.
const QUIET: Duration = Duration::from_secs(1);

/// Nil in MessagePack.
const NIL: u8 = 0xc0;

/// The parts of a reply around its two numbers, which are always 8 bytes wide. Readers take any width.
const LIFE: &[u8] = b"\x83\xa4life\xcf";
const NUMBER: &[u8] = b"\xa6number\xcf";
const VALUE: &[u8] = b"\xa5value";
/// The place of the version's number.
const NUMBER_AT: usize = LIFE.len() + 8 + NUMBER.len();

/// The parameters with which a topic is started.
#[derive(Serialize, Deserialize)]
pub(crate) struct Start {
    /// The value's name, for people.
    pub(crate) name: String,
    /// The canonical text of the value's type.
    pub(crate) schema: String,
    /// The key of the value.
    pub(crate) value: u64,
    /// The key of the question for a newer version.
    pub(crate) question: u64,
    /// The program of its worker, for the node.
    #[serde(skip)]
    pub(crate) program: Option<WorkerProgram>,
}

/// See the module.
pub(crate) struct Topic {
    env: Env,
    keeper: Arc<Keeper>,
}

/// The part of a topic that takes the messages.
struct Keeper {
    /// The topic's name.
    name: String,
    value: u64,
    question: u64,
    plan: Plan,
    context: Arc<Place>,
    /// Tells this topic from earlier topics of the same name.
    life: u64,
    state: Mutex<State>,
    complained: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    /// The highest number that the topic has given out or heard of.
    last: u64,
    newest: Option<Version>,
    /// Questions for something newer than a number.
    waiting: Vec<(u64, RawAnswer)>,
    /// Whether no question waits any more.
    is_over: bool,
}

struct Version {
    number: u64,
    /// The body of the reply.
    body: Vec<u8>,
    tensors: Vec<Tensor>,
}

/// `tensorpost::published::Newer` in Rust.
#[derive(Deserialize)]
struct Question {
    than: u64,
    life: u64,
}

/// Starts a topic, and waits until it takes messages. Another actor cannot start beside it.
pub(crate) fn start(
    py: Python<'_>,
    (node, context): (Arc<Node>, Arc<Place>),
    start: Start,
    settings: Given,
) -> PyResult<PyAddress> {
    let (name, keys) = (settings.0.clone(), vec![start.value, start.question]);
    let settings = Settings::read(py, settings)?;
    // On another thread, so that Ctrl-C ends the wait.
    let started = wait::aside(py, move || settings.give(node.spawn::<Topic>(start)).start())?;
    let started = started.map_err(|error| exception(py, "SpawnError", error.to_string()))?;
    Ok(PyAddress::new(started.raw_address().only(keys), context).named(name))
}

/// Writes `tensorpost::published::Newest`: the topic's life, the version's number, and the value.
fn newest(life: u64, number: u64, value: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 6] = [LIFE, &life.to_be_bytes(), NUMBER, &number.to_be_bytes(), VALUE, value];
    parts.concat()
}

/// Sends answers, which share one turn.
fn answer_all(due: Vec<(RawAnswer, RawReply)>) {
    let _together = Together::begin();
    due.into_iter().for_each(|(answer, reply)| answer.send(reply));
}

impl Version {
    fn set_number(&mut self, number: u64) {
        self.number = number;
        self.body[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
    }
}

impl State {
    /// Makes this the newest version. Returns the one before.
    fn replace(&mut self, mut version: Version) -> Option<Version> {
        self.last += 1;
        version.set_number(self.last);
        self.newest.replace(version)
    }

    /// Gives the current version, and all later ones, higher numbers than this.
    fn outnumber(&mut self, number: u64) {
        if number < self.last || number > MOST_HEARD {
            return;
        }
        self.last = number;
        if let Some(version) = &mut self.newest {
            self.last += 1;
            version.set_number(self.last);
        }
    }

    /// Takes the questions that have an answer by now.
    fn due(&mut self, life: u64) -> Vec<(RawAnswer, RawReply)> {
        let (newest_one, is_over) = (self.newest.as_ref(), self.is_over);
        let newer = |than: u64| newest_one.filter(|version| version.number > than);
        let due = self.waiting.extract_if(.., |(than, _)| is_over || newer(*than).is_some());
        let answered = due.map(|(than, answer)| {
            let reply = match newer(than) {
                Some(version) => {
                    RawReply::Value { body: version.body.clone(), tensors: version.tensors.clone() }
                }
                None => RawReply::Value { body: newest(life, than, &[NIL]), tensors: Vec::new() },
            };
            (answer, reply)
        });
        answered.collect()
    }
}

impl Keeper {
    /// Checks a value, and makes a version of it that has no number yet.
    ///
    /// # Errors
    /// The value is malformed, as this says.
    fn version(&self, message: RawMessage) -> Result<Version, String> {
        let RawMessage { body: value, tensors, .. } = message;
        let body = newest(self.life, 0, &value);
        // A reply is longer than its value, and nested deeper.
        if body.len() > MAX_BODY {
            return Err(EncodeError::TooLarge { bytes: body.len() }.to_string());
        }
        nesting::check(&body).map_err(|error| error.to_string())?;
        let given = tensors.clone();
        let read = Python::try_attach(|py| {
            let read = decode::arrived(&self.plan, py, &value, given, &self.context, None);
            read.map(drop).map_err(|failure| failure.text(&self.plan.name))
        });
        // An interpreter that is ending ends with its process.
        read.unwrap_or_else(|| Err("its topic is ending".to_owned()))?;
        Ok(Version { number: 0, body, tensors })
    }

    fn publish(&self, version: Version, answer: RawAnswer) {
        let (before, due) = {
            let mut state = self.state.lock();
            (state.replace(version), state.due(self.life))
        };
        // Its memory goes back here, unless a reader has it.
        drop(before);
        answer.send(RawReply::Value { body: vec![NIL], tensors: Vec::new() });
        answer_all(due);
    }

    fn ask(&self, Question { than, life }: Question, answer: RawAnswer) {
        let due = {
            let mut state = self.state.lock();
            let than = if life == self.life {
                than
            } else {
                // The reader has a version of an earlier topic: everything here is newer, and has to have a
                // higher number.
                state.outnumber(than);
                0
            };
            state.waiting.push((than, answer));
            state.due(self.life)
        };
        answer_all(due);
    }

    fn refuse(&self, answer: RawAnswer, why: String) {
        let is_due = {
            let mut complained = self.complained.lock();
            let is_due = complained.is_none_or(|at| at.elapsed() >= QUIET);
            if is_due {
                *complained = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            tracing::warn!(topic = self.name, why, "a topic refused a message");
        }
        answer.send(RawReply::None(Unanswered::Unread(why)));
    }

    /// Answers the questions that wait, and lets none wait any more.
    fn stop(&self) {
        let due = {
            let mut state = self.state.lock();
            state.is_over = true;
            state.due(self.life)
        };
        answer_all(due);
    }

    /// Lets everything go: the answers hold the mailbox, and the mailbox holds this.
    fn close(&self) {
        let ended = State { is_over: true, ..State::default() };
        let state = std::mem::replace(&mut *self.state.lock(), ended);
        drop(state);
    }
}

impl RawSink for Keeper {
    fn put(&self, message: RawMessage, mut answer: RawAnswer) {
        answer.begin();
        let (key, name) = (message.key, &self.plan.name);
        if key == self.value {
            match self.version(message) {
                Ok(version) => self.publish(version, answer),
                Err(why) => self.refuse(answer, format!("{name} is malformed: {why}")),
            }
        } else if key == self.question {
            match codec::decode::<Question>(&message.body, Vec::new(), None) {
                Ok(question) => self.ask(question, answer),
                Err(error) => self.refuse(answer, format!("a question for {name} is malformed: {error}")),
            }
        } else {
            let why = format!("a topic of {name} has no handler for a message with key {key:016x}");
            self.refuse(answer, why);
        }
    }
}

impl Actor for Topic {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let (stopping, keeper) = (self.env.stopping(), Arc::clone(&self.keeper));
        let answer = async move {
            stopping.await;
            keeper.stop();
        };
        ctx.spawn(answer.into_actor(self));
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        self.keeper.close();
    }
}

impl RemoteActor for Topic {
    type Args = Start;

    fn create(start: Start, env: &Env) -> anyhow::Result<Self> {
        let Start { name, schema, value, question, program: _ } = start;
        let shape: Shape = serde_json::from_str(&schema).map_err(|error| {
            anyhow::anyhow!("the form of {name} cannot be read: {error}; flatten a type nested too deep")
        })?;
        let plan = Python::try_attach(|py| Plan::of_shape(py, name, &shape));
        let Some(plan) = plan else { anyhow::bail!("its interpreter is ending") };
        let keeper = Keeper {
            name: env.name().to_owned(),
            value,
            question,
            plan: plan.map_err(anyhow::Error::msg)?,
            context: Place::new(Arc::clone(env.transport()), env.stream()),
            // Not 0, which a reader sends that knows no topic.
            life: RandomState::new().hash_one(env.actor()).max(1),
            state: Mutex::default(),
            complained: Mutex::default(),
        };
        Ok(Topic { env: env.clone(), keeper: Arc::new(keeper) })
    }

    fn worker_program(start: &Start) -> Option<WorkerProgram> {
        start.program.clone()
    }

    fn handles(on: &mut Handles<Self>) {
        // Readers wait for a version as long as it takes.
        on.raw().waits();
    }
}

impl TakesRaw for Topic {
    fn sink(&self) -> Arc<dyn RawSink> {
        Arc::clone(&self.keeper) as _
    }
}
