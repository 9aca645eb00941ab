//! NVIDIA's management library, loaded at run time. The doctor uses it, because it also knows GPUs that this
//! process does not see. It also tells the share of the GPUs that each process uses.
//!
//! A value that a library or a GPU does not know is `None`: virtual GPUs and old drivers lack many.

#![expect(unsafe_code, reason = "calls a C library")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};

use libloading::Library;
use serde::{Deserialize, Serialize};
use tensorpost_core::api::watch::{AskShares, GpuShare};

const LIBRARY: &str = "libnvidia-ml.so.1";
/// The largest number of links of one GPU.
const LINKS: c_uint = 18;
/// The largest number of parts of one GPU.
const PARTS: c_uint = 7;
/// The kind of error count: uncorrected errors, since the driver was loaded.
const UNCORRECTED: c_int = 1;
const VOLATILE: c_int = 0;
/// No process is known.
const NOT_FOUND: c_int = 6;
/// The list has more entries than there is room for.
const INSUFFICIENT_SIZE: c_int = 7;
/// Room for entries that are added between two calls.
const MORE: c_uint = 16;
/// The longest list that is requested.
const LONGEST_LIST: c_uint = 1 << 16;

/// The library's facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlFacts {
    /// The version of the driver's kernel part.
    pub(crate) driver: Option<String>,
    pub(crate) gpus: Vec<NvmlGpu>,
    /// Pairs of GPUs and their connection, in the words of `nvidia-smi topo -m`.
    pub(crate) topology: Vec<(usize, usize, String)>,
}

/// The library's facts about a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlGpu {
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// The GPU's place on the PCI bus, as the kernel writes it.
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
    /// The UUIDs of its parts, if it is divided.
    pub(crate) parts: Option<Vec<String>>,
}

/// The reason why the library does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NvmlError {
    /// The library's number for it; `None` if there is no library.
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

type Handle = *mut c_void;

/// `nvmlPciInfo_t`: the last 32 of its 68 bytes are the place as text.
#[repr(C, align(8))]
struct PciInfo([u8; 72]);

/// The loaded library. It stays for the life of the process, because its functions may run in threads of its
/// own.
struct Nvml(ManuallyDrop<Library>, Vec<Gpu>);

/// A GPU of the machine.
#[derive(Clone, Copy)]
struct Gpu {
    handle: Handle,
    /// The time of the last sample of the processes' work that was taken, in us.
    seen: u64,
}

