//! Host memory of this process, without a node: it holds tensors that came from other libraries, and copies
//! of them.
//!
//! It is made at the first use and lives as long as the process; a forked child makes one of its own.

use pyo3::prelude::*;
use tensorpost_core::clock::{ClockDomain, ClockPage};
use tensorpost_core::device::host::HostBackend;
use tensorpost_core::ids::ProcessId;
use tensorpost_core::lease::{Pool, PoolOptions};
use tensorpost_core::os::PerProcess;
use tensorpost_core::tensor::DeviceStream;

use crate::failure::exception;

/// Returns the host's stream.
pub(crate) fn stream(py: Python<'_>) -> PyResult<&'static DeviceStream> {
    static STREAM: PerProcess<Result<DeviceStream, String>> =
        PerProcess::new(|| open().map_err(|error| error.to_string()));
    STREAM.get().as_ref().map_err(|why| {
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
