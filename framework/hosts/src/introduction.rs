//! The first words of a host over a connection: its protocol, its program and the program's arguments.
//!
//! Messages between hosts are laid out by the types that both were compiled with, and both have to make the
//! same actors from the same arguments. So both are compared before anything else is believed (WIRE-1), and
//! an error names the first difference.

use std::fmt;
use std::io::{self, Read};

use bytes::{Buf, Bytes};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::frame::{WireError, one_form, within};
use crate::limits::{MAX_ARGUMENT, MAX_ARGUMENTS, MAX_FRAME, MAX_NAME};

/// The version of everything that hosts say to each other.
pub const PROTOCOL: u32 = 9;

/// `TPH1`: Tensorpost hosts, with an introduction of version 1.
const MAGIC: u32 = u32::from_le_bytes(*b"TPH1");

/// The introduction of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its protocol.
    pub protocol: u32,
    /// The version of its Tensorpost.
    pub version: String,
    /// Its program.
    pub build: Build,
    /// The program's arguments, without its name.
    pub arguments: Vec<Bytes>,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Build {
    /// The SHA-256 of its file.
    Program([u8; 32]),
    /// A name that the program gives its build, so that hosts of several architectures can form one node.
    Named(String),
}

impl Build {
    /// Hashes the running program.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn of_this_program() -> io::Result<Self> {
        // This opens the running file, even if its name leads to another one by now.
        let mut file = std::fs::File::open("/proc/self/exe")?;
        let mut digest = Context::new(&SHA256);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => digest.update(&buffer[..read]),
            }
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(digest.finish().as_ref());
        Ok(Build::Program(hash))
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Build::Program(hash) => {
                write!(f, "the program with SHA-256 ")?;
                hash[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                write!(f, "..")
            }
            Build::Named(name) => write!(f, "the build named {name:?}"),
        }
    }
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why two hosts cannot belong to one node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name their fields")]
pub enum Differs {
    /// They speak different protocols.
    #[error("it speaks protocol {theirs} of hosts, and this host speaks {ours}: build both from one version")]
    Protocol { ours: u32, theirs: u32 },
    /// They have different versions of Tensorpost.
    #[error("it is of tensorpost {theirs:?}, and this host of {ours:?}: build both from one version")]
    Version { ours: String, theirs: String },
    /// They run different programs.
    #[error(
        "it runs {theirs}, and this host {ours}: copy one file to both. Where their architectures differ, give both builds one name"
    )]
    Build { ours: Build, theirs: Build },
    /// They run the program with different arguments.
    #[error("it was started with {theirs} as argument {index}, and this host with {ours}: start both alike")]
    Argument { index: usize, ours: String, theirs: String },
}

impl Introduction {
    /// Introduces this process.
    ///
    /// # Errors
    /// The program cannot be read, or its arguments or the name of its build are longer than another host
    /// accepts; the text says what to do.
    pub fn of_this_process(build_name: Option<&str>) -> io::Result<Self> {
        let build = match build_name {
            Some(name) => Build::Named(name.to_owned()),
            None => Build::of_this_program()?,
        };
        let bytes = |argument: std::ffi::OsString| Bytes::from(argument.into_encoded_bytes());
        let arguments = std::env::args_os().skip(1).map(bytes).collect();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let own = Introduction { protocol: PROTOCOL, version, build, arguments };
        match own.excess() {
            None => Ok(own),
            Some(excess) => Err(io::Error::new(io::ErrorKind::InvalidInput, excess)),
        }
    }

    /// Says what another host would not accept, and the remedy; `None` if it accepts everything.
    pub(crate) fn excess(&self) -> Option<String> {
        if let Build::Named(name) = &self.build
            && name.len() > MAX_NAME
        {
            let bytes = name.len();
            return Some(format!(
                "the build's name has {bytes} bytes, of at most {MAX_NAME}: choose another"
            ));
        }
        let longest = self.arguments.iter().map(Bytes::len).max().unwrap_or_default();
        let all = [
            ("arguments", self.arguments.len(), MAX_ARGUMENTS),
            ("bytes in an argument", longest, MAX_ARGUMENT),
            ("bytes in all arguments", self.encode().len(), MAX_FRAME),
        ];
        let (what, found, most) = all.into_iter().find(|(_, found, most)| found > most)?;
        Some(format!(
            "the program has {found} {what}, and hosts compare at most {most}: put its arguments into a file that each host has"
        ))
    }

