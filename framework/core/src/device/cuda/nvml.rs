//! NVIDIA's management library, loaded at run time, for the doctor: it also knows GPUs that this process does not see.
//!
//! What a library or a GPU does not know is `None`: virtual GPUs and old drivers lack much.

#![expect(unsafe_code, reason = "calls a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use libloading::Library;
use serde::{Deserialize, Serialize};

const LIBRARY: &str = "libnvidia-ml.so.1";
/// Most links of one GPU.
const LINKS: c_uint = 18;
/// Most parts of one GPU.
const PARTS: c_uint = 7;
/// Uncorrected errors, since the driver was loaded.
const UNCORRECTED: c_int = 1;
const VOLATILE: c_int = 0;

/// What the library says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlFacts {
    /// The version of the driver's kernel part.
    pub(crate) driver: Option<String>,
    pub(crate) gpus: Vec<NvmlGpu>,
    /// Pairs of GPUs and how they are connected, in the words of `nvidia-smi topo -m`.
    pub(crate) topology: Vec<(usize, usize, String)>,
}

/// What it says of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlGpu {
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// Its place on the PCI bus, as the kernel writes it.
    pub(crate) bus: Option<String>,
    /// 0 for the default, 2 for prohibited, 3 for one process alone.
    pub(crate) compute_mode: Option<i32>,
    pub(crate) persistence: Option<bool>,
    /// Memory errors that were not corrected, since the driver was loaded.
    pub(crate) uncorrected: Option<u64>,
    /// Whether pages or rows wait for a reset to be taken out of use.
    pub(crate) repair_pending: Option<bool>,
    /// Whether a row could not be taken out of use.
    pub(crate) repair_failed: Option<bool>,
    /// The UUIDs of its parts, where it is divided.
    pub(crate) parts: Option<Vec<String>>,
}

/// Why the library does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlError {
    /// Its number for it; `None` where the library is not there.
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

type Handle = *mut c_void;

/// `nvmlPciInfo_t`: of its 68 bytes the last 32 are the place as text.
#[repr(C, align(8))]
struct PciInfo([u8; 72]);

/// The loaded library, which stays for the life of the process.
struct Nvml(Library);

/// A function of the library by its name, called where it is there.
macro_rules! call {
    ($nvml:expr, $name:literal, ($($kind:ty),*), $($arg:expr),*) => {{
        type Function = unsafe extern "C" fn($($kind),*) -> c_int;
        // SAFETY: the signature is that of the library's header, with enums as ints; what it writes is as large as it says.
        unsafe { $nvml.0.get::<Function>(concat!($name, "\0").as_bytes()).ok().map(|function| function($($arg),*)) }
    }};
}

/// Calls what writes one value; `None` where there is no such call, or it fails.
macro_rules! value {
    ($nvml:expr, $name:literal, $out:ty, ($($kind:ty),*), $($arg:expr),*) => {{
        let mut value = MaybeUninit::<$out>::zeroed();
        let code = call!($nvml, $name, ($($kind,)* *mut $out), $($arg,)* value.as_mut_ptr());
        // SAFETY: the values are plain numbers or pointers, for which the zeroes from before are a value as well.
        (code == Some(0)).then(|| unsafe { value.assume_init() })
    }};
}

/// Asks the library for all that it knows of what is asked here.
pub(crate) fn facts() -> Result<NvmlFacts, NvmlError> {
    // SAFETY: runs the initialisers of NVIDIA's library, as a program that is linked to it does.
    let library = unsafe { Library::new(LIBRARY) };
    let nvml = Nvml(library.map_err(|_| NvmlError { code: None, text: format!("{LIBRARY} was not found") })?);
    let code = call!(nvml, "nvmlInit_v2", (),).unwrap_or(-1);
    if code != 0 {
        let text = nvml.words(code).unwrap_or_else(|| "no description".to_owned());
        return Err(NvmlError { code: Some(code), text: format!("nvmlInit_v2 failed with {code}: {text}") });
    }
    let count = value!(nvml, "nvmlDeviceGetCount_v2", c_uint, (),).unwrap_or(0);
    let handles: Vec<Handle> = (0..count)
        .filter_map(|index| value!(nvml, "nvmlDeviceGetHandleByIndex_v2", Handle, (c_uint), index))
        .collect();
    let facts = NvmlFacts {
        driver: text(|at, length| {
            call!(nvml, "nvmlSystemGetDriverVersion", (*mut c_char, c_uint), at, length)
        }),
        gpus: handles.iter().map(|&gpu| nvml.gpu(gpu)).collect(),
        topology: nvml.topology(&handles),
    };
    // Functions of it may run in threads of its own.
    std::mem::forget(nvml);
    Ok(facts)
}

/// Calls what writes a text.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> Option<c_int>) -> Option<String> {
    let mut buffer = [0_u8; 96];
    let code = write(buffer.as_mut_ptr().cast(), buffer.len() as c_uint);
    let text = CStr::from_bytes_until_nul(&buffer).ok()?;
    (code == Some(0)).then(|| text.to_string_lossy().into_owned())
}

