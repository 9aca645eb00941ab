//! Compares the GPUs that the environment lets this process see with those that the machine has.

use tensorpost_core::api::watch::probe::DriverFacts;

use super::super::Check;
use super::variables::Named;
use crate::nvml::NvmlFacts;

pub(super) fn judge(named: &Named, driver: &DriverFacts, nvml: Option<&NvmlFacts>) -> Vec<Check> {
    // The management library sees all GPUs of the machine or the container, regardless of the variable.
    let all: Vec<Known> = match nvml {
        Some(facts) => facts
            .gpus
            .iter()
            .map(|gpu| Known { uuid: gpu.uuid.clone(), parts: gpu.parts.clone().unwrap_or_default() })
            .collect(),
        None => {
            let seen = driver.gpus.iter().flatten();
            seen.map(|gpu| Known { uuid: gpu.id.to_string(), parts: Vec::new() }).collect()
        }
    };
    let sees = driver.gpus.as_ref().map_or(0, Vec::len);
    let divided = nvml.is_some_and(|facts| facts.gpus.iter().any(|gpu| gpu.parts.is_some()));
    let mut checks = Vec::new();
    checks.extend(named.cuda_visible.as_deref().map(|list| cuda(list, &all)));
    checks.extend(named.nvidia_visible.as_deref().and_then(|list| nvidia(list, &all)));
    if divided {
        checks.push(parts(sees, &all));
    }
    checks
}

/// An existing GPU.
#[derive(Clone, Debug)]
struct Known {
    uuid: String,
    parts: Vec<String>,
}

fn names(all: &[Known]) -> String {
    let names: Vec<_> =
        all.iter().flat_map(|gpu| std::iter::once(&gpu.uuid).chain(&gpu.parts)).map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// `CUDA_VISIBLE_DEVICES`: numbers or the beginnings of UUIDs. CUDA stops at the first that names nothing.
fn cuda(list: &str, all: &[Known]) -> Check {
    let id = "visible.cuda";
    let shown = format!("CUDA_VISIBLE_DEVICES={list}");
    let is_known = |entry: &str| match entry.parse::<usize>() {
        Ok(number) => number < all.len(),
        Err(_) if entry.starts_with("MIG-") => {
            // The old form contains the GPU's UUID and numbers.
            all.iter()
                .any(|gpu| gpu.parts.iter().any(|part| part.starts_with(entry)) || entry.contains(&gpu.uuid))
        }
        Err(_) => entry.len() > "GPU-".len() && all.iter().any(|gpu| gpu.uuid.starts_with(entry)),
    };
    if list.trim().is_empty() || list.trim() == "-1" {
        return Check::limited(id, format!("{shown}: no GPU is to be seen"))
            .needs("a number or a UUID", "workers see no GPU")
            .fix(format!("unset CUDA_VISIBLE_DEVICES; there are: {}", names(all)));
    }
    match list.split(',').map(str::trim).find(|entry| !is_known(entry)) {
        None => Check::ok(id, shown),
        Some(unknown) => Check::broken(id, format!("{shown}: there is no `{unknown}`"))
            .needs(
                "numbers or UUIDs of GPUs that there are",
                "CUDA sees no GPU behind the first that it does not know",
            )
            .fix(format!("unset CUDA_VISIBLE_DEVICES, or name one of: {}", names(all))),
    }
}

/// Judges `NVIDIA_VISIBLE_DEVICES`, which the container runtime reads.
fn nvidia(list: &str, all: &[Known]) -> Option<Check> {
    let id = "visible.container";
    let shown = format!("NVIDIA_VISIBLE_DEVICES={list}");
    match list.trim() {
        "" | "void" | "none" if all.is_empty() => Some(
            Check::limited(id, format!("{shown}: the container gets no GPU"))
                .needs("`all` or UUIDs", "workers see no GPU")
                .fix("docker run --gpus all, or -e NVIDIA_VISIBLE_DEVICES=all with the runtime nvidia"),
        ),
        _ if all.is_empty() => Some(
            Check::limited(id, format!("{shown}, and there is no GPU"))
                .needs("NVIDIA's container runtime", "the variable does nothing by itself")
                .fix("docker run --gpus all, with nvidia-container-toolkit installed"),
        ),
        _ => Some(Check::ok(id, shown)),
    }
}

/// Judges GPUs that are divided: a process sees one part at most.
fn parts(sees: usize, all: &[Known]) -> Check {
    let found = format!("a GPU is divided (MIG); this process sees {sees}");
    if sees > 0 {
        return Check::ok("visible.mig", found);
    }
    Check::broken("visible.mig", found)
        .needs("a part that is named", "CUDA does not see a divided GPU as a whole")
        .fix(format!("export CUDA_VISIBLE_DEVICES=MIG-UUID, one of: {}; or nvidia-smi -mig 0", names(all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::nvml::NvmlGpu;

    fn with(uuid: &str, parts: Option<&[&str]>) -> NvmlFacts {
        let parts = parts.map(|parts| parts.iter().map(|part| (*part).to_owned()).collect());
        let gpu = NvmlGpu { uuid: uuid.to_owned(), parts, ..NvmlGpu::default() };
        NvmlFacts { gpus: vec![gpu], ..NvmlFacts::default() }
    }

    fn one(named: Named, facts: &NvmlFacts) -> Check {
        let mut checks =
            judge(&named, &DriverFacts { gpus: Ok(Vec::new()), ..DriverFacts::default() }, Some(facts));
        checks.remove(0)
    }

    fn visible(list: &str) -> Named {
        Named { cuda_visible: Some(list.to_owned()), ..Named::default() }
    }

    #[test]
    fn an_unknown_uuid_names_those_that_there_are() {
        let facts = with("GPU-07070707-0707", None);
        for good in ["0", "GPU-0707", "GPU-07070707-0707", " 0 "] {
            assert_eq!(one(visible(good), &facts).status, Status::Ok, "{good}");
        }
        for bad in ["GPU-dead", "1", "0,7", "GPU-", "gpu"] {
            let check = one(visible(bad), &facts);
            assert_eq!((check.id.as_str(), check.status), ("visible.cuda", Status::Broken), "{bad}");
            assert!(check.fix.contains("GPU-07070707-0707"), "{check:?}");
        }
        assert_eq!(one(visible(""), &facts).status, Status::Limited);
        assert!(judge(&Named::default(), &DriverFacts::default(), Some(&facts)).is_empty());
    }

    #[test]
    fn a_divided_gpu_has_to_be_named_by_part() {
        let facts = with("GPU-07", Some(&["MIG-1234"]));
        let check = one(Named::default(), &facts);
        assert!(check.status == Status::Broken && check.fix.contains("MIG-1234"), "{check:?}");
        assert_eq!(one(visible("MIG-1234"), &facts).status, Status::Ok);
    }

    #[test]
    fn a_container_without_gpus_is_told_how_to_get_them() {
        let named = Named { nvidia_visible: Some("void".to_owned()), ..Named::default() };
        let check = one(named.clone(), &NvmlFacts::default());
        assert!(check.status == Status::Limited && check.fix.contains("--gpus all"), "{check:?}");
        assert_eq!(one(named, &with("GPU-07", None)).status, Status::Ok);
        let all = Named { nvidia_visible: Some("all".to_owned()), ..Named::default() };
        assert!(one(all, &NvmlFacts::default()).fix.contains("nvidia-container-toolkit"));
    }
}
