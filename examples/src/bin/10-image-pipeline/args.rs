//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tensorpost_actors::image::ImageSize;
use tensorpost_examples::Place;

/// Photographs through four processes: decode | resize + normalise | edge filter | write, without copying a
/// pixel.
///
/// Prints the work of each stage and checks the result against the same computation in one process. Ctrl-C
/// stops the source and lets everything under way finish; a second one ends at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "10-image-pipeline")]
pub(crate) struct Args {
    /// Folder with .jpg, .jpeg and .png files
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data"))]
    pub(crate) images: PathBuf,

    /// Frames to process: the folder's photographs over and over, in the order of their names
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) frames: u64,

    #[command(flatten)]
    pub(crate) place: Place,

    /// Report the progress on standard error; on a terminal it is always reported
    #[arg(long)]
    pub(crate) progress: bool,

    /// Folder to write to; made if it is missing
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir().join("tensorpost-image-pipeline"))]
    pub(crate) out: PathBuf,

    /// Size of the resulting images, in pixels
    #[arg(long, value_name = "WxH", default_value = "512x384", value_parser = size)]
    pub(crate) size: ImageSize,

    /// Leave out files that cannot be decoded, instead of stopping with an error that names the file
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

fn size(text: &str) -> Result<ImageSize, String> {
    let parts = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    let (width, height) = parts.ok_or("give width and height in pixels, such as 512x384")?;
    ImageSize::new(width, height).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::try_parse_from(["10-image-pipeline"].iter().chain(args)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(
            parse(&["--size", "640x480"]).expect("good").size,
            ImageSize::new(640, 480).expect("good")
        );
        assert!(parse(&["--size", "640"]).expect_err("no height").contains("512x384"));
        assert!(parse(&["--size", "0x5"]).expect_err("no width").contains("each side must be 1 to"));
        assert!(parse(&["--frames", "0"]).is_err());
    }
}
