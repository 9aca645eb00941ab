//! Checks of /proc, process limits, folders and the workers' program, and facts that are only noted.

use std::collections::BTreeMap;
#[cfg(feature = "cuda")]
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use tensorpost_core::api::watch::remedies::{EXECUTABLE, FOLDER, OPEN_FILES, PATH, PROC, PROCESSES, known};
use tensorpost_core::api::watch::{THIS_PROGRAM, trace};

use super::{Check, Options};
use crate::draw::bytes;

/// Number of descriptors below which a node can serve hardly any worker, and CUDA fails with error 304.
const FEW_FILES: u64 = 64;
/// Number of descriptors that is enough for a node of some size.
const ENOUGH_FILES: u64 = 1024;
/// Limit of a user's processes and threads below which a node is likely to be refused one.
const FEW_TASKS: u64 = 256;
/// Bytes that are written to find out whether a disk has room.
const ROOM: usize = 1 << 20;

/// The folder that has the files of the system.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        Root(path.to_path_buf())
    }

    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the names in a folder, in order.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns whether the kernel is gVisor, which always claims to be this one Linux version.
    pub(super) fn is_gvisor(&self) -> bool {
        self.read("proc/version")
            .is_some_and(|text| text.contains("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"))
    }
}

/// Runs the checks of this file that say yes or no.
pub(super) fn checks(options: &Options) -> Vec<Check> {
    let mut checks = vec![files(getrlimit(Resource::Nofile).maximum), tasks(), program(options)];
    let named = std::env::var_os(trace::VARIABLE).filter(|path| !path.is_empty());
    if let Some(path) = options.trace.clone().or_else(|| named.map(PathBuf::from)) {
        checks.push(trace_file(&path));
    }
    checks
}

/// Checks `/proc`: a node starts its program again by a link there, and opens its own memory again by
/// another.
pub(super) fn proc(root: &Root) -> Check {
    let (id, why) = ("proc", "workers are /proc/self/exe, and read-only memory is opened by /proc/self/fd");
    let program = File::open(root.path(THIS_PROGRAM.trim_start_matches('/')));
    let opened = program.and_then(|file| File::open(root.path(format!("proc/self/fd/{}", file.as_raw_fd()))));
    match opened {
        Ok(_) => Check::ok(id, "/proc/self/exe and /proc/self/fd can be opened"),
        Err(error) => Check::broken(id, format!("it cannot be used: {error}")).needs("/proc", why).fix(
            format!("{PROC}; where only /proc/self/exe is missing, Node::builder().worker_program(path)"),
        ),
    }
}

/// Checks the hard limit of open files; a node raises the soft limit to it.
pub(super) fn files(most: Option<u64>) -> Check {
    let id = "descriptors";
    let Some(most) = most.filter(|&most| most < ENOUGH_FILES) else {
        return Check::ok(
            id,
            most.map_or_else(|| "no limit".to_owned(), |most| format!("{most} open files at most")),
        );
    };
    let found = format!("{most} open files at most (the hard limit)");
    let check = if most < FEW_FILES { Check::broken(id, found) } else { Check::limited(id, found) };
    check
        .needs(
            format!("{ENOUGH_FILES}, and {FEW_FILES} at the very least"),
            "each worker, link and chunk takes a few; with 32, CUDA fails with error 304",
        )
        .fix(OPEN_FILES)
}

/// Checks the limit of processes and threads of this user.
pub(super) fn tasks() -> Check {
    let limit = getrlimit(Resource::Nproc).current;
    // The limit does not apply to root.
    judge_tasks(limit.filter(|_| !rustix::process::geteuid().is_root()))
}

fn judge_tasks(most: Option<u64>) -> Check {
    let id = "processes";
    match most {
        Some(most) if most < FEW_TASKS => {
            Check::limited(id, format!("{most} processes and threads of this user at most"))
                .needs(
                    format!("{FEW_TASKS}, all programs of the user together"),
                    "a worker needs some 16 threads",
                )
                .fix(PROCESSES)
        }
        Some(most) => Check::ok(id, format!("{most} processes and threads at most")),
        None => Check::ok(id, "no limit"),
    }
}

