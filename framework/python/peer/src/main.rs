//! The Rust half of the Python package's tests. It answers questions, one per line, as JSON:
//!
//! - `{"make": {"of": "Image", "seed": 7}}`: a value of a type that both halves know;
//! - `{"check": {"of": "Image", "body": "82..", "tensors": [{"dtype": "f32", "shape": [3]}]}}`: these bytes
//!   as a value of the type, written again;
//! - `{"invent": {"seed": 7}}`: a type that neither half knows, and a value of it;
//! - `{"text": {"text": ".."}}`: the canonical text of the interface that a text describes, read and written
//!   again.
//!
//! An answer has `schema` and `key`, `body` in hexadecimal, and `tensors`; or `error`.

mod dynamic;
mod node;
mod pending;
mod random;
mod stages;
mod times;
mod types;

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use tensorpost_core::api::message::{GpuMessage, Portable};
use tensorpost_core::clock::{ClockDomain, ClockPage};
use tensorpost_core::device::host::HostBackend;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::{Pool, PoolOptions};
use tensorpost_core::message::portable::{Interface, Shape};
use tensorpost_core::message::{codec, message_key};
use tensorpost_core::tensor::{DType, DeviceStream, Tensor};

use random::{Make, Random};

/// The longest time that an answer may take.
const WAIT_FOR_ANSWER: std::time::Duration = std::time::Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Question {
    Make { of: String, seed: u64 },
    Check { of: String, body: String, tensors: Vec<Outline> },
    Invent { seed: u64 },
    Text { text: String },
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Outline {
    dtype: DType,
    shape: Vec<usize>,
}

#[derive(Serialize, Default)]
struct Answer {
    schema: String,
    key: u64,
    body: String,
    tensors: Vec<Outline>,
    /// For each of `tensors`, the index of the incoming tensor that it is.
    same: Vec<usize>,
    error: Option<String>,
}

type Anything = Box<dyn std::error::Error>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Anything> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2).ok_or("an odd number of digits"));
    pairs.map(|pair| Ok(u8::from_str_radix(pair?, 16)?)).collect()
}

fn outlines(tensors: &[Tensor]) -> Vec<Outline> {
    tensors.iter().map(|one| Outline { dtype: one.dtype(), shape: one.shape().to_vec() }).collect()
}

/// Makes the answer for a type that both halves know.
fn known<M: GpuMessage + Portable>(body: &[u8], tensors: Vec<Outline>) -> Answer {
    let (schema, key) = (M::schema(), message_key::<M>());
    Answer { schema, key, body: hex(body), tensors, ..Answer::default() }
}

fn make<M: GpuMessage + Portable + Make>(seed: u64, stream: &DeviceStream) -> Result<Answer, Anything> {
    let mut random = Random::new(seed, stream);
    let value = M::make(&mut random);
    value.check()?;
    let encoded = codec::encode(&value, Vec::new())?;
    Ok(known::<M>(&encoded.body, outlines(&random.tensors)))
}

fn check<M: GpuMessage + Portable>(
    body: &[u8],
    asked: &[Outline],
    stream: &DeviceStream,
) -> Result<Answer, Anything> {
    let tensors: Vec<Tensor> = asked
        .iter()
        .map(|one| stream.zeros(one.dtype, &one.shape).map(|tensor| tensor.freeze()))
        .collect::<Result<_, _>>()?;
    let value = codec::decode::<M>(body, tensors.clone(), None)?;
    value.check()?;
    let again = codec::encode(&value, Vec::new())?;
    let of = |outline: &tensorpost_core::message::scope::Outline| {
        let lease = &again.leases[usize::from(outline.lease)].0;
        tensors.iter().position(|tensor| tensor.lease().id() == lease.id()).ok_or("a tensor of its own")
    };
    let same = again.tensors.iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let written =
        again.tensors.iter().map(|one| Outline { dtype: one.dtype, shape: one.layout.shape().to_vec() });
    let answer = known::<M>(&again.body, written.collect());
    Ok(Answer { same, ..answer })
}

fn invent(seed: u64, stream: &DeviceStream) -> Result<Answer, Anything> {
    let mut random = Random::new(seed, stream);
    let body = dynamic::message(&mut random);
    let value = dynamic::value(&body, &mut random);
    let interface = Interface { message: format!("Invented{seed}"), body, reply: Shape::Nil };
    let encoded = codec::encode(&value, Vec::new())?;
    let (schema, key) = (interface.text(), interface.key());
    Ok(Answer { schema, key, body: hex(&encoded.body), ..Answer::default() })
}

fn answer(question: Question, stream: &DeviceStream) -> Result<Answer, Anything> {
    match question {
        Question::Make { of, seed } => match of.as_str() {
            "Image" => make::<types::Image>(seed, stream),
            "Scalars" => make::<types::Scalars>(seed, stream),
            "Job" => make::<types::Job>(seed, stream),
            "Tree" => make::<types::Tree>(seed, stream),
            "Everything" => make::<types::Everything>(seed, stream),
            other => Err(format!("no such type: {other}").into()),
        },
        Question::Check { of, body, tensors } => {
            let body = unhex(&body)?;
            match of.as_str() {
                "Image" => check::<types::Image>(&body, &tensors, stream),
                "Scalars" => check::<types::Scalars>(&body, &tensors, stream),
                "Job" => check::<types::Job>(&body, &tensors, stream),
                "Tree" => check::<types::Tree>(&body, &tensors, stream),
                "Everything" => check::<types::Everything>(&body, &tensors, stream),
                other => Err(format!("no such type: {other}").into()),
            }
        }
        Question::Invent { seed } => invent(seed, stream),
        Question::Text { text } => {
            let interface: Interface = serde_json::from_str(&text)?;
            Ok(Answer { schema: interface.text(), key: interface.key(), ..Answer::default() })
        }
    }
}

fn main() -> Result<(), Anything> {
    if let [node, interpreter, folder] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && node == "node"
    {
        return node::run(interpreter, folder).map_err(Into::into);
    }
    if let [pending, interpreter, folder] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && pending == "pending"
    {
        return pending::run(interpreter, folder).map_err(Into::into);
    }
    if let [stages, what, interpreter, folder] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && stages == "stages"
    {
        return stages::run(what, interpreter, folder).map_err(Into::into);
    }
    if let [times, arguments @ ..] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && times == "times"
    {
        return times::run(arguments).map_err(Into::into);
    }
    let domain = ClockDomain::new(ProcessId::OUTSIDE, ClockPage::create()?);
    let options = PoolOptions { budget: 64 << 20, first_chunk: 1 << 20 };
    let pool = Pool::new(HostBackend::new(), domain.clone(), options, 0);
    let stream = DeviceStream::new(pool, domain)?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answered =
            serde_json::from_str(&line?).map_err(Into::into).and_then(|question| answer(question, &stream));
        let answered =
            answered.unwrap_or_else(|error| Answer { error: Some(error.to_string()), ..Answer::default() });
        writeln!(out, "{}", serde_json::to_string(&answered)?)?;
        out.flush()?;
    }
    Ok(())
}
