//! What is looked at of a peer's metadata before NIXL reads it.
//!
//! The form is NIXL's own (`nixlSerDes`, seen in 1.3 to 1.5): a mark, then fields of a tag, a length of 8
//! bytes, so many bytes, and a bar. Who is named, how often, and each length are found to be what they have
//! to be for one agent with one arena. The address of UCX's worker and the arena's key are UCX's alone, which
//! trusts them.

use crate::limits::MAX_NIXL_METADATA;

/// Why bytes are not metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMetadata {
    /// There is too much of it.
    #[error("it has {bytes} bytes, and {MAX_NIXL_METADATA} are the most")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// It ends too early, or goes on.
    #[error("it does not end where it should, in or behind {field}")]
    Cut {
        /// Where.
        field: &'static str,
    },
    /// A field that it must not have, or with a value that it cannot have.
    #[error("its {field} is not what it has to be")]
    Field {
        /// Which.
        field: &'static str,
    },
}

const MARK: &[u8] = b"nixlSerDes|";

/// Bytes of a descriptor before its key: address, length and device.
const DESCRIPTOR: usize = 24;

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn skip(&mut self, exactly: &[u8], field: &'static str) -> Result<(), BadMetadata> {
        self.0 = self.0.strip_prefix(exactly).ok_or(BadMetadata::Field { field })?;
        Ok(())
    }

    /// The bytes of the field with this tag.
    fn next(&mut self, tag: &[u8], field: &'static str) -> Result<&'a [u8], BadMetadata> {
        self.skip(tag, field)?;
        let cut = BadMetadata::Cut { field };
        let (length, rest) = self.0.split_first_chunk::<8>().ok_or(cut.clone())?;
        // Never longer than what is there, so it fits.
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (bytes, rest) = rest.split_at_checked(length).ok_or(cut)?;
        self.0 = rest;
        self.skip(b"|", field)?;
        Ok(bytes)
    }

    fn is(&mut self, tag: &[u8], value: &[u8], field: &'static str) -> Result<(), BadMetadata> {
        if self.next(tag, field)? == value { Ok(()) } else { Err(BadMetadata::Field { field }) }
    }
}

/// Looks whether it is metadata of an agent of this name, reached by UCX, with this one range of memory.
///
/// # Errors
/// It is not.
pub(super) fn check(
    metadata: &[u8],
    name: &str,
    address: u64,
    bytes: u64,
    gpu: bool,
) -> Result<(), BadMetadata> {
    if metadata.len() > MAX_NIXL_METADATA {
        return Err(BadMetadata::TooLong { bytes: metadata.len() });
    }
    let one = 1_u64.to_le_bytes();
    let mut fields = Fields(metadata);
    fields.skip(MARK, "mark")?;
    fields.is(b"Agent", name.as_bytes(), "agent")?;
    fields.is(b"Conns", &one, "number of connections")?;
    fields.is(b"t", b"UCX", "back end")?;
    if fields.next(b"c", "address of a worker")?.is_empty() {
        return Err(BadMetadata::Field { field: "address of a worker" });
    }
    fields.is(b"", b"MemSection", "section")?;
    fields.is(b"nixlSecElms", &one, "number of sections")?;
    fields.is(b"bknd", b"UCX", "back end of the memory")?;
    fields.is(b"nixlDList", b"nixlSDList", "list")?;
    fields.is(b"t", &u32::from(gpu).to_le_bytes(), "kind of memory")?;
    fields.is(b"n", &one, "number of ranges")?;
    let range = fields.next(b"", "range")?;
    let said = [address.to_le_bytes(), bytes.to_le_bytes()].concat();
    if range.len() <= DESCRIPTOR || !range.starts_with(&said) {
        return Err(BadMetadata::Field { field: "range" });
    }
    if fields.0.is_empty() { Ok(()) } else { Err(BadMetadata::Cut { field: "all" }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(to: &mut Vec<u8>, tag: &[u8], value: &[u8]) {
        to.extend_from_slice(tag);
        to.extend_from_slice(&(value.len() as u64).to_le_bytes());
        to.extend_from_slice(value);
        to.push(b'|');
    }

    /// As 1.5.1 has written it.
    fn seen() -> Vec<u8> {
        let mut all = MARK.to_vec();
        let one = 1_u64.to_le_bytes();
        field(&mut all, b"Agent", b"two");
        field(&mut all, b"Conns", &one);
        field(&mut all, b"t", b"UCX");
        field(&mut all, b"c", &[7; 213]);
        field(&mut all, b"", b"MemSection");
        field(&mut all, b"nixlSecElms", &one);
        field(&mut all, b"bknd", b"UCX");
        field(&mut all, b"nixlDList", b"nixlSDList");
        field(&mut all, b"t", &[0; 4]);
        field(&mut all, b"n", &one);
        let range = [&0x1000_u64.to_le_bytes()[..], &64_u64.to_le_bytes(), &[0; 8], &[9; 11]].concat();
        field(&mut all, b"", &range);
        all
    }

    fn check_seen(metadata: &[u8]) -> Result<(), BadMetadata> {
        check(metadata, "two", 0x1000, 64, false)
    }

    #[test]
    fn metadata_is_of_one_agent_with_one_arena() {
        assert_eq!(check_seen(&seen()), Ok(()));
        assert!(check(&seen(), "one", 0x1000, 64, false).is_err(), "another agent's");
        assert!(check(&seen(), "two", 0x1008, 64, false).is_err(), "other memory");
        assert!(check(&seen(), "two", 0x1000, 65, false).is_err(), "more memory");
        assert!(check(&seen(), "two", 0x1000, 64, true).is_err(), "another kind of memory");
        let long = vec![b'|'; MAX_NIXL_METADATA + 1];
        assert_eq!(check_seen(&long), Err(BadMetadata::TooLong { bytes: long.len() }));
        let mut behind = seen();
        behind.push(0);
        assert!(check_seen(&behind).is_err());
        for length in 0..seen().len() {
            assert!(check_seen(&seen()[..length]).is_err(), "cut to {length}");
        }
    }

    proptest! {
        // WIRE-1.
        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), at in any::<prop::sample::Index>()) {
            prop_assert!(check_seen(&bytes).is_err());
            // What no field of ours looks at are the address and the key; a length or a tag that differs is
            // noticed.
            let mut bent = seen();
            let at = at.index(60);
            bent[at] ^= 0x41;
            prop_assert!(check_seen(&bent).is_err());
        }
    }
}
