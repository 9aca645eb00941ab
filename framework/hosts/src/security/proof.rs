//! A proof of the key that costs whoever checks it a microsecond and no memory, so that strangers can be told
//! from hosts before TLS.
//!
//! It is no more than that: what is said over a connection is believed after TLS alone. Who has heard one can
//! say it again, so the listener takes each once.

use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};

/// Different in each proof.
pub(crate) type Nonce = [u8; 16];

/// A nonce, and the HMAC of the mark before it and of it.
pub(crate) const PROOF_BYTES: usize = size_of::<Nonce>() + 32;

/// What the key of proofs is made for.
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

    /// A proof for a connection that begins with this mark; nothing where the system has no random numbers.
    pub(crate) fn prove(&self, mark: u8) -> Option<[u8; PROOF_BYTES]> {
        let mut proof = [0; PROOF_BYTES];
        let (nonce, tag) = proof.split_at_mut(size_of::<Nonce>());
        SystemRandom::new().fill(nonce).ok()?;
        tag.copy_from_slice(hmac::sign(&self.0, &[&[mark], &*nonce].concat()).as_ref());
        Some(proof)
    }

    /// The nonce of a proof that is one.
    pub(crate) fn check(&self, mark: u8, proof: &[u8; PROOF_BYTES]) -> Option<Nonce> {
        let (nonce, tag) = proof.split_first_chunk()?;
        hmac::verify(&self.0, &[&[mark], &nonce[..]].concat(), tag).ok().map(|()| *nonce)
    }
}
