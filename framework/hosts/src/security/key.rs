//! The one key that all hosts of a node share.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ring::hkdf;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustix::process::geteuid;

use super::{Prover, SecurityError};

const BYTES: usize = 32;

/// The purpose for which the TLS key is derived. Another use of the file would have another.
const USE: &[u8] = b"tensorpost hosts, tls key, version 1";

/// Reads a file that only its user can read and write: up to one byte more than `most`, and the file's
/// length. The file is that of the user `own`, or of root. With `group`, a file of root's may be readable by
/// a group, as Kubernetes makes it.
pub(super) fn read_secret(
    path: &Path,
    most: u64,
    group: bool,
    own: u32,
) -> Result<(Vec<u8>, u64), SecurityError> {
    let unread = |error| SecurityError::Read { path: path.to_owned(), error };
    let mut file = File::open(path).map_err(unread)?;
    // Taken from the open file, so that it cannot be replaced in between.
    let known = file.metadata().map_err(unread)?;
    if !is_private(known.uid(), known.mode(), own, group) {
        return Err(SecurityError::Open { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.by_ref().take(most + 1).read_to_end(&mut bytes).map_err(unread)?;
    Ok((bytes, known.len()))
}

fn is_private(owner: u32, mode: u32, own: u32, group: bool) -> bool {
    let others = if group && owner == 0 { 0o037 } else { 0o077 };
    (owner == own || owner == 0) && mode & others == 0
}

/// An Ed25519 key pair, and the prover that proves the key before TLS.
pub(super) struct SharedKey {
    /// PKCS#8, version 1 (RFC 8410).
    pub(super) private: Vec<u8>,
    /// The subject's public key information (RFC 8410).
    pub(super) public: Vec<u8>,
    pub(super) prover: Prover,
}

impl SharedKey {
    pub(super) fn read(path: &Path) -> Result<Self, SecurityError> {
        let (bytes, found) = read_secret(path, BYTES as u64, false, geteuid().as_raw())?;
        let length = |_| SecurityError::Length { path: path.to_owned(), found };
        let secret: [u8; BYTES] = bytes.try_into().map_err(length)?;
        Self::new(&secret)
    }

    pub(super) fn new(secret: &[u8; BYTES]) -> Result<Self, SecurityError> {
        let refused = |what: &str| SecurityError::Tls(what.to_owned());
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, b"").extract(secret);
        let mut seed = [0; BYTES];
        derived
            .expand(&[USE], hkdf::HKDF_SHA256)
            .and_then(|key| key.fill(&mut seed))
            .map_err(|_| refused("no key can be made of the secret"))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| refused(&error.to_string()))?;
        // Both encodings are fixed except for the key itself (RFC 8410, 4 and 7).
        let private =
            [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20], &seed[..]].concat();
        let public =
            [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0], pair.public_key().as_ref()].concat();
        let prover = Prover::new(&derived).ok_or_else(|| refused("no key can be made of the secret"))?;
        Ok(SharedKey { private, public, prover })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_users_alone_or_roots() {
        const OWN: u32 = 1000;
        let is_private = |owner: u32, mode: u32, group: bool| is_private(owner, 0o100_000 | mode, OWN, group);
        for group in [false, true] {
            assert!(
                is_private(OWN, 0o600, group) && is_private(OWN, 0o400, group) && is_private(0, 0o600, group)
            );
            // A key of another user, who could put another key there.
            assert!(!is_private(OWN + 1, 0o600, group) && !is_private(OWN + 1, 0o644, group));
            for open in [0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o644, 0o666] {
                assert!(!is_private(OWN, open, group), "{open:o}");
            }
            assert!(!is_private(0, 0o660, group) && !is_private(0, 0o644, group));
        }
        assert!(is_private(0, 0o640, true) && is_private(0, 0o440, true) && !is_private(0, 0o640, false));
    }
}
