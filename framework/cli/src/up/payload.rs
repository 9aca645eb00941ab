//! The files that each host gets: the node's key or a certificate, and the program where it is copied.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};

use super::limits::{KEY_BYTES, MAX_PEM};

/// A secret file for a host. It has no `Debug`, so that nothing shows its contents.
#[derive(Clone)]
pub(super) struct Secret {
    /// Its name on the host.
    pub(super) name: &'static str,
    /// The variable by which the program finds it.
    pub(super) variable: &'static str,
    pub(super) bytes: Vec<u8>,
}

/// The variable that names the file with the node's key.
pub(super) const KEY_FILE: &str = "TENSORPOST_KEY_FILE";

/// The variables that name the files of a host with a certificate.
pub(super) const PEM_FILES: [&str; 3] =
    ["TENSORPOST_CA_FILE", "TENSORPOST_CERT_FILE", "TENSORPOST_CERT_KEY_FILE"];

/// Stands for the name of a host in the name of a file.
const HOST: &str = "{host}";

/// Draws a fresh key, for all hosts.
pub(super) fn drawn_key() -> anyhow::Result<Vec<Secret>> {
    Ok(vec![key(drawn::<KEY_BYTES>()?.to_vec())])
}

/// Reads the key from a file, which only its user may be able to read.
pub(super) fn read_key(path: &Path) -> anyhow::Result<Vec<Secret>> {
    let (bytes, found) = contents("--key", path, true, KEY_BYTES as u64)?;
    ensure!(
        bytes.len() == KEY_BYTES,
        "--key {} has {found} bytes, and has to have {KEY_BYTES}: write it with `head -c 32 /dev/urandom`",
        path.display()
    );
    Ok(vec![key(bytes)])
}

fn key(bytes: Vec<u8>) -> Secret {
    Secret { name: "key", variable: KEY_FILE, bytes }
}

/// Reads the files of a host with a certificate: the authority's certificates, its own, and its key. Their
/// names may contain `{host}`.
pub(super) fn read_pem([authority, certificate, key]: [&Path; 3], host: &str) -> anyhow::Result<Vec<Secret>> {
    let files = [
        ("--ca", authority, "ca.pem", "-----BEGIN CERTIFICATE-----"),
        ("--cert", certificate, "cert.pem", "-----BEGIN CERTIFICATE-----"),
        ("--cert-key", key, "cert-key.pem", "PRIVATE KEY-----"),
    ];
    let secrets = files.into_iter().zip(PEM_FILES).map(|((option, path, name, begins), variable)| {
        let path = of_host(path, host);
        let (bytes, _) = contents(option, &path, option == "--cert-key", MAX_PEM)?;
        ensure!(
            bytes.len() as u64 <= MAX_PEM,
            "{option} {} is larger than {MAX_PEM} bytes; leave out what this host does not need",
            path.display()
        );
        let is_pem = String::from_utf8_lossy(&bytes).contains(begins);
        ensure!(is_pem, "{option} {} is no such file in PEM: it has no {begins:?}", path.display());
        Ok(Secret { name, variable, bytes })
    });
    secrets.collect()
}

fn of_host(path: &Path, host: &str) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace(HOST, host).into(),
        None => path.to_owned(),
    }
}

/// Reads a file, and returns its contents and length. It reads at most one byte more than `most`, which shows
/// that the file is too long.
fn contents(option: &str, path: &Path, is_secret: bool, most: u64) -> anyhow::Result<(Vec<u8>, u64)> {
    let named = || format!("{option} {}", path.display());
    let mut file = File::open(path).with_context(named)?;
    let known = file.metadata().with_context(named)?;
    ensure!(
        !is_secret || known.mode() & 0o077 == 0,
        "{option} {0} can be read by others than its user: `chmod 600 {0}`",
        path.display()
    );
    // The owner of /proc/self is this process's user.
    let own = fs::metadata("/proc/self").context("/proc is not mounted")?.uid();
    ensure!(
        !is_secret || [0, own].contains(&known.uid()),
        "{option} {} is user {}'s, who could put another there: copy it",
        path.display(),
        known.uid()
    );
    let mut bytes = Vec::new();
    file.by_ref().take(most + 1).read_to_end(&mut bytes).with_context(named)?;
    Ok((bytes, known.len()))
}

/// Draws bytes that nobody can guess.
pub(super) fn drawn<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok().context("the system has no random numbers")?;
    Ok(bytes)
}

/// Formats bytes as `sha256sum` does.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The program that is copied to each host.
#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// Its name in the folder that it is copied to.
    pub(super) name: OsString,
    /// Its length when its checksum was made.
    pub(super) bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub(super) sum: String,
    /// The machine that it is for, in the words of `uname -m`, where that is known.
    pub(super) machine: Option<&'static str>,
}

