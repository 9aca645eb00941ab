//! What needs no GPU, and the conformance suite where there is one.
//!
//! With `REQUIRE_GPU=1` in the environment, a machine without a GPU fails the suite instead of leaving it out.

use super::*;

/// The first GPU; `None`, and a word about it, where there is none and none is required.
fn gpu() -> Option<Arc<CudaBackend>> {
    match CudaBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(error) if std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1") => {
            panic!("REQUIRE_GPU=1, and {error}")
        }
        Err(error) => {
            println!("left out: {error}");
            None
        }
    }
}

#[test]
fn the_conformance_suite() {
    let Some(backend) = gpu() else { return };
    crate::device::conformance::run_all(&|| Arc::clone(&backend) as Arc<dyn Backend>);
}

#[test]
fn without_a_driver_the_error_says_what_to_do() {
    match devices() {
        Err(error @ DeviceError::NoDriver { .. }) => {
            let text = error.to_string();
            assert!(text.contains("libcuda.so.1") && text.contains("Device::host()"), "{text}");
            assert!(matches!(CudaBackend::open(0), Err(DeviceError::NoDriver { .. })));
            assert!(matches!(CudaBackend::by_id(DeviceId([7; 16])), Err(DeviceError::NoDriver { .. })));
        }
        Err(other) => println!("there is a driver that does not work: {other}"),
        Ok(found) => {
            let missing = CudaBackend::open(found.len());
            assert!(matches!(missing, Err(DeviceError::NoDevice { .. })), "{missing:?}");
            assert!(matches!(CudaBackend::by_id(DeviceId([7; 16])), Err(DeviceError::NoDevice { .. })));
        }
    }
}
