//! The interface to which a transport delivers, and the parts of a delivery.
//!
//! `incoming` delivers, the actor layer implements [`Inbox`], and senders of this process take
//! [`LocalCredits`].
//!
//! **Invariants.** MBX-2: a message has a credit from the moment it is sent until its [`Receipt`] drops. Each
//! ask is answered once, by a reply or by a refusal.
//!
//! **Locks.** Only a queue's own, when a sender is woken.
//!
//! **On a crash** of the actor's handler the receipt drops while the thread unwinds, and refuses with the
//! panic. **On cancellation** of the handler's future it drops, and refuses.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::link::Credit;
pub use super::local_credits::LocalCredits;
use super::{Link, Transport};
use crate::clock::Ticket;
use crate::ids::{ActorId, ProcessId};
use crate::limits::MAX_LOG_TEXT;
use crate::message::packed::Lists;
use crate::observe::context::TraceContext;
use crate::observe::hang_probe::ActorProbe;
use crate::observe::metrics::ActorMetrics;
use crate::observe::text::shown;
use crate::observe::trace::FrameId;
use crate::os::vital;
use crate::tensor::Tensor;
use crate::transport::lifecycle::EndReason;

/// The mailbox of one actor of this process, as the transport uses it.
pub trait Inbox: Send + Sync + 'static {
    /// Returns the actor that it belongs to.
    fn actor(&self) -> ActorId;

    /// Returns how many unhandled messages one sending process may have here.
    fn capacity(&self) -> u32;

    /// Decodes a message and puts it into the mailbox. Called on the reader's thread; does not block.
    ///
    /// # Errors
    /// The actor does not take this message, or it is malformed. Its leases went back; the receipt refuses.
    fn deliver(&self, delivery: Delivery<'_>) -> Result<(), Undelivered>;

    /// Takes a message of this process as it is, without encoding. `message` is a value that the actor layer
    /// packs. A mailbox to which its own process does not send takes none.
    ///
    /// # Errors
    /// The message, and why it was not taken.
    fn offer(&self, key: u64, message: LocalMessage) -> Result<(), (LocalMessage, Undelivered)> {
        Err((message, Undelivered::Unregistered { key }))
    }

    /// Returns the credits of this process itself.
    fn local(&self) -> &Arc<LocalCredits>;

    /// Makes the actor fail, for a reason that lies elsewhere. The handler that runs is finished first.
    fn fail(&self, _reason: EndReason) {}

    /// Returns a snapshot of the actor for hang detection; `None` for a mailbox without an actor.
    fn hang_probe(&self) -> Option<ActorProbe> {
        None
    }

    /// Returns the actor's metrics; `None` for a mailbox without an actor.
    fn metrics(&self) -> Option<ActorMetrics> {
        None
    }
}

/// A message of the actor layer, by its type there.
pub type LocalMessage = Box<dyn Any + Send>;

/// A message for an inbox.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The message's type, see [`message_key`](crate::message::message_key).
    pub key: u64,
    /// MessagePack.
    pub body: &'a [u8],
    /// Its tensors, each on a lease of this process.
    pub tensors: Vec<Tensor>,
    /// The tickets that the receiving stream has to wait for (CLOCK-1).
    pub tickets: SmallVec<[Ticket; 2]>,
    /// To be kept until the message is done with.
    pub receipt: Receipt,
    /// The context of the span that sent it.
    pub context: TraceContext,
}

/// Why a message was not delivered.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts of the errors name their fields")]
pub enum Undelivered {
    /// The actor does not handle messages of this type.
    #[error(
        "the actor does not handle messages with key {key:#018x}; list the type in `RemoteActor::handles`"
    )]
    Unregistered { key: u64 },
    /// It could not be decoded, or its tensors do not match the type.
    #[error("{message} is malformed: {why}")]
    Malformed { message: &'static str, why: String },
    /// The actor has stopped.
    #[error("the actor has stopped")]
    Stopped,
}

