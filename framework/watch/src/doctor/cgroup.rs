//! The limits of a container or a unit: memory, processors, processes. Both versions of cgroups are read;
//! among nested groups the tightest limit counts.

use std::path::PathBuf;

use tensorpost_core::api::watch::CHUNK_BYTES;
use tensorpost_core::api::watch::remedies::{MEMORY, PROCESSES};

use super::Check;
use super::system::Root;
use crate::draw::bytes;

/// Threads that one process of a node needs: the main thread, the reader, those of the runtime and of
/// streams, and those that a driver starts.
const TASKS_EACH: u64 = 16;
/// Percent of the last ten seconds in which some process stalled for want of memory; more is a fault.
const PRESSURE: f64 = 10.0;

/// The limits and the use that were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cgroup {
    pub(super) memory_max: Option<u64>,
    pub(super) memory_current: Option<u64>,
    /// Percent of the last ten seconds.
    pub(super) memory_pressure: Option<f64>,
    /// Processors, as a share of time.
    pub(super) cpus: Option<f64>,
    pub(super) pids_max: Option<u64>,
    pub(super) pids_current: Option<u64>,
}

impl Cgroup {
    /// Returns the bytes of memory that may still be used; `None` where there is no limit.
    pub(super) fn memory_left(&self) -> Option<u64> {
        Some(self.memory_max?.saturating_sub(self.memory_current.unwrap_or(0)))
    }
}

/// Reads the limits of this process's group and of its parent groups.
pub(super) fn read(root: &Root) -> Cgroup {
    let mut found = Cgroup::default();
    let groups = root.read("proc/self/cgroup").unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (folder, is_first) = match controllers {
            "" => (PathBuf::from("sys/fs/cgroup"), false),
            names => (PathBuf::from("sys/fs/cgroup").join(names), true),
        };
        let mut group = Some(PathBuf::from(path.trim_start_matches('/')));
        let mut innermost = true;
        while let Some(path) = group {
            let read = |name: &str| root.read(folder.join(&path).join(name));
            if is_first {
                first_version(&mut found, &read)
            } else {
                second_version(&mut found, &read, innermost)
            }
            innermost = false;
            group = if path.as_os_str().is_empty() { None } else { path.parent().map(PathBuf::from) };
        }
    }
    found
}

fn second_version(found: &mut Cgroup, read: &dyn Fn(&str) -> Option<String>, innermost: bool) {
    let number = |name| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    limit(&mut found.memory_max, &mut found.memory_current, number("memory.max"), || {
        number("memory.current")
    });
    limit(&mut found.pids_max, &mut found.pids_current, number("pids.max"), || number("pids.current"));
    if let Some(share) = read("cpu.max").as_deref().and_then(share) {
        found.cpus = Some(found.cpus.map_or(share, |before| before.min(share)));
    }
    if innermost {
        found.memory_pressure = read("memory.pressure").as_deref().and_then(pressure);
    }
}

