//! The notes that the gateways of two hosts send each other for their nodes: about names, actors, and hosts
//! that join and leave. Also the reasons why an ask has no answer.
//!
//! Texts are cut when they are written, and made plain when they are read, because they go into errors and
//! logs (WIRE-1).

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tensorpost_hosts::join::Member;

use crate::actor::{AskError, SendFailure};
use crate::ids::ActorId;
use crate::limits::MAX_HOST_TEXT;
use crate::message::raw::RawMessage;
use crate::observe::text::shown;
use crate::transport::AskFailure;
use crate::transport::control_channel::Location;
use crate::transport::gateway_messages::{HostEnd, NameRefused};
use crate::transport::inbox::Refusal;
use crate::transport::lifecycle::{Activity, EndReason, Lifecycle};

/// A note from one host to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Note {
    /// "Which actor of your host has this name?" Answered by [`Note::Found`].
    Find { ticket: u64, name: String },
    /// The actor with the name, if any, and its place on its own host, which is a hint for that host only
    /// (HOST-2).
    Found { ticket: u64, found: Option<(ActorId, Location)> },
    /// "Offer me the mailbox of this actor, which lives on your host." An offer of the session or
    /// [`Note::Ended`] follows. For an actor that roams, the note goes to its home, which answers with
    /// [`Note::LivesOn`], but not with the host `not`, where the actor's life is over.
    Want { actor: ActorId, not: Option<u16> },
    /// "These actors of mine roam and live on your host: tell me what happens to them." Answered by
    /// [`Note::Ended`] for each that does not live there, and then by [`Note::Watched`]. The home asks for no
    /// others before that.
    Watch { actors: Vec<ActorId> },
    /// The answer to [`Note::Watch`]: what happens to those actors will be reported.
    Watched,
    /// "This actor of mine roams, and lives on that host."
    LivesOn { actor: ActorId, host: u16 },
    /// "I send nothing to this actor of yours for now: take the offer back. Tell me what happens to it if
    /// `told`."
    Rests { actor: ActorId, told: bool },
    /// There is no such actor (any more); `why`, if that is known.
    Ended { actor: ActorId, why: Option<EndReason> },
    /// Something happened to an actor that was offered to you, and the actor goes on.
    Lifecycle(Lifecycle),
    /// From the head: this host has joined the node, and may dial you.
    Joined(Member),
    /// From the head: this host is not of the node any more.
    Left { host: u16, why: String, how: HostEnd },
    /// This host leaves the node in order.
    Leaving,
    /// From the head: the node shuts down within this time. What is still under way on your host? Answered by
    /// [`Note::Drained`].
    Drain { round: u64, within: u64 },
    /// The answer to [`Note::Drain`]: the activity of this host.
    Drained { round: u64, activity: Activity },
    /// To the head: may an actor of my host have this name? Answered by [`Note::Claimed`].
    Claim { ticket: u64, name: String },
    /// To the head: no actor of my host has this name any more.
    Release { name: String },
    /// From the head: the node consists of the head and these hosts alone. `gone` says how some former hosts
    /// went.
    Hosts { numbers: Vec<u16>, gone: Vec<(u16, HostEnd)> },
    /// To the head: actors of my host have these names. If `is_last`, they have no names beyond those told
    /// since the session began.
    Names { names: Vec<String>, is_last: bool },
    /// From the head: whether your host may have the name.
    Claimed { ticket: u64, name: String, result: Result<(), NameRefused> },
}

