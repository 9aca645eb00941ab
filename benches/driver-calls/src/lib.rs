//! Times the calls of the CUDA driver in a program, without a change of the program.
//!
//! `LD_PRELOAD=libdriver_calls.so DRIVER_CALLS=FOLDER program` puts this library between a program and
//! `dlsym`, by which cudarc finds the driver's functions. The library times the functions in `CALLS`. Each
//! process appends to `FOLDER/PID.tsv`, ten times a second, a line for each function that was called
//! meanwhile. A line has the milliseconds since the process found the first of them, the function's name and
//! its calls. Then come the mean, median, 90th and 99th percentile and the largest time in nanoseconds (in
//! steps of 32; above 16,384 in steps of two). A call reads the clock twice more, which costs 40 to 60 ns.

#![expect(unsafe_code, reason = "stands in for a function of the C library and passes calls on")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::time::{Duration, Instant};

mod times;

use times::Times;

/// How often the counts are written down.
const EVERY: Duration = Duration::from_millis(100);
const FOLDER: &str = "DRIVER_CALLS";

/// The next object in the order of the search, from `dlfcn.h`.
const RTLD_NEXT: *mut c_void = -1_isize as *mut c_void;

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Up to six arguments that are integers or pointers: they are passed in registers, and a function that takes
/// fewer ignores the rest.
type Short = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// `cuLaunchKernel`: the kernel, six dimensions, bytes, the stream, arguments, more.
type Launch = unsafe extern "C" fn(usize, u32, u32, u32, u32, u32, u32, u32, usize, usize, usize) -> c_int;

/// A function of the driver.
struct Call {
    name: &'static CStr,
    real: AtomicPtr<c_void>,
    times: Times,
}

impl Call {
    const fn new(name: &'static CStr) -> Self {
        Call { name, real: AtomicPtr::new(std::ptr::null_mut()), times: Times::new() }
    }
}

const LAUNCH: usize = 0;

/// The functions that are timed: all that a message with a tensor may call.
static CALLS: [Call; 10] = [
    Call::new(c"cuLaunchKernel"),
    Call::new(c"cuStreamBatchMemOp_v2"),
    Call::new(c"cuStreamWriteValue64_v2"),
    Call::new(c"cuStreamWaitValue64_v2"),
    Call::new(c"cuCtxSetCurrent"),
    Call::new(c"cuCtxGetCurrent"),
    Call::new(c"cuMemcpyAsync"),
    Call::new(c"cuEventRecord"),
    Call::new(c"cuStreamQuery"),
    Call::new(c"cuEventQuery"),
];

unsafe extern "C" fn short<const AT: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_int {
    let call = &CALLS[AT];
    // SAFETY: set before this function was handed out, to the function of this name, which takes at most six
    // arguments of these kinds and returns a `CUresult`.
    let real: Short = unsafe { std::mem::transmute(call.real.load(Relaxed)) };
    let start = Instant::now();
    // SAFETY: the caller's own call.
    let result = unsafe { real(a, b, c, d, e, f) };
    call.times.add(start.elapsed());
    result
}

unsafe extern "C" fn launch(
    kernel: usize,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: usize,
    arguments: usize,
    extra: usize,
) -> c_int {
    let call = &CALLS[LAUNCH];
    // SAFETY: as in `short`, with the arguments of `cuLaunchKernel`.
    let real: Launch = unsafe { std::mem::transmute(call.real.load(Relaxed)) };
    let start = Instant::now();
    // SAFETY: the caller's own call.
    let result = unsafe { real(kernel, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra) };
    call.times.add(start.elapsed());
    result
}

/// In the order of [`CALLS`]; the first is [`launch`].
static STAND_INS: [Short; CALLS.len()] = [
    short::<0>, short::<1>, short::<2>, short::<3>, short::<4>, short::<5>, short::<6>, short::<7>,
    short::<8>, short::<9>,
];

/// Returns the C library's `dlsym`, by the versions that it has had on x86-64 and AArch64.
fn real_dlsym() -> Option<Lookup> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if FOUND.load(Relaxed).is_null() {
        for version in [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.2.5"] {
            // SAFETY: both are strings that end with a zero.
            let found = unsafe { dlvsym(RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !found.is_null() {
                FOUND.store(found, Relaxed);
                break;
            }
        }
    }
    let found = FOUND.load(Relaxed);
    // SAFETY: it is not null, and it is the C library's `dlsym`, which has this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Lookup>(found) })
}

/// Does what the C library's `dlsym` does, but for the functions that are timed.
///
/// # Safety
/// The conditions of `dlsym(3)` hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    let Some(real) = real_dlsym() else { return std::ptr::null_mut() };
    // SAFETY: the caller's own call.
    let found = unsafe { real(handle, symbol) };
    if found.is_null() || symbol.is_null() {
        return found;
    }
    // SAFETY: the caller's string, which ends with a zero.
    let name = unsafe { CStr::from_ptr(symbol) };
    let Some(at) = CALLS.iter().position(|call| call.name == name) else { return found };
    CALLS[at].real.store(found, Relaxed);
    write_down();
    if at == LAUNCH { launch as Launch as *mut c_void } else { STAND_INS[at] as *mut c_void }
}

/// Begins to write the counts down, if the program was told where to.
fn write_down() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        let path = Path::new(&folder).join(format!("{}.tsv", std::process::id()));
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => drop(std::thread::spawn(move || keep_writing(file))),
            Err(error) => eprintln!("driver_calls: {}: {error}", path.display()),
        }
    });
}

fn keep_writing(mut file: File) {
    let start = Instant::now();
    loop {
        std::thread::sleep(EVERY);
        let now = start.elapsed().as_millis();
        for call in &CALLS {
            let Some(taken) = call.times.take() else { continue };
            let name = call.name.to_string_lossy();
            if writeln!(file, "{now}\t{name}\t{taken}").is_err() {
                return;
            }
        }
    }
}
