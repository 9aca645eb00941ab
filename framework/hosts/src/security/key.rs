//! The one key of a node's hosts.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ring::hkdf;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustix::process::geteuid;

use super::SecurityError;

const BYTES: usize = 32;

/// What the TLS key is made for. Another use of the file would have another.
const USE: &[u8] = b"tensorpost hosts, tls key, version 1";

/// An Ed25519 key pair.
pub(super) struct SharedKey {
    /// PKCS#8, version 1 (RFC 8410).
    pub(super) private: Vec<u8>,
    /// The subject's public key information (RFC 8410).
    pub(super) public: Vec<u8>,
}

impl SharedKey {
    pub(super) fn read(path: &Path) -> Result<Self, SecurityError> {
        let unread = |error| SecurityError::Read { path: path.to_owned(), error };
        let mut file = File::open(path).map_err(unread)?;
        // Of the file that is open, so that it is not another by now.
        let known = file.metadata().map_err(unread)?;
        let own = known.uid() == geteuid().as_raw() || known.uid() == 0;
        if known.mode() & 0o077 != 0 || !own {
            return Err(SecurityError::Open { path: path.to_owned() });
        }
        let mut bytes = Vec::with_capacity(BYTES + 1);
        file.by_ref().take(BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
        let secret: [u8; BYTES] = bytes
            .try_into()
            .map_err(|_| SecurityError::Length { path: path.to_owned(), found: known.len() })?;
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
        // Both forms are fixed but for the key itself (RFC 8410, 4 and 7).
        let private =
            [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20], &seed[..]].concat();
        let public =
            [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0], pair.public_key().as_ref()].concat();
        Ok(SharedKey { private, public })
    }
}
