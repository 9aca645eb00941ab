use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use tensorpost_derive::GpuMessage;

use super::*;
use crate::message::codec::{DecodeError, decode, encode, encode_as};

const LONG: usize = 1000;

thread_local! {
    /// The number of lists that were read number by number.
    pub(super) static LISTS_OF_NUMBERS: Cell<usize> = const { Cell::new(0) };
}

/// Returns bytes of all values.
fn long() -> Vec<u8> {
    (0..LONG).map(|at| at as u8).collect()
}

fn body<T: Serialize>(value: &T) -> Vec<u8> {
    encode(value, Vec::new()).expect("it encodes").body
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    decode(body, Vec::new(), None)
}

/// Checks that the value comes back as it was, in a body hardly longer than the `bytes` in its lists.
#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: usize) {
    LISTS_OF_NUMBERS.set(0);
    comes_back_by_numbers(value, bytes);
    assert_eq!(LISTS_OF_NUMBERS.get(), 0, "they were read in one piece");
}

#[track_caller]
fn comes_back_by_numbers<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, bytes: usize) {
    let body = body(&value);
    assert!(body.len() <= bytes + 100, "{} bytes in the body of {bytes}", body.len());
    assert_eq!(read::<T>(&body).expect("it decodes"), value);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Named {
    before: u64,
    data: Vec<u8>,
    after: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Around(Named);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum External {
    Unit,
    New(Vec<u8>),
    Two(Vec<u8>, u8),
    Fields { data: Vec<u8> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Internal {
    Fields { data: Vec<u8> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "what")]
enum Adjacent {
    New(Vec<u8>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    rest: Named,
}

fn named() -> Named {
    Named { before: 1, data: long(), after: "after".into() }
}

#[test]
fn bytes_come_back_in_one_piece_wherever_they_stand() {
    assert!(visitor_of_bytes().is_some(), "serde has a reader of its own for them");
    comes_back(long(), LONG);
    comes_back(named(), LONG);
    comes_back(Around(named()), LONG);
    comes_back((long(), 7_u8, Some(long()), None::<Vec<u8>>), 2 * LONG);
    comes_back(vec![long(), Vec::new(), vec![200; 3]], LONG);
    comes_back(HashMap::from([("key".to_owned(), long())]), LONG);
    comes_back(BTreeMap::from([(long(), 1)]), LONG);
    comes_back(long().into_boxed_slice(), LONG);
    comes_back(Box::new(long()), LONG);
    comes_back(Ok::<Vec<u8>, String>(long()), LONG);
    comes_back([External::New(long()), External::Two(long(), 1), External::Unit], 2 * LONG);
    comes_back(External::Fields { data: long() }, LONG);
    comes_back(Adjacent::New(long()), LONG);
    // Serde holds these before it knows their type.
    comes_back_by_numbers(Internal::Fields { data: long() }, LONG);
    comes_back_by_numbers(Flat { rest: named() }, LONG);
    comes_back_by_numbers(Untagged::Bytes(long()), LONG);
    // These bytes would be valid as text, but they are none.
    comes_back_by_numbers(Untagged::Bytes(vec![b'a'; LONG]), LONG);
    comes_back(Untagged::Text("a".repeat(LONG)), LONG);
    for short in 0..2 * LEAST {
        comes_back(vec![255_u8; short], 2 * short);
    }
}

#[test]
fn whoever_reads_numbers_finds_numbers() {
    let body = body(&long());
    assert_eq!(read::<VecDeque<u8>>(&body).expect("a list"), VecDeque::from(long()));
    assert_eq!(read::<HashSet<u8>>(&body).expect("a list").len(), 256);
    assert_eq!(read::<Vec<u16>>(&body).expect("a list")[999], u16::from(999_u16 as u8));
    assert_eq!(read::<Vec<i8>>(&self::body(&vec![1_u8; 20])).expect("a list"), [1; 20]);
    assert!(read::<Vec<i8>>(&body).is_err(), "200 is no i8");
    assert_eq!(read::<[u8; 20]>(&self::body(&vec![1_u8; 20])).expect("a list"), [1; 20]);
    assert!(read::<String>(&body).is_err());
    assert!(read::<u64>(&body).is_err());
    assert!(read::<Named>(&body).is_err());
    assert_eq!(read::<serde::de::IgnoredAny>(&body).map(drop).ok(), Some(()));
}

/// A user's own reader, whose value is a `Vec<u8>` too.
#[test]
fn what_a_type_does_with_its_bytes_is_its_own() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Own {
        #[serde(with = "one_more")]
        data: Vec<u8>,
        #[serde(with = "crate::message::codec::bytes")]
        raw: Vec<u8>,
        #[serde(deserialize_with = "one_more::deserialize")]
        read: Vec<u8>,
    }

    mod one_more {
        use super::*;

        pub(super) fn serialize<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(data.iter().map(|byte| byte.wrapping_add(1)))
        }

        pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
            from.deserialize_seq(OneLess)
        }

        struct OneLess;

        impl<'de> Visitor<'de> for OneLess {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u8>, A::Error> {
                let mut data = Vec::new();
                while let Some(byte) = list.next_element::<u8>()? {
                    data.push(byte.wrapping_sub(1));
                }
                Ok(data)
            }
        }
    }

    let own = Own { data: long(), raw: long(), read: long() };
    let back: Own = read(&body(&own)).expect("it decodes");
    let less: Vec<u8> = long().iter().map(|byte| byte.wrapping_sub(1)).collect();
    assert_eq!(back, Own { data: long(), raw: long(), read: less });
}

/// WIRE-1: a peer writes other bytes in place of the extension.
#[test]
fn other_extensions_and_cut_ones_are_errors() {
    let body = body(&long());
    assert_eq!(&body[..4], [0xc8, 0x03, 0xe8, TAG as u8], "an extension of two bytes' length");
    for end in 0..body.len() {
        assert!(read::<Vec<u8>>(&body[..end]).is_err(), "cut at {end}");
    }
    let mut other = body.clone();
    other[3] = 0x74;
    let error = read::<Vec<u8>>(&other).expect_err("it has no meaning").to_string();
    assert!(error.contains("extension 116 has no meaning here"), "{error}");
    let mut longer = body;
    longer[1] = 0x04;
    assert!(read::<Vec<u8>>(&longer).is_err());
}

/// A message for programs in other languages has the form that its schema promises.
#[test]
fn portable_messages_have_numbers() {
    #[derive(Debug, PartialEq, Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate, portable, reply = Vec<u8>)]
    struct Portable {
        data: Vec<u8>,
    }

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate)]
    struct Own {
        data: Vec<u8>,
    }

    assert_eq!((Lists::of::<Portable>(), Lists::of::<Own>()), (Lists::Numbers, Lists::Packed));
    let value = Portable { data: long() };
    let encoded = encode_as(&value, Vec::new(), Lists::of::<Portable>()).expect("it encodes");
    assert_eq!(encoded.body, rmp_serde::to_vec_named(&value).expect("it encodes"));
    assert_eq!(read::<Portable>(&encoded.body).expect("it decodes"), value);
}
