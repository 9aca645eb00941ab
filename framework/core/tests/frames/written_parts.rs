//! Serde lets safe code write the description of a part of a split tensor into a body, and read a part from
//! bytes that are no message (SAFE-1). Neither makes a second writer of an element that somebody else has
//! (ONE-WRITER).

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::Value;
use tensorpost_core::tensor::{TensorMut, TensorPart};
use tensorpost_core::testing::Cluster;

/// Turns the description of one half of a whole `[8]` into that of the other half.
fn other_half(mut described: Value) -> Value {
    let form = &mut described["$part"];
    form["index"] = 1.into();
    form["area"][0]["start"] = 4.into();
    form["area"][0]["end"] = 8.into();
    described
}

/// Returns the description that serde writes for a part.
fn described<E: ser::Error>(part: &TensorPart) -> Result<Value, E> {
    let bytes = rmp_serde::to_vec_named(part).map_err(E::custom)?;
    rmp_serde::from_slice(&bytes).map_err(E::custom)
}

/// Writes its part, and a handwritten description of the other half beside it.
struct WrittenByHand(TensorPart);

impl Serialize for WrittenByHand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = described(&self.0)?;
        [own.clone(), other_half(own)].serialize(serializer)
    }
}

/// Writes only a made-up description, which has no trace of the real part but its origin.
struct WrittenInstead(TensorPart);

impl Serialize for WrittenInstead {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [other_half(described(&self.0)?)].serialize(serializer)
    }
}

/// Reads a part, and then the other half from a made-up description.
struct ReadByHand(#[expect(dead_code, reason = "holds them")] Vec<TensorPart>);

impl<'de> Deserialize<'de> for ReadByHand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let own = Value::deserialize(deserializer)?;
        let read = |value| TensorPart::deserialize(value).map_err(D::Error::custom);
        Ok(ReadByHand(vec![read(own.clone())?, read(other_half(own))?]))
    }
}

/// Makes two processes, and splits a tensor of the first into halves.
fn halves() -> (Cluster, TensorPart, TensorPart) {
    let cluster = Cluster::new(2);
    cluster.connect();
    let whole = cluster.stream(0).from_slice(&[8], &[0_u8; 8]).expect("memory");
    let [first, second] = <[TensorPart; 2]>::try_from(whole.split(0, &[4, 4]).expect("halves")).expect("two");
    (cluster, first, second)
}

/// Sends half of a tensor as `disguise` writes it, and keeps the other half. Checks that nothing arrives and
/// that both halves are still whole.
fn is_not_sent<M: Serialize>(disguise: impl Fn(TensorPart) -> M, undo: impl Fn(M) -> TensorPart) {
    let (cluster, first, second) = halves();
    let (to, inbox) = cluster.inbox::<Vec<TensorPart>>(1, 8);
    let (back, unsent) = cluster.try_send(0, &to.disguising(), disguise(first)).expect_err("it is forged");
    let why = format!("{unsent:?}");
    assert!(why.contains("by hand"), "{why}");
    cluster.run_until_idle();
    assert!(inbox.is_empty());
    TensorMut::join(vec![undo(back), second], cluster.stream(0)).expect("nobody else has written");
}

#[test]
fn a_part_written_beside_a_real_one_is_not_sent() {
    is_not_sent(WrittenByHand, |WrittenByHand(part)| part);
}

#[test]
fn a_part_written_instead_of_a_real_one_is_not_sent() {
    is_not_sent(WrittenInstead, |WrittenInstead(part)| part);
}

#[test]
fn a_part_that_was_made_up_is_not_read() {
    fn refused<M: DeserializeOwned + Send + 'static>() -> Vec<String> {
        let (cluster, first, _second) = halves();
        let (to, inbox) = cluster.inbox::<M>(1, 8);
        cluster.send(0, &to.disguising(), first);
        cluster.run_until_idle();
        inbox.refused()
    }
    assert_eq!(refused::<TensorPart>(), Vec::<String>::new());
    let why = refused::<ReadByHand>();
    assert!(why.len() == 1 && why[0].contains("that is not in the message"), "{why:?}");
}

#[test]
fn a_text_that_is_the_key_is_no_part() {
    #[derive(Serialize, Deserialize)]
    struct Labelled {
        label: String,
        part: TensorPart,
        more: Vec<String>,
    }
    let (cluster, part, _second) = halves();
    let (to, inbox) = cluster.inbox::<Labelled>(1, 8);
    let labelled = Labelled { label: "$part".into(), part, more: vec!["$part".into(); 3] };
    cluster.send(0, &to, labelled);
    cluster.run_until_idle();
    let Labelled { label, part, more } = inbox.take_one().message;
    assert_eq!((label.as_str(), part.len(), more.len()), ("$part", 4, 3));
}
