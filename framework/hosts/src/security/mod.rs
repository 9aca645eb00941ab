//! Decides who may speak to a node's hosts. With a key file or PEM files this is mutual TLS 1.3; without
//! either only processes of this user and of root on this machine are admitted (HOST-12).
//!
//! With a key file, every host has the same Ed25519 key, made from the file's 32 bytes, and accepts exactly
//! that key from the other (raw public keys, RFC 7250). There is no certificate to expire and no authority to
//! run: every process with the file belongs to the node. Before TLS each side shows a proof of the key, so
//! that a listener spends no more on strangers than a look at that. With PEM files, each host has a
//! certificate of one authority, for the name by which others dial it.
//!
//! A key file that others can read, a key of another length, and an incomplete set of PEM files are errors at
//! the start.

mod key;
mod neighbour;
mod proof;
mod sock_diag;
mod tls;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::geteuid;
use rustls::{ClientConfig, ServerConfig};

use self::key::SharedKey;
pub(crate) use self::proof::{Nonce, PROOF_BYTES, Prover};

/// Names the file with the key of a node.
pub const KEY_FILE: &str = "TENSORPOST_KEY_FILE";

/// Name the PEM files of a host: the authority's certificates, the host's own, and its key.
pub const PEM_FILES: [&str; 3] = ["TENSORPOST_CA_FILE", "TENSORPOST_CERT_FILE", "TENSORPOST_CERT_KEY_FILE"];

/// How connections are secured.
#[derive(Clone)]
pub struct Security(Kind);

#[derive(Clone)]
enum Kind {
    /// Of this user's and root's processes.
    Loopback(u32),
    Tls {
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
        /// Set with a key file. Certificates, which are issued for names, have no proof.
        prover: Option<Prover>,
    },
}

/// Why connections cannot be secured.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// The key has another length.
    #[error("the key in {} has {found} bytes, and has to have 32: write it with `head -c 32 /dev/urandom`", path.display())]
    Length { path: PathBuf, found: u64 },
    /// Others can read the key, or another user wrote it.
    #[error("{} can be read or written by others than its user, or is neither this user's nor root's: `chmod 600` it", path.display())]
    Open { path: PathBuf },
    /// A PEM file lacks something that it should have.
    #[error("{} has no {what}: {why}", path.display())]
    Pem { path: PathBuf, what: &'static str, why: String },
    /// Some of the PEM files are named, and not all.
    #[error(
        "{set} is set and {missing} is not: a host has an authority's certificates, one of its own, and its key"
    )]
    Half { set: &'static str, missing: &'static str },
    /// Both kinds are named.
    #[error("both {KEY_FILE} and {set} are set: a node has one key, or certificates")]
    Both { set: &'static str },
    /// The key does not make a TLS configuration.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// HOST-12: the address is not on loopback.
    #[error(
        "without a key only this machine's loopback is used, and {address} is not of it: name a key file in {KEY_FILE}"
    )]
    OnlyLoopback { address: SocketAddr },
    /// HOST-12: the other process belongs to another user.
    #[error(
        "{address} is of user {user} of this machine, and this host of user {own}: without a key a node is of one user; name one key file \
         on all its hosts in {KEY_FILE}"
    )]
    OtherUser { address: SocketAddr, user: u32, own: u32 },
    /// HOST-12: the user of the other process is not known.
    #[error(
        "nobody knows which user of this machine {address} is of ({why}), and without a key a node is of one: name one key file on all \
         its hosts in {KEY_FILE}"
    )]
    NoUser { address: SocketAddr, why: String },
}

/// The files of a host that has a certificate.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The authority's certificates.
    pub authority: PathBuf,
    /// This host's certificate, with the ones between it and the authority.
    pub certificate: PathBuf,
    /// This host's private key, which nobody else can read; a file of root's may be readable by a group.
    pub key: PathBuf,
}

impl Security {
    /// Reads [`KEY_FILE`] or [`PEM_FILES`] from the environment; without them, uses loopback.
    ///
    /// # Errors
    /// The variables contradict each other, or name files that are not valid.
    pub fn from_environment() -> Result<Self, SecurityError> {
        Self::from_variables(|name| std::env::var_os(name).map(PathBuf::from))
    }

