//! The error text for a link that was refused: which process lacks what.
//!
//! `connect` uses it, and so do sends over a link that was refused. It has no text from a peer: a peer sends
//! only an error number of the system, and the words are this process's own (WIRE-1).

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::ids::ProcessId;
use crate::os::remedy;

/// Why a process does not take a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhyRefused {
    /// It cannot, because of this system error.
    System(i32),
    /// The half is invalid, or the process has given its sender up.
    BadHalf,
}

impl WhyRefused {
    /// The process may open no more files.
    #[cfg(test)]
    pub(crate) const FILES: WhyRefused = WhyRefused::System(rustix::io::Errno::MFILE.raw_os_error());

    /// Returns the reason that another process is told for an error.
    pub(crate) fn of(error: &io::Error) -> Self {
        error.raw_os_error().map_or(WhyRefused::BadHalf, WhyRefused::System)
    }
}

/// The process that refused, and why.
#[derive(Clone, Debug)]
pub(crate) struct LinkRefused {
    who: String,
    what: String,
}

impl LinkRefused {
    /// Makes the reason that this process lacks something, as the error says.
    pub(crate) fn here(error: &io::Error) -> Self {
        LinkRefused { who: "this process".to_owned(), what: lack(error) }
    }

    /// Makes the reason that the process `by` refused. `name` is its worker's name, or empty.
    pub(crate) fn there(by: ProcessId, name: &str, why: WhyRefused) -> Self {
        let who = match name {
            _ if by == ProcessId::NODE => "the node".to_owned(),
            "" => format!("process {by}"),
            name => format!("worker `{name}`"),
        };
        let what = match why {
            WhyRefused::System(errno) => lack(&io::Error::from_raw_os_error(errno)),
            WhyRefused::BadHalf => "does not take this process's half of it; its log says why".to_owned(),
        };
        LinkRefused { who, what }
    }
}

fn lack(error: &io::Error) -> String {
    format!("lacks what a link takes: {error}{}", remedy(error))
}

impl fmt::Display for LinkRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.who, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_lacks_what_and_what_to_do() {
        let process = ProcessId::new(3, 1).unwrap();
        let text = LinkRefused::there(process, "blur", WhyRefused::FILES).to_string();
        assert!(text.starts_with("worker `blur` lacks") && text.contains("ulimit -n"), "{text}");
        let text = LinkRefused::there(process, "", WhyRefused::System(-7)).to_string();
        assert!(text.starts_with("process p3.1 lacks"), "{text}");
        let text = LinkRefused::there(ProcessId::NODE, "", WhyRefused::FILES).to_string();
        assert!(text.starts_with("the node lacks"), "{text}");
        assert_eq!(WhyRefused::of(&io::ErrorKind::InvalidData.into()), WhyRefused::BadHalf);
    }
}
