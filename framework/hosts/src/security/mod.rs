//! Who may speak to a node's hosts: mutual TLS 1.3 from one key file, or from PEM files; without either only
//! processes of this user and of root on this machine (HOST-12).
//!
//! With a key file, every host has the same Ed25519 key, made from the file's 32 bytes, and takes exactly
//! that key of the other (raw public keys, RFC 7250): there is no certificate to expire and no authority to
//! run. Whoever has the file is of the node. Before TLS each shows a proof of the key, so that a listener has
//! no more to do with strangers than to look at that. With PEM files, each host has a certificate of one
//! authority, for the name by which others dial it.
//!
//! A key file that others can read, a key of another length, and half of the PEM files are errors at the
//! start.

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

use rustls::{ClientConfig, ServerConfig};

use self::key::SharedKey;
pub(crate) use self::proof::{Nonce, PROOF_BYTES, Prover};

/// Names the file with the key of a node.
pub const KEY_FILE: &str = "TENSORPOST_KEY_FILE";

/// Name the PEM files of a host: the authority's certificates, this host's, and its key.
pub const PEM_FILES: [&str; 3] = ["TENSORPOST_CA_FILE", "TENSORPOST_CERT_FILE", "TENSORPOST_CERT_KEY_FILE"];

/// What connections are secured with.
#[derive(Clone)]
pub struct Security(Kind);

#[derive(Clone)]
enum Kind {
    Loopback,
    Tls {
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
        /// There is one with a key file. Certificates, which are for names, have none.
        prover: Option<Prover>,
    },
}

/// Why connections cannot be secured.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A key of another length.
    #[error("the key in {} has {found} bytes, and has to have 32: write it with `head -c 32 /dev/urandom`", path.display())]
    Length {
        /// Which file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
    },
    /// Others can read the key, or somebody else wrote it.
    #[error("{} can be read or written by others than its user, or is neither this user's nor root's: `chmod 600` it", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
    },
    /// What a PEM file has is not what it should have.
    #[error("{} has no {what}: {why}", path.display())]
    Pem {
        /// Which file.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Some of the PEM files are named, and not all.
    #[error(
        "{set} is set and {missing} is not: a host has an authority's certificates, one of its own, and its key"
    )]
    Half {
        /// One that is named.
        set: &'static str,
        /// One that is not.
        missing: &'static str,
    },
    /// Both kinds are named.
    #[error("both {KEY_FILE} and {set} are set: a node has one key, or certificates")]
    Both {
        /// Of the PEM files.
        set: &'static str,
    },
    /// The key does not make a TLS configuration.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// HOST-12.
    #[error(
        "without a key only this machine's loopback is used, and {address} is not of it: name a key file in {KEY_FILE}"
    )]
    OnlyLoopback {
        /// Which was named.
        address: SocketAddr,
    },
    /// HOST-12.
    #[error(
        "{address} is of user {user} of this machine, and this host of user {own}: without a key a node is of one user; name one key file \
         on all its hosts in {KEY_FILE}"
    )]
    OtherUser {
        /// The other end.
        address: SocketAddr,
        /// The user of that process.
        user: u32,
        /// The user of this process.
        own: u32,
    },
    /// HOST-12.
    #[error(
        "nobody knows which user of this machine {address} is of ({why}), and without a key a node is of one: name one key file on all \
         its hosts in {KEY_FILE}"
    )]
    NoUser {
        /// The other end.
        address: SocketAddr,
        /// Why not.
        why: String,
    },
}

/// The files of a host that has a certificate.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The authority's certificates.
    pub authority: PathBuf,
    /// This host's, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key, which nobody else can read; one of root's may be readable by a group.
    pub key: PathBuf,
}

impl Security {
    /// By [`KEY_FILE`] or [`PEM_FILES`] in the environment; without them, loopback.
    ///
    /// # Errors
    /// They do not fit together, or name files that are not what they should be.
    pub fn from_environment() -> Result<Self, SecurityError> {
        Self::from_variables(|name| std::env::var_os(name).map(PathBuf::from))
    }

    /// By these variables.
    ///
    /// # Errors
    /// As [`from_environment`](Self::from_environment).
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

    /// Nothing is secured, and nothing leaves this machine and this user.
    pub fn loopback() -> Self {
        Security(Kind::Loopback)
    }

    /// Mutual TLS with the key in a file of 32 bytes and mode 0600.
    ///
    /// # Errors
    /// The file is not such a file.
    pub fn key_file(path: &Path) -> Result<Self, SecurityError> {
        let key = SharedKey::read(path)?;
        let (server, client) = tls::of_shared(&key)?;
        let prover = Some(key.prover);
        Ok(Security(Kind::Tls { server: Arc::new(server), client: Arc::new(client), prover }))
    }

    /// Mutual TLS with certificates.
    ///
    /// # Errors
    /// A file does not have what it should have.
    pub fn pem(files: &Pem) -> Result<Self, SecurityError> {
        let (server, client) = tls::of_pem(files)?;
        Ok(Security(Kind::Tls { server: Arc::new(server), client: Arc::new(client), prover: None }))
    }

    /// Whether this address may be listened at, or dialled.
    ///
    /// # Errors
    /// Nothing is secured, and it is of the network (HOST-12).
    pub fn allows(&self, address: SocketAddr) -> Result<(), SecurityError> {
        match self.0 {
            Kind::Loopback if !address.ip().to_canonical().is_loopback() => {
                Err(SecurityError::OnlyLoopback { address })
            }
            _ => Ok(()),
        }
    }

    /// The user of a process that has connected within this machine, where nothing else tells who it is.
    ///
    /// # Errors
    /// It is another user than this one and than root, or nobody knows (HOST-12).
    pub(crate) fn admits(&self, from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, SecurityError> {
        match self.0 {
            Kind::Loopback => neighbour::connected(from, to).map(Some),
            Kind::Tls { .. } => Ok(None),
        }
    }

    /// Whether who listens at this address may be believed, where nothing else tells who it is.
    ///
    /// # Errors
    /// As [`admits`](Self::admits).
    pub(crate) fn believes(&self, at: SocketAddr) -> Result<(), SecurityError> {
        match self.0 {
            Kind::Loopback => neighbour::listening(at).map(drop),
            Kind::Tls { .. } => Ok(()),
        }
    }

    /// Makes and checks proofs of the key before TLS; there is none without a key file.
    pub(crate) fn prover(&self) -> Option<&Prover> {
        match &self.0 {
            Kind::Tls { prover, .. } => prover.as_ref(),
            Kind::Loopback => None,
        }
    }

    /// What accepts a connection; nothing where nothing is secured.
    pub fn server(&self) -> Option<Arc<ServerConfig>> {
        match &self.0 {
            Kind::Loopback => None,
            Kind::Tls { server, .. } => Some(Arc::clone(server)),
        }
    }

    /// What makes a connection, and whether the other's certificate has to be for the name that is dialled.
    pub fn client(&self) -> Option<(Arc<ClientConfig>, bool)> {
        match &self.0 {
            Kind::Loopback => None,
            Kind::Tls { client, prover, .. } => Some((Arc::clone(client), prover.is_none())),
        }
    }
}

/// Shows no key.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Loopback => "Security(loopback)",
            Kind::Tls { prover: Some(_), .. } => "Security(key)",
            Kind::Tls { prover: None, .. } => "Security(pem)",
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
