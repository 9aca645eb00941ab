//! The limit of open files of a process.
//!
//! Each chunk and each link is a few open files, and the node holds those of all processes. The usual soft
//! limit, 1024, protects programs that call `select`, which cannot take a larger number; the framework does
//! not call it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files of this process as far as it may.
pub(crate) fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    if before.current == before.maximum {
        return;
    }
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    let (from, to) = (before.current, before.maximum);
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(?from, ?to, "the limit of open files was raised"),
        // The process works with the old limit too, only with less of everything.
        Err(error) => tracing::debug!(?from, ?to, %error, "the limit of open files could not be raised"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
