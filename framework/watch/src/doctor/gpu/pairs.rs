//! Exchanges between two processes, as between workers, on each GPU and for each pair of GPUs: see
//! [`exchange`].

use std::collections::VecDeque;
use std::path::Path;

use tensorpost_core::api::device::DeviceId;
use tensorpost_core::api::watch::mps::PIPES;
use tensorpost_core::api::watch::probe::GpuFacts;
use tensorpost_core::api::watch::trial::exchange::{Owned, Read};

use super::super::Check;
use super::super::subprocess::Again;
use super::exchange::{self, well, wrong};

/// Exchanges that are prepared at the same time; each is two processes with a context or two.
const AT_ONCE: usize = 4;
/// Gigabytes a second that a link of NVLink gives a copy.
const NVLINK: f64 = 20.0;
/// The same for a path over PCIe through a switch, and below for one through a processor.
const SWITCH: f64 = 10.0;
const PROCESSOR: f64 = 5.0;

type Exchanged = Result<(Read, Owned), String>;

/// The ordinals of the memory's GPU and the copy's GPU, with the facts by which their exchange is judged.
#[derive(Clone, Debug)]
struct Pair {
    ordinals: (usize, usize),
    ids: (DeviceId, DeviceId),
    is_exclusive: bool,
}

/// The exchanges of a machine; the first of them have begun.
pub(super) struct Exchanges {
    begun: VecDeque<(Pair, Result<exchange::RunningExchange, String>)>,
    waiting: VecDeque<Pair>,
    bytes: u64,
}

impl Exchanges {
    pub(super) fn begin(again: &Again, gpus: &[GpuFacts], bytes: u64) -> Self {
        let mut waiting = VecDeque::new();
        for (first, one) in gpus.iter().enumerate() {
            for (second, other) in gpus.iter().enumerate().skip(first) {
                waiting.push_back(Pair {
                    ordinals: (first, second),
                    ids: (one.id, other.id),
                    is_exclusive: one.compute_mode != 0 || other.compute_mode != 0,
                });
            }
        }
        let mut exchanges = Exchanges { begun: VecDeque::new(), waiting, bytes };
        exchanges.begin_more(again);
        exchanges
    }

    fn begin_more(&mut self, again: &Again) {
        while self.begun.len() < AT_ONCE
            && let Some(pair) = self.waiting.pop_front()
        {
            let Pair { ordinals, ids, .. } = pair;
            let faults = ordinals.0 == ordinals.1 && !is_served();
            let begun = exchange::begin(again, ids.0, ids.1, self.bytes, faults).map_err(|end| end.text());
            self.begun.push_back((pair, begun));
        }
    }

    pub(super) fn checks(mut self, again: &Again, topology: &[(usize, usize, String)]) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut fabric = None;
        while let Some((pair, begun)) = self.begun.pop_front() {
            let exchanged = begun.and_then(exchange::RunningExchange::finish);
            if let Ok((_, owned)) = &exchanged {
                fabric = fabric.or_else(|| owned.fabric.clone());
            }
            let word = topology.iter().find(|(one, other, _)| (*one, *other) == pair.ordinals);
            checks.push(judge(&pair, exchanged, word.map(|(_, _, word)| word.as_str())));
            self.begin_more(again);
        }
        if !checks.is_empty() {
            checks.push(judge_fabric(fabric));
        }
        checks
    }
}

/// Returns whether an MPS daemon that is not ours could serve our processes: a fault would then end its other
/// clients too.
fn is_served() -> bool {
    let folder = std::env::var_os(PIPES).unwrap_or_else(|| "/tmp/nvidia-mps".into());
    Path::new(&folder).join("control").exists()
}

