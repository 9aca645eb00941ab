//! Checks that there is a driver, that its parts fit each other, and that its GPUs have the features that a
//! node needs.

use tensorpost_core::api::watch::probe::{DriverFacts, Refusal};

use super::super::{Check, system::Root};
use crate::nvml::NvmlError;

const NO_DEVICE: i32 = 100;
/// The code of the management library for parts of different versions.
const NVML_MISMATCH: i32 = 18;

/// The facts about the machine's GPUs that need no driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::doctor) struct Machine {
    /// NVIDIA's GPUs on the PCI bus.
    pub(super) on_bus: usize,
    /// Whether the kernel has the driver's part.
    pub(super) has_driver: bool,
    /// Its version.
    pub(super) kernel_part: Option<String>,
    /// Whether the driver's device files are there.
    pub(super) has_files: bool,
}

impl Machine {
    pub(super) fn read(root: &Root) -> Self {
        let version = root.read("proc/driver/nvidia/version");
        let files = root.names("dev");
        Machine {
            on_bus: super::slots::places(root).len(),
            has_driver: version.is_some() || files.iter().any(|name| name == "nvidiactl"),
            kernel_part: version.as_deref().and_then(kernel_part),
            has_files: files.iter().any(|name| name == "nvidiactl"),
        }
    }

    /// Returns whether the machine has nothing from NVIDIA.
    pub(super) fn is_absent(&self) -> bool {
        self.on_bus == 0 && !self.has_driver
    }
}

/// Returns the version in `/proc/driver/nvidia/version`: the first word behind "Kernel Module" that looks
/// like one.
fn kernel_part(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("Kernel Module"))?;
    let mut words = line.split("Kernel Module").nth(1)?.split_whitespace();
    words
        .find(|word| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::to_owned)
}

