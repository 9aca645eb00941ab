//! The encoding of requests and answers, which have [one form](crate::frame::one_form).

use bytes::Bytes;

use super::{Admitted, Request};
use crate::frame::{WireError, one_form, within};
use crate::limits::{MAX_HOSTS, MAX_NAME};

impl Request {
    /// Encodes the request. A name or an address that is too long is cut.
    pub fn encode(&self) -> Bytes {
        let advertise = self.advertise.as_deref().map(cut);
        one_form::encode(&(self.life, cut(&self.name), self.port, advertise))
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// The bytes are not a request.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let request: Request = one_form::decode(bytes)?;
        check_text(&request.name)?;
        request.advertise.as_deref().map_or(Ok(()), check_text)?;
        Ok(request)
    }
}

impl Admitted {
    /// Encodes the answer.
    pub fn encode(&self) -> Bytes {
        let others = self.others.iter().map(|other| (other.who, cut(&other.name), cut(&other.address)));
        one_form::encode(&(self.you, self.head, others.collect::<Vec<_>>()))
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// The bytes are not an answer.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let admitted: Admitted = one_form::decode(bytes)?;
        within("number of hosts", admitted.others.len() as u64, 0, MAX_HOSTS as u64)?;
        for other in &admitted.others {
            check_text(&other.name)?;
            check_text(&other.address)?;
        }
        Ok(admitted)
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}

/// Checks that a text is short, and safe to show, because names go into logs.
fn check_text(text: &str) -> Result<(), WireError> {
    let value = within("length of a name", text.len() as u64, 0, MAX_NAME as u64)?;
    let is_plain = !text.chars().any(char::is_control);
    is_plain.then_some(()).ok_or(WireError::Field { field: "name", value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Member;
    use super::*;
    use crate::ids::{HostId, HostLife, Life};

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
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
            prop_assert!(Request::decode(&bytes[..at.index(bytes.len())]).is_err());
            let bytes = admitted.encode();
            prop_assert_eq!(Admitted::decode(&bytes), Ok(admitted));
            prop_assert!(Admitted::decode(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_have_one_form(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), bytes.clone());
            }
            if let Ok(admitted) = Admitted::decode(&bytes) {
                prop_assert_eq!(admitted.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_long_name_is_cut_and_a_control_character_refused() {
        let request = |name: String| Request { life: Life(1), name, port: 1, advertise: None };
        let read = Request::decode(&request("ä".repeat(200)).encode()).expect("it was cut");
        assert_eq!(read.name, "ä".repeat(127));
        let refused = Request::decode(&request("\u{1b}[31m".to_owned()).encode());
        assert_eq!(refused, Err(WireError::Field { field: "name", value: 5 }));
    }
}
