//! A value inside a message whose type is known only at run time, with the tensors of that message. The items
//! of pipeline stages in another language are such values.
//!
//! A [`RawMessage`](super::raw::RawMessage) is a message by itself, and its body is taken as it is. This
//! value is in a body that serde writes and reads. So the serialiser at hand reads and writes its bytes
//! again, value by value, and they are the same on the wire as those of the typed value. Lists of bytes in
//! one piece ([`packed`](super::packed)) become the numbers that they stand for.
//!
//! **Invariants.** The owner of the schema upholds WIRE-1 for the value. ONE-WRITER as for raw messages: a
//! tensor on memory in parts is refused. The tensors are those of the whole message, so the message has only
//! one such value, and no tensor before it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::check::TensorCheckError;
use super::{GpuMessage, scope};
use crate::tensor::Tensor;

/// A value, as the owner of its schema has written it.
#[derive(Clone, Debug)]
pub struct RawItem {
    /// MessagePack, named form.
    pub body: Vec<u8>,
    /// Its tensors, in the order of their indices in the body.
    pub tensors: Vec<Tensor>,
}

impl Serialize for RawItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        scope::add_all(&self.tensors).map_err(ser::Error::custom)?;
        let mut body = rmp_serde::Deserializer::from_read_ref(&self.body);
        serde_transcode::transcode(&mut body, serializer)
    }
}

impl<'de> Deserialize<'de> for RawItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tensors = scope::all_lent().ok_or_else(|| {
            de::Error::custom("an item of another language can only be read from a message")
        })?;
        if tensors.iter().any(|tensor| tensor.lease().is_in_parts()) {
            return Err(de::Error::custom(
                "it holds a part of a split tensor, which a stage of another language cannot take; join the parts first",
            ));
        }
        let mut body = Vec::new();
        let mut written = rmp_serde::Serializer::new(&mut body).with_struct_map();
        serde_transcode::transcode(deserializer, &mut written).map_err(de::Error::custom)?;
        Ok(RawItem { body, tensors })
    }
}

impl actix::Message for RawItem {
    type Result = ();
}

impl GpuMessage for RawItem {
    type Reply = ();
    const NAME: &'static str = "an item of another language";
    const SCHEMA: u64 = 0;

    /// The owner of the schema checks the tensors.
    fn check(&self) -> Result<(), TensorCheckError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::clock::{ClockDomain, ClockPage};
    use crate::device::host::HostBackend;
    use crate::ids::ProcessId;
    use crate::lease::{Pool, PoolOptions};
    use crate::message::codec::{decode, encode, tensors};
    use crate::tensor::DeviceStream;

    /// Like a pipeline's message: a field before the item, and nothing with tensors.
    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    enum Edge<T> {
        Item(u32, T),
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    enum How {
        Still,
        Blurred { by: f32 },
    }

    #[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
    struct Typed {
        id: u64,
        below: i64,
        ratio: f64,
        how: Vec<How>,
        named: BTreeMap<String, Option<bool>>,
        packed: Vec<u8>,
        pair: (char, ()),
    }

    fn typed() -> Typed {
        Typed {
            id: u64::MAX,
            below: -5,
            ratio: 0.1,
            how: vec![How::Still, How::Blurred { by: 0.5 }],
            named: BTreeMap::from([("a".into(), None), ("b".into(), Some(true))]),
            packed: (0..=255).collect(),
            pair: ('€', ()),
        }
    }

    #[test]
    fn a_value_inside_a_message_comes_back_as_it_was_and_means_the_same_to_both_sides() {
        let sent = encode(&Edge::Item(3, typed()), Vec::new()).unwrap();
        let Edge::Item(3, raw) = decode::<Edge<RawItem>>(&sent.body, Vec::new(), None).unwrap() else {
            panic!("another number")
        };
        assert_eq!(decode::<Typed>(&raw.body, Vec::new(), None).unwrap(), typed(), "by itself");
        let back = encode(&Edge::Item(4, raw), Vec::new()).unwrap();
        assert_eq!(decode::<Edge<Typed>>(&back.body, Vec::new(), None).unwrap(), Edge::Item(4, typed()));
    }

    #[test]
    fn its_tensors_go_with_it_and_those_of_another_value_do_not() {
        let domain = ClockDomain::new(ProcessId::OUTSIDE, ClockPage::create().unwrap());
        let options = PoolOptions { budget: 64 << 20, first_chunk: 1 << 20 };
        let pool = Pool::new(HostBackend::new(), domain.clone(), options, 0);
        let stream = DeviceStream::new(pool, domain).unwrap();
        let both = [1.0_f32, 2.0].map(|value| stream.from_slice(&[1], &[value]).unwrap().freeze());

        let sent = encode(&Edge::Item(0, both.to_vec()), Vec::new()).unwrap();
        let came = tensors(&sent.leases, &sent.tensors).unwrap();
        let Edge::Item(_, raw) = decode::<Edge<RawItem>>(&sent.body, came, None).unwrap();
        assert_eq!(raw.tensors.len(), 2);
        let back = encode(&Edge::Item(0, raw.clone()), Vec::new()).unwrap();
        let came = tensors(&back.leases, &back.tensors).unwrap();
        let Edge::Item(_, again) = decode::<Edge<Vec<Tensor>>>(&back.body, came, None).unwrap();
        let values: Vec<f32> = again.iter().flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).collect();
        assert_eq!(values, [1.0, 2.0]);

        // The body names tensors by their indices, which are taken here.
        let error = encode(&(both[0].clone(), raw), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("without tensors before it"), "{error}");
    }

    #[test]
    fn bytes_that_are_no_value_are_an_error() {
        let malformed = RawItem { body: vec![0x91], tensors: Vec::new() };
        assert!(encode(&malformed, Vec::new()).is_err());
        let empty = RawItem { body: Vec::new(), tensors: Vec::new() };
        assert!(encode(&empty, Vec::new()).is_err());
        assert!(serde_json::from_str::<RawItem>("3").is_err(), "no message is being read");
    }
}
