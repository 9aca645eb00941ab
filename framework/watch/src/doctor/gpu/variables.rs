//! Environment variables that decide which GPUs CUDA shows and how its streams wait.

use super::super::Check;

/// The variables, as this process has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) cuda_visible: Option<String>,
    pub(super) nvidia_visible: Option<String>,
    pub(super) connections: Option<String>,
    pub(super) loading: Option<String>,
}

impl Named {
    pub(super) fn here() -> Self {
        let read = |name| std::env::var(name).ok();
        Named {
            cuda_visible: read("CUDA_VISIBLE_DEVICES"),
            nvidia_visible: read("NVIDIA_VISIBLE_DEVICES"),
            connections: read("CUDA_DEVICE_MAX_CONNECTIONS"),
            loading: read("CUDA_MODULE_LOADING"),
        }
    }
}

pub(super) fn judge(named: &Named) -> Vec<Check> {
    vec![connections(named.connections.as_deref()), loading(named.loading.as_deref())]
}

fn connections(value: Option<&str>) -> Check {
    let id = "streams.connections";
    let needs = |check: Check, why: &str| {
        check.needs("8, or nothing set: workers then have one for each stream, and 2", why)
    };
    match value.map(|text| (text, text.trim().parse::<u32>().ok())) {
        None => {
            Check::ok(id, "CUDA_DEVICE_MAX_CONNECTIONS is not set: workers have one for each stream, and 2")
        }
        Some((text, Some(number @ 4..=16))) if text.trim() == number.to_string() => {
            Check::ok(id, format!("CUDA_DEVICE_MAX_CONNECTIONS={number}"))
        }
        Some((text, Some(17..=32))) => needs(
            Check::limited(id, format!("CUDA_DEVICE_MAX_CONNECTIONS={text}")),
            "a context takes 2 s, and few processes fit on a GPU under MPS",
        )
        .fix("export CUDA_DEVICE_MAX_CONNECTIONS=8"),
        Some((text, _)) => needs(
            Check::limited(id, format!("CUDA_DEVICE_MAX_CONNECTIONS={text}")),
            "streams that wait stall those that share their connection, so a worker has one or two streams",
        )
        .fix("export CUDA_DEVICE_MAX_CONNECTIONS=8"),
    }
}

fn loading(value: Option<&str>) -> Check {
    let id = "streams.module_loading";
    match value {
        None => Check::ok(id, "CUDA_MODULE_LOADING is not set: workers have EAGER"),
        Some("EAGER") => Check::ok(id, "CUDA_MODULE_LOADING=EAGER"),
        Some(other) => Check::limited(id, format!("CUDA_MODULE_LOADING={other}"))
            .needs(
                "EAGER, or nothing set",
                "a kernel that is loaded when it is first launched waits until no stream waits",
            )
            .fix("export CUDA_MODULE_LOADING=EAGER"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn values_that_make_streams_wait_name_the_one_to_set() {
        assert!(judge(&Named::default()).iter().all(|check| check.status == Status::Ok));
        assert_eq!(connections(Some("8")).status, Status::Ok);
        for bad in ["32", "1", "0", "many"] {
            let check = connections(Some(bad));
            assert!(check.status == Status::Limited && check.fix.contains("=8"), "{check:?}");
        }
        let check = loading(Some("LAZY"));
        assert!(check.status == Status::Limited && check.fix.contains("EAGER"), "{check:?}");
    }
}