/// Formats a version that the driver gives as a number.
pub(super) fn cuda(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Judges the driver's parts and whether they work.
pub(super) fn judge(machine: &Machine, facts: &DriverFacts, nvml: Option<&NvmlError>) -> Check {
    let id = "driver";
    let kernel = machine.kernel_part.as_deref().unwrap_or("unknown");
    let refusal = match &facts.gpus {
        Err(refusal) => refusal.clone(),
        Ok(gpus) if gpus.is_empty() && !machine.is_absent() => {
            Refusal { code: Some(NO_DEVICE), text: "the driver sees no GPU".to_owned() }
        }
        Ok(gpus) => {
            if let Some(gpu) = gpus.iter().find(|gpu| !gpu.lacks.is_empty()) {
                return lacks(id, &gpu.name, &gpu.lacks);
            }
            return Check::ok(id, format!("{kernel}, CUDA {}, GPUs: {}", cuda(facts.version), gpus.len()));
        }
    };
    if machine.is_absent() {
        return Check::limited(id, "no NVIDIA GPU and no driver: tensors are in host memory")
            .needs(
                "an NVIDIA GPU with a driver of CUDA 11.7 or newer",
                "tensors on a GPU; Device::host() works",
            )
            .fix(
                "install NVIDIA's driver; in a container: docker run --gpus all (nvidia-container-toolkit)",
            );
    }
    let user = facts
        .library
        .as_deref()
        .and_then(|path| path.rsplit_once(".so."))
        .map_or("unknown", |(_, version)| version);
    let mismatch = matches!(refusal.code, Some(803 | 804))
        || nvml.is_some_and(|error| error.code == Some(NVML_MISMATCH));
    let (found, fix) = if mismatch {
        (
            format!("the driver's kernel part is {kernel} and its user part {user}: {}", refusal.text),
            "load the kernel part of the installed driver (reboot, or rmmod nvidia_uvm nvidia && modprobe nvidia); in a \
             container, mount the machine's libcuda and remove the image's cuda-compat package",
        )
    } else if facts.version == 0 {
        (refusal.text, "install the driver's user part (libcuda.so.1); in a container: docker run --gpus all")
    } else if !machine.has_files {
        (refusal.text, "docker run --gpus all, or nvidia-modprobe -u -c=0: there is no /dev/nvidiactl")
    } else if refusal.code == Some(NO_DEVICE) {
        (
            refusal.text,
            "unset CUDA_VISIBLE_DEVICES, or name a GPU of `nvidia-smi -L` in it; docker run --gpus all",
        )
    } else {
        (
            refusal.text,
            "nvidia-smi, and `dmesg | grep -i nvrm`, say more; reset the GPU (nvidia-smi -r) or reboot",
        )
    };
    Check::broken(id, found).needs("a driver of CUDA 11.7 or newer that starts", "tensors on a GPU").fix(fix)
}

fn lacks(id: &str, name: &str, lacks: &[String]) -> Check {
    Check::broken(id, format!("{name} has no {}", lacks.join(", nor ")))
        .needs(
            "a GPU of Volta or newer, not divided by vGPU, on Linux's own driver",
            "memory and clocks of workers on it",
        )
        .fix("use another GPU (CUDA_VISIBLE_DEVICES), a newer driver, or Device::host()")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::doctor::system::tests::Fake;
    use tensorpost_core::api::device::DeviceId;
    use tensorpost_core::api::watch::probe::GpuFacts;

    const VERSION: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 12\n";

    pub(in crate::doctor::gpu) fn gpu() -> GpuFacts {
        GpuFacts {
            id: DeviceId([7; 16]),
            name: "NVIDIA H200".to_owned(),
            bytes: 140 << 30,
            bus: "0000:1b:00.0".to_owned(),
            lacks: Vec::new(),
            reaches: Vec::new(),
            compute_mode: 0,
        }
    }

    fn refused(code: Option<i32>, text: &str) -> DriverFacts {
        DriverFacts {
            version: 13000,
            library: Some("/usr/lib/libcuda.so.575.51.03".to_owned()),
            gpus: Err(Refusal { code, text: text.to_owned() }),
        }
    }

    fn there() -> Machine {
        Machine { on_bus: 1, has_driver: true, kernel_part: Some("580.159.03".to_owned()), has_files: true }
    }

    #[test]
    fn the_machine_is_known_without_a_driver() {
        let fake = Fake::new(&[("proc/driver/nvidia/version", VERSION), ("dev/nvidiactl", "")]);
        let expected = Machine { on_bus: 0, ..there() };
        assert_eq!(Machine::read(&fake.root()), expected);
        assert!(Machine::read(&Fake::new(&[]).root()).is_absent());
    }

    #[test]
    fn a_driver_that_works_is_well() {
        let facts = DriverFacts { gpus: Ok(vec![gpu()]), ..refused(None, "") };
        let check = judge(&there(), &facts, None);
        assert_eq!((check.status, check.found.as_str()), (Status::Ok, "580.159.03, CUDA 13.0, GPUs: 1"));
        let lacking = GpuFacts { lacks: vec!["VMM".to_owned()], ..gpu() };
        let check = judge(&there(), &DriverFacts { gpus: Ok(vec![lacking]), ..facts }, None);
        assert!(check.status == Status::Broken && check.found.contains("no VMM"), "{check:?}");
        assert!(check.fix.contains("Device::host()"), "{check:?}");
    }

    #[test]
    fn no_driver_is_a_lack_only_where_there_is_a_gpu() {
        let none = DriverFacts { version: 0, library: None, ..refused(None, "libcuda.so.1 was not found") };
        let check = judge(&Machine::default(), &none, None);
        assert!(check.status == Status::Limited && check.fix.contains("--gpus all"), "{check:?}");
        let check = judge(&Machine { has_driver: false, ..there() }, &none, None);
        assert!(check.status == Status::Broken && check.found.contains("libcuda.so.1"), "{check:?}");
        assert!(check.fix.contains("--gpus all"), "{check:?}");
    }

    #[test]
    fn parts_that_do_not_fit_are_both_named() {
        let check = judge(&there(), &refused(Some(803), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), None);
        assert!(check.found.contains("580.159.03") && check.found.contains("575.51.03"), "{check:?}");
        assert!(check.fix.contains("modprobe nvidia"), "{check:?}");
        let nvml = NvmlError { code: Some(NVML_MISMATCH), text: "mismatch".to_owned() };
        assert!(judge(&there(), &refused(Some(999), "unknown"), Some(&nvml)).fix.contains("cuda-compat"));
    }

    #[test]
    fn what_the_driver_says_leads_to_what_to_do() {
        let check = judge(&there(), &refused(Some(NO_DEVICE), "no device"), None);
        assert!(check.fix.contains("CUDA_VISIBLE_DEVICES"), "{check:?}");
        let check =
            judge(&Machine { has_files: false, ..there() }, &refused(Some(NO_DEVICE), "no device"), None);
        assert!(check.fix.contains("/dev/nvidiactl"), "{check:?}");
        let check = judge(&there(), &refused(None, "it did not answer in time and was killed"), None);
        assert!(check.status == Status::Broken && check.fix.contains("nvidia-smi -r"), "{check:?}");
    }
}
