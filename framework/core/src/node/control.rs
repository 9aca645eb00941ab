//! The messages between the node and a worker on the worker's control socket, and their encoding.
//!
//! Bytes that do not decode, or decode with bytes left over, are an error that names what was wrong (WIRE-1).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::actor::{Code, StartActor};
use crate::ids::ActorId;
use crate::limits::{MAX_LOG_MESSAGE, MAX_METRIC_SERIES};
use crate::node::handshake::Build;
use crate::node::limits::{MAX_CONTROL_MESSAGE, MAX_FAILURE_TEXT, MAX_NAME};
use crate::node::process_runtime::{Activity, Identity};
use crate::observe::hang_probe::{HangProbe, WaitsIn};
use crate::observe::list::at_most;
use crate::observe::log::LogRecord;
use crate::observe::metrics::ProcessMetrics;
use crate::observe::metrics::user::Update;
use crate::observe::survey::Survey;
use crate::observe::text::shown;
use crate::transport::control_channel::{FromNode, ToNode};
use crate::transport::lifecycle::EndReason;

/// The version of this protocol; it is part of a [`Build`].
pub(crate) const PROTOCOL: u32 = 14;

/// From a worker to the node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Up {
    /// The first message.
    Hello { build: Build, pid: u32 },
    /// The worker is ready; actors can be started.
    Ready,
    /// The process could not be opened; it is about to exit.
    OpenFailed { why: String },
    /// The process cannot go on, perhaps because a GPU is lost to it; it is about to exit.
    Failing { why: String, lost_gpu: bool },
    /// From the worker's process runtime.
    Node(ToNode),
    /// The answer to [`Down::Start`].
    Started { actor: ActorId, result: Result<(), String> },
    /// An actor ended. If it is `away`, its senders were told to wait for another life.
    ActorStopped { actor: ActorId, why: Option<EndReason>, away: bool },
    /// The answer to [`Down::Probe`].
    Activity { round: u64, activity: Activity },
    /// The memory into which the worker writes its trace: of the whole run, or of an interval, as the answer
    /// to [`Down::Trace`]. Descriptors: one, to map it read-only.
    Trace { interval: Option<u64> },
    /// The answer to [`Down::Metrics`].
    Metrics { round: u64, metrics: ProcessMetrics, survey: Option<Survey> },
    /// The answer to [`Down::Look`].
    HangProbe { round: u64, hang_probe: HangProbe },
    /// The answer to [`Down::Ping`]: all messages that the worker sent before the ping came are ahead of this
    /// one.
    Pong { number: u64 },
    /// The answer to [`Down::LookAtGpus`]: no GPU is lost. A worker that has lost one says [`Up::Failing`].
    GpusLookedAt { number: u64 },
    /// The answer to [`Down::StopActors`].
    ActorsStopped,
    /// An event of the worker's log.
    Log(LogRecord),
    /// Events of the worker's log that found no room.
    LogsDropped { count: u64 },
    /// Metrics of user code that have changed, and the number of dropped updates.
    UserMetrics {
        // At most all series, and as many descriptions. Each is checked before the recorder gets it.
        #[serde(deserialize_with = "at_most::<{ 2 * MAX_METRIC_SERIES }, _, _>")]
        updates: Vec<Update>,
        dropped: u64,
    },
}

/// From the node to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Down {
    /// The worker belongs to this node. Descriptors: the clock page that was prepared for it, the node's
    /// epoch page, and on an agent of several hosts the page that tells until when it may work
    /// (`transport/works_until.rs`).
    Welcome { identity: Identity, log_filter: String, telemetry: Option<Code> },
    /// The worker does not belong to this node; it should say why and exit.
    Refused { why: String },
    /// For the worker's process runtime.
    Node(FromNode),
    /// Start an actor.
    Start(StartActor),
    /// A shutdown has begun.
    Stopping,
    /// Asks for the counts of messages.
    Probe { round: u64 },
    /// Asks for metrics. With `closely`, for the console, it asks for memory and links too, and not for
    /// metrics of user code.
    Metrics { round: u64, closely: bool },
    /// Asks for the snapshot for hang detection.
    Look { round: u64 },
    /// Another worker on one of this worker's GPUs was killed: put some work on each GPU, and report when it
    /// is done.
    LookAtGpus { number: u64 },
    /// Say [`Up::Pong`], behind everything that was sent before.
    Ping { number: u64 },
    /// From now on write a trace, into new memory for this many records. Answered by [`Up::Trace`] with the
    /// same number, before the first record.
    Trace { interval: u64, records: u32 },
    /// On an agent of several hosts: the page of another gateway tells from now on until when the worker may
    /// work. Descriptor: that page.
    WorksUntil,
    /// Write no trace any more.
    EndTrace,
    /// Arm a fault.
    #[cfg(feature = "testing")]
    Arm(crate::fault::Fault),
    /// Stop every actor.
    StopActors,
    /// Exit with status 0 when the work on the streams is done; no actor is left.
    Leave,
    /// Exit with status 0. If another life follows, its actors with a policy for failures have not stopped
    /// for good.
    Exit { comes_back: bool },
}

