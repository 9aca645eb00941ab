//! Drivers that are too old, or that refuse: tests that need no GPU.

use super::*;

fn driver<const CODE: i32>() -> Driver {
    Driver { table: Table::answering::<CODE>(), ready: OnceLock::new() }
}

#[test]
fn a_driver_that_lacks_a_call_is_named_too_old() {
    unsafe extern "C" fn never() {}
    for missing in ["cuInit", "cuMemSetAccess", "cuStreamBatchMemOp_v2"] {
        let look_up = |symbol: &'static [u8]| {
            let is_missing = symbol.strip_suffix(b"\0") == Some(missing.as_bytes());
            if is_missing { std::ptr::null() } else { never as *const c_void }
        };
        // SAFETY: the table is dropped here, and nothing in it is called.
        let symbol = unsafe { Table::load(look_up) }.err().unwrap();
        let error = DeviceError::NoDriver { reason: too_old(symbol) }.to_string();
        assert!(error.contains(missing) && error.contains("CUDA 11.7"), "{error}");
    }
}

/// In a container without the needed rights, the driver refuses GPUs that exist.
#[test]
fn a_refusal_says_which_call_and_what_to_look_at() {
    let driver = driver::<800>();
    let error = driver.create(&chunk_prop(0), 1 << 20).unwrap_err();
    assert!(matches!(error, DeviceError::Driver { call: "cuMemCreate", code: 800, .. }), "{error}");
    assert!(error.to_string().contains("container"), "{error}");
    assert!(driver.export(1).unwrap_err().to_string().contains("cuMemExportToShareableHandle"));
}

/// A code that is newer than this program is passed on unchanged.
#[test]
fn an_unknown_code_survives() {
    let error = driver::<987_654>().device_count().unwrap_err();
    assert!(matches!(error, DeviceError::Driver { code: 987_654, .. }));
    assert!(error.to_string().contains("cannot name"), "{error}");
}

#[test]
fn codes_are_told_apart() {
    assert!(is_no_device(&driver::<100>().device_count().unwrap_err()));
    assert!(is_out_of_memory(&driver::<2>().create(&chunk_prop(0), 1).unwrap_err()));
    assert!(loses_context(700) && loses_context(719) && !loses_context(2) && !loses_context(NOT_READY));
}