/// Why there is no reply to an ask. It is the body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// No such actor in that process (any more).
    NoSuchActor,
    /// The actor failed before it came to the message, and is being restarted.
    Restarting,
    /// The message was not delivered, for this reason.
    Undelivered(String),
    /// The handler panicked, or another handler of the actor did before this one had answered. The text is a
    /// sentence, or empty if the cause is not known.
    Panicked(String),
    /// The handler failed, as this says. Only handlers in another language, which has errors for that, fail
    /// in this way.
    Failed(String),
    /// The actor stopped before it replied, or the future that was to reply panicked.
    NoReply,
    /// The reply could not be encoded, for this reason.
    BadReply(String),
    /// A tensor of the message, or of the reply, depends on work that this process had not done when it died
    /// (DEATH-3).
    Tainted(ProcessId),
    /// The actor lives on another host; the text says what happened to the message there, or to that host.
    OutOfReach(String),
    /// The actor lives on another host, and the message did not reach it, for this reason. It was not
    /// handled.
    NotPassedOn(String),
    /// The actor lives on another host, and the gateway of one of the two hosts ended before the answer
    /// arrived, as this says. It is not known whether the message was handled. Asking again makes sense,
    /// because another gateway takes the place of the one that ended.
    GatewayEnded(String),
}

impl Refusal {
    /// Returns the refusal of a peer with its text shortened and sanitised.
    pub(crate) fn bounded(self) -> Self {
        self.bounded_to(MAX_LOG_TEXT)
    }

    /// As [`bounded`](Self::bounded), with at most `limit` bytes of text.
    pub(crate) fn bounded_to(self, limit: usize) -> Self {
        match self {
            Refusal::Undelivered(why) => Refusal::Undelivered(shown(why, limit)),
            Refusal::Panicked(why) => Refusal::Panicked(shown(why, limit)),
            Refusal::Failed(why) => Refusal::Failed(shown(why, limit)),
            Refusal::BadReply(why) => Refusal::BadReply(shown(why, limit)),
            Refusal::OutOfReach(why) => Refusal::OutOfReach(shown(why, limit)),
            Refusal::NotPassedOn(why) => Refusal::NotPassedOn(shown(why, limit)),
            Refusal::GatewayEnded(why) => Refusal::GatewayEnded(shown(why, limit)),
            plain => plain,
        }
    }

    /// Returns the refusal for a receipt that is dropped on this thread without a reply.
    pub(crate) fn of_an_end() -> Self {
        if let Ok(Some(why)) = ENDS_BY.try_with(|why| why.borrow().clone()) {
            return Refusal::Panicked(why).bounded();
        }
        if std::thread::panicking() { Refusal::of_the_last_panic() } else { Refusal::NoReply }
    }

    /// Returns the refusal after the last panic on this thread.
    pub(crate) fn of_the_last_panic() -> Self {
        let why = vital::last_panic().map(|text| format!("its handler panicked: {text}"));
        Refusal::Panicked(why.unwrap_or_default()).bounded()
    }
}