/// `nvmlProcessInfo_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    bytes: u64,
    part: c_uint,
    part_of_it: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Sample {
    pid: c_uint,
    at: u64,
    kernels: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// Calls a function of the library by its name, if the library has it.
macro_rules! call {
    ($nvml:expr, $name:literal, ($($kind:ty),*), $($arg:expr),*) => {{
        type Function = unsafe extern "C" fn($($kind),*) -> c_int;
        // SAFETY: the signature is that of the library's header, with enums as ints. The function writes as
        // much as its type says.
        unsafe { $nvml.0.get::<Function>(concat!($name, "\0").as_bytes()).ok().map(|function| function($($arg),*)) }
    }};
}

/// Makes a call that writes one value. `None` if there is no such call, or it fails.
macro_rules! value {
    ($nvml:expr, $name:literal, $out:ty, ($($kind:ty),*), $($arg:expr),*) => {{
        let mut value = MaybeUninit::<$out>::zeroed();
        let code = call!($nvml, $name, ($($kind,)* *mut $out), $($arg,)* value.as_mut_ptr());
        // SAFETY: the values are plain numbers or pointers, for which the zeroes from before are valid as
        // well.
        (code == Some(0)).then(|| unsafe { value.assume_init() })
    }};
}

/// Asks the library for all facts that are used here.
pub(crate) fn facts() -> Result<NvmlFacts, NvmlError> {
    let nvml = Nvml::load()?;
    let handles: Vec<Handle> = nvml.1.iter().map(|gpu| gpu.handle).collect();
    Ok(NvmlFacts {
        driver: text(|at, length| {
            call!(nvml, "nvmlSystemGetDriverVersion", (*mut c_char, c_uint), at, length)
        }),
        gpus: handles.iter().map(|&gpu| nvml.gpu(gpu)).collect(),
        topology: nvml.topology(&handles),
    })
}

/// Returns the memory of each process on one GPU. A process that is in both lists counts once. Within a list,
/// each part of a divided GPU has its own entry, and these are added.
fn memory_of(lists: &[Vec<ProcessInfo>; 2]) -> HashMap<u32, Option<u64>> {
    /// The number of bytes that means "it is not known".
    const NOT_AVAILABLE: u64 = u64::MAX;
    let mut all = HashMap::new();
    for list in lists {
        let mut of_list: HashMap<u32, Option<u64>> = HashMap::new();
        for process in list {
            let bytes = (process.bytes != NOT_AVAILABLE).then_some(process.bytes);
            let sum = of_list.entry(process.pid).or_default();
            *sum = [*sum, bytes].into_iter().flatten().reduce(u64::saturating_add);
        }
        for (pid, bytes) in of_list {
            let most: &mut Option<u64> = all.entry(pid).or_default();
            *most = (*most).max(bytes);
        }
    }
    all
}

/// Makes a call that writes a list, twice. The first call returns the length. The second has some more room,
/// for processes that come in between.
fn list<T: Copy + Default>(write: impl Fn(*mut c_uint, *mut T) -> Option<c_int>) -> Option<Vec<T>> {
    let mut count = 0;
    match write(&mut count, std::ptr::null_mut())? {
        0 | NOT_FOUND => return Some(Vec::new()),
        INSUFFICIENT_SIZE => {}
        _ => return None,
    }
    let room = count.min(LONGEST_LIST) + MORE;
    let mut all = vec![T::default(); room as usize];
    count = room;
    match write(&mut count, all.as_mut_ptr())? {
        0 => {
            all.truncate(count.min(room) as usize);
            Some(all)
        }
        NOT_FOUND => Some(Vec::new()),
        _ => None,
    }
}

/// Makes a call that writes a text.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> Option<c_int>) -> Option<String> {
    let mut buffer = [0_u8; 96];
    let code = write(buffer.as_mut_ptr().cast(), buffer.len() as c_uint);
    let text = CStr::from_bytes_until_nul(&buffer).ok()?;
    (code == Some(0)).then(|| text.to_string_lossy().into_owned())
}

/// Returns the way to ask for each process's use of all GPUs. `None` where that cannot be known.
pub(crate) fn ask_shares() -> Option<AskShares> {
    // The library knows processes by the process ids of the machine. In another namespace these ids belong to
    // other processes (pid_namespaces(7)).
    const OF_THE_MACHINE: &str = "pid:[4026531836]";
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    if namespace.as_os_str() != OF_THE_MACHINE {
        tracing::debug!(target: "tensorpost::node", "what processes use of a GPU is not known in a container");
        return None;
    }
    match Nvml::load() {
        Ok(mut nvml) => Some(Box::new(move || nvml.shares())),
        Err(error) => {
            tracing::debug!(target: "tensorpost::node", "what processes use of a GPU is not known: {}", error.text);
            None
        }
    }
}

impl Nvml {
    fn load() -> Result<Self, NvmlError> {
        // SAFETY: this runs the initialisers of NVIDIA's library, as a program that is linked to it does.
        let library = unsafe { Library::new(LIBRARY) };
        let library =
            library.map_err(|_| NvmlError { code: None, text: format!("{LIBRARY} was not found") })?;
        let mut nvml = Nvml(ManuallyDrop::new(library), Vec::new());
        let code = call!(nvml, "nvmlInit_v2", (),).unwrap_or(-1);
        if code != 0 {
            let text = nvml.words(code).unwrap_or_else(|| "no description".to_owned());
            return Err(NvmlError {
                code: Some(code),
                text: format!("nvmlInit_v2 failed with {code}: {text}"),
            });
        }
        let count = value!(nvml, "nvmlDeviceGetCount_v2", c_uint, (),).unwrap_or(0);
        nvml.1 = (0..count)
            .filter_map(|index| value!(nvml, "nvmlDeviceGetHandleByIndex_v2", Handle, (c_uint), index))
            .map(|handle| Gpu { handle, seen: 0 })
            .collect();
        Ok(nvml)
    }

