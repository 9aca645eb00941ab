//! The texts, keys and frames of portable messages, byte for byte as programs in other languages have to
//! write them. They are kept in `../portable/`, one file for each message. A change of a file is a change of
//! the wire.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpost_core::api::message::{GpuMessage, Portable};
use tensorpost_core::ids::{ActorId, ChunkId, ProcessId};
use tensorpost_core::lease::LeaseId;
use tensorpost_core::message::wire::{Frame, Header, Kind, LeaseEntry, Tables, write_head};
use tensorpost_core::message::{codec, message_key};
use tensorpost_core::tensor::{DType, Tensor};
use tensorpost_core::testing::Cluster;

#[derive(Serialize, Deserialize, GpuMessage)]
#[gpu_message(crate = tensorpost_core, portable, reply = u64)]
struct Image {
    id: u64,
    #[tensor(dtype = f32, shape = [3, _, _], device = host)]
    pixels: Tensor,
    #[tensor(dtype = u8)]
    extras: BTreeMap<String, Vec<Tensor>>,
}

#[derive(Serialize, Deserialize, GpuMessage, PartialEq, Debug)]
#[gpu_message(crate = tensorpost_core, portable)]
struct Scalars {
    integers: (u8, u16, u32, u64, i8, i16, i32, i64),
    sizes: (usize, isize),
    floats: [f64; 2],
    single: f32,
    truth: bool,
    letter: char,
    text: String,
    nothing: (),
    #[serde(with = "in_text")]
    #[portable(as = String)]
    other: u8,
    patience: Duration,
}

/// Writes a number as text.
mod in_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u8, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&value.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize, GpuMessage, PartialEq, Debug)]
#[gpu_message(crate = tensorpost_core, portable, name = "Job \"1\"", reply = Result<Tree, String>)]
#[serde(rename_all = "camelCase")]
struct Job {
    each_way: Vec<Way>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left_out: Option<u8>,
    #[serde(default)]
    absent: Option<u8>,
    tree: Tree,
    told: Told,
    #[serde(skip)]
    here: u8,
}

#[derive(Serialize, Deserialize, Portable, PartialEq, Debug)]
#[portable(crate = tensorpost_core)]
enum Way {
    Unit,
    Newtype(u8),
    Tuple(u8, Option<i8>),
    #[serde(rename = "a struct")]
    Struct {
        deep: BTreeMap<u8, [bool; 2]>,
    },
}

#[derive(Serialize, Deserialize, Portable, PartialEq, Debug)]
#[portable(crate = tensorpost_core)]
struct Tree {
    value: i64,
    children: Vec<Tree>,
}

#[derive(Serialize, Deserialize, Portable, PartialEq, Debug)]
#[portable(crate = tensorpost_core)]
#[serde(tag = "kind", content = "what", rename_all = "SCREAMING_SNAKE_CASE")]
enum Told {
    NotYet,
    OneLine(String),
}

/// If this variable is set, the test writes the files; otherwise it compares them.
const WRITE: &str = "TENSORPOST_WRITE_GOLDEN";

/// The contents of a file, in the order of its fields.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Golden {
    schema: String,
    key: String,
    /// The value in MessagePack.
    body: String,
    /// The frame of a send to actor 7, which is at index 2 in its process. Each lease names chunk 1 of the
    /// node.
    frame: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn compare<M: GpuMessage + Portable>(file: &str, message: &M) {
    let encoded = codec::encode(message, Vec::new()).expect("it can be sent");
    let key = message_key::<M>();
    let header = Header {
        kind: Kind::Send,
        body_in_lease: false,
        has_context: false,
        index: 2,
        actor: ActorId(7),
        correlation: 0,
        key,
        body_bytes: encoded.body.len() as u32,
    };
    let lease = |(index, (lease, _)): (usize, &(tensorpost_core::lease::Lease, _))| LeaseEntry {
        id: LeaseId {
            chunk: ChunkId { owner: ProcessId::NODE, index: 1 },
            entry: index as u32,
            generation: 1,
        },
        offset: 4096 * index as u64,
        bytes: lease.bytes(),
        ready: None,
        sole: true,
        in_parts: false,
    };
    let leases: Vec<LeaseEntry> = encoded.leases.iter().enumerate().map(lease).collect();
    let mut frame = Vec::new();
    write_head(&mut frame, &header, &leases, &encoded.tensors, 0);
    frame.extend_from_slice(&encoded.body);
    let mut tables = Tables::default();
    let read = Frame::parse(&frame, &mut tables, 0).expect("it is a frame");
    assert_eq!((read.header, read.body), (header, encoded.body.as_slice()));
    let now = Golden {
        schema: M::schema(),
        key: format!("{key:016x}"),
        body: hex(&encoded.body),
        frame: hex(&frame),
    };

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/portable").join(file).with_extension("json");
    if std::env::var_os(WRITE).is_some() {
        let text = serde_json::to_string_pretty(&now).expect("texts");
        std::fs::write(&path, text + "\n").expect("the folder is there");
        return;
    }
    let kept = std::fs::read_to_string(&path).expect("it is in the repository");
    let kept: Golden = serde_json::from_str(&kept).expect("it was written by this test");
    assert_eq!(
        now, kept,
        "{file} is not what it was; if that is meant, set {WRITE} and tell other languages"
    );
}

