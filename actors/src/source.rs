//! Sources of images: the pictures of a folder, in a fixed order, repeated for any number of frames.

use std::ffi::OsStr;
use std::io;
use std::iter::FusedIterator;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The reason why no images can be taken from a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The folder, or an entry in it, could not be read.
    #[error("cannot list images in {path}: {source}; give a folder that exists and may be read")]
    List {
        /// The folder or entry that could not be read.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The text is no pattern.
    #[error("{pattern:?} is no pattern: {why}; write one such as photos/*.jpg")]
    Pattern {
        /// The pattern that was given.
        pattern: String,
        /// The fault in it.
        why: String,
    },
    /// The pattern matches no file.
    #[error("no file matches {pattern:?}; put one there, or give another pattern")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// The folder holds no image.
    #[error("no image in {path}: put a .jpg, .jpeg or .png file there, or give another folder")]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

/// The images of one folder, or those that a pattern matches.
///
/// An image is a file (or a link to one) whose name ends in `.jpg`, `.jpeg` or `.png`, in any case, and does
/// not begin with a dot. Subfolders are not searched. The order is that of the names' bytes, the same on
/// every machine. The folder is read once; later changes are not noticed.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    /// Never empty. It is shared, so that an iterator need not borrow the folder and a frame's path costs no
    /// allocation.
    files: Arc<[Arc<Path>]>,
}

impl ImageFolder {
    /// Lists the images of `folder`.
    ///
    /// # Errors
    /// [`SourceError::List`] when the folder is missing or cannot be read, or an image in it is a dangling
    /// link; [`SourceError::Empty`] when it holds no image. Both name the path.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, SourceError> {
        let folder = folder.as_ref();
        let failed = |source| SourceError::List { path: folder.to_owned(), source };
        let mut files: Vec<Arc<Path>> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !has_image_name(&path) {
                continue;
            }
            // Do not ask for the entry's own type, which would be that of a link.
            match path.metadata() {
                Ok(metadata) if metadata.is_file() => files.push(path.into()),
                Ok(_) => {}
                Err(source) => return Err(SourceError::List { path, source }),
            }
        }
        if files.is_empty() {
            return Err(SourceError::Empty { path: folder.to_owned() });
        }
        files.sort_unstable();
        Ok(Self { files: files.into() })
    }

    /// Lists the files that a pattern matches: `*` stands for any text within a name, `?` for one character,
    /// `[a-z]` for one of several, `**` for any folders. A leading dot has to be written out. The order is
    /// that of the paths' bytes.
    ///
    /// # Errors
    /// [`SourceError::Pattern`], [`SourceError::NoMatch`]; [`SourceError::List`] for a folder that cannot be
    /// read.
    pub fn matching(pattern: &str) -> Result<Self, SourceError> {
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
        let paths = glob::glob_with(pattern, options)
            .map_err(|error| SourceError::Pattern { pattern: pattern.to_owned(), why: error.to_string() })?;
        let mut files: Vec<Arc<Path>> = Vec::new();
        for path in paths {
            let path = path
                .map_err(|error| SourceError::List { path: error.path().to_owned(), source: error.into() })?;
            if path.is_file() {
                files.push(path.into());
            }
        }
        if files.is_empty() {
            return Err(SourceError::NoMatch { pattern: pattern.to_owned() });
        }
        files.sort_unstable();
        Ok(Self { files: files.into() })
    }

    /// Returns the images in order; at least one.
    pub fn files(&self) -> &[Arc<Path>] {
        &self.files
    }

    /// Returns the image of frame `index`: the folder's images over and over.
    pub fn frame(&self, index: u64) -> &Arc<Path> {
        &self.files[(index % self.files.len() as u64) as usize]
    }

    /// Returns frames 0 to `count - 1` with their images. The iterator borrows nothing, so an actor can keep
    /// it between turns.
    pub fn frames(&self, count: u64) -> Frames {
        Frames { folder: self.clone(), next: 0, count }
    }
}

