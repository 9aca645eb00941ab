//! MessagePack with one form: what hosts say to each other beside [frames](super::Frame) and pieces.
//!
//! WIRE-1: a value that was decoded is encoded again, and the bytes are compared. So each value has only one
//! encoding, in which nothing hides that no check has seen. The caller bounds the bytes before it decodes
//! them, and the lengths of lists and texts afterwards. Until then an element of a list takes the memory of
//! its type, even if it came in one byte. A list that did not come takes at most 1 MiB.

use std::io;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::wire::{WireError, whole};

/// Bytes of most values, so that one allocation is enough for them.
const FRONT: usize = 64;

/// Encodes a value of numbers, texts, and lists of them.
pub fn encode(value: &impl Serialize) -> Bytes {
    encode_before(value, &[])
}

/// As [`encode`], with these bytes behind it.
pub fn encode_before(value: &impl Serialize, behind: &[u8]) -> Bytes {
    let mut bytes: Vec<u8> = Vec::with_capacity(FRONT + behind.len());
    // MessagePack takes every such value, and a vector all bytes.
    let _ = rmp_serde::encode::write(&mut bytes, value);
    bytes.extend_from_slice(behind);
    bytes.into()
}

/// Decodes a value from all of `bytes`.
///
/// # Errors
/// The bytes are another value, or have another form.
pub fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (value, rest) = decode_front(bytes)?;
    whole(&rest, value)
}

/// Decodes a value from the front of `bytes`. Returns the bytes behind it too.
///
/// # Errors
/// The bytes begin with another value, or with another form of it.
pub fn decode_front<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    let value: T = rmp_serde::from_slice(bytes).map_err(|_| WireError::Form)?;
    let mut front = Same(bytes);
    rmp_serde::encode::write(&mut front, &value).map_err(|_| WireError::Form)?;
    Ok((value, front.0))
}

/// Takes what is written to it off the front of these bytes, and refuses anything else.
struct Same<'a>(&'a [u8]);

impl io::Write for Same<'_> {
    fn write(&mut self, written: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(written).ok_or(io::ErrorKind::InvalidData)?;
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_form() {
        let value = (7_u64, Some("a".to_owned()), vec![1_u16, 300]);
        let bytes = encode(&value);
        assert_eq!(decode(&bytes), Ok(value.clone()));
        // Everything here is read as the same value: a longer form of the number 7, and of the list's length.
        let of = |from: &[u8], to: &[u8]| {
            let at = bytes.windows(from.len()).position(|window| window == from).expect("it is in there");
            let form = [&bytes[..at], to, &bytes[at + from.len()..]].concat();
            assert_eq!(rmp_serde::from_slice(&form).ok(), Some(value.clone()), "{form:?}");
            decode::<(u64, Option<String>, Vec<u16>)>(&form)
        };
        assert_eq!(of(&[7], &[0xcc, 7]), Err(WireError::Form));
        assert_eq!(of(&[0x92, 1], &[0xdc, 0, 2, 1]), Err(WireError::Form));
        let behind = [&bytes[..], &[0]].concat();
        assert_eq!(decode::<(u64, Option<String>, Vec<u16>)>(&behind), Err(WireError::Trailing { bytes: 1 }));
        let front = decode_front::<(u64, Option<String>, Vec<u16>)>(&behind);
        assert_eq!(front, Ok((value, &[0][..])));
    }

    #[test]
    fn a_list_that_did_not_come_is_refused() {
        // An array of 2^32 - 1 numbers, of which none is there.
        assert_eq!(decode::<Vec<u64>>(&[0xdd, 0xff, 0xff, 0xff, 0xff]), Err(WireError::Form));
    }
}