/// Reads the value that the Python package wrote (`framework/python/tests/test_golden.py`), and checks that
/// it is written as the same bytes again.
fn written_by_python<M: GpuMessage + Portable>(name: &str, tensors: &[Tensor]) -> M {
    #[derive(Deserialize)]
    struct Written {
        schema: String,
        key: String,
        body: String,
    }
    let kept = include_str!("../portable/from_python/written.json");
    let mut kept: BTreeMap<String, Written> = serde_json::from_str(kept).expect("texts");
    let Written { schema, key, body } = kept.remove(name).expect("it is there");
    assert_eq!((M::schema(), format!("{:016x}", message_key::<M>())), (schema, key));
    let digits = (0..body.len()).step_by(2).map(|at| u8::from_str_radix(&body[at..at + 2], 16));
    let bytes: Vec<u8> = digits.collect::<Result<_, _>>().expect("hexadecimal");
    let message = codec::decode::<M>(&bytes, tensors.to_vec(), None).expect("it can be read");
    let again = codec::encode(&message, Vec::new()).expect("it can be sent");
    assert_eq!(hex(&again.body), body);
    let order = again.tensors.iter().map(|one| again.leases[usize::from(one.lease)].0.id());
    assert!(order.eq(tensors.iter().map(|tensor| tensor.lease().id())), "tensors are met in their order");
    message
}

#[test]
fn what_python_writes_is_read() {
    let scalars = Scalars {
        integers: (255, 0, 1, 2, 3, -4, 5, -6),
        sizes: (7, 8),
        floats: [1e300, 0.1],
        single: -0.25,
        truth: false,
        letter: '€',
        text: String::new(),
        nothing: (),
        other: 77,
        patience: Duration::new(9, 1),
    };
    assert_eq!(written_by_python::<Scalars>("scalars", &[]), scalars);
    let job = Job {
        each_way: vec![Way::Tuple(0, Some(-128)), Way::Unit],
        left_out: Some(7),
        absent: Some(8),
        tree: Tree { value: -1, children: Vec::new() },
        told: Told::OneLine("𝄞".to_owned()),
        here: 0,
    };
    assert_eq!(written_by_python::<Job>("job", &[]), job);

    let cluster = Cluster::new(1);
    let tensor = |dtype, shape: &[usize]| cluster.stream(0).zeros(dtype, shape).expect("memory").freeze();
    let tensors = [tensor(DType::F32, &[3, 2, 1]), tensor(DType::U8, &[2])];
    let image = written_by_python::<Image>("image", &tensors);
    assert_eq!((image.id, image.extras["left"].len(), image.extras["right"].len()), (1, 0, 1));
    image.check().expect("they are what is asked of them");
}

fn round<M: GpuMessage + PartialEq + std::fmt::Debug>(message: &M) {
    let encoded = codec::encode(message, Vec::new()).expect("it can be sent");
    assert_eq!(&codec::decode::<M>(&encoded.body, Vec::new(), None).expect("it can be read"), message);
}

#[test]
fn texts_keys_and_frames_are_what_they_were() {
    let cluster = Cluster::new(1);
    let tensor = |dtype, shape: &[usize]| cluster.stream(0).zeros(dtype, shape).expect("memory").freeze();
    let gray = tensor(DType::U8, &[2]);
    let extras = BTreeMap::from([("a".to_owned(), vec![gray.clone(), gray]), ("b".to_owned(), vec![])]);
    compare("image", &Image { id: 300, pixels: tensor(DType::F32, &[3, 2, 1]), extras });

    let scalars = Scalars {
        integers: (1, 256, 65_536, 1 << 40, -1, -129, -40_000, -(1 << 40)),
        sizes: (5, -5),
        floats: [0.5, -0.0],
        single: 1.5,
        truth: true,
        letter: 'ß',
        text: "a \"text\"\n".to_owned(),
        nothing: (),
        other: 200,
        patience: Duration::from_millis(1500),
    };
    compare("scalars", &scalars);
    round(&scalars);

    let leaf = |value| Tree { value, children: Vec::new() };
    let deep = BTreeMap::from([(1, [true, false])]);
    let job = Job {
        each_way: vec![Way::Unit, Way::Newtype(3), Way::Tuple(4, None), Way::Struct { deep }],
        left_out: None,
        absent: None,
        tree: Tree { value: 1, children: vec![leaf(2), leaf(3)] },
        told: Told::OneLine("done".to_owned()),
        here: 0,
    };
    compare("job", &job);
    round(&job);
}
