//! The state of each GPU as the management library reports it: compute mode, memory errors, persistence.

use tensorpost_core::api::watch::probe::GpuFacts;

use super::super::Check;
use crate::nvml::{NvmlFacts, NvmlGpu};

/// Judges the GPUs that this process sees, `gpus`, and no others.
pub(super) fn judge(gpus: &[GpuFacts], nvml: Option<&NvmlFacts>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (ordinal, gpu) in gpus.iter().enumerate() {
        let uuid = gpu.id.to_string();
        let state = nvml.and_then(|facts| facts.gpus.iter().find(|known| known.uuid == uuid));
        let mode = state.and_then(|state| state.compute_mode).unwrap_or(gpu.compute_mode);
        checks.push(compute_mode(ordinal, mode));
        checks.extend(state.map(|state| memory(ordinal, state)));
        checks.extend(state.and_then(|state| persistence(ordinal, state)));
    }
    if nvml.is_none() && !gpus.is_empty() {
        checks.push(
            Check::limited("nvml", "libnvidia-ml.so.1 does not answer")
                .needs("NVIDIA's management library", "errors of a GPU's memory and links are not known without")
                .fix("install the driver's nvidia-utils; in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
        );
    }
    checks
}

fn compute_mode(ordinal: usize, mode: i32) -> Check {
    let id = format!("compute_mode.cuda:{ordinal}");
    let needs = |check: Check| {
        check
            .needs("the default mode", "several processes of a node use one GPU")
            .fix(format!("nvidia-smi -i {ordinal} -c 0"))
    };
    match mode {
        0 => Check::ok(id, "default"),
        2 => needs(Check::broken(id, "prohibited: no process may use the GPU")),
        _ => needs(Check::broken(id, "exclusive: one process alone may use the GPU")),
    }
}

fn memory(ordinal: usize, state: &NvmlGpu) -> Check {
    let id = format!("ecc.cuda:{ordinal}");
    if state.repair_failed == Some(true) {
        return Check::broken(id, "memory that is faulty could not be taken out of use")
            .needs("memory without faults", "data on it can be wrong")
            .fix("nvidia-smi -q -d ROW_REMAPPER; have the GPU replaced; CUDA_VISIBLE_DEVICES leaves it out");
    }
    if state.repair_pending == Some(true) {
        return Check::limited(id, "faulty memory is taken out of use at the next reset")
            .needs("a reset", "until then it is used on")
            .fix(format!("nvidia-smi -i {ordinal} -r"));
    }
    match state.uncorrected {
        Some(0) => Check::ok(id, "no errors of memory since the driver was loaded"),
        None => Check::ok(id, "the GPU does not count errors of its memory"),
        Some(errors) => Check::limited(id, format!("{errors} errors of memory that were not corrected"))
            .needs("none", "each ends the programs that use that memory")
            .fix(format!("nvidia-smi -i {ordinal} -r, and nvidia-smi -q -d ECC")),
    }
}

/// Checks the persistence mode. Without it, the driver shuts a GPU down when its last process ends, and the
/// next start takes seconds.
fn persistence(ordinal: usize, state: &NvmlGpu) -> Option<Check> {
    let id = format!("persistence.cuda:{ordinal}");
    Some(match state.persistence? {
        true => Check::ok(id, "on"),
        false => Check::ok(id, "off: the first context after a while takes seconds (nvidia-smi -pm 1)"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::driver::tests::gpu;
    use super::*;
    use crate::doctor::Status;

    fn with(state: NvmlGpu) -> NvmlFacts {
        NvmlFacts { gpus: vec![NvmlGpu { uuid: gpu().id.to_string(), ..state }], ..NvmlFacts::default() }
    }

    fn check(state: NvmlGpu, id: &str) -> Check {
        let checks = judge(&[gpu()], Some(&with(state)));
        checks.into_iter().find(|check| check.id == id).unwrap()
    }

    #[test]
    fn an_exclusive_gpu_is_told_how_to_be_shared() {
        assert_eq!(check(NvmlGpu::default(), "compute_mode.cuda:0").status, Status::Ok);
        for (mode, word) in [(3, "exclusive"), (2, "prohibited")] {
            let check =
                check(NvmlGpu { compute_mode: Some(mode), ..NvmlGpu::default() }, "compute_mode.cuda:0");
            assert!(check.status == Status::Broken && check.found.contains(word), "{check:?}");
            assert_eq!(check.fix, "nvidia-smi -i 0 -c 0");
        }
        // The driver knows it too.
        let exclusive = GpuFacts { compute_mode: 3, ..gpu() };
        assert_eq!(judge(&[exclusive], None)[0].status, Status::Broken);
    }

    #[test]
    fn faults_of_memory_say_what_to_do() {
        let ecc = |state| check(state, "ecc.cuda:0");
        let errors = ecc(NvmlGpu { uncorrected: Some(3), ..NvmlGpu::default() });
        assert!(errors.status == Status::Limited && errors.fix.contains("-r"), "{errors:?}");
        let pending = ecc(NvmlGpu { repair_pending: Some(true), ..NvmlGpu::default() });
        assert!(pending.status == Status::Limited && pending.fix == "nvidia-smi -i 0 -r", "{pending:?}");
        let failed = ecc(NvmlGpu { repair_failed: Some(true), ..NvmlGpu::default() });
        assert!(failed.status == Status::Broken && failed.fix.contains("replaced"), "{failed:?}");
        let persistence =
            check(NvmlGpu { persistence: Some(false), ..NvmlGpu::default() }, "persistence.cuda:0");
        assert!(persistence.found.contains("nvidia-smi -pm 1"));
        assert!(
            judge(&[gpu()], None).iter().any(|check| check.id == "nvml" && check.fix.contains("utility"))
        );
    }
}
