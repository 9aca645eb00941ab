//! Host memory of this process, without a node: what tensors are on that came from other libraries, and copies of them.
//!
//! It is made at the first use and lives as long as the process. A process that was forked from one that has it must not use
//! it: its threads are not there.

use std::sync::OnceLock;

use pyo3::prelude::*;
use tensorpost_core::clock::{ClockDomain, ClockPage};
use tensorpost_core::device::host::HostBackend;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::{Pool, PoolOptions};
use tensorpost_core::tensor::DeviceStream;

use crate::failure::exception;

/// The host's stream.
pub(crate) fn stream(py: Python<'_>) -> PyResult<&'static DeviceStream> {
    static STREAM: OnceLock<Result<DeviceStream, String>> = OnceLock::new();
    let made = STREAM.get_or_init(|| open().map_err(|error| error.to_string()));
    made.as_ref().map_err(|why| {
        exception(
            py,
            "TensorError",
            format!("there is no host memory for tensors: {why}; see `ulimit -n` and /dev/shm"),
        )
    })
}

fn open() -> Result<DeviceStream, Box<dyn std::error::Error>> {
    let domain = ClockDomain::new(ProcessId::OUTSIDE, ClockPage::create()?);
    let pool = Pool::new(HostBackend::new(), domain.clone(), PoolOptions::default(), 0);
    Ok(DeviceStream::new(pool, domain)?)
}
