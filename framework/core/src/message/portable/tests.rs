//! The texts of definitions, the properties that they depend on, and the reported differences between two.
//! The golden texts are in `core/tests/tensors/portable.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use tensorpost_derive::{GpuMessage, Portable};

use super::difference::{Sides, between};
use super::interfaces::Interfaces;
use super::*;
use crate::actor::Address;
use crate::message::message_key;
use crate::tensor::Tensor;

fn interface<M: GpuMessage>() -> Interface {
    Describer::default().message::<M>()
}

/// Makes a module for each definition: the same name under another path.
macro_rules! definitions {
    ($($module:ident { $($item:item)+ })+) => {$(
        mod $module {
            #![allow(dead_code)]
            use super::*;
            $(#[derive(Serialize, Deserialize)] #[derive(tensorpost_derive::Portable)] #[portable(crate = crate)] $item)+
        }
    )+};
}

definitions! {
    plain { pub(super) struct Of { a: u8, b: Inner } pub(super) struct Inner { c: String } }
    dressed {
        /// Its docs.
        #[serde(rename = "Other", deny_unknown_fields)]
        pub(super) struct Of { pub(super) a: u8, #[serde(alias = "z")] b: Box<Named> }
        pub(super) struct Named { #[serde(rename = "c")] d: std::string::String }
    }
    through_a_newtype { pub(super) struct Of { a: u8, b: New } pub(super) struct New(Inner); pub(super) struct Inner { c: String } }
    by_rule { #[serde(rename_all = "lowercase")] pub(super) struct Of { a: u8, b: Inner }
        #[serde(rename_all = "camelCase")] pub(super) struct Inner { #[serde(rename = "c")] x_y: String } }
    skipped { pub(super) struct Of { a: u8, #[serde(skip)] x: u64, b: Inner } pub(super) struct Inner { c: String } }
    generic { pub(super) struct Of(Pair<Inner<String>>); pub(super) struct Pair<T> { a: u8, b: T } pub(super) struct Inner<T> { c: T } }
    by_its_wire_form {
        #[derive(Clone)] #[serde(into = "Wire", from = "Wire")] pub(super) struct Of(u8);
        pub(super) struct Wire { a: u8, b: Inner } pub(super) struct Inner { c: String }
    }
}

impl From<by_its_wire_form::Of> for by_its_wire_form::Wire {
    fn from(_: by_its_wire_form::Of) -> Self {
        unreachable!("it is only described")
    }
}

impl From<by_its_wire_form::Wire> for by_its_wire_form::Of {
    fn from(_: by_its_wire_form::Wire) -> Self {
        unreachable!("it is only described")
    }
}

#[test]
fn what_is_the_same_on_the_wire_has_the_same_schema() {
    let plain = plain::Of::schema();
    let inner = r#"{"struct":[{"name":"c","type":"str"}]}"#;
    assert_eq!(plain, format!(r#"{{"struct":[{{"name":"a","type":"u8"}},{{"name":"b","type":{inner}}}]}}"#));
    assert_eq!(dressed::Of::schema(), plain);
    assert_eq!(through_a_newtype::Of::schema(), plain);
    assert_eq!(by_rule::Of::schema(), plain);
    assert_eq!(skipped::Of::schema(), plain);
    assert_eq!(generic::Of::schema(), plain);
    assert_eq!(by_its_wire_form::Of::schema(), plain);
}

definitions! {
    t00 { pub(super) struct Of { a: u8, b: Inner } pub(super) struct Inner { c: u16 } }
    t01 { pub(super) struct Of { a: u8, b: Inner } pub(super) struct Inner { d: u16 } }
    t02 { pub(super) struct Of { a: u8, b: Inner } pub(super) struct Inner { c: u32 } }
    t03 { pub(super) struct Of { a: u8, b: Inner } pub(super) struct Inner { c: u16, d: u8 } }
    t04 { pub(super) struct Of { b: Inner, a: u8 } pub(super) struct Inner { c: u16 } }
    t05 { pub(super) struct Of { a: u8, b: Option<Inner> } pub(super) struct Inner { c: u16 } }
    t06 { pub(super) struct Of { a: u8, b: Vec<Inner> } pub(super) struct Inner { c: u16 } }
    t07 { pub(super) struct Of { a: u8, b: [Inner; 2] } pub(super) struct Inner { c: u16 } }
    t08 { pub(super) struct Of { a: u8, b: [Inner; 3] } pub(super) struct Inner { c: u16 } }
    t09 { pub(super) struct Of { a: u8, b: (Inner, Inner) } pub(super) struct Inner { c: u16 } }
    t10 { pub(super) struct Of { a: u8, #[serde(default)] b: Option<Inner> } pub(super) struct Inner { c: u16 } }
    t11 { pub(super) struct Of(u8, Inner); pub(super) struct Inner { c: u16 } }
    t12 { pub(super) struct Of((u8, Inner), u8); pub(super) struct Inner { c: u16 } }
    t13 { pub(super) struct Of { a: u8, b: BTreeMap<String, u16> } }
    t14 { pub(super) struct Of { a: u8, b: HashMap<char, u16> } }
    t15 { pub(super) struct Of { a: u8, b: HashSet<u16> } }
    t16 { pub(super) struct Of { a: u8, b: Vec<u16> } }
    t17 { pub(super) struct Of { a: u8, b: Vec<u8> } }
    t18 { pub(super) struct Of { a: u8, #[serde(with = "serde_bytes")] b: Vec<u8> } }
    t19 { pub(super) struct Of { a: u8, #[serde(with = "serde_bytes")] b: Option<Vec<u8>> } }
    t20 { pub(super) struct Of { a: u8, b: Tensor } }
    t21 { pub(super) struct Of { a: u8, b: crate::tensor::TensorPart } }
    t22 { pub(super) struct Of; }
    t23 { pub(super) struct Of {} }
    t24 { pub(super) enum Of { A, B } }
    t25 { pub(super) enum Of { B, A } }
    t26 { pub(super) enum Of { A, B() } }
    t27 { pub(super) enum Of { A, B {} } }
    t28 { pub(super) enum Of { A, B(u8) } }
    t29 { pub(super) enum Of { A, B(u8, u8) } }
    t30 { pub(super) enum Of { A, B { a: u8 } } }
    t31 { #[serde(tag = "t")] pub(super) enum Of { A, B { a: u8 } } }
    t32 { #[serde(tag = "u")] pub(super) enum Of { A, B { a: u8 } } }
    t33 { #[serde(tag = "t", content = "c")] pub(super) enum Of { A, B { a: u8 } } }
    t34 { #[serde(untagged)] pub(super) enum Of { A, B { a: u8 } } }
    t35 { #[serde(rename_all = "lowercase")] pub(super) enum Of { A, B { a: u8 } } }
    t36 { #[serde(rename_all_fields = "UPPERCASE")] pub(super) enum Of { A, B { a: u8 } } }
    t37 { pub(super) enum Of { A, #[serde(rename = "C")] B { a: u8 } } }
    t38 { pub(super) struct Of { a: u8, b: Result<u8, String> } }
    t39 { pub(super) struct Of { a: u8, b: std::time::Duration } }
    t40 { pub(super) struct Of { a: u8, b: () } }
    t41 { pub(super) struct Of { a: u8, b: Option<Box<Of>> } }
    t42 { pub(super) struct Of { a: u8, b: Vec<Of> } }
    t43 { pub(super) struct Of { a: i8, b: f32, c: f64, d: bool, e: char, f: usize, g: isize } }
    t44 { #[serde(default)] #[derive(Default)] pub(super) struct Of { a: u8 } }
    t45 { pub(super) struct Of { a: u8 } }
    t46 { #[serde(transparent)] pub(super) struct Of { a: i16 } }
    t47 { pub(super) struct Of { #[serde(with = "elsewhere")] #[portable(as = i32)] a: u8 } }
}

/// A user's `with` module.
mod elsewhere {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u8, serializer: S) -> Result<S::Ok, S::Error> {
        i32::from(*value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        Ok(i32::deserialize(deserializer)? as u8)
    }
}

/// Does the part of `serde_bytes` that these types need.
mod serde_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }
}

macro_rules! schemas {
    ($($module:ident)+) => { [$((stringify!($module), $module::Of::schema())),+] };
}

/// Each definition differs from every other in one property of its form on the wire, so the texts must differ
/// too.
#[test]
fn what_differs_on_the_wire_has_another_schema() {
    let schemas = schemas!(t00 t01 t02 t03 t04 t05 t06 t07 t08 t09 t10 t11 t12 t13 t14 t15 t16 t17 t18 t19 t20 t21 t22 t23
        t24 t25 t26 t27 t28 t29 t30 t31 t32 t33 t34 t35 t36 t37 t38 t39 t40 t41 t42 t43 t44 t45 t46 t47);
    let mut seen = HashMap::new();
    for (module, schema) in schemas {
        let read: Shape = serde_json::from_str(&schema).expect("it can be read");
        assert_eq!(read.text(), schema, "and written again");
        if let Some(other) = seen.insert(schema.clone(), module) {
            panic!("{module} and {other} have the same schema {schema}");
        }
    }
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = crate)]
struct Tree {
    value: i32,
    children: Vec<Tree>,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = crate)]
struct Forest(BTreeMap<String, Tree>);

/// Each type is in the other.
#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = crate)]
enum Json {
    Null,
    List(Vec<Json>),
    Object(Entries),
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = crate)]
struct Entries {
    entries: Vec<(String, Json)>,
    parent: Option<Box<Entries>>,
}

#[derive(Serialize, Deserialize, Portable)]
#[portable(crate = crate)]
struct Endless(Box<Endless>);

#[test]
fn a_type_that_holds_itself_is_described_once() {
    let tree = r#"{"recursive":{"struct":[{"name":"value","type":"i32"},{"name":"children","type":{"list":{"outer":0}}}]}}"#;
    assert_eq!(Tree::schema(), tree);
    // A surrounding type that does not hold itself does not count.
    assert_eq!(Forest::schema(), format!(r#"{{"map":["str",{tree}]}}"#));
    assert_eq!(Endless::schema(), r#"{"recursive":{"outer":0}}"#);
    let entries = concat!(
        r#"{"recursive":{"struct":[{"name":"entries","type":{"list":{"tuple":["str",{"outer":1}]}}},"#,
        r#"{"name":"parent","type":{"option":{"outer":0}}}]}}"#
    );
    let variants = format!(
        r#"{{"name":"Null","body":"unit"}},{{"name":"List","body":{{"newtype":{{"list":{{"outer":0}}}}}}}},{{"name":"Object","body":{{"newtype":{entries}}}}}"#
    );
    assert_eq!(
        Json::schema(),
        format!(r#"{{"recursive":{{"enum":{{"repr":"external","variants":[{variants}]}}}}}}"#)
    );
}

mod first {
    use super::*;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate, portable, reply = Result<Vec<u8>, String>)]
    pub(super) struct Frame {
        pub(super) id: u64,
        #[tensor(dtype = f32, shape = [3, _, _])]
        pub(super) pixels: Tensor,
        pub(super) regions: Vec<Region>,
        pub(super) how: How,
        pub(super) back: Option<Address<Frame>>,
    }

    #[derive(Serialize, Deserialize, Portable)]
    #[portable(crate = crate)]
    pub(super) struct Region {
        label: String,
        score: f32,
    }

    #[derive(Serialize, Deserialize, Portable)]
    #[portable(crate = crate)]
    pub(super) enum How {
        Fast,
        Slow { times: u8 },
    }
}

mod second {
    use super::*;

    #[derive(Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate, portable, reply = Result<Vec<i8>, String>)]
    pub(super) struct Frame {
        id: u64,
        #[tensor(dtype = f16, shape = [3, _, _])]
        pixels: Tensor,
        regions: Vec<Region>,
        how: How,
        back: Option<Address<Frame>>,
        note: Option<String>,
    }

    #[derive(Serialize, Deserialize, Portable)]
    #[portable(crate = crate)]
    pub(super) struct Region {
        score: f32,
        #[serde(default)]
        label: String,
    }

    #[derive(Serialize, Deserialize, Portable)]
    #[portable(crate = crate)]
    pub(super) enum How {
        Fast,
        Slow { times: u16 },
        Never,
    }
}

#[test]
fn a_difference_is_told_field_by_field() {
    let sides = || Sides { this: "the node", other: "the worker" };
    let lines = between(&interface::<first::Frame>(), &interface::<second::Frame>(), sides());
    assert_eq!(
        lines,
        [
            "pixels: the node has tensor of f32, shape [3, _, _], the worker has tensor of f16, shape [3, _, _]",
            "regions[].label: the node has a field, the worker has an optional field",
            "regions[].(order of fields): the node has label, score, the worker has score, label",
            "how.Slow.times: the node has u8, the worker has u16",
            "how.Never: the worker has Never, the node has none",
            "back.(to).(reply).Ok[]: the node has u8, the worker has i8",
            "note: the worker has option<str>, the node has none",
            "(reply).Ok[]: the node has u8, the worker has i8",
        ]
    );
    assert!(between(&interface::<first::Frame>(), &interface::<first::Frame>(), sides()).is_empty());
}

#[test]
fn programs_are_compared_by_the_messages_that_both_have() {
    let of = |messages: &[Describe]| Interfaces::of(messages.iter().copied());
    let [first, second] = [first::Frame::PORTABLE.unwrap(), second::Frame::PORTABLE.unwrap()];
    let differences = of(&[first]).differences(&of(&[second]), "this", "that");
    let [this, that] = [message_key::<first::Frame>(), message_key::<second::Frame>()];
    assert_eq!(
        differences[0],
        format!("message `Frame` has key {this:016x} in this and {that:016x} in that:")
    );
    assert_eq!(differences.len(), 9, "{differences:#?}");
    // A message that both have in common is enough to talk by.
    assert!(of(&[first]).differences(&of(&[second, first]), "this", "that").is_empty());
    assert!(of(&[]).differences(&of(&[second]), "this", "that").is_empty());
    // The list may come from another process, and may hold anything.
    let said: Interfaces = serde_json::from_str(r#"["{","{\"message\":\"Frame\"}"]"#).unwrap();
    assert!(of(&[first]).differences(&said, "this", "that").is_empty());
}

#[test]
fn the_key_of_a_portable_message_is_the_hash_of_its_text() {
    for _ in 0..2 {
        let text = first::Frame::schema();
        assert_eq!(message_key::<first::Frame>(), crate::message::fnv1a([text.as_bytes()]));
    }
    assert_ne!(message_key::<first::Frame>(), message_key::<second::Frame>());
}

/// Each holds two of the next type: 2^N of them.
struct Doubled<const N: usize>;

macro_rules! doubled {
    ($($n:literal)+) => {$(
        impl Portable for Doubled<$n> {
            fn describe(describer: &mut Describer) -> Shape {
                Shape::tuple([describer.of::<Doubled<{ $n - 1 }>>(), describer.of::<Doubled<{ $n - 1 }>>()])
            }
        }
    )+};
}

doubled!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);

impl Portable for Doubled<0> {
    fn describe(_: &mut Describer) -> Shape {
        Shape::U8
    }
}

#[test]
#[should_panic(expected = "holds more than 16384 types")]
fn a_schema_without_bound_is_refused_and_not_written_until_memory_ends() {
    Doubled::<32>::schema();
}

/// The definition of a made-up type: its sort, and the types of its fields.
type Definition = (u8, Vec<usize>);

/// The number of types that a test can make up.
const TYPES: usize = 5;

thread_local! {
    static DEFINITIONS: RefCell<Vec<Definition>> = const { RefCell::new(Vec::new()) };
}

struct MadeUp<const I: usize>;

fn made_up(describer: &mut Describer, index: usize) -> Shape {
    match index % TYPES {
        0 => describer.of::<MadeUp<0>>(),
        1 => describer.of::<MadeUp<1>>(),
        2 => describer.of::<MadeUp<2>>(),
        3 => describer.of::<MadeUp<3>>(),
        _ => describer.of::<MadeUp<4>>(),
    }
}

impl<const I: usize> Portable for MadeUp<I> {
    fn describe(describer: &mut Describer) -> Shape {
        let (sort, of) = DEFINITIONS.with_borrow(|all| all[I].clone());
        describer.named::<Self>(|describer| {
            let mut inner = of.iter().map(|index| made_up(describer, *index));
            match (sort % 5, of.is_empty()) {
                (0, true) => Shape::U8,
                (1, true) => Shape::Str,
                (2, false) => Shape::List(Box::new(inner.next().expect("it has one"))),
                (3, false) => Shape::Option(Box::new(inner.next().expect("it has one"))),
                (4, false) => Shape::Tuple(inner.collect()),
                _ => Shape::Struct(
                    inner
                        .enumerate()
                        .map(|(at, shape)| Field::new(&format!("f{at}"), false, shape))
                        .collect(),
                ),
            }
        })
    }
}

fn text_of(definitions: &[Definition]) -> String {
    DEFINITIONS.with_borrow_mut(|all| *all = definitions.to_vec());
    MadeUp::<0>::schema()
}

/// Returns the part of a definition that is used: the way it is written, and its types.
fn used((sort, of): &Definition) -> (u8, &[usize]) {
    match (sort % 5, of.is_empty()) {
        (0 | 1, true) => (sort % 5, &[]),
        (2 | 3, false) => (sort % 5, &of[..1]),
        (4, false) => (4, of),
        _ => (5, of),
    }
}

/// Returns whether two types are the same. It compares them without texts, as the infinite trees that they
/// stand for. A pair that is being compared counts as equal, until something else differs.
fn same(a: &[Definition], b: &[Definition], at: (usize, usize), seen: &mut HashSet<(usize, usize)>) -> bool {
    if !seen.insert(at) {
        return true;
    }
    let ((sort, of), (other_sort, other)) = (used(&a[at.0]), used(&b[at.1]));
    sort == other_sort
        && of.len() == other.len()
        && of.iter().zip(other).all(|(x, y)| same(a, b, (x % TYPES, y % TYPES), seen))
}

/// Returns whether a type holds itself, anywhere below the first.
fn recursive(all: &[Definition], at: usize, above: &mut Vec<usize>) -> bool {
    if above.contains(&at) {
        return true;
    }
    above.push(at);
    let found = used(&all[at]).1.iter().any(|next| recursive(all, next % TYPES, above));
    above.pop();
    found
}

fn definitions() -> impl Strategy<Value = Vec<Definition>> {
    prop::collection::vec((0_u8..5, prop::collection::vec(0..TYPES, 0..3)), TYPES)
}

/// Makes types that hold later ones only, so that few of them hold themselves.
fn layered() -> impl Strategy<Value = Vec<Definition>> {
    definitions().prop_map(|mut all| {
        for (index, (_, of)) in all.iter_mut().enumerate() {
            of.retain(|next| *next > index);
        }
        all
    })
}

proptest! {
    /// Made-up types with the same text are the same. Without recursion, the same types have the same text.
    #[test]
    fn texts_are_equal_where_types_are(
        a in prop_oneof![definitions(), layered()],
        b in prop_oneof![definitions(), layered()],
        change in (0..TYPES, 0_u8..5),
    ) {
        let mut changed = a.clone();
        changed[change.0].0 = change.1;
        for b in [&b, &changed] {
            let equal = text_of(&a) == text_of(b);
            let same = same(&a, b, (0, 0), &mut HashSet::new());
            prop_assert!(!equal || same, "the text {} stands for two", text_of(&a));
            let any = recursive(&a, 0, &mut Vec::new()) || recursive(b, 0, &mut Vec::new());
            prop_assert!(equal || !same || any, "{} is {}", text_of(&a), text_of(b));
        }
    }

    /// The names of types, and their order in the source, do not count, with recursion too.
    #[test]
    fn names_of_types_do_not_count(a in definitions(), order in Just([1, 2, 3, 4]).prop_shuffle()) {
        let place = |index: usize| if index == 0 { 0 } else { order[index - 1] };
        let mut renamed = a.clone();
        for (index, (sort, of)) in a.iter().enumerate() {
            renamed[place(index)] = (*sort, of.iter().map(|next| place(*next)).collect());
        }
        prop_assert_eq!(text_of(&a), text_of(&renamed));
    }

    /// A text is read as the shape that it was written from.
    #[test]
    fn a_text_is_read_as_what_it_was_written_of(a in definitions()) {
        let text = text_of(&a);
        let read: Shape = serde_json::from_str(&text).expect("it is JSON");
        prop_assert_eq!(read.text(), text);
    }
}
