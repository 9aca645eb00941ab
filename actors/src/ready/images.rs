//! Photographs from files.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tensorpost::prelude::*;

use super::Named;
use crate::image::{ImageError, decode};
use crate::source::ImageFolder;

/// How often the files come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Repeat {
    /// Each file once.
    Once,
    /// This many images: the files over and over.
    Images(u64),
    /// The files over and over, until the pipeline is stopped.
    Forever,
}

/// The photographs that an [`Images`] reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImagesArgs {
    /// The place of the photographs.
    from: Place,
    /// How often the photographs come.
    pub repeat: Repeat,
    /// Whether to leave out files that cannot be decoded, and say so in the log, instead of failing.
    pub skip_bad: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Place {
    Folder(PathBuf),
    Pattern(String),
}

impl ImagesArgs {
    /// Reads the photographs of a folder, once, see [`ImageFolder::open`].
    pub fn folder(folder: impl Into<PathBuf>) -> Self {
        ImagesArgs { from: Place::Folder(folder.into()), repeat: Repeat::Once, skip_bad: false }
    }

    /// Reads the files that a pattern such as `photos/**/*.jpg` matches, once, see [`ImageFolder::matching`].
    pub fn pattern(pattern: impl Into<String>) -> Self {
        ImagesArgs { from: Place::Pattern(pattern.into()), repeat: Repeat::Once, skip_bad: false }
    }

    /// Sets how often the images come.
    pub fn repeat(self, repeat: Repeat) -> Self {
        ImagesArgs { repeat, ..self }
    }

    /// Leaves out files that cannot be decoded.
    pub fn skip_bad(self) -> Self {
        ImagesArgs { skip_bad: true, ..self }
    }
}

/// Decodes photographs into bytes, `[height, width, 3]`, named after their files. They are decoded on the
/// host, and for a GPU uploaded.
///
/// ```
/// use tensorpost::prelude::*;
/// use tensorpost_actors::ready::{Images, ImagesArgs, Repeat};
///
/// # fn main() -> anyhow::Result<()> {
/// # let node = Node::builder().start()?;
/// # let stream = node.host_stream()?;
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");
/// // In a pipeline: `.source::<Images>(args)`. To try it out:
/// let args = ImagesArgs::pattern(format!("{folder}/c*.png")).repeat(Repeat::Images(4));
/// let mut source = Images::new(args, &stream)?;
/// let mut names = Vec::new();
/// while let Some(image) = source.next()? {
///     names.push(image.label.to_string());
/// }
/// assert_eq!(names, ["00000-camera", "00001-chelsea", "00002-clock", "00003-camera"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Images {
    stream: DeviceStream,
    folder: ImageFolder,
    next: u64,
    /// `None`: for ever.
    count: Option<u64>,
    skip_bad: bool,
    /// Number of files left out in a row: where all files are bad, this ends the source.
    bad: usize,
}

impl Images {
    /// Creates the source with the device of `stream`.
    ///
    /// # Errors
    /// There is no such folder, or no image.
    pub fn new(args: ImagesArgs, stream: &DeviceStream) -> anyhow::Result<Self> {
        let folder = match args.from {
            Place::Folder(folder) => ImageFolder::open(folder)?,
            Place::Pattern(pattern) => ImageFolder::matching(&pattern)?,
        };
        let count = match args.repeat {
            Repeat::Once => Some(folder.files().len() as u64),
            Repeat::Images(count) => Some(count),
            Repeat::Forever => None,
        };
        Ok(Images { stream: stream.clone(), folder, next: 0, count, skip_bad: args.skip_bad, bad: 0 })
    }

    fn read(&self, path: &Path) -> anyhow::Result<Result<Tensor, ImageError>> {
        let image = match decode::EncodedImage::open(path) {
            Ok(image) => image,
            Err(error) => return Ok(Err(error)),
        };
        let size = image.size();
        let shape = [size.height() as usize, size.width() as usize, 3];
        let mut pixels = self.stream.empty(DType::U8, &shape)?;
        let decoded = match self.stream.kind() {
            DeviceKind::Host => image.decode_into(pixels.as_mut_slice::<u8>()?),
            _ => {
                let mut hwc = vec![0; size.rgb_len()];
                let decoded = image.decode_into(&mut hwc);
                self.stream.upload(&mut pixels, &hwc)?;
                decoded
            }
        };
        Ok(decoded.map(|()| pixels.freeze()))
    }
}

impl Source for Images {
    type Args = ImagesArgs;
    type Out = Named;

    fn create(args: ImagesArgs, env: &Env) -> anyhow::Result<Self> {
        Self::new(args, &env.stream())
    }

    fn next(&mut self) -> anyhow::Result<Option<Named>> {
        while self.count.is_none_or(|count| self.next < count) {
            let id = self.next;
            let path = self.folder.frame(id).clone();
            let read = self.read(&path).with_context(|| format!("image {id}, {}", path.display()))?;
            // Count the file first: a pipeline that skips an error of this stage goes on with the next file.
            self.next += 1;
            match read {
                Ok(pixels) => {
                    self.bad = 0;
                    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
                    return Ok(Some(Named::new(id, name.unwrap_or_default(), pixels)));
                }
                Err(error) if self.skip_bad && self.bad + 1 < self.folder.files().len() => {
                    self.bad += 1;
                    eprintln!("image {id} is left out: {error}");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::tests::host;
    use super::*;
    use crate::image::{ImageSize, png};

    #[test]
    fn files_come_once_or_over_and_over_and_bad_ones_are_named_or_left_out() {
        let (_node, stream) = host();
        let folder = tempfile::tempdir().expect("a folder");
        let size = ImageSize::new(2, 1).expect("in bounds");
        png::write_rgb8(folder.path().join("b.png"), &[1, 2, 3, 4, 5, 6], size).expect("written");
        std::fs::write(folder.path().join("a.png"), "no picture").expect("written");

        let mut images = Images::new(ImagesArgs::folder(folder.path()), &stream).expect("a folder");
        let error = images.next().expect_err("bad").to_string();
        assert!(error.contains("a.png"), "{error}");
        let image = images.next().expect("good").expect("one more");
        assert_eq!(image.tensor.to_vec::<u8>().expect("bytes"), [1, 2, 3, 4, 5, 6]);
        assert_eq!((image.tensor.shape(), image.label.to_string()), (&[1, 2, 3][..], "00001-b".to_owned()));
        assert!(images.next().expect("the end").is_none());

        let args = ImagesArgs::folder(folder.path()).repeat(Repeat::Forever).skip_bad();
        let mut images = Images::new(args, &stream).expect("a folder");
        let mut id = || images.next().expect("good").expect("for ever").label.id;
        assert_eq!([id(), id(), id()], [1, 3, 5]);

        // If all files are bad, the source returns an error and does not search for ever.
        std::fs::remove_file(folder.path().join("b.png")).expect("removed");
        let args = ImagesArgs::folder(folder.path()).repeat(Repeat::Forever).skip_bad();
        assert!(Images::new(args, &stream).expect("a folder").next().is_err());
    }
}
