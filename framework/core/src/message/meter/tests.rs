use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits::{DECODED_BASE, DECODED_PER_BYTE, MAX_NESTING};
use crate::message::codec::{DecodeError, decode};

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    decode(body, Vec::new(), None)
}

/// Makes a list of `count` times `element`.
fn list(count: usize, element: &[u8]) -> Vec<u8> {
    [&[0xdd], &(count as u32).to_be_bytes()[..], &element.repeat(count)].concat()
}

const NIL: &[u8] = &[0xc0];
const COUNT: usize = 200_000;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Large {
    words: [u64; 31],
}

fn too_much<T: DeserializeOwned>(body: &[u8]) {
    let may = DECODED_PER_BYTE * body.len() + DECODED_BASE;
    match read::<T>(body) {
        Err(DecodeError::TooMuch { bytes, may: said }) => assert_eq!((bytes, said), (body.len(), may)),
        Err(other) => panic!("{} was refused as {other}", std::any::type_name::<T>()),
        Ok(_) => panic!("{} was decoded", std::any::type_name::<T>()),
    }
}

#[test]
fn nils_become_no_more_than_a_factor_of_their_bytes() {
    #[derive(Deserialize)]
    struct Recursive {
        #[expect(dead_code, reason = "only decoded")]
        children: Vec<Option<Recursive>>,
        #[expect(dead_code, reason = "only decoded")]
        value: Large,
    }
    too_much::<Vec<Option<Large>>>(&list(COUNT, NIL));
    too_much::<Vec<Option<Recursive>>>(&list(COUNT, NIL));
    too_much::<(u8, Vec<(Option<Large>,)>)>(&[&[0x92, 1][..], &list(COUNT, &[0x91, 0xc0])].concat());
    // A map of one byte stands for all the defaults, also behind a pointer.
    too_much::<Vec<Large>>(&list(COUNT, &[0x80]));
    too_much::<Vec<Box<Large>>>(&list(COUNT, &[0x80]));
    too_much::<Vec<Option<Box<Large>>>>(&list(COUNT, &[0x80]));
    let entries: Vec<u8> =
        (0..40_000_u16).flat_map(|key| [&[0xcd], &key.to_be_bytes()[..], NIL].concat()).collect();
    let map = [&[0xde], &40_000_u16.to_be_bytes()[..], &entries].concat();
    too_much::<BTreeMap<u16, Option<Large>>>(&map);
    too_much::<HashMap<u16, Option<Large>>>(&map);
}

#[test]
fn an_enum_and_what_serde_holds_of_an_untagged_one_are_counted() {
    #[derive(Deserialize)]
    enum Tagged {
        #[expect(dead_code, reason = "only decoded")]
        Some(Vec<Option<Large>>),
    }
    let body = [&[0x81, 0xa4][..], b"Some", &list(COUNT, NIL)].concat();
    too_much::<Tagged>(&body);

    // 32 bytes for each byte of the body: as many as are allowed.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Large(Vec<Option<Large>>),
        Numbers(Vec<u8>),
    }
    match read::<Untagged>(&list(COUNT, &[7])).expect("is not more than the factor") {
        Untagged::Numbers(numbers) => assert_eq!(numbers, [7; COUNT]),
        Untagged::Large(_) => panic!("numbers are no nils"),
    }
    // Each of these may become something large.
    for nothing in [NIL, &[0x90], &[0x80]] {
        too_much::<Untagged>(&list(COUNT, nothing));
    }
    let few = read::<Untagged>(&list(1000, NIL)).expect("is little");
    assert!(matches!(few, Untagged::Large(nils) if nils.len() == 1000));
    #[derive(Debug, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        #[expect(dead_code, reason = "only decoded")]
        rest: HashMap<String, Option<Large>>,
    }
    let entries: Vec<u8> = (0..60_000)
        .flat_map(|key| [format!("\u{a4}{key:04x}").as_bytes()[1..].to_vec(), vec![0xc0]].concat())
        .collect();
    too_much::<Flat>(&[&[0xde], &60_000_u16.to_be_bytes()[..], &entries].concat());
}

/// Two bytes are enough for a type that holds itself, if serde tries one variant after the other.
#[test]
fn an_untagged_enum_that_holds_itself_ends() {
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only decoded")]
    enum Tree {
        Leaf(u8),
        Node(Box<Tree>),
    }
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only decoded")]
    enum Many {
        Leaf(u8),
        Node(Vec<Many>),
        Named { of: Box<Many> },
        Again(Option<Box<Many>>),
    }
    for body in [&[0xa1, b'x'][..], &[0xc3], &[0x92, 7, 0xa1, b'x']] {
        assert!(matches!(read::<Tree>(body), Err(DecodeError::TooDeep)), "{body:?}");
        assert!(matches!(read::<Many>(body), Err(DecodeError::TooDeep)), "{body:?}");
    }
    assert!(matches!(read::<Tree>(&[7]), Ok(Tree::Leaf(7))));
    // As deep as a body may be.
    let nested = [vec![0x91; MAX_NESTING - 1], vec![7]].concat();
    assert!(matches!(read::<Many>(&nested), Ok(Many::Node(_))));
    // The next decoding on this thread is not affected.
    assert_eq!(read::<Vec<u8>>(&[0x91, 7]).expect("a list"), [7]);
}

#[test]
fn what_people_send_is_let_through() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Id(u64);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Row {
        id: Id,
        name: Option<String>,
        next: Option<Box<Row>>,
        large: Option<Box<Large>>,
        shape: (u8, [f32; 3]),
    }
    fn both_ways<T: Serialize + DeserializeOwned + PartialEq>(value: &T) {
        let body = rmp_serde::to_vec_named(value).expect("encodes");
        assert!(read::<T>(&body).expect("is let through") == *value);
    }
    both_ways(&vec![0_u64; COUNT]);
    both_ways(&(0..COUNT as u64).map(|_| None::<Id>).collect::<Vec<_>>());
    both_ways(&vec![String::new(); COUNT]);
    both_ways(&vec![Vec::<u64>::new(); COUNT]);
    both_ways(&vec![Vec::<Vec<u64>>::from([Vec::new()]); COUNT]);
    both_ways(&vec![(); COUNT]);
    both_ways(&vec![0_u8; COUNT]);
    both_ways(&(0..1000).map(|_| None::<Large>).collect::<Vec<_>>());
    let row = |next| Row { id: Id(7), name: None, next, large: None, shape: (1, [0.5; 3]) };
    both_ways(&(0..10_000).map(|_| row(Some(Box::new(row(None))))).collect::<Vec<_>>());
    // As deep as a body may be.
    both_ways(&(0..MAX_NESTING - 3).fold(row(None), |inner, _| row(Some(Box::new(inner)))));
}

#[test]
fn a_type_that_holds_itself_without_a_container_ends_in_an_error() {
    #[derive(Deserialize)]
    struct Endless(#[expect(dead_code, reason = "only decoded")] Option<Box<Endless>>);
    #[derive(Deserialize)]
    struct Boxed(#[expect(dead_code, reason = "only decoded")] Box<Boxed>);

    assert!(matches!(read::<Endless>(&[0x01]), Err(DecodeError::TooDeep)));
    assert!(matches!(read::<Vec<Endless>>(&[0x91, 0x01]), Err(DecodeError::TooDeep)));
    assert!(matches!(read::<Boxed>(&[0x01]), Err(DecodeError::TooDeep)));
    assert!(read::<Endless>(NIL).is_ok());
}