impl Program {
    /// Finds the program that a shell here would run.
    pub(super) fn find(named: &OsStr) -> anyhow::Result<Self> {
        let path = if named.as_encoded_bytes().contains(&b'/') {
            PathBuf::from(named)
        } else {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            let mut found = std::env::split_paths(&folders).map(|folder| folder.join(named));
            found
                .find(|path| is_program(path))
                .with_context(|| format!("{} is not in PATH: write its path", Path::new(named).display()))?
        };
        ensure!(is_program(&path), "{} is no program that could be copied", path.display());
        let failed = || path.display().to_string();
        // Hash the program now: it may change before it is copied, and each host compares the sum.
        let mut file = File::open(&path).with_context(failed)?;
        let (mut digest, mut bytes, mut machine) = (Context::new(&SHA256), 0, None);
        let mut chunk = vec![0; 64 << 10];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => {
                    if bytes == 0 {
                        machine = machine_of(&chunk[..read]);
                    }
                    digest.update(&chunk[..read]);
                    bytes += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(failed),
            }
        }
        let name = path.file_name().unwrap_or(OsStr::new("program")).to_owned();
        Ok(Program { path, name, bytes, sum: hex(digest.finish().as_ref()), machine })
    }

    /// Opens the program to read the bytes that it had. The far side finds out whether they are still the
    /// same.
    pub(super) fn open(&self) -> anyhow::Result<impl Read + use<>> {
        let file = File::open(&self.path).with_context(|| self.path.display().to_string())?;
        Ok(file.take(self.bytes))
    }
}

/// Returns the machine that the beginning of an ELF file names (`e_machine`), if it is a known one; `None`
/// for scripts.
fn machine_of(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] => match start.get(18..20)? {
            [62, 0] => Some("x86_64"),
            [183, 0] => Some("aarch64"),
            _ => None,
        },
        _ => None,
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|known| known.is_file() && known.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8], mode: u32) {
        fs::write(path, bytes).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn why(read: anyhow::Result<Vec<Secret>>) -> String {
        read.err().map(|error| format!("{error:#}")).unwrap_or_default()
    }

    #[test]
    fn a_key_is_of_its_user_alone_and_has_32_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let read = || read_key(&path);
        assert!(why(read()).contains("--key"), "{}", why(read()));
        write(&path, &[7; 32], 0o640);
        assert!(why(read()).contains("chmod 600"), "{}", why(read()));
        write(&path, &[7; 33], 0o600);
        assert!(why(read()).contains("has 33 bytes"), "{}", why(read()));
        write(&path, &[7; 32], 0o600);
        assert_eq!(read().expect("a key")[0].bytes, [7; 32]);
        assert_ne!(drawn_key().expect("one")[0].bytes, drawn_key().expect("another")[0].bytes);
    }

    #[test]
    fn each_host_may_have_a_certificate_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (authority, certificate, key) = (at("ca"), at("{host}.pem"), at("{host}.key"));
        let read = |host| read_pem([&authority, &certificate, &key], host);
        write(&authority, b"-----BEGIN CERTIFICATE-----\nca", 0o644);
        write(&at("a.pem"), b"-----BEGIN CERTIFICATE-----\na", 0o644);
        write(&at("a.key"), b"-----BEGIN PRIVATE KEY-----\na", 0o644);
        assert!(
            why(read("a")).contains("--cert-key") && why(read("a")).contains("chmod 600"),
            "{}",
            why(read("a"))
        );
        write(&at("a.key"), b"-----BEGIN EC PRIVATE KEY-----\na", 0o600);
        let secrets = read("a").expect("all three");
        let found: Vec<_> =
            secrets.iter().map(|secret| (secret.variable, *secret.bytes.last().expect("bytes"))).collect();
        assert_eq!(found, PEM_FILES.into_iter().zip(*b"aaa").collect::<Vec<_>>());
        assert!(why(read("b")).contains("b.pem"), "{}", why(read("b")));
        write(&at("b.pem"), b"\x30\x82", 0o644);
        assert!(why(read("b")).contains("no such file in PEM"), "{}", why(read("b")));
        write(&at("b.pem"), &vec![b'-'; MAX_PEM as usize + 1], 0o644);
        assert!(why(read("b")).contains("1048576 bytes; leave out"), "{}", why(read("b")));
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let shell = Program::find(OsStr::new("sh")).expect("there is one");
        assert_eq!((shell.name.as_os_str(), shell.sum.len()), (OsStr::new("sh"), 64));
        let mut read = Vec::new();
        shell.open().expect("it opens").read_to_end(&mut read).expect("it is read");
        assert_eq!(
            (read.len() as u64, hex(ring::digest::digest(&SHA256, &read).as_ref())),
            (shell.bytes, shell.sum)
        );
        let machine = shell.machine.expect("an ELF file");
        let uname = std::process::Command::new("uname").arg("-m").output().expect("it runs").stdout;
        assert_eq!(machine, String::from_utf8_lossy(&uname).trim());
        for missing in ["there-is-no-such-program", "/etc/passwd", "/is/not/there"] {
            assert!(Program::find(OsStr::new(missing)).is_err(), "{missing}");
        }
    }
}