/// The iterator of [`ImageFolder::frames`]: (frame's index, its image).
#[derive(Clone, Debug)]
pub struct Frames {
    folder: ImageFolder,
    next: u64,
    count: u64,
}

impl Frames {
    /// Returns the number of frames still to come.
    pub fn remaining(&self) -> u64 {
        self.count - self.next
    }
}

impl Iterator for Frames {
    type Item = (u64, Arc<Path>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        let index = self.next;
        self.next += 1;
        Some((index, Arc::clone(self.folder.frame(index))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match usize::try_from(self.remaining()) {
            Ok(n) => (n, Some(n)),
            Err(_) => (usize::MAX, None),
        }
    }
}

impl FusedIterator for Frames {}

fn has_image_name(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    !hidden && ["jpg", "jpeg", "png"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &ImageFolder) -> Vec<&str> {
        folder.files().iter().filter_map(|path| path.file_name()?.to_str()).collect()
    }

    #[test]
    fn takes_images_alone_and_sorts_them() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["b.JPG", "a.png", "c.jpeg", "B.Png", ".hidden.png", "notes.txt", "png", "d.png.bak"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        fs::create_dir(folder.path().join("folder.png")).expect("made");
        symlink(folder.path().join("a.png"), folder.path().join("link.png")).expect("linked");
        let images = ImageFolder::open(folder.path()).expect("has images");
        assert_eq!(names(&images), ["B.Png", "a.png", "b.JPG", "c.jpeg", "link.png"]);
    }

    #[test]
    fn patterns_match_in_order_and_say_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("made");
        for name in ["b.jpg", "a.jpg", "c.png", ".d.jpg", "sub/e.jpg"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let here = |pattern: &str| format!("{}/{pattern}", folder.path().display());
        let images = ImageFolder::matching(&here("*.jpg")).expect("two");
        assert_eq!(names(&images), ["a.jpg", "b.jpg"]);
        let images = ImageFolder::matching(&here("**/*.jpg")).expect("three");
        assert_eq!(names(&images), ["a.jpg", "b.jpg", "e.jpg"]);
        let error = ImageFolder::matching(&here("*.gif")).expect_err("none").to_string();
        assert!(error.contains("*.gif"), "{error}");
        assert!(matches!(ImageFolder::matching("a***b"), Err(SourceError::Pattern { .. })));
    }

    #[test]
    fn repeats_for_as_many_frames_as_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["0.png", "1.png", "2.png"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let images = ImageFolder::open(folder.path()).expect("has images");
        let mut frames = images.frames(7);
        drop(images);
        assert_eq!(frames.size_hint(), (7, Some(7)));
        let seen: Vec<_> =
            frames.by_ref().map(|(i, path)| (i, path.ends_with(format!("{}.png", i % 3)))).collect();
        assert_eq!(seen, (0..7).map(|i| (i, true)).collect::<Vec<_>>());
        assert_eq!((frames.next(), frames.remaining()), (None, 0));
    }

    #[test]
    fn nothing_to_take_is_an_error_that_names_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().display().to_string();
        let error = ImageFolder::open(folder.path()).expect_err("empty");
        assert!(matches!(error, SourceError::Empty { .. }) && error.to_string().contains(&name), "{error}");

        let error = ImageFolder::open(folder.path().join("missing")).expect_err("missing");
        let missing = format!("{name}/missing");
        assert!(matches!(error, SourceError::List { .. }) && error.to_string().contains(&missing), "{error}");

        symlink("nowhere", folder.path().join("dangling.png")).expect("linked");
        let error = ImageFolder::open(folder.path()).expect_err("dangling");
        assert!(error.to_string().contains("dangling.png"), "{error}");
    }

    #[test]
    fn the_examples_photographs() {
        let images =
            ImageFolder::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data")).expect("photographs");
        assert_eq!(names(&images), ["camera.png", "chelsea.png", "clock.png", "coffee.jpg", "retina.jpg"]);
    }
}
