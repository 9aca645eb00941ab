#![doc = include_str!("../README.md")]

use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use tensorpost::prelude::{Device, Sharing};

// The command-line options of every example that computes. (No doc comment: `--help` would show it.)
#[derive(Clone, Debug, Parser)]
#[expect(missing_docs, reason = "clap would show it as what the program is about")]
pub struct Place {
    /// Device to compute on: `host`, `cuda:0` or the UUID of a GPU
    #[arg(long, default_value = "host")]
    pub device: Device,

    /// How the processes share a GPU: in time slices, or at once through a private MPS daemon, where a
    /// process that dies in the middle of a kernel ends the others too
    #[arg(long, value_name = "HOW", default_value = "isolated", value_parser = PossibleValuesParser::new(["isolated", "mps"])
        .map(|how| if how == "mps" { Sharing::Mps } else { Sharing::Isolated }))]
    pub sharing: Sharing,
}

/// Returns the missing requirement of the examples with a part in Python, if one is missing: the interpreter,
/// the package `tensorpost`, or `module`.
pub fn lacks_python(module: &str) -> Option<String> {
    // As `actor::Python` looks for it.
    let named = std::env::var_os("TENSORPOST_PYTHON").map(PathBuf::from);
    let active = || std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/python"));
    let interpreter = named.or_else(active).unwrap_or_else(|| "python3".into());
    let program = format!(
        "import importlib, sys\nfor name in ('tensorpost', '{module}'):\n    importlib.import_module(name)"
    );
    match Command::new(&interpreter).args(["-c", &program]).output() {
        Err(error) => Some(format!("{} does not run: {error}", interpreter.display())),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it failed").to_owned();
            Some(format!("{} lacks a package: {last}", interpreter.display()))
        }
    }
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
