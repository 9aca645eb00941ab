//! Writing items to files.
//!
//! A file has the name of its item ([`Carrier::Label`](super::Carrier) in text); characters that could lead
//! out of the folder are replaced. Files appear whole or not at all. Sinks copy tensors to the host and wait
//! for that.

mod png;
mod raw;
mod safetensors;

pub use png::{SavePng, SavePngArgs, encode_png};
pub use raw::SaveRaw;
pub use safetensors::{SaveSafetensors, SaveSafetensorsArgs};

use std::fmt;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A folder to write to.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    /// Opens the folder, and makes it if it is missing.
    fn open(folder: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&folder).with_context(|| {
            format!("cannot write to {}; give a folder that may be written to", folder.display())
        })?;
        Ok(Folder(folder))
    }

    fn path(&self, label: &impl fmt::Display, ending: &str) -> PathBuf {
        self.0.join(format!("{}.{ending}", file_name(&label.to_string())))
    }
}

/// Returns the name of an item's file, without its ending. Letters, digits and `-_.` stay as they are, except
/// a dot in front; every other character becomes `_`.
pub fn file_name(label: &str) -> String {
    let safe = |(at, c): (usize, char)| match c {
        '.' if at == 0 => '_',
        '-' | '_' | '.' => c,
        _ if c.is_alphanumeric() => c,
        _ => '_',
    };
    let name: String = label.chars().enumerate().map(safe).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// Writes a file with these bytes, or on an error leaves the earlier one.
fn write(path: &Path, parts: &[&[u8]]) -> anyhow::Result<()> {
    let attempt = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        // A temporary file is private by default; here the umask alone decides.
        let mut builder = tempfile::Builder::new();
        let mut file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.persist(path)?;
        Ok(())
    };
    attempt()
        .with_context(|| format!("cannot write {}; is there room, and may it be written?", path.display()))
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn a_label_stays_in_the_folder() {
        assert_eq!(file_name("00042-chelsea"), "00042-chelsea");
        assert_eq!(file_name("../../etc/passwd"), "_._.._etc_passwd");
        assert_eq!(file_name(".hidden"), "_hidden");
        assert_eq!(file_name("größe\0 1.5"), "größe__1.5");
        assert_eq!(file_name(""), "_");
    }
}
