//! The actor that keeps the newest version.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::marker::PhantomData;

use actix::{Actor, Context, Handler, MessageResult, ResponseFuture};
use serde::{Deserialize, Serialize};
use tensorpost_core::__private::{Describe, Describer, Field, Interface, Shape};
use tensorpost_core::api::actor::{Env, Handles, RemoteActor};
use tensorpost_core::api::message::{GpuMessage, TensorCheckError};
use tokio::sync::watch;

use super::{Publishable, Version};

/// The highest number that a topic believes a reader to have from an earlier topic. Any process can be a
/// reader, and no claim of a reader may use up the numbers for later versions (WIRE-1).
const MOST_HEARD: u64 = 1 << 62;

/// The highest number that a reader believes of a topic: a topic that has heard of [`MOST_HEARD`] can give
/// out as many again.
pub(super) const MOST_NUMBER: u64 = 2 * MOST_HEARD;

/// Keeps the newest version of a value of type `M`, and gives it to readers that ask for something newer than
/// they have. Start it under the name that the value is to have. See the [module](super).
pub struct Topic<M: Publishable> {
    env: Env,
    /// Tells this topic from earlier topics of the same name.
    life: u64,
    newest: watch::Sender<Option<Version<M>>>,
    /// The highest number that this topic has given out or heard of.
    last: u64,
}

/// "This is the newest version." The reply is its number.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Serialize", deserialize = "M: serde::de::DeserializeOwned"))]
pub struct Publish<M> {
    /// The value.
    pub value: M,
}

/// "Tell me when there is something newer than this." The reply comes when there is.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Newer<M> {
    /// Number of the version that the reader has, 0 for none.
    pub than: u64,
    /// The topic that this version came from, 0 for none.
    pub life: u64,
    #[serde(skip)]
    value: PhantomData<fn(M)>,
}

/// The newest version, or the news that no more will come.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Serialize", deserialize = "M: serde::de::DeserializeOwned"))]
pub struct Newest<M> {
    /// The topic that the version comes from.
    pub life: u64,
    /// Its number.
    pub number: u64,
    /// The value; `None` when the node shuts down.
    pub value: Option<M>,
}

impl<M> Newer<M> {
    /// Creates the question of a reader that has version `than` from the topic of that `life`; 0 and 0 for a
    /// reader without a version.
    pub fn new(than: u64, life: u64) -> Self {
        Newer { than, life, value: PhantomData }
    }
}

impl<M: Publishable> actix::Message for Publish<M> {
    type Result = u64;
}

impl<M: Publishable> GpuMessage for Publish<M> {
    type Reply = u64;
    const NAME: &'static str = "tensorpost::Publish";
    const SCHEMA: u64 = M::SCHEMA;

    fn check(&self) -> Result<(), TensorCheckError> {
        self.value.check()
    }
}

impl<M: Publishable> actix::Message for Newer<M> {
    type Result = Newest<M>;
}

impl<M: Publishable> GpuMessage for Newer<M> {
    type Reply = Newest<M>;
    const NAME: &'static str = "tensorpost::Newer";
    const SCHEMA: u64 = M::SCHEMA;
    const FOLLOWS: bool = true;
    /// Programs in other languages can follow portable values.
    const PORTABLE: Option<Describe> = if M::PORTABLE.is_some() { Some(question::<M>) } else { None };

    fn check(&self) -> Result<(), TensorCheckError> {
        Ok(())
    }
}

/// Describes how a program in another language asks for versions of a portable value.
fn question<M: Publishable>(describer: &mut Describer) -> Interface {
    // Other values have no such text, see `Newer::PORTABLE`.
    let value = M::PORTABLE.expect("the value is portable")(describer);
    let field = |name: &str, shape| Field { name: name.to_owned(), shape, optional: false };
    Interface {
        message: format!("{}<{}>", Newer::<M>::NAME, value.message),
        body: Shape::Struct(vec![field("than", Shape::U64), field("life", Shape::U64)]),
        reply: Shape::Struct(vec![
            field("life", Shape::U64),
            field("number", Shape::U64),
            field("value", Shape::Option(Box::new(value.body))),
        ]),
    }
}

impl<M: Publishable> Actor for Topic<M> {
    type Context = Context<Self>;
}

impl<M: Publishable> RemoteActor for Topic<M> {
    type Args = ();

    fn create((): (), env: &Env) -> anyhow::Result<Self> {
        // The life is random, and not 0, which a reader sends that knows no topic.
        let life = RandomState::new().hash_one(env.actor()).max(1);
        Ok(Topic { env: env.clone(), life, newest: watch::Sender::new(None), last: 0 })
    }

    fn handles(on: &mut Handles<Self>) {
        on.message::<Publish<M>>().message::<Newer<M>>().message::<M>().waits();
    }
}

impl<M: Publishable> Handler<Publish<M>> for Topic<M> {
    type Result = MessageResult<Publish<M>>;

    fn handle(&mut self, publish: Publish<M>, _: &mut Context<Self>) -> Self::Result {
        self.replace(publish.value);
        MessageResult(self.last)
    }
}

/// Publishes the value by itself, for publishers in other languages, which send it as a message like any
/// other.
impl<M: Publishable> Handler<M> for Topic<M> {
    type Result = ();

    fn handle(&mut self, value: M, _: &mut Context<Self>) {
        self.replace(value);
    }
}

impl<M: Publishable> Handler<Newer<M>> for Topic<M> {
    type Result = ResponseFuture<Newest<M>>;

    fn handle(&mut self, newer: Newer<M>, _: &mut Context<Self>) -> Self::Result {
        let mut than = newer.than;
        if newer.life != self.life {
            // The reader has a version of an earlier topic: everything here is newer, and has to have a
            // higher number.
            if newer.than <= MOST_HEARD {
                self.outnumber(newer.than);
            }
            than = 0;
        }
        let life = self.life;
        let mut newest = self.newest.subscribe();
        let stopping = self.env.stopping();
        Box::pin(async move {
            let is_newer =
                |version: &Option<Version<M>>| matches!(version, Some(version) if version.number > than);
            let version = tokio::select! {
                version = newest.wait_for(is_newer) => version.ok().and_then(|version| version.clone()),
                // A shutdown waits until all questions are answered, so answer this one.
                () = stopping => None,
            };
            match version {
                Some(Version { number, value }) => Newest { life, number, value: Some(value) },
                None => Newest { life, number: than, value: None },
            }
        })
    }
}

impl<M: Publishable> Topic<M> {
    fn replace(&mut self, value: M) {
        self.last += 1;
        // The earlier version drops here, unless a reader has it.
        self.newest.send_replace(Some(Version { number: self.last, value }));
    }

    /// Gives the current version, and all later ones, higher numbers than `number`, which is at most
    /// [`MOST_HEARD`].
    fn outnumber(&mut self, number: u64) {
        if number < self.last {
            return;
        }
        self.last = number;
        let renumbered = self.newest.send_if_modified(|version| {
            if let Some(version) = version {
                version.number = number + 1;
            }
            version.is_some()
        });
        if renumbered {
            self.last = number + 1;
        }
    }
}

impl<M: Publishable> fmt::Debug for Topic<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topic<{}>({}, version {})", M::NAME, self.env.name(), self.last)
    }
}

impl<M> fmt::Debug for Publish<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Publish")
    }
}

impl<M> fmt::Debug for Newer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Newer(than {})", self.than)
    }
}

impl<M> fmt::Debug for Newest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Newest({})", self.number)
    }
}
