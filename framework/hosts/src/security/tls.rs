//! TLS 1.3, in which both ends show their keys.
//!
//! There are no tickets: every connection makes a whole handshake, in which both sides sign. ALPN is HTTP/2,
//! which gRPC speaks.

use std::path::Path;
use std::sync::Arc;

use rustix::process::geteuid;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    RootCertStore, ServerConfig, SignatureScheme,
};

use super::key::{SharedKey, read_secret};
use super::{Pem, SecurityError};

/// The longest file with a private key that is read.
const MAX_KEY: u64 = 64 << 10;

type Both = (ServerConfig, ClientConfig);

fn refused(error: impl ToString) -> SecurityError {
    SecurityError::Tls(error.to_string())
}

pub(super) fn of_shared(key: &SharedKey) -> Result<Both, SecurityError> {
    let provider = Arc::new(ring::default_provider());
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.private.clone()));
    let signing = provider.key_provider.load_private_key(private).map_err(refused)?;
    let public = CertificateDer::from(key.public.clone());
    let certified = Arc::new(CertifiedKey::new(vec![public.clone()], signing));
    let algorithms = provider.signature_verification_algorithms;
    let same = Arc::new(SameKey { public, algorithms });

    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(Arc::clone(&same) as Arc<dyn ClientCertVerifier>)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&certified))));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(same)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    Ok(finish(server, client))
}

fn finish(mut server: ServerConfig, mut client: ClientConfig) -> Both {
    server.alpn_protocols = vec![b"h2".to_vec()];
    server.send_tls13_tickets = 0;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    (server, client)
}

pub(super) fn of_pem(files: &Pem) -> Result<Both, SecurityError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for root in certificates(&files.authority)? {
        roots.add(root).map_err(|error| wrong(&files.authority, "authority's certificate", error))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(&files.certificate)?;
    let (pem, _) = read_secret(&files.key, MAX_KEY, true, geteuid().as_raw())?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| wrong(&files.key, "private key", format!("{error:?}")))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
        .build()
        .map_err(|error| wrong(&files.authority, "authority's certificate", error))?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|error| wrong(&files.key, "key of the certificate", error))?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| wrong(&files.key, "key of the certificate", error))?;
    Ok(finish(server, client))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(wrong(path, "certificate", "it has none")),
        Ok(all) => Ok(all),
        Err(error) => Err(wrong(path, "certificate", format!("{error:?}"))),
    }
}

fn wrong(path: &Path, what: &'static str, why: impl ToString) -> SecurityError {
    SecurityError::Pem { path: path.to_owned(), what, why: why.to_string() }
}

/// Accepts one public key: this host's own. The signature of the handshake proves that the other side has the
/// private key. A server signs another text than a client, so no signature can be replayed to its signer.
#[derive(Debug)]
struct SameKey {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SameKey {
    fn is(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        // The keys are public, so comparing them in variable time reveals nothing.
        let same = shown.as_ref() == self.public.as_ref();
        if same { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
    }
}

/// The methods of both verifiers that check signatures: of TLS 1.3 alone, by a bare key.
macro_rules! signed_by_a_raw_key {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
            verify_tls13_signature_with_raw_key(message, &public, signed, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.is(shown).map(|()| ServerCertVerified::assertion())
    }

    signed_by_a_raw_key!();
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.is(shown).map(|()| ClientCertVerified::assertion())
    }

    signed_by_a_raw_key!();
}
