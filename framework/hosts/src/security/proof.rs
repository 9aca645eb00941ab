//! A proof of the key that costs its checker a microsecond and no memory, so that strangers can be told from
//! hosts before TLS.
//!
//! It proves no more than that: the content of a connection is believed only after TLS. An eavesdropper can
//! repeat a proof, so the listener accepts each one once.

use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};

/// A number that differs in each proof.
pub(crate) type Nonce = [u8; 16];

/// A nonce, and the HMAC of the mark before it and of the nonce.
pub(crate) const PROOF_BYTES: usize = size_of::<Nonce>() + 32;

/// The purpose for which the key of proofs is derived.
const USE: &[u8] = b"tensorpost hosts, proof before tls, version 1";

/// Makes and checks proofs.
#[derive(Clone)]
pub(crate) struct Prover(hmac::Key);

impl Prover {
    pub(super) fn new(derived: &hkdf::Prk) -> Option<Self> {
        let mut key = [0; 32];
        derived.expand(&[USE], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key)).ok()?;
        Some(Prover(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// Makes a proof for a connection that begins with this mark; `None` if the system has no random numbers.
    pub(crate) fn prove(&self, mark: u8) -> Option<[u8; PROOF_BYTES]> {
        let mut proof = [0; PROOF_BYTES];
        let (nonce, tag) = proof.split_at_mut(size_of::<Nonce>());
        SystemRandom::new().fill(nonce).ok()?;
        tag.copy_from_slice(hmac::sign(&self.0, &[&[mark], &*nonce].concat()).as_ref());
        Some(proof)
    }

    /// Returns the nonce of a valid proof.
    pub(crate) fn check(&self, mark: u8, proof: &[u8; PROOF_BYTES]) -> Option<Nonce> {
        let (nonce, tag) = proof.split_first_chunk()?;
        hmac::verify(&self.0, &[&[mark], &nonce[..]].concat(), tag).ok().map(|()| *nonce)
    }
}
