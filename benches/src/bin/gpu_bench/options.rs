//! The options on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use tensorpost::node::Sharing;

/// Measures tensorpost on one device, in one run, beside the bare driver; prints every median and a table of
/// targets.
#[derive(Debug, Parser)]
#[command(name = "gpu_bench")]
pub(crate) struct Options {
    /// `host`, or `cuda:` and a number. The host has no floor and no MPS: it is for trying the programs out.
    #[arg(long, default_value = "cuda:0")]
    pub(crate) device: Place,
    /// How workers share the GPU; both ways, one after the other, unless told otherwise.
    #[arg(long, value_delimiter = ',', default_value = "isolated,mps")]
    pub(crate) modes: Vec<Mode>,
    /// Only measurements whose name has one of these in it, such as `stream,floor`.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Runs a tenth of the repetitions.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Lines of a name and a number that another program measured, such as `peers/torch_ipc.py`.
    #[arg(long)]
    pub(crate) peer: Vec<PathBuf>,
    /// The file for every median, as lines of a name and a number.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Fails when a target is missed, not only when a measurement failed.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Used by the program itself.
    #[arg(long, hide = true)]
    pub(crate) role: Option<Role>,
    /// Rounds of the floor.
    #[arg(long, hide = true, default_value_t = 2000)]
    pub(crate) rounds: usize,
}

/// The work of a process that this program started.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Role {
    Floor,
    FloorPeer,
    Context,
    PeerCopy,
}

/// How workers share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Isolated,
    Mps,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Isolated => "isolated",
            Mode::Mps => "mps",
        }
    }

    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Mode::Isolated => Sharing::Isolated,
            Mode::Mps => Sharing::Mps,
        }
    }
}

/// A GPU's number, or `None` for the host; only its user looks it up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(pub(crate) Option<usize>);

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ordinal = text.strip_prefix("cuda:").map(str::parse);
        match (text, ordinal) {
            ("host", _) => Ok(Place(None)),
            (_, Some(Ok(ordinal))) => Ok(Place(Some(ordinal))),
            _ => Err(format!("`{text}` is neither `host` nor `cuda:` and a number")),
        }
    }
}

/// Inverts [`Place::from_str`].
pub(crate) fn name(ordinal: Option<usize>) -> String {
    ordinal.map_or_else(|| "host".to_owned(), |ordinal| format!("cuda:{ordinal}"))
}