fn first_version(found: &mut Cgroup, read: &dyn Fn(&str) -> Option<String>) {
    let number = |name| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    // Version 1 shows "no limit" as a very large limit.
    let memory = number("memory.limit_in_bytes").filter(|&bytes| bytes < 1 << 60);
    limit(&mut found.memory_max, &mut found.memory_current, memory, || number("memory.usage_in_bytes"));
    limit(&mut found.pids_max, &mut found.pids_current, number("pids.max"), || number("pids.current"));
    let (quota, period) = (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"));
    if let (Some(quota), Some(period)) = (quota, period)
        && let Some(share) = share(&format!("{} {}", quota.trim(), period.trim()))
    {
        found.cpus = Some(found.cpus.map_or(share, |before| before.min(share)));
    }
}

/// Keeps the limit that leaves the least room, with the use that counts against it.
fn limit(
    most: &mut Option<u64>,
    used: &mut Option<u64>,
    new: Option<u64>,
    new_used: impl FnOnce() -> Option<u64>,
) {
    let Some(new) = new else { return };
    let new_used = new_used().unwrap_or(0);
    let left = most.map(|most| most.saturating_sub(used.unwrap_or(0)));
    if left.is_none_or(|left| new.saturating_sub(new_used) < left) {
        (*most, *used) = (Some(new), Some(new_used));
    }
}

/// `quota period` in microseconds, as a number of processors; `None` where there is no limit.
fn share(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// Returns the share of the last ten seconds in which some process stalled, from a file of pressure stall
/// information.
fn pressure(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// Judges the limits for a node of `processes` processes.
pub(super) fn judge(found: &Cgroup, processes: u64, host_budget: u64) -> Vec<Check> {
    vec![memory(found, processes, host_budget), processors(found, processes), tasks(found, processes)]
}

fn memory(found: &Cgroup, processes: u64, host_budget: u64) -> Check {
    let id = "cgroup.memory";
    let why = "past its limit the system kills a process of the group";
    if let Some(percent) = found.memory_pressure.filter(|&percent| percent > PRESSURE) {
        return Check::limited(
            id,
            format!("{percent:.0} % of the last ten seconds were lost for want of memory"),
        )
        .needs("less than 10 %", "what stands still for memory answers late")
        .fix(MEMORY);
    }
    let (Some(most), Some(left)) = (found.memory_max, found.memory_left()) else {
        return Check::ok(id, "no limit");
    };
    let seen = format!("{} of {} left", bytes(left), bytes(most));
    let least = processes.saturating_mul(CHUNK_BYTES);
    let wanted = processes.saturating_mul(host_budget);
    if left < least {
        return Check::broken(id, seen)
            .needs(format!("{} for the first chunks of {processes} processes", bytes(least)), why)
            .fix(format!("{MEMORY}; at least --memory={}m", (most - left + least).div_ceil(1 << 20)));
    }
    if left < wanted {
        let each = left / processes.max(1);
        return Check::limited(id, seen)
            .needs(format!("{}: {processes} processes with {} each", bytes(wanted), bytes(host_budget)), why)
            .fix(format!(
                "Node::builder().host_budget({} << 20); or {MEMORY}: --memory={}m",
                (each >> 20).max(1),
                (most - left + wanted).div_ceil(1 << 20)
            ));
    }
    Check::ok(id, seen)
}

fn processors(found: &Cgroup, processes: u64) -> Check {
    let id = "cgroup.cpu";
    let here = std::thread::available_parallelism().map_or(1, |number| number.get());
    match found.cpus {
        Some(share) if share < 1.0 => Check::limited(id, format!("{share:.2} of a processor"))
            .needs("1 processor at least", "messages wait until the group has its next share of time")
            .fix("docker run --cpus=2, or cpu.max of the cgroup; put several actors into one worker"),
        Some(share) => Check::ok(id, format!("{share:.1} of {here} processors, {processes} processes")),
        None => Check::ok(id, format!("{here} processors, no limit")),
    }
}

fn tasks(found: &Cgroup, processes: u64) -> Check {
    let id = "cgroup.pids";
    let (Some(most), Some(current)) = (found.pids_max, found.pids_current) else {
        return Check::ok(id, "no limit");
    };
    let (left, needed) = (most.saturating_sub(current), processes.saturating_mul(TASKS_EACH));
    let seen = format!("{left} of {most} processes and threads left");
    if left >= needed {
        return Check::ok(id, seen);
    }
    let check = if left < needed / 2 { Check::broken(id, seen) } else { Check::limited(id, seen) };
    check
        .needs(
            format!("{needed}: some {TASKS_EACH} in each of {processes} processes"),
            "a worker needs threads",
        )
        .fix(PROCESSES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::doctor::system::tests::Fake;
    use tensorpost_core::api::node::DEFAULT_HOST_BUDGET;

    const GIB: u64 = 1 << 30;

    fn statuses(found: &Cgroup) -> [Status; 3] {
        let checks = judge(found, 4, DEFAULT_HOST_BUDGET);
        [checks[0].status, checks[1].status, checks[2].status]
    }

    #[test]
    fn limits_are_read_from_all_groups_that_the_process_is_in() {
        let fake = Fake::new(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/box/memory.pressure", "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\n"),
            ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.current", "1048576\n"),
            ("sys/fs/cgroup/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/pod/box/cpu.max", "50000 100000\n"),
            ("sys/fs/cgroup/pod/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pod/pids.max", "20\n"),
            ("sys/fs/cgroup/pod/pids.current", "5\n"),
        ]);
        let found = read(&fake.root());
        let expected = Cgroup {
            memory_max: Some(GIB),
            memory_current: Some(1 << 20),
            memory_pressure: Some(12.5),
            cpus: Some(0.5),
            pids_max: Some(20),
            pids_current: Some(5),
        };
        assert_eq!(found, expected);
        assert_eq!(read(&Fake::new(&[]).root()), Cgroup::default());
    }

    #[test]
    fn the_first_version_is_read_too() {
        let fake = Fake::new(&[
            ("proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n3:pids:/box\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/pids/box/pids.max", "max\n"),
        ]);
        let found = read(&fake.root());
        assert_eq!((found.memory_max, found.cpus, found.pids_max), (Some(GIB), Some(2.0), None));
    }

    #[test]
    fn a_memory_limit_below_the_budgets_names_the_budget_that_fits() {
        let limited = Cgroup { memory_max: Some(4 * GIB), memory_current: Some(0), ..Cgroup::default() };
        let check = memory(&limited, 4, DEFAULT_HOST_BUDGET);
        assert_eq!((check.id.as_str(), check.status), ("cgroup.memory", Status::Limited));
        assert!(
            check.fix.contains("host_budget(1024 << 20)") && check.fix.contains("--memory=16384m"),
            "{check:?}"
        );
        let tight = Cgroup { memory_max: Some(64 << 20), memory_current: Some(0), ..Cgroup::default() };
        let check = memory(&tight, 4, DEFAULT_HOST_BUDGET);
        assert!(check.status == Status::Broken && check.fix.contains("--memory=256m"), "{check:?}");
        let pressed = Cgroup { memory_pressure: Some(40.0), ..Cgroup::default() };
        assert!(memory(&pressed, 4, DEFAULT_HOST_BUDGET).fix.contains("host_budget"));
    }

    #[test]
    fn few_processors_and_processes_are_named() {
        assert_eq!(statuses(&Cgroup::default()), [Status::Ok; 3]);
        let slow = Cgroup { cpus: Some(0.5), ..Cgroup::default() };
        let check = processors(&slow, 4);
        assert!(check.status == Status::Limited && check.fix.contains("--cpus"), "{check:?}");
        let few = Cgroup { pids_max: Some(40), pids_current: Some(20), ..Cgroup::default() };
        let check = tasks(&few, 4);
        assert!(check.status == Status::Broken && check.fix.contains("pids.max"), "{check:?}");
        let tight = Cgroup { pids_max: Some(80), pids_current: Some(40), ..Cgroup::default() };
        assert_eq!(tasks(&tight, 4).status, Status::Limited);
    }
}