fn judge(pair: &Pair, exchanged: Exchanged, word: Option<&str>) -> Check {
    let (first, second) = pair.ordinals;
    let is_one = first == second;
    let id = if is_one {
        format!("exchange.cuda:{first}")
    } else {
        format!("exchange.cuda:{first}-cuda:{second}")
    };
    let needs = |check: Check| {
        check.needs(
            "two processes that share memory and clocks on it",
            "workers send each other tensors there",
        )
    };
    let (read, owned) = match exchanged {
        Ok(exchanged) => exchanged,
        Err(why) => {
            let fix = if pair.is_exclusive {
                "nvidia-smi -c 0: the GPU is for one process alone"
            } else {
                "nvidia-smi; dmesg | grep -i nvrm; in a container docker run --gpus all; report it with `tensorpost doctor \
                 --for-issue`; Device::host() works without"
            };
            return needs(Check::broken(id, why)).fix(fix);
        }
    };
    // Wrong data comes before everything else: a rate, or a missing path, means nothing then.
    if !read.right || !read.waited || !owned.intact {
        let fix = if is_one {
            "nvidia-smi -r resets the GPU; another driver; report it with `tensorpost doctor --for-issue`"
        } else {
            "turn the IOMMU and ACS off (intel_iommu=off or amd_iommu=off, BIOS), which spoil copies between GPUs; \
             meanwhile CUDA_VISIBLE_DEVICES with one of the two"
        };
        return needs(Check::broken(id, wrong(&read, &owned))).fix(fix);
    }
    let word = word.map_or_else(String::new, |word| format!(", {word}"));
    if !read.reaches {
        return Check::limited(id, format!("no way from GPU to GPU{word}: tensors are staged through the host"))
            .needs("GPUs that reach each other's memory", "a copy through the host takes some ten times as long")
            .fix(
                "nvidia-smi topo -m, topo -p2p r; IOMMU and ACS off, both GPUs below one root complex; `.receive_on(..)` \
                 copies once",
            );
    }
    let tried = if owned.tried { "; writing where it is read-only was refused" } else { "" };
    let found = format!("{}{word}{tried}", well(&read));
    let expected = if is_one { 0.0 } else { expected(word.trim_start_matches(", ")) };
    if read.gigabytes < expected {
        return Check::limited(id, found)
            .needs(format!("{expected:.0} GB/s or more"), "tensors are read at that rate")
            .fix("nvidia-smi nvlink -s; nvidia-smi topo -m; lspci -vv shows the width and speed of the slot; IOMMU and ACS off");
    }
    Check::ok(id, found)
}

/// Returns the least that a connection should give, in gigabytes a second.
fn expected(word: &str) -> f64 {
    if let Some(links) = word.strip_prefix("NV").and_then(|links| links.parse::<u32>().ok()) {
        return NVLINK * f64::from(links.max(1)) / 2.0;
    }
    if matches!(word, "PIX" | "PXB") { SWITCH } else { PROCESSOR }
}

/// Judges memory that other machines can map. On one machine nothing depends on it.
fn judge_fabric(fabric: Option<Result<(), String>>) -> Check {
    let id = "fabric";
    match fabric {
        None => Check::ok(id, "not offered; not needed on one machine"),
        Some(Ok(())) => Check::ok(id, "works"),
        Some(Err(why)) => Check::ok(
            id,
            format!(
                "not to be had, and not needed on one machine ({why}); across machines: nvidia-imex and a channel, nvidia-modprobe -c 0"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn pair(second: usize) -> Pair {
        let ids = (DeviceId([1; 16]), DeviceId([2; 16]));
        Pair { ordinals: (0, second), ids, is_exclusive: false }
    }

    fn exchanged(gigabytes: f64) -> (Read, Owned) {
        let read = Read { waited: true, right: true, reaches: true, gigabytes, bytes: 64 << 20 };
        (read, Owned { intact: true, tried: true, fabric: None })
    }

    #[test]
    fn what_an_exchange_saw_decides() {
        let check = judge(&pair(0), Ok(exchanged(900.0)), None);
        assert_eq!((check.id.as_str(), check.status), ("exchange.cuda:0", Status::Ok));
        assert!(check.found.contains("900.0 GB/s") && check.found.contains("read-only"), "{check:?}");
        let check = judge(&pair(1), Ok(exchanged(390.0)), Some("NV18"));
        assert_eq!((check.id.as_str(), check.status), ("exchange.cuda:0-cuda:1", Status::Ok));
        let check = judge(&pair(1), Ok(exchanged(90.0)), Some("NV18"));
        assert!(check.status == Status::Limited && check.fix.contains("nvlink"), "{check:?}");
        assert_eq!(judge(&pair(1), Ok(exchanged(12.0)), Some("PIX")).status, Status::Ok);
        assert_eq!(judge(&pair(1), Ok(exchanged(2.0)), Some("SYS")).status, Status::Limited);
    }

    #[test]
    fn what_went_wrong_says_what_to_do() {
        let (read, owned) = exchanged(90.0);
        let check = judge(&pair(1), Ok((Read { right: false, ..read.clone() }, owned.clone())), None);
        assert!(check.status == Status::Broken && check.fix.contains("IOMMU"), "{check:?}");
        let check = judge(&pair(0), Ok((read.clone(), Owned { intact: false, ..owned.clone() })), None);
        assert!(check.status == Status::Broken && check.found.contains("read-only"), "{check:?}");
        let check = judge(&pair(1), Ok((Read { reaches: false, ..read }, owned)), Some("SYS"));
        assert!(check.status == Status::Limited && check.found.contains("staged"), "{check:?}");
        let exclusive = Pair { is_exclusive: true, ..pair(0) };
        let check = judge(&exclusive, Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned()), None);
        assert!(check.status == Status::Broken && check.fix.contains("nvidia-smi -c 0"), "{check:?}");
        assert!(judge(&pair(0), Err("999".to_owned()), None).fix.contains("dmesg"));
    }

    #[test]
    fn memory_for_other_machines_is_never_needed() {
        for fabric in [None, Some(Ok(())), Some(Err("800".to_owned()))] {
            assert_eq!(judge_fabric(fabric).status, Status::Ok);
        }
    }
}