/// Why another host's note cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("a note of another host cannot be read: {0}")]
pub(super) struct NoteError(#[from] rmp_serde::decode::Error);

impl Note {
    pub(super) fn encode(&self) -> Bytes {
        // A note holds numbers and texts, which MessagePack always takes.
        rmp_serde::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// # Errors
    /// The bytes are not a note.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, NoteError> {
        Ok(match rmp_serde::from_slice(bytes)? {
            Note::Ended { actor, why } => Note::Ended { actor, why: why.map(plain) },
            Note::Lifecycle(event) => Note::Lifecycle(plain_event(event)),
            Note::Joined(Member { who, name, address }) => {
                Note::Joined(Member { who, name: plain_text(name), address: plain_text(address) })
            }
            Note::Left { host, why, how } => Note::Left { host, why: plain_text(why), how },
            other => other,
        })
    }
}

fn plain_text(text: String) -> String {
    shown(text, MAX_HOST_TEXT)
}

pub(super) fn plain(reason: EndReason) -> EndReason {
    reason.with_text(plain_text)
}

/// Shortens the text of an event so that it fits a note.
pub(super) fn plain_event(event: Lifecycle) -> Lifecycle {
    match event {
        Lifecycle::Down { actor, reason, will_restart } => {
            Lifecycle::Down { actor, reason: plain(reason), will_restart }
        }
        Lifecycle::GaveUp { actor, reason } => Lifecycle::GaveUp { actor, reason: plain(reason) },
        up @ Lifecycle::Up { .. } => up,
    }
}

/// Encodes the reason why an ask has no answer so that it fits a refusal of a session.
pub(super) fn encode_refusal(why: Refusal) -> Bytes {
    rmp_serde::to_vec(&why.bounded_to(MAX_HOST_TEXT)).map(Bytes::from).unwrap_or_default()
}

/// Decodes a reason that the host `on` gave. A session gives some reasons itself, in plain text.
pub(super) fn decode_refusal(bytes: &[u8], on: &str) -> Refusal {
    match rmp_serde::from_slice(bytes) {
        Ok(Refusal::Undelivered(why)) => Refusal::Undelivered(format!("{}, on {on}", plain_text(why))),
        Ok(why) => for_another_host(why, on).bounded_to(MAX_HOST_TEXT),
        Err(_) => {
            let why = plain_text(String::from_utf8_lossy(bytes).into_owned());
            Refusal::OutOfReach(format!("{on} says: {why}"))
        }
    }
}

/// Translates the error of an ask that was made here, on the host `on`, for another host.
pub(super) fn refusal_of(error: AskError<RawMessage>, on: &str) -> Refusal {
    match error {
        AskError::NotSent(error) => match error.reason {
            SendFailure::NoSuchActor => Refusal::NoSuchActor,
            SendFailure::Restarting => Refusal::Restarting,
            SendFailure::Tainted(_) => Refusal::OutOfReach(tainted(on)),
            reason => Refusal::NotPassedOn(format!("{reason} (on {on})")),
        },
        AskError::NoReply(AskFailure::Refused(why)) => for_another_host(why, on),
        AskError::NoReply(failure) => Refusal::OutOfReach(format!("{failure} (on {on})")),
        AskError::TimedOut | AskError::LeasesOut(_) => Refusal::NoReply,
    }
}

/// Returns a reason of the host `on` without the details that mean nothing on another host (HOST-1).
fn for_another_host(why: Refusal, on: &str) -> Refusal {
    match why {
        Refusal::Tainted(_) => Refusal::OutOfReach(tainted(on)),
        Refusal::GatewayEnded(why) => Refusal::OutOfReach(why),
        why => why,
    }
}

pub(super) fn tainted(on: &str) -> String {
    format!(
        "a tensor in it, or in the reply, depends on work that a process of {on} had not done when it died; make it again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpost_hosts::limits::{MAX_HOSTS, MAX_NOTE, MAX_WHY};

    use crate::ids::ProcessId;
    use crate::limits::{MAX_GONE_TOLD, MAX_WATCHED_AT_ONCE};

    #[test]
    fn texts_are_cut_and_made_plain_and_fit() {
        let long = "\u{1b}[31mä".repeat(40_000);
        let ended =
            Note::Ended { actor: ActorId(7), why: Some(plain(EndReason::HandlerPanic(long.clone()))) };
        assert!(ended.encode().len() < MAX_NOTE);
        let raw = rmp_serde::to_vec(&Note::Left { host: 1, why: long.clone(), how: HostEnd::Lost }).unwrap();
        let Note::Left { why, .. } = Note::decode(&raw).unwrap() else { panic!("another note") };
        assert!(why.len() < 4 * MAX_HOST_TEXT && !why.contains('\u{1b}'), "{why}");
        assert!(Note::decode(&[0xc1]).is_err() && Note::decode(&[]).is_err());
        let watch = Note::Watch { actors: vec![ActorId(u64::MAX); MAX_WATCHED_AT_ONCE] };
        let gone = vec![(u16::MAX, HostEnd::GivenUp); MAX_GONE_TOLD];
        let hosts = Note::Hosts { numbers: vec![u16::MAX; MAX_HOSTS], gone };
        assert!(watch.encode().len() < MAX_NOTE && hosts.encode().len() < MAX_NOTE);

        let why = encode_refusal(Refusal::OutOfReach(long));
        assert!(why.len() <= MAX_WHY, "{}", why.len());
        assert!(matches!(decode_refusal(&why, "host 1"), Refusal::OutOfReach(_)));
        let said = decode_refusal(b"the actor is done with the message", "host 1");
        assert!(
            matches!(said, Refusal::OutOfReach(why) if why.starts_with("host 1 says: the actor is done"))
        );
        // HOST-1: no host believes what another says of its processes.
        let of_a_process = encode_refusal(Refusal::Tainted(ProcessId::NODE));
        let heard = decode_refusal(&of_a_process, "host 1");
        assert!(matches!(heard, Refusal::OutOfReach(why) if why.contains("a process of host 1")));
    }
}