    /// Checks whether the other host can belong to this one's node.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, other: &Introduction) -> Result<(), Differs> {
        if self.protocol != other.protocol {
            return Err(Differs::Protocol { ours: self.protocol, theirs: other.protocol });
        }
        if self.version != other.version {
            return Err(Differs::Version { ours: self.version.clone(), theirs: other.version.clone() });
        }
        if self.build != other.build {
            return Err(Differs::Build { ours: self.build.clone(), theirs: other.build.clone() });
        }
        let longer = self.arguments.len().max(other.arguments.len());
        let differs = (0..longer).find(|index| self.arguments.get(*index) != other.arguments.get(*index));
        match differs {
            None => Ok(()),
            Some(index) => {
                let shown = |all: &[Bytes]| all.get(index).map_or("nothing".to_owned(), shown);
                let (ours, theirs) = (shown(&self.arguments), shown(&other.arguments));
                Err(Differs::Argument { index: index + 1, ours, theirs })
            }
        }
    }

    /// Encodes the introduction: what all protocols begin with, and the rest [in one form](one_form).
    pub fn encode(&self) -> Bytes {
        let rest = one_form::encode(&(&self.version, &self.build, &self.arguments));
        [&MAGIC.to_le_bytes()[..], &self.protocol.to_le_bytes(), &rest[..]].concat().into()
    }

    /// Decodes an introduction. The part after the protocol's number is read only if the protocol is this
    /// one's, so that other versions can be told apart from garbage.
    ///
    /// # Errors
    /// The bytes are not an introduction.
    pub fn decode(mut bytes: Bytes) -> Result<Self, WireError> {
        within("length", bytes.len() as u64, 0, MAX_FRAME as u64)?;
        within("magic", bytes.try_get_u32_le()?.into(), MAGIC.into(), MAGIC.into())?;
        let protocol = bytes.try_get_u32_le()?;
        if protocol != PROTOCOL {
            let build = Build::Named(String::new());
            return Ok(Introduction { protocol, version: String::new(), build, arguments: Vec::new() });
        }
        let (version, build, arguments): (String, Build, Vec<Bytes>) = one_form::decode(&bytes)?;
        within("length of a version", version.len() as u64, 0, MAX_NAME as u64)?;
        let read = Introduction { protocol, version, build, arguments };
        let value = read.arguments.len() as u64;
        match read.excess() {
            None => Ok(read),
            Some(_) => Err(WireError::Field { field: "length or number of arguments", value }),
        }
    }
}

/// Makes an argument safe to show: cut, and without control characters.
fn shown(bytes: &Bytes) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    format!("{:?}", text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn introduction(arguments: &[&str]) -> Introduction {
        Introduction {
            protocol: PROTOCOL,
            version: "1".to_owned(),
            build: Build::Program([3; 32]),
            arguments: arguments.iter().map(|argument| Bytes::copy_from_slice(argument.as_bytes())).collect(),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let ours = introduction(&["--size", "3"]);
        assert_eq!(ours.check(&ours), Ok(()));
        let says = |other: &Introduction| ours.check(other).expect_err("another").to_string();
        let other = says(&introduction(&["--size", "4"]));
        assert!(other.contains("\"4\" as argument 2, and this host with \"3\""), "{other}");
        let fewer = says(&introduction(&["--size"]));
        assert!(fewer.contains("nothing as argument 2"), "{fewer}");
        let escaped = says(&introduction(&["\u{1b}[31m"]));
        assert!(escaped.contains("\\u{1b}"), "{escaped}");
        let build = says(&Introduction { build: Build::Program([4; 32]), ..ours.clone() });
        assert!(build.contains("SHA-256 0404") && build.contains("0303"), "{build}");
        let named = says(&Introduction { build: Build::Named("night".to_owned()), ..ours.clone() });
        assert!(named.contains("\"night\""), "{named}");
        let version = says(&Introduction { version: "2".to_owned(), ..ours.clone() });
        assert!(version.contains("tensorpost \"2\""), "{version}");
        let protocol = Introduction { protocol: PROTOCOL + 1, ..ours.clone() };
        let read = Introduction::decode(protocol.encode()).expect("of another protocol");
        assert!(says(&read).contains(&format!("protocol {}", PROTOCOL + 1)));
    }

    #[test]
    fn this_process_introduces_itself() {
        let own = Introduction::of_this_process(None).expect("it can be read");
        assert!(matches!(own.build, Build::Program(hash) if hash != [0; 32]));
        assert_eq!(Introduction::decode(own.encode()), Ok(own.clone()));
        let named = Introduction::of_this_process(Some("a")).expect("it can be read");
        assert_eq!(named.build, Build::Named("a".to_owned()));
        let long = Introduction::of_this_process(Some(&"a".repeat(MAX_NAME + 1)));
        assert_eq!(long.expect_err("nobody would read it").kind(), io::ErrorKind::InvalidInput);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_an_introduction(
            head in any::<bool>(),
            rest in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            let own = introduction(&["a"]).encode();
            let bytes = if head { [&own[..8], &rest].concat() } else { rest };
            if let Ok(read) = Introduction::decode(Bytes::from(bytes.clone())) && read.protocol == PROTOCOL {
                prop_assert_eq!(read.encode(), bytes);
            }
        }

        #[test]
        fn one_that_is_cut_or_changed_is_refused_or_another(at in 0_usize..70, to in any::<u8>()) {
            let own = introduction(&["a", "bc"]).encode();
            let at = at % own.len();
            prop_assert!(Introduction::decode(own.slice(..at)).is_err());
            let mut changed = own.to_vec();
            changed[at] = to;
            if let Ok(read) = Introduction::decode(Bytes::from(changed.clone())) && read.protocol == PROTOCOL {
                prop_assert_eq!(read.encode(), changed);
            }
        }
    }
}
