use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::*;

const NOBODY: u32 = 65534;

fn file(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    path
}

/// The results of the server and the client.
type Said = (Result<(), rustls::Error>, Result<(), rustls::Error>);

fn handshake(server: &Security, client: &Security) -> Said {
    handshake_as("localhost", server, client)
}

/// Runs a whole handshake in memory.
fn handshake_as(name: &'static str, server: &Security, client: &Security) -> Said {
    let name = ServerName::try_from(name).expect("a name");
    let (config, _) = client.client().expect("secured");
    let mut client = ClientConnection::new(config, name).expect("a client");
    let mut server = ServerConnection::new(server.server().expect("secured")).expect("a server");
    let (mut at_server, mut at_client) = (Ok(()), Ok(()));
    for _ in 0..6 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && at_server.is_ok() {
            server.read_tls(&mut rest).expect("memory");
            at_server = server.process_new_packets().map(drop);
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && at_client.is_ok() {
            client.read_tls(&mut rest).expect("memory");
            at_client = client.process_new_packets().map(drop);
        }
    }
    if at_server.is_ok() && at_client.is_ok() {
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(client.alpn_protocol(), Some(&b"h2"[..]));
    }
    (at_server, at_client)
}

#[test]
fn who_has_the_key_is_taken_and_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let security =
        |name, bytes: [u8; 32]| Security::key_file(&file(folder.path(), name, &bytes, 0o600)).expect("a key");
    let (one, same, other) =
        (security("one", [7; 32]), security("same", [7; 32]), security("other", [8; 32]));
    assert_eq!(handshake(&one, &same), (Ok(()), Ok(())));
    let (at_server, at_client) = handshake(&one, &other);
    let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert_eq!(at_client, Err(unknown), "the client does not take the server");
    assert!(at_server.is_err());
    // A client that accepts any server, and shows no key.
    let open =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
    let nobody =
        Security(Kind::Tls { server: one.server().expect("secured"), client: Arc::new(open), prover: None });
    let (at_server, _) = handshake(&one, &nobody);
    assert!(at_server.is_err(), "{at_server:?}");
}

/// The server's check alone: a client that accepts any server, with a key of its own.
#[test]
fn a_client_with_another_key_is_refused_by_the_server_itself() {
    let (mine, _) = tls::of_shared(&SharedKey::new(&[7; 32]).expect("a key")).expect("TLS");
    let (_, mut theirs) = tls::of_shared(&SharedKey::new(&[8; 32]).expect("a key")).expect("TLS");
    theirs.dangerous().set_certificate_verifier(Arc::new(TakesAll));
    let server = Security(Kind::Tls { server: Arc::new(mine), client: Arc::new(theirs), prover: None });
    let (at_server, at_client) = handshake(&server, &server);
    let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    assert_eq!(at_server, Err(unknown));
    // The client learns of the refusal by the alert.
    assert!(matches!(at_client, Err(rustls::Error::AlertReceived(_))), "{at_client:?}");
}

#[derive(Debug)]
struct TakesAll;

impl rustls::client::danger::ServerCertVerifier for TakesAll {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[test]
fn a_key_file_that_is_none_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |path: &Path| Security::key_file(path).expect_err("no key").to_string();
    let short = refused(&file(folder.path(), "short", &[1; 31], 0o600));
    assert!(short.contains("short has 31 bytes"), "{short}");
    let long = refused(&file(folder.path(), "long", &[1; 33], 0o600));
    assert!(long.contains("long has 33 bytes"), "{long}");
    let open = refused(&file(folder.path(), "open", &[1; 32], 0o640));
    assert!(open.contains("open can be read or written by others") && open.contains("chmod 600"), "{open}");
    assert!(refused(&folder.path().join("none")).contains("none cannot be read"));
}

#[test]
fn without_a_key_only_loopback_is_used() {
    let open = Security::loopback();
    for address in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        open.allows(address.parse().expect("an address")).expect("of this machine");
    }
    for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
        let refused = open.allows(address.parse().expect("an address")).expect_err("of the network");
        assert!(refused.to_string().contains(KEY_FILE), "{refused}");
    }
    let key = SharedKey::new(&[7; 32]).expect("a key");
    let (server, client) = tls::of_shared(&key).expect("TLS");
    let secured = Security(Kind::Tls { server: Arc::new(server), client: Arc::new(client), prover: None });
    secured.allows("0.0.0.0:1".parse().expect("an address")).expect("with a key");
}

fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates")
}

fn files(authority: &str, host: &str) -> Pem {
    let file = |name: &str, ending| certificates().join(name).with_extension(ending);
    Pem {
        authority: file(authority, "pem"),
        certificate: file(host, "pem"),
        key: private(&file(host, "key")),
    }
}

