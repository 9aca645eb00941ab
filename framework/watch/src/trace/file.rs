//! Files that a program is told to write, in folders where other users can plant links and files of their
//! own.
//!
//! The text goes to a new file beside the named one, and the new file then takes its place: whole, or not at
//! all. *When the process dies meanwhile*, the new file is left, under a name that begins with a dot and ends
//! in `.part`.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Number of links that are followed, one after the other.
const LINKS: usize = 16;

/// Calls `write` to write a file, which then takes the place of the file at `path`. Links are followed where
/// this user or root has made them; a device, a terminal or a pipe is written to directly.
///
/// # Errors
/// An error of the system or of `write`; a link or a named pipe that belongs to another user.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    replace_as(geteuid().as_raw(), path, write)
}

/// As [`replace`], for the user `own`.
fn replace_as(
    own: u32,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let (path, is_link) = behind_links(own, path)?;
    match fs::metadata(&path) {
        Ok(known) if !known.is_file() => {
            if !is_link && known.file_type().is_fifo() {
                belongs(own, &path, &known)?;
            }
            // Do not follow a link that another user has put there since.
            let flags = if is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
            let file = OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(&path)?;
            return finish(file, write);
        }
        _ => {}
    }
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut beside = OsString::from(".");
    beside.push(name);
    // A hasher's keys come from the system's source of randomness, so nobody has a file of that name there.
    beside.push(format!(".{:016x}.part", RandomState::new().build_hasher().finish()));
    let beside = path.with_file_name(beside);
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().write(true).create_new(true).custom_flags(flags).open(&beside)?;
    let written = finish(file, write).and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // If it cannot be removed it stays; nobody looks for it.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn finish(file: File, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    write(&mut file)?;
    file.flush()
}

/// Returns the path that links lead to. `true`: the file has no name but that link's, as with the links of
/// `/proc/self/fd`.
fn behind_links(own: u32, path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let known = match fs::symlink_metadata(&path) {
            Ok(known) if known.is_symlink() => known,
            _ => return Ok((path, false)),
        };
        belongs(own, &path, &known)?;
        let to = path.parent().unwrap_or(Path::new("")).join(fs::read_link(&path)?);
        if fs::symlink_metadata(&to).is_err() && fs::metadata(&path).is_ok() {
            return Ok((path, true));
        }
        path = to;
    }
    Err(io::Error::other(format!("{} is one of more than {LINKS} links", path.display())))
}

/// Checks that the user `own` or root has made the file or link.
fn belongs(own: u32, path: &Path, known: &fs::Metadata) -> io::Result<()> {
    if [0, own].contains(&known.uid()) {
        return Ok(());
    }
    let why = format!("{} is user {}'s, and leads elsewhere: name another path", path.display(), known.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    fn folder(of: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tensorpost-files-{}-{of}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn put(path: &Path, text: &str) -> io::Result<()> {
        replace(path, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = folder("whole");
        let path = folder.join("a.json");
        put(&path, "first").unwrap();
        let failed = replace(&path, |file| file.write_all(b"sec").and(Err(io::Error::other("full"))));
        assert_eq!(failed.unwrap_err().to_string(), "full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        put(&path, "third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        // A folder is no file to replace, and a missing folder can hold no new file.
        assert!(put(&folder, "x").is_err() && put(&folder.join("none/a.json"), "x").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn own_links_are_followed_and_devices_and_pipes_are_written_to() {
        let folder = folder("links");
        let (target, link) = (folder.join("there"), folder.join("link"));
        // A link that leads nowhere yet works too.
        symlink("there", &link).unwrap();
        for text in ["one", "two"] {
            put(&link, text).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), text);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
        symlink("round", folder.join("round")).unwrap();
        assert!(put(&folder.join("round"), "x").is_err());
        put(Path::new("/dev/null"), "x").unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        put(Path::new(&format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer))), "to a pipe")
            .unwrap();
        drop(writer);
        let mut said = String::new();
        io::Read::read_to_string(&mut reader, &mut said).unwrap();
        assert_eq!(said, "to a pipe");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_others_have_planted_is_neither_followed_nor_written_to() {
        let folder = folder("planted");
        let (secret, path) = (folder.join("secret"), folder.join("trace.json"));
        fs::write(&secret, "private").unwrap();
        symlink(&secret, &path).unwrap();
        // Only root gives links away. The test of another user writes as the next one.
        let own = geteuid();
        let (planter, writer) = if own.is_root() { (65534, 0) } else { (own.as_raw(), own.as_raw() + 1) };
        if own.is_root() {
            lchown(&path, Some(planter), Some(planter)).unwrap();
        }
        let refused = replace_as(writer, &path, |file| file.write_all(b"x")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains(&format!("user {planter}'s")), "{refused}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "private");
        // A file under a predictable name is left alone.
        fs::remove_file(&path).unwrap();
        let foreseen = folder.join(format!(".trace.json.{}.part", std::process::id()));
        symlink(&secret, &foreseen).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        put(&path, "x").unwrap();
        assert_eq!(
            (fs::read_to_string(&secret).unwrap(), fs::read_to_string(&path).unwrap()),
            ("private".into(), "x".into())
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