    /// Reads these variables.
    ///
    /// # Errors
    /// See [`from_environment`](Self::from_environment).
    pub fn from_variables(get: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, SecurityError> {
        let get = |name| get(name).filter(|path| !path.as_os_str().is_empty());
        let pem = PEM_FILES.map(get);
        let set = PEM_FILES.iter().zip(&pem).find(|(_, path)| path.is_some()).map(|(name, _)| *name);
        match (get(KEY_FILE), set, pem) {
            (None, None, _) => Ok(Self::loopback()),
            (Some(key), None, _) => Self::key_file(&key),
            (Some(_), Some(set), _) => Err(SecurityError::Both { set }),
            (None, Some(_), [Some(authority), Some(certificate), Some(key)]) => {
                Self::pem(&Pem { authority, certificate, key })
            }
            (None, Some(set), pem) => {
                let missing = PEM_FILES.iter().zip(&pem).find(|(_, path)| path.is_none());
                Err(SecurityError::Half { set, missing: missing.map_or("", |(name, _)| *name) })
            }
        }
    }

    /// Secures nothing, and admits nothing beyond this machine and this user.
    pub fn loopback() -> Self {
        Self::loopback_of(geteuid().as_raw())
    }

    /// As a process of this user does with [`loopback`](Self::loopback).
    pub(crate) fn loopback_of(user: u32) -> Self {
        Security(Kind::Loopback(user))
    }

    /// Uses mutual TLS with the key in a file of 32 bytes and mode 0600.
    ///
    /// # Errors
    /// The file is not such a file.
    pub fn key_file(path: &Path) -> Result<Self, SecurityError> {
        let key = SharedKey::read(path)?;
        let (server, client) = tls::of_shared(&key)?;
        let prover = Some(key.prover);
        Ok(Security(Kind::Tls { server: Arc::new(server), client: Arc::new(client), prover }))
    }

    /// Uses mutual TLS with certificates.
    ///
    /// # Errors
    /// A file lacks something that it should have.
    pub fn pem(files: &Pem) -> Result<Self, SecurityError> {
        let (server, client) = tls::of_pem(files)?;
        Ok(Security(Kind::Tls { server: Arc::new(server), client: Arc::new(client), prover: None }))
    }

    /// Checks whether this address may be listened at, or dialled.
    ///
    /// # Errors
    /// Nothing is secured, and the address is not on loopback (HOST-12).
    pub fn allows(&self, address: SocketAddr) -> Result<(), SecurityError> {
        match self.0 {
            Kind::Loopback(_) if !address.ip().to_canonical().is_loopback() => {
                Err(SecurityError::OnlyLoopback { address })
            }
            _ => Ok(()),
        }
    }

    /// Returns the user of a process that has connected within this machine, if nothing else identifies it.
    ///
    /// # Errors
    /// It is a user other than this one and root, or the user is not known (HOST-12).
    pub(crate) fn admits(&self, from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, SecurityError> {
        match self.0 {
            Kind::Loopback(own) => neighbour::connected(from, to, own).map(Some),
            Kind::Tls { .. } => Ok(None),
        }
    }

    /// Checks whether the process that listens at this address may be believed, if nothing else identifies
    /// it.
    ///
    /// # Errors
    /// See [`admits`](Self::admits).
    pub(crate) fn believes(&self, at: SocketAddr) -> Result<(), SecurityError> {
        match self.0 {
            Kind::Loopback(own) => neighbour::listening(at, own).map(drop),
            Kind::Tls { .. } => Ok(()),
        }
    }

    /// Returns the prover, which makes and checks proofs of the key before TLS; `None` without a key file.
    pub(crate) fn prover(&self) -> Option<&Prover> {
        match &self.0 {
            Kind::Tls { prover, .. } => prover.as_ref(),
            Kind::Loopback(_) => None,
        }
    }

    /// Returns the configuration that accepts connections; `None` if nothing is secured.
    pub fn server(&self) -> Option<Arc<ServerConfig>> {
        match &self.0 {
            Kind::Loopback(_) => None,
            Kind::Tls { server, .. } => Some(Arc::clone(server)),
        }
    }

    /// Returns the configuration that makes connections, and whether the other's certificate has to be for
    /// the name that is dialled. `None` if nothing is secured.
    pub fn client(&self) -> Option<(Arc<ClientConfig>, bool)> {
        match &self.0 {
            Kind::Loopback(_) => None,
            Kind::Tls { client, prover, .. } => Some((Arc::clone(client), prover.is_none())),
        }
    }
}

/// Shows no key.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Loopback(_) => "Security(loopback)",
            Kind::Tls { prover: Some(_), .. } => "Security(key)",
            Kind::Tls { prover: None, .. } => "Security(pem)",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