thread_local! {
    static ENDS_BY: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A guard: while it lives, asks that this thread drops unanswered are refused with the panic that has ended
/// their actor.
#[must_use = "it holds until it drops"]
pub(crate) struct EndsByPanic(());

impl EndsByPanic {
    /// Begins it. `why` describes the panic in a sentence.
    pub(crate) fn begin(why: &str) -> Self {
        // On a thread that is ending this may fail, and then the text is missing.
        let _ = ENDS_BY.try_with(|ends| ends.replace(Some(why.to_owned())));
        EndsByPanic(())
    }
}

impl Drop for EndsByPanic {
    fn drop(&mut self) {
        let _ = ENDS_BY.try_with(RefCell::take);
    }
}

/// Ties a delivered message to its sender. Dropping it hands the sender's credit back, and refuses if a reply
/// was asked for and not given. The message is done with then.
#[derive(Debug)]
pub struct Receipt {
    transport: Arc<Transport>,
    link: Arc<Link>,
    /// The actor whose credit the message has; the reply takes it over.
    credit: Option<Credit>,
    /// Set while a reply is owed.
    correlation: Option<u64>,
    /// Whether the sender asks for anything newer than what it has.
    #[cfg(feature = "hosts")]
    follows: bool,
    /// The reply need not wake its receiver by itself.
    acknowledges: bool,
    /// How lists in the reply are encoded.
    lists: Lists,
    /// The position at which the message's frame ends in its ring.
    end: u64,
}

impl Receipt {
    pub(super) fn new(
        transport: Arc<Transport>,
        link: Arc<Link>,
        credit: Credit,
        correlation: Option<u64>,
        end: u64,
    ) -> Self {
        transport.actors.delivered();
        let lists = Lists::Packed;
        Receipt {
            transport,
            link,
            credit: Some(credit),
            correlation,
            #[cfg(feature = "hosts")]
            follows: false,
            acknowledges: false,
            lists,
            end,
        }
    }

    /// Returns this process's transport.
    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    /// Returns the process that sent the message.
    pub fn sender(&self) -> ProcessId {
        self.link.peer
    }

    /// Returns the frame in which the message came.
    pub(crate) fn frame(&self) -> FrameId {
        FrameId { peer: self.link.peer, end: self.end }
    }

    /// Returns whether the sender waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.correlation.is_some()
    }

    /// Marks the reply as a mere acknowledgement. It only says that the message is done with, and no caller
    /// waits for it alone, so its ring is deferred like that of the credits.
    pub(crate) fn acknowledge(&mut self) {
        self.acknowledges = true;
    }

    /// Sets how lists in the reply are encoded.
    pub(crate) fn reply_with(&mut self, lists: Lists) {
        self.lists = lists;
    }

    /// Sends the reply, if one is wanted.
    pub fn reply<R: Serialize>(mut self, reply: R) {
        let Some(correlation) = self.correlation.take().filter(|_| !self.transport.is_inherited()) else {
            return;
        };
        let asked = self.credit.take();
        match self.transport.frames_to(&self.link).encode(&reply, self.lists) {
            Ok(encoded) => match encoded.taint() {
                Some(tainted) => {
                    self.transport.frames_to(&self.link).refuse(
                        correlation,
                        &Refusal::Tainted(tainted.by),
                        asked,
                    );
                }
                None => {
                    drop(reply);
                    self.transport.frames_to(&self.link).reply(
                        correlation,
                        encoded,
                        asked,
                        self.acknowledges,
                    );
                }
            },
            Err(error) => {
                self.transport.frames_to(&self.link).refuse(
                    correlation,
                    &Refusal::BadReply(error.to_string()),
                    asked,
                );
            }
        }
    }

    /// Refuses a message of the type `message` that could not be decoded, and returns the reason.
    pub(crate) fn malformed(self, message: &'static str, why: String) -> Undelivered {
        self.refuse(&Refusal::Undelivered(why.clone()));
        Undelivered::Malformed { message, why }
    }

    /// Counts the message against its sender, which alone can be to blame that nobody can read it.
    #[cfg(feature = "raw")]
    pub(crate) fn blame_sender(&self) {
        if !self.transport.is_inherited() {
            self.transport.blame(&self.link);
        }
    }

    /// Tells the sender that there will be no reply, and why.
    pub fn refuse(mut self, why: &Refusal) {
        self.refuse_now(why);
    }

    fn refuse_now(&mut self, why: &Refusal) {
        if let Some(correlation) = self.correlation.take().filter(|_| !self.transport.is_inherited()) {
            self.transport.frames_to(&self.link).refuse(correlation, why, self.credit.take());
        }
    }
}

/// The question of a follower of a topic, for the gateway.
#[cfg(feature = "hosts")]
impl Receipt {
    pub(super) fn of_follower(mut self, follows: bool) -> Self {
        self.follows = follows;
        self
    }

    /// Returns whether the sender asks for anything newer than what it has
    /// ([`Kind::Follow`](crate::message::wire::Kind::Follow)).
    pub(crate) fn follows(&self) -> bool {
        self.follows
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if self.transport.is_inherited() {
            return;
        }
        self.refuse_now(&Refusal::of_an_end());
        self.transport.frames_to(&self.link).hand_back(self.credit.take());
        self.transport.actors.done();
    }
}