/// The messages of a worker that may be long. A worker cuts log records before it sends them, and all other
/// messages are short.
const LONG: [&str; 4] = ["Node", "Metrics", "HangProbe", "UserMetrics"];

impl Up {
    /// Reads a message of a worker, [bounded](Self::bounded).
    ///
    /// # Errors
    /// WIRE-1: no worker of the framework sends such a message. A message that is too long is not even
    /// decoded (MBX-2).
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ControlError> {
        // A message is a map of one entry, under the name of the variant.
        let says = |name: &&str| {
            let head = [0x81, 0xa0 | name.len() as u8];
            bytes.strip_prefix(&head).is_some_and(|rest| rest.starts_with(name.as_bytes()))
        };
        if bytes.len() > MAX_LOG_MESSAGE && !LONG.iter().any(says) {
            return Err(ControlError::TooLong(bytes.len()));
        }
        decode(bytes).map(Up::bounded)
    }

    /// Returns the message with all its texts cut and made plain, as the node keeps, shows and passes them
    /// on. A worker of the framework cuts them itself. Another one might send 8 MiB, which fits a message to
    /// the node, but no message that passes it on.
    pub(crate) fn bounded(self) -> Self {
        let failure = |text| shown(text, MAX_FAILURE_TEXT);
        match self {
            Up::Hello { build, pid } => Up::Hello { build: build.bounded(), pid },
            Up::OpenFailed { why } => Up::OpenFailed { why: failure(why) },
            Up::Failing { why, lost_gpu } => Up::Failing { why: failure(why), lost_gpu },
            Up::Started { actor, result } => Up::Started { actor, result: result.map_err(failure) },
            Up::ActorStopped { actor, why, away } => {
                Up::ActorStopped { actor, why: why.map(|why| why.with_text(failure)), away }
            }
            Up::Metrics { round, mut metrics, survey } => {
                metrics.actors.iter_mut().for_each(|actor| name(&mut actor.name));
                Up::Metrics { round, metrics, survey: survey.map(Survey::bounded) }
            }
            Up::HangProbe { round, mut hang_probe } => {
                hang_probe.actors.iter_mut().for_each(|actor| name(&mut actor.name));
                for wait in &mut hang_probe.waits {
                    if let WaitsIn::Thread(thread) = &mut wait.waits_in {
                        name(thread);
                    }
                }
                Up::HangProbe { round, hang_probe }
            }
            Up::Log(record) => Up::Log(record.bounded()),
            // Names in the registry are compared, not shown; the broker bounds them.
            message @ (Up::Ready
            | Up::Node(_)
            | Up::Activity { .. }
            | Up::Trace { .. }
            | Up::Pong { .. }
            | Up::GpusLookedAt { .. }
            | Up::ActorsStopped
            | Up::UserMetrics { .. }
            | Up::LogsDropped { .. }) => message,
        }
    }
}

fn name(text: &mut String) {
    *text = shown(std::mem::take(text), MAX_NAME);
}

/// Why a control message was not understood or could not be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("a control message could not be encoded: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    #[error("a control message does not decode: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    #[error("a control message of {0} bytes is none that may be so long")]
    TooLong(usize),
    #[error("a control message has {0} bytes after its end")]
    Trailing(usize),
    #[error(
        "a control message of {0} bytes is larger than the {MAX_CONTROL_MESSAGE} bytes allowed; \
         send large data as a tensor rather than in an actor's arguments"
    )]
    TooLarge(usize),
}

/// Encodes a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ControlError> {
    let bytes = rmp_serde::to_vec_named(message)?;
    if bytes.len() > MAX_CONTROL_MESSAGE {
        return Err(ControlError::TooLarge(bytes.len()));
    }
    Ok(bytes)
}