    /// Returns each process's use of all GPUs, by process number. The use by kernels covers the time since
    /// the last call.
    fn shares(&mut self) -> HashMap<u32, GpuShare> {
        let mut all: HashMap<u32, GpuShare> = HashMap::new();
        for at in 0..self.1.len() {
            let Gpu { handle, seen } = self.1[at];
            for (pid, bytes) in memory_of(&self.processes(handle)) {
                let share = all.entry(pid).or_default();
                share.bytes = [share.bytes, bytes].into_iter().flatten().reduce(u64::saturating_add);
            }
            let Some(samples) = self.samples(handle, seen) else { continue };
            self.1[at].seen = samples.iter().map(|sample| sample.at).fold(seen, u64::max);
            for (pid, share) in &mut all {
                let of = samples.iter().filter(|sample| sample.pid == *pid && sample.at > seen);
                let (count, sum) = of.fold((0, 0), |(count, sum), of| (count + 1, sum + of.kernels.min(100)));
                *share.busy.get_or_insert(0) += sum.checked_div(count).unwrap_or(0);
            }
        }
        all
    }

    /// Returns the processes that have a context on the GPU, and those that have one by MPS.
    fn processes(&self, gpu: Handle) -> [Vec<ProcessInfo>; 2] {
        type Count = *mut c_uint;
        type Out = *mut ProcessInfo;
        let alone = list(|count, out| {
            call!(self, "nvmlDeviceGetComputeRunningProcesses_v3", (Handle, Count, Out), gpu, count, out)
        });
        let by_mps = list(|count, out| {
            call!(self, "nvmlDeviceGetMPSComputeRunningProcesses_v3", (Handle, Count, Out), gpu, count, out)
        });
        [alone, by_mps].map(Option::unwrap_or_default)
    }

    /// Returns the samples of the processes' kernels after `seen`.
    fn samples(&self, gpu: Handle, seen: u64) -> Option<Vec<Sample>> {
        list(|count, out| {
            call!(
                self,
                "nvmlDeviceGetProcessUtilization",
                (Handle, *mut Sample, *mut c_uint, u64),
                gpu,
                out,
                count,
                seen
            )
        })
    }

    fn words(&self, code: c_int) -> Option<String> {
        type Function = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: the signature is that of the library's header. It returns a constant text, also for unknown
        // numbers.
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
        // The kernel writes the domain with four digits, and the library with eight.
        let (domain, place) = text.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        Some(format!("{domain:04x}:{place}"))
    }

    /// Returns whether rows of the GPU's memory wait to be taken out of use, and whether that failed for one.
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
                // The number of the query whether the two GPUs speak over NVLink.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_once_and_what_is_not_known_is_not_nothing() {
        let of = |pid, bytes| ProcessInfo { pid, bytes, ..ProcessInfo::default() };
        let found = memory_of(&[
            vec![of(1, 10), of(2, 20), of(2, 5), of(3, u64::MAX)],
            vec![of(1, 10), of(4, 7), of(3, u64::MAX)],
        ]);
        assert_eq!(found, HashMap::from([(1, Some(10)), (2, Some(25)), (3, None), (4, Some(7))]));
    }

    #[test]
    fn a_list_is_as_long_as_its_second_call_says() {
        let writes = |first: c_int, second: c_int, written: c_uint| {
            list(move |count: *mut c_uint, out: *mut u32| {
                let is_first = out.is_null();
                // SAFETY: `list` gives a place for the count, and room behind `out` for as many entries as it
                // has put there.
                unsafe {
                    if !is_first {
                        assert_eq!(*count, 3 + MORE);
                        (0..written).for_each(|at| out.add(at as usize).write(at));
                    }
                    *count = if is_first { 3 } else { written };
                }
                Some(if is_first { first } else { second })
            })
        };
        assert_eq!(writes(INSUFFICIENT_SIZE, 0, 4), Some(vec![0, 1, 2, 3]));
        assert_eq!(writes(NOT_FOUND, 0, 0), Some(vec![]));
        assert_eq!(writes(INSUFFICIENT_SIZE, NOT_FOUND, 0), Some(vec![]));
        assert_eq!(writes(INSUFFICIENT_SIZE, 999, 0), None);
        assert_eq!(writes(3, 0, 0), None, "not supported");
    }
}
