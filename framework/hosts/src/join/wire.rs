//! The encoding of requests and answers, which follows that of [frames](crate::frame).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Admitted, Member, Request};
use crate::frame::{WireError, get_life, left, put_life, whole, within};
use crate::ids::Life;
use crate::limits::{MAX_HOSTS, MAX_NAME};

impl Request {
    /// Encodes the request. A name or an address that is too long is cut.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(self.life.0);
        out.put_u16_le(self.port);
        put_text(&mut out, &self.name);
        put_text(&mut out, self.advertise.as_deref().unwrap_or(""));
        out.freeze()
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are not a request.
    pub fn decode(mut bytes: Bytes) -> Result<Self, WireError> {
        let from = &mut bytes;
        let life = Life(from.try_get_u64_le()?);
        let port = from.try_get_u16_le()?;
        let name = get_text(from)?;
        let advertise = Some(get_text(from)?).filter(|said| !said.is_empty());
        whole(from, Request { life, name, port, advertise })
    }
}

impl Admitted {
    /// Encodes the answer.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        put_life(&mut out, self.you);
        put_life(&mut out, self.head);
        out.put_u16_le(self.others.len() as u16);
        for member in &self.others {
            put_life(&mut out, member.who);
            put_text(&mut out, &member.name);
            put_text(&mut out, &member.address);
        }
        out.freeze()
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// The bytes are not an answer.
    pub fn decode(mut bytes: Bytes) -> Result<Self, WireError> {
        let from = &mut bytes;
        let (you, head) = (get_life(from)?, get_life(from)?);
        let count = within("number of hosts", from.try_get_u16_le()?.into(), 0, MAX_HOSTS as u64)?;
        let member = |_| {
            let who = get_life(from)?;
            Ok(Member { who, name: get_text(from)?, address: get_text(from)? })
        };
        let others = (0..count).map(member).collect::<Result<_, WireError>>()?;
        whole(from, Admitted { you, head, others })
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    let bytes = &text.as_bytes()[..text.floor_char_boundary(MAX_NAME)];
    out.put_u16_le(bytes.len() as u16);
    out.extend_from_slice(bytes);
}

/// Reads a text that is safe to show, because names go into logs.
fn get_text(from: &mut Bytes) -> Result<String, WireError> {
    let value = within("length of a name", from.try_get_u16_le()?.into(), 0, MAX_NAME as u64)?;
    let len = left(from, value as usize, 1)?;
    let text = String::from_utf8(from.split_to(len).into()).ok();
    text.filter(|text| !text.chars().any(char::is_control)).ok_or(WireError::Field { field: "name", value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{HostId, HostLife};

    fn life() -> impl Strategy<Value = HostLife> {
        (any::<u16>(), any::<u64>())
            .prop_map(|(host, life)| HostLife { host: HostId(host), life: Life(life) })
    }

    fn request() -> impl Strategy<Value = Request> {
        let advertise = prop::option::of("[a-z.:0-9]{1,30}");
        (any::<u64>(), "[a-z-]{0,20}", any::<u16>(), advertise)
            .prop_map(|(life, name, port, advertise)| Request { life: Life(life), name, port, advertise })
    }

    fn admitted() -> impl Strategy<Value = Admitted> {
        let member = (life(), "[a-z-]{0,20}", "[a-z.:0-9]{0,30}").prop_map(|(who, name, address)| Member {
            who,
            name,
            address,
        });
        (life(), life(), prop::collection::vec(member, 0..4)).prop_map(|(you, head, others)| Admitted {
            you,
            head,
            others,
        })
    }

    proptest! {
        #[test]
        fn both_come_back_and_are_refused_where_they_are_cut(
            request in request(),
            admitted in admitted(),
            at in any::<prop::sample::Index>(),
        ) {
            let bytes = request.encode();
            prop_assert_eq!(Request::decode(bytes.clone()), Ok(request));
            prop_assert!(Request::decode(bytes.slice(..at.index(bytes.len()))).is_err());
            let bytes = admitted.encode();
            prop_assert_eq!(Admitted::decode(bytes.clone()), Ok(admitted));
            prop_assert!(Admitted::decode(bytes.slice(..at.index(bytes.len()))).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_have_one_form(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let bytes = Bytes::from(bytes);
            if let Ok(request) = Request::decode(bytes.clone()) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            if let Ok(admitted) = Admitted::decode(bytes.clone()) {
                prop_assert_eq!(admitted.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_long_name_is_cut_and_a_control_character_refused() {
        let request = |name: String| Request { life: Life(1), name, port: 1, advertise: None };
        let read = Request::decode(request("ä".repeat(200)).encode()).expect("it was cut");
        assert_eq!(read.name, "ä".repeat(127));
        let refused = Request::decode(request("\u{1b}[31m".to_owned()).encode());
        assert_eq!(refused, Err(WireError::Field { field: "name", value: 5 }));
    }
}
