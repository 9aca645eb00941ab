//! The same message by value: serialised, written to a Unix socket, read and deserialised by another thread.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cores::pin;

/// The framework's message with a tensor, without the framework.
#[derive(Serialize, Deserialize)]
pub struct ByValue {
    /// Its number.
    pub number: u64,
    /// The elements, as MessagePack bytes: one copy, nothing per element.
    #[serde(with = "bytes")]
    pub data: Vec<u8>,
}

mod bytes {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(data)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

/// Sends `count` messages of `size` bytes, each acknowledged with one byte before the next. Only the
/// hand-over is timed; the data exists before.
///
/// # Errors
/// The errors of the sockets.
///
/// # Panics
/// The peer thread found a message that is not the one sent.
pub fn round_trips(count: u64, size: usize) -> io::Result<Duration> {
    let (mut here, mut there) = UnixStream::pair()?;
    let peer = thread::spawn(move || -> io::Result<()> {
        pin(1);
        let mut body = Vec::new();
        for number in 0..count {
            let mut length = [0; 8];
            there.read_exact(&mut length)?;
            body.resize(u64::from_le_bytes(length) as usize, 0);
            there.read_exact(&mut body)?;
            let message: ByValue = rmp_serde::from_slice(&body).map_err(io::Error::other)?;
            assert!(message.number == number && message.data.len() == size, "the message that was sent");
            there.write_all(&[1])?;
        }
        Ok(())
    });
    pin(0);
    let mut message = ByValue { number: 0, data: vec![7; size] };
    let mut body = Vec::new();
    let since = Instant::now();
    for number in 0..count {
        message.number = number;
        body.clear();
        message
            .serialize(&mut rmp_serde::Serializer::new(&mut body).with_struct_map())
            .map_err(io::Error::other)?;
        here.write_all(&(body.len() as u64).to_le_bytes())?;
        here.write_all(&body)?;
        here.read_exact(&mut [0])?;
    }
    let time = since.elapsed();
    peer.join().expect("the peer thread ends")?;
    Ok(time)
}
