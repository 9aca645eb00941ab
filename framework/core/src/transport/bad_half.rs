//! Why a half of a link, or fresh memory for its rings, is refused.

use crate::clock::BadClockPage;
use crate::os::{BadMemfd, remedy};

/// Why a half was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHalf {
    #[error("a page that it sent is not what it has to be: {0}")]
    Memory(#[from] BadMemfd),
    #[error("its clock page is not what it has to be: {0}")]
    Clock(#[from] BadClockPage),
    #[error("its link message came with {0} descriptors instead of {1}")]
    Descriptors(usize, usize),
    #[error("its ring cannot be: {0}")]
    Ring(#[from] crate::transport::ring::BadCapacity),
    #[error("it sent its half twice")]
    Twice,
    #[error("it was given up before, for breaking the protocol")]
    GivenUp,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl BadHalf {
    /// Returns the system's error if this process lacks a resource and nothing is wrong with the half.
    pub(super) fn lack(&self) -> Option<&std::io::Error> {
        let (BadHalf::Io(error)
        | BadHalf::Memory(BadMemfd::Os(error))
        | BadHalf::Clock(BadClockPage::Os(error) | BadClockPage::Memory(BadMemfd::Os(error)))) = self
        else {
            return None;
        };
        // Any other system error may be caused by the descriptors, and so by their sender.
        Some(error).filter(|error| remedy::known(error).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_is_told_from_other_system_errors_and_from_invalid_halves() {
        for (error, void) in [
            (BadHalf::Io(rustix::io::Errno::NOMEM.into()), true),
            (BadHalf::Memory(BadMemfd::Os(rustix::io::Errno::NODEV.into())), false),
            (BadHalf::Clock(BadClockPage::Memory(BadMemfd::Os(rustix::io::Errno::NFILE.into()))), true),
            (BadHalf::Io(std::io::ErrorKind::InvalidData.into()), false),
            (BadHalf::Memory(BadMemfd::NotMemfd), false),
            (BadHalf::Twice, false),
        ] {
            assert_eq!(error.lack().is_some(), void, "{error}");
        }
    }
}
