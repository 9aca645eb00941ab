#![doc = include_str!("../README.md")]

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use tensorpost::prelude::{Device, Sharing};

// What every example that computes is told on its command line. (No documentation: `--help` would show it.)
#[derive(Clone, Debug, Parser)]
#[expect(missing_docs, reason = "clap would show it as what the program is about")]
pub struct Place {
    /// Device to compute on: `host`, `cuda:0` or the UUID of a GPU
    #[arg(long, default_value = "host")]
    pub device: Device,

    /// How the processes share a GPU: in time slices, or at once by a private MPS daemon, where one that dies in the middle
    /// of a kernel takes the others along
    #[arg(long, value_name = "HOW", default_value = "isolated", value_parser = PossibleValuesParser::new(["isolated", "mps"])
        .map(|how| if how == "mps" { Sharing::Mps } else { Sharing::Isolated }))]
    pub sharing: Sharing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Place, String> {
        Place::try_parse_from(["example"].iter().chain(args)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_said() {
        let place = parse(&[]).expect("good");
        assert_eq!((place.device, place.sharing), (Device::host(), Sharing::Isolated));
        assert_eq!(parse(&["--sharing", "mps"]).expect("good").sharing, Sharing::Mps);
        assert!(parse(&["--sharing", "all"]).expect_err("no such way").contains("isolated, mps"));
        assert!(parse(&["--device", "cuda:4096"]).is_err());
        assert!(parse(&["--device", "tpu"]).expect_err("no such thing").contains("write `host`, `cuda:0`"));
    }
}