impl Nvml {
    fn words(&self, code: c_int) -> Option<String> {
        type Function = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: the signature is that of the library's header; it returns a constant text, also for unknown numbers.
        unsafe {
            let words = self.0.get::<Function>(b"nvmlErrorString\0").ok()?(code);
            (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
        }
    }

    fn gpu(&self, gpu: Handle) -> NvmlGpu {
        let is_on = |value: Option<c_int>| value.map(|value| value != 0);
        let rows = self.remapped_rows(gpu);
        let retired = is_on(value!(self, "nvmlDeviceGetRetiredPagesPendingStatus", c_int, (Handle), gpu));
        NvmlGpu {
            uuid: self.uuid(gpu).unwrap_or_default(),
            name: text(|at, length| {
                call!(self, "nvmlDeviceGetName", (Handle, *mut c_char, c_uint), gpu, at, length)
            })
            .unwrap_or_default(),
            bus: self.bus(gpu),
            compute_mode: value!(self, "nvmlDeviceGetComputeMode", c_int, (Handle), gpu),
            persistence: is_on(value!(self, "nvmlDeviceGetPersistenceMode", c_int, (Handle), gpu)),
            uncorrected: value!(
                self,
                "nvmlDeviceGetTotalEccErrors",
                u64,
                (Handle, c_int, c_int),
                gpu,
                UNCORRECTED,
                VOLATILE
            ),
            repair_pending: match (rows, retired) {
                (None, None) => None,
                (rows, retired) => Some(rows.is_some_and(|(pending, _)| pending) || retired == Some(true)),
            },
            repair_failed: rows.map(|(_, failed)| failed),
            parts: self.parts(gpu),
        }
    }

    fn uuid(&self, gpu: Handle) -> Option<String> {
        text(|at, length| call!(self, "nvmlDeviceGetUUID", (Handle, *mut c_char, c_uint), gpu, at, length))
    }

    fn bus(&self, gpu: Handle) -> Option<String> {
        let info = value!(self, "nvmlDeviceGetPciInfo_v3", PciInfo, (Handle), gpu)?;
        let text = CStr::from_bytes_until_nul(&info.0[36..]).ok()?.to_str().ok()?.to_ascii_lowercase();
        // The kernel writes the domain with four digits, the library with eight.
        let (domain, place) = text.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        Some(format!("{domain:04x}:{place}"))
    }

    /// Whether rows of its memory wait to be taken out of use, and whether that failed for one.
    fn remapped_rows(&self, gpu: Handle) -> Option<(bool, bool)> {
        type Out = *mut c_uint;
        let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
        let code = call!(
            self,
            "nvmlDeviceGetRemappedRows",
            (Handle, Out, Out, Out, Out),
            gpu,
            &mut corrected,
            &mut uncorrected,
            &mut pending,
            &mut failed
        );
        (code == Some(0)).then_some((pending != 0, failed != 0))
    }

    fn parts(&self, gpu: Handle) -> Option<Vec<String>> {
        let (mut current, mut pending) = (0, 0);
        let code = call!(
            self,
            "nvmlDeviceGetMigMode",
            (Handle, *mut c_uint, *mut c_uint),
            gpu,
            &mut current,
            &mut pending
        );
        if code != Some(0) || current == 0 {
            return None;
        }
        let part = |index| {
            let part =
                value!(self, "nvmlDeviceGetMigDeviceHandleByIndex", Handle, (Handle, c_uint), gpu, index)?;
            self.uuid(part)
        };
        Some((0..PARTS).filter_map(part).collect())
    }

    fn topology(&self, gpus: &[Handle]) -> Vec<(usize, usize, String)> {
        let mut all = Vec::new();
        for (first, &one) in gpus.iter().enumerate() {
            for (second, &other) in gpus.iter().enumerate().skip(first + 1) {
                // The number of the question whether they speak over NVLink.
                let linked =
                    value!(self, "nvmlDeviceGetP2PStatus", c_int, (Handle, Handle, c_int), one, other, 2);
                let word = if linked == Some(0) { self.links(one) } else { self.common_ancestor(one, other) };
                all.extend(word.map(|word| (first, second, word)));
            }
        }
        all
    }

    fn links(&self, gpu: Handle) -> Option<String> {
        let is_up = |&link: &c_uint| {
            value!(self, "nvmlDeviceGetNvLinkState", c_int, (Handle, c_uint), gpu, link) == Some(1)
        };
        Some(format!("NV{}", (0..LINKS).filter(is_up).count()))
    }

    fn common_ancestor(&self, one: Handle, other: Handle) -> Option<String> {
        let level = value!(self, "nvmlDeviceGetTopologyCommonAncestor", c_int, (Handle, Handle), one, other)?;
        let word = match level {
            0 => "the same board",
            10 => "PIX",
            20 => "PXB",
            30 => "PHB",
            40 => "NODE",
            50 => "SYS",
            _ => return None,
        };
        Some(word.to_owned())
    }
}
