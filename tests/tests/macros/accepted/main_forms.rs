//! Each form of `main` returns what it says, in the runtime that its attribute names.

#![deny(warnings)]

use std::process::{ExitCode, Termination};

use tokio::runtime::{Handle, RuntimeFlavor};

fn runtime() -> (RuntimeFlavor, usize) {
    (Handle::current().runtime_flavor(), Handle::current().metrics().num_workers())
}

mod plain {
    use std::process::ExitCode;

    /// It has attributes of its own.
    #[tensorpost::main]
    #[inline(never)]
    pub(super) fn main() -> ExitCode {
        #![allow(unused_variables)]
        let unused = 7;
        ExitCode::from(7)
    }
}

mod fallible {
    #[tensorpost::main]
    pub(super) async fn main() -> anyhow::Result<()> {
        tokio::task::yield_now().await;
        let _: u64 = "seven".parse()?;
        Ok(())
    }
}

mod two_threads {
    #[tensorpost::main(flavor = "multi_thread", worker_threads = 2)]
    pub(super) async fn main() -> (super::RuntimeFlavor, usize) {
        super::runtime()
    }
}

mod one_thread {
    #[tensorpost::main(flavor = "current_thread")]
    pub(super) async fn main() -> (super::RuntimeFlavor, usize) {
        super::runtime()
    }
}

mod opaque {
    #[tensorpost::main]
    pub(super) async fn main() -> impl std::process::Termination {
        tokio::task::yield_now().await;
    }
}

#[test]
fn main_returns_what_it_says_in_the_runtime_that_it_names() {
    let shown = |code: ExitCode| format!("{code:?}");
    assert_eq!(shown(plain::main()), shown(ExitCode::from(7)));
    assert_eq!(fallible::main().unwrap_err().to_string(), "invalid digit found in string");
    assert_eq!(two_threads::main(), (RuntimeFlavor::MultiThread, 2));
    assert_eq!(one_thread::main(), (RuntimeFlavor::CurrentThread, 1));
    assert_eq!(shown(opaque::main().report()), shown(ExitCode::SUCCESS));
}