/// Decodes a message from all of `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ControlError> {
    let mut rest = bytes;
    let message = rmp_serde::decode::from_read(&mut rest)?;
    if rest.is_empty() { Ok(message) } else { Err(ControlError::Trailing(rest.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::NewActor;
    use crate::ids::{DeviceId, ProcessId};
    use crate::limits::{MAX_LOG_FIELDS, MAX_PROCESSES};
    use crate::observe::hang_probe::WaitProbe;
    use crate::transport::control_channel::Location;
    use crate::transport::lifecycle::RestartWhen;

    fn start() -> StartActor {
        let made_of = NewActor {
            name: Some("blur".into()),
            label: Some("blur.0".into()),
            type_name: "demo::Blur".into(),
            type_key: 7,
            args: vec![0xff; 1000],
            device: DeviceId::HOST,
            receive_on: Some(DeviceId::HOST),
            own_thread: true,
            capacity: 9,
            takes: Some(vec![3, 4]),
        };
        StartActor {
            actor: ActorId(7),
            location: Location { process: ProcessId::NODE, index: 3, capacity: 9 },
            made_of,
            life: 2,
            restarts: RestartWhen::Failed,
        }
    }

    #[test]
    fn arguments_travel_as_bytes() {
        let encoded = encode(&Down::Start(start())).unwrap();
        assert!(encoded.len() < 1300, "{} bytes for 1000 bytes of arguments", encoded.len());
        match decode(&encoded).unwrap() {
            Down::Start(decoded) => assert_eq!(decoded, start()),
            other => panic!("{other:?}"),
        }
    }

    // WIRE-1.
    #[test]
    fn anything_but_one_whole_message_is_an_error() {
        let encoded = encode(&Down::Start(start())).unwrap();
        for end in 0..encoded.len() {
            assert!(decode::<Down>(&encoded[..end]).is_err(), "{end} bytes decoded");
        }
        let longer = [encoded, vec![0]].concat();
        assert!(matches!(decode::<Down>(&longer), Err(ControlError::Trailing(1))));
        assert!(decode::<Up>(&[0xc1]).is_err());
        assert!(decode::<Up>(&vec![0x91; 100_000]).is_err());
    }

    /// MBX-2: a worker of the framework cuts its records before it sends them.
    #[test]
    fn a_record_that_no_worker_of_ours_sends_is_not_decoded() {
        let record = |fields: usize| crate::observe::log::LogRecord {
            severity: crate::observe::log::Severity::Info,
            target: "x".into(),
            message: "y".into(),
            fields: vec![(String::new(), String::new()); fields],
            spans: vec![],
            location: None,
        };
        let said = |fields| rmp_serde::to_vec_named(&Up::Log(record(fields))).unwrap();
        for fields in [0, MAX_LOG_FIELDS, MAX_LOG_FIELDS + 1, 20_000] {
            let Up::Log(read) = Up::read(&said(fields)).unwrap() else { panic!("it is a record") };
            assert_eq!(read, record(fields.min(MAX_LOG_FIELDS)));
        }
        assert!(matches!(Up::read(&said(30_000)), Err(ControlError::TooLong(_))));
        // Nor is one under another encoding of its name, or of the map that it is in.
        let long = said(2_000_000);
        for head in [&[0x81, 0xd9, 3][..], &[0xde, 0, 1, 0xa3], &[0x82, 0xa3], &[0x81, 0xa3]] {
            let forged = [head, &long[2..]].concat();
            assert!(matches!(Up::read(&forged), Err(ControlError::TooLong(_))));
        }
        let long = "x".repeat(MAX_LOG_MESSAGE);
        for said in [Up::OpenFailed { why: long.clone() }, Up::Failing { why: long, lost_gpu: false }] {
            assert!(matches!(Up::read(&encode(&said).unwrap()), Err(ControlError::TooLong(_))));
        }
    }

    #[test]
    fn lists_are_cut_while_they_are_read() {
        let wait =
            WaitProbe { waits_in: WaitsIn::Thread(String::new()), on: ProcessId::NODE, clock: 0, value: 0 };
        let hang_probe = HangProbe { actors: Vec::new(), waits: vec![wait; 100_000] };
        let said = encode(&Up::HangProbe { round: 1, hang_probe }).unwrap();
        let Up::HangProbe { hang_probe, .. } = Up::read(&said).unwrap() else { panic!("it is one") };
        assert_eq!(hang_probe.waits.len(), MAX_PROCESSES);
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_the_sender() {
        let made_of = NewActor { args: vec![0; MAX_CONTROL_MESSAGE], ..start().made_of };
        let start = StartActor { made_of, ..start() };
        assert!(matches!(encode(&Down::Start(start)), Err(ControlError::TooLarge(_))));
    }
}