fn program(options: &Options) -> Check {
    match &options.worker_program {
        Some(path) => worker_program(path),
        None => Check::ok("program", "workers are the node's own program"),
    }
}

/// Checks the program of the workers.
pub(super) fn worker_program(path: &Path) -> Check {
    let id = "program";
    let (shown, why) = (path.display(), "each worker is this program");
    let is_file = std::fs::metadata(path).map(|found| found.is_file());
    let runs = access(path, Access::EXEC_OK).is_ok();
    match is_file {
        Ok(true) if runs => Check::ok(id, shown.to_string()),
        Ok(_) => Check::broken(id, format!("{shown} cannot be executed"))
            .needs("a program", why)
            .fix(format!("{EXECUTABLE} chmod +x {shown}")),
        Err(error) => Check::broken(id, format!("{shown}: {error}"))
            .needs("a program", why)
            .fix(format!("{PATH} ls -l {shown}; .worker_program(path) names it")),
    }
}

/// Checks the folder of a trace, and the room on its disk.
pub(super) fn trace_file(path: &Path) -> Check {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let why = "the trace is written when the node ends, and would be lost";
    match write_into(folder) {
        Ok(()) => Check::ok("trace", format!("{} can be written to", folder.display())),
        Err(error) => Check::broken("trace", format!("{} cannot be written to: {error}", folder.display()))
            .needs(format!("a folder with room for {} and more", bytes(ROOM as u64)), why)
            .fix(
                known(&error)
                    .map_or_else(|| format!("{FOLDER}: {}=trace.json", trace::VARIABLE), str::to_owned),
            ),
    }
}

/// Writes a file without a name into a folder; nothing is left of the file.
fn write_into(folder: &Path) -> io::Result<()> {
    let unnamed = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(folder);
    let mut file = match unnamed {
        // Not every file system has files without names.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let path = folder.join(format!(".tensorpost-doctor-{}", std::process::id()));
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            file
        }
        other => other?,
    };
    file.write_all(&vec![0; ROOM])?;
    file.sync_data()
}

/// Notes facts that Tensorpost does not depend on, or that only some machines have.
pub(super) fn notes(root: &Root) -> Vec<Check> {
    let mut notes =
        vec![Check::ok("dev_shm", "not used: shared memory is memfds, so its size does not matter")];
    let value = |path: &str| root.read(path).map(|text| text.trim().to_owned());
    let ptrace = value("proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|| "not restricted".to_owned());
    notes.push(Check::ok("ptrace", format!("scope {ptrace}; not needed, but py-spy and gdb are")));
    let users = value("proc/sys/user/max_user_namespaces").unwrap_or_else(|| "unknown".to_owned());
    notes.push(Check::ok("user_namespaces", format!("{users} at most; not needed")));
    let rdma = root.names("sys/class/infiniband");
    if !rdma.is_empty() {
        notes.push(memlock(&rdma, getrlimit(Resource::Memlock).maximum));
    }
    notes
}

/// Checks the limit of locked memory, which RDMA devices need and CUDA does not.
fn memlock(devices: &[String], most: Option<u64>) -> Check {
    let id = "memlock";
    match most {
        None => Check::ok(id, format!("no limit, for {}", devices.join(", "))),
        Some(most) => Check::limited(id, format!("{} at most", bytes(most)))
            .needs("no limit", format!("{} registers memory, which locks it", devices.join(", ")))
            .fix("ulimit -l unlimited; for a container --ulimit memlock=-1; for a systemd unit LimitMEMLOCK=infinity"),
    }
}

/// Returns the versions of the software that runs here.
pub(super) fn versions(root: &Root) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("tensorpost".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let kernel = format!("{} {} {}", text(system.sysname()), text(system.release()), text(system.machine()));
    let gvisor = if root.is_gvisor() { " (gVisor)" } else { "" };
    versions.insert("kernel".to_owned(), format!("{kernel}{gvisor}"));
    let release = root.read("etc/os-release").unwrap_or_default();
    if let Some(name) = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")) {
        versions.insert("system".to_owned(), name.trim_matches('"').to_owned());
    }
    versions
}

