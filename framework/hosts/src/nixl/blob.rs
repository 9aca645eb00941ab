//! The checks of a peer's metadata before NIXL reads it.
//!
//! The format is NIXL's own (`nixlSerDes`, seen in 1.3 to 1.5): a mark, then fields of a tag, a length of 8
//! bytes, that many bytes, and a bar. The names, their number, and each length have to be right for one agent
//! with one arena. Only UCX understands the address of its worker and the arena's key, and it trusts them.

use crate::limits::MAX_NIXL_METADATA;

/// Why bytes are not valid metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum BadMetadata {
    /// The metadata is too long.
    #[error("it has {bytes} bytes, and {MAX_NIXL_METADATA} are the most")]
    TooLong { bytes: usize },
    /// The metadata ends too early, or goes on.
    #[error("it does not end where it should, in or behind {field}")]
    Cut { field: &'static str },
    /// A field that must not be there, or has a value that it cannot have.
    #[error("its {field} is not what it has to be")]
    Field { field: &'static str },
}

const MARK: &[u8] = b"nixlSerDes|";

/// The bytes of a descriptor before its key: address, length and device.
const DESCRIPTOR: usize = 24;

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn skip(&mut self, exactly: &[u8], field: &'static str) -> Result<(), BadMetadata> {
        self.0 = self.0.strip_prefix(exactly).ok_or(BadMetadata::Field { field })?;
        Ok(())
    }

    /// Returns the bytes of the field with this tag.
    fn next(&mut self, tag: &[u8], field: &'static str) -> Result<&'a [u8], BadMetadata> {
        self.skip(tag, field)?;
        let cut = BadMetadata::Cut { field };
        let (length, rest) = self.0.split_first_chunk::<8>().ok_or(cut.clone())?;
        // A length that does not fit is longer than the rest, and refused below.
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

/// Checks that these bytes are the metadata of an agent of this name, reached by UCX, with this one range of
/// memory.
///
/// # Errors
/// They are not.
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
    // The order of the fields is that in which NIXL writes them.
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

    /// Returns metadata as 1.5.1 has written it.
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
            // The checks do not look into the address and the key; a length or a tag that differs is noticed.
            let mut bent = seen();
            let at = at.index(60);
            bent[at] ^= 0x41;
            prop_assert!(check_seen(&bent).is_err());
        }
    }
}