/// Copies a file of the repository so that it is a secret: git keeps no modes.
pub(crate) fn private(of: &Path) -> PathBuf {
    static COPIES: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = COUNT.fetch_add(1, Relaxed).to_string();
    file(
        COPIES.path(),
        &format!("{name}-{}", of.file_name().expect("a name").display()),
        &fs::read(of).expect("a file"),
        0o600,
    )
}

#[test]
fn certificates_of_one_authority_are_taken_for_their_name() {
    let host = Security::pem(&files("authority", "host")).expect("its files");
    assert_eq!(handshake(&host, &host), (Ok(()), Ok(())));
    let (_, other_name) = handshake_as("elsewhere", &host, &host);
    assert!(matches!(other_name, Err(rustls::Error::InvalidCertificate(_))), "{other_name:?}");
    let stranger = Security::pem(&files("stranger", "intruder")).expect("its files");
    assert_eq!(
        handshake(&stranger, &stranger),
        (Ok(()), Ok(())),
        "nothing is wrong with it but its authority"
    );
    // The intruder accepts the host, and the host does not accept the intruder.
    let intruder = Security::pem(&files("authority", "intruder")).expect("its files");
    let (at_server, _) = handshake(&host, &intruder);
    assert!(matches!(at_server, Err(rustls::Error::InvalidCertificate(_))), "{at_server:?}");
    let (_, at_client) = handshake(&intruder, &host);
    assert!(matches!(at_client, Err(rustls::Error::InvalidCertificate(_))), "{at_client:?}");
}

#[test]
fn pem_files_that_do_not_fit_are_refused_by_name() {
    let refused = |files: &Pem| Security::pem(files).expect_err("no certificate").to_string();
    let other_key =
        refused(&Pem { key: private(&certificates().join("intruder.key")), ..files("authority", "host") });
    assert!(other_key.contains("intruder.key"), "{other_key}");
    let no_key =
        refused(&Pem { key: private(&certificates().join("host.pem")), ..files("authority", "host") });
    assert!(no_key.contains("host.pem has no private key"), "{no_key}");
    let none = refused(&Pem { authority: certificates().join("README.md"), ..files("authority", "host") });
    assert!(none.contains("README.md has no certificate"), "{none}");
    let folder = tempfile::tempdir().expect("a folder");
    let key = fs::read(certificates().join("host.key")).expect("a key");
    let open = file(folder.path(), "open.key", &key, 0o644);
    let open = refused(&Pem { key: open, ..files("authority", "host") });
    assert!(open.contains("open.key can be read or written by others"), "{open}");
}

/// Runs `work` as some user. Returns the result, and a user that has to distrust that one. Root runs it as
/// `nobody`, and any other user as itself.
pub(crate) fn by_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> (T, u32) {
    if !geteuid().is_root() {
        return (work(), geteuid().as_raw() + 1);
    }
    // The identity of a thread is its own.
    let work = || {
        let nobody = Uid::from_raw(NOBODY);
        set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        work()
    };
    (std::thread::scope(|scope| scope.spawn(work).join().expect("it works")), 0)
}

/// The owner of a key file decides what the key is.
#[test]
fn a_key_file_of_another_user_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(folder.path(), "planted", &[1; 32], 0o600);
    Security::key_file(&path).expect("this user's");
    // Only root gives files away. The test of another user reads as the next one.
    let own = geteuid();
    let reader = if own.is_root() {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may");
        0
    } else {
        own.as_raw() + 1
    };
    for group in [false, true] {
        let refused = key::read_secret(&path, 32, group, reader).expect_err("another user's").to_string();
        assert!(refused.contains("neither this user's nor root's"), "{refused}");
    }
}

#[test]
fn variables_name_a_key_or_certificates_and_not_half_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = file(folder.path(), "key", &[7; 32], 0o600);
    let Pem { authority, certificate, key: own_key } = files("authority", "host");
    let by = |set: &[(&str, &Path)]| {
        let shown = Security::from_variables(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, path)| path.to_path_buf())
        });
        shown.map_or_else(|error| error.to_string(), |security| format!("{security:?}"))
    };
    let [ca, cert, cert_key] = PEM_FILES;
    assert_eq!(by(&[]), "Security(loopback)");
    assert_eq!(by(&[(KEY_FILE, Path::new(""))]), "Security(loopback)", "unset");
    assert_eq!(by(&[(KEY_FILE, &key)]), "Security(key)");
    assert_eq!(by(&[(ca, &authority), (cert, &certificate), (cert_key, &own_key)]), "Security(pem)");
    let half = by(&[(ca, &authority), (cert_key, &own_key)]);
    assert!(half.contains("TENSORPOST_CA_FILE is set and TENSORPOST_CERT_FILE is not"), "{half}");
    let both = by(&[(KEY_FILE, &key), (cert, &certificate)]);
    assert!(both.contains("both TENSORPOST_KEY_FILE and TENSORPOST_CERT_FILE"), "{both}");
    let none = by(&[(KEY_FILE, &folder.path().join("none"))]);
    assert!(none.contains("none cannot be read"), "{none}");
}