/// Finds a program as a shell does.
#[cfg(feature = "cuda")]
pub(super) fn find_program(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = std::env::split_paths(path?);
    folders.map(|folder| folder.join(name)).find(|file| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file()) && access(file, Access::EXEC_OK).is_ok()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::doctor::Status;

    /// A root folder with the files of a test, removed when dropped.
    pub(in crate::doctor) struct Fake(PathBuf);

    impl Fake {
        pub(in crate::doctor) fn new(files: &[(&str, &str)]) -> Self {
            use std::hash::{BuildHasher, RandomState};
            let random = RandomState::new().hash_one(0);
            let folder =
                std::env::temp_dir().join(format!("tensorpost-root-{}-{random:x}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            for (path, text) in files {
                let path = folder.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Fake(folder)
        }

        pub(in crate::doctor) fn root(&self) -> Root {
            Root::new(&self.0)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn without_proc_it_says_what_to_mount() {
        assert_eq!(proc(&Root::new(Path::new("/"))).status, Status::Ok);
        let check = proc(&Fake::new(&[]).root());
        assert!(check.status == Status::Broken && check.fix.contains("mount -t proc"), "{check:?}");
        assert!(check.fix.contains("worker_program"), "{check:?}");
    }

    #[test]
    fn few_descriptors_name_the_limit() {
        assert_eq!((files(None).status, files(Some(4096)).status), (Status::Ok, Status::Ok));
        assert_eq!(files(Some(256)).status, Status::Limited);
        let check = files(Some(32));
        assert!(check.status == Status::Broken && check.fix.contains("ulimit -n 65536"), "{check:?}");
        assert!(check.found.contains("32") && check.why.contains("304"), "{check:?}");
    }

    #[test]
    fn few_processes_name_the_limit() {
        assert_eq!(judge_tasks(None).status, Status::Ok);
        let check = judge_tasks(Some(100));
        assert!(check.status == Status::Limited && check.fix.contains("ulimit -u"), "{check:?}");
    }

    #[test]
    fn a_program_has_to_be_there_and_to_run() {
        assert_eq!(worker_program(Path::new("/proc/self/exe")).status, Status::Ok);
        let check = worker_program(Path::new("/is/not/there"));
        assert!(check.status == Status::Broken && check.fix.contains("ls -l /is/not/there"), "{check:?}");
        let check = worker_program(Path::new("/dev/null"));
        assert!(check.status == Status::Broken && check.fix.contains("chmod +x /dev/null"), "{check:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_named() {
        assert_eq!(trace_file(&std::env::temp_dir().join("trace.json")).status, Status::Ok);
        let check = trace_file(Path::new("/proc/trace.json"));
        assert!(check.status == Status::Broken && check.fix.contains("TENSORPOST_TRACE="), "{check:?}");
        let check = trace_file(Path::new("/is/not/there/trace.json"));
        assert!(check.found.contains("/is/not/there"), "{check:?}");
    }

    #[test]
    fn locked_memory_matters_to_rdma_alone() {
        let notes = notes(&Fake::new(&[]).root());
        assert!(notes.iter().all(|note| note.id != "memlock"));
        let devices = ["mlx5_0".to_owned()];
        assert_eq!(memlock(&devices, None).status, Status::Ok);
        let check = memlock(&devices, Some(64 << 10));
        assert!(check.status == Status::Limited && check.fix.contains("ulimit -l unlimited"), "{check:?}");
    }

    #[test]
    fn gvisor_is_known_by_its_version() {
        let version = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n";
        assert!(Fake::new(&[("proc/version", version)]).root().is_gvisor());
        assert!(!Fake::new(&[("proc/version", "Linux version 6.18.44")]).root().is_gvisor());
    }
}
