//! Faults of a machine, caused for `tensorpost doctor`: each has to give the right row, with its remedy
//! (DOC-1).
//!
//! Faults that need a GPU are in the unit tests of `tensorpost_watch::doctor`, whose checks are functions of
//! their findings.

#![expect(unsafe_code, reason = "a seccomp filter is set between fork and exec")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const DOCTOR: &str = env!("CARGO_BIN_EXE_tensorpost");

/// Returns the command, with none of the variables that the doctor looks at.
fn doctor() -> Command {
    named(Command::new(DOCTOR))
}

fn named(mut command: Command) -> Command {
    for variable in [
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_MODULE_LOADING",
        "TENSORPOST_TRACE",
    ] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// The report of the doctor, and its exit status.
struct Said {
    report: Value,
    status: i32,
}

impl Said {
    fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let report = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&stderr)));
        Said { report, status: status.code().unwrap() }
    }

    fn row(&self, id: &str) -> &Value {
        let checks = self.report["checks"].as_array().unwrap();
        let row = checks.iter().find(|check| check["id"] == id);
        row.unwrap_or_else(|| panic!("there is no row `{id}`: {:#}", self.report))
    }

    fn is_ok(&self, id: &str) -> bool {
        self.row(id)["status"] == "ok"
    }

    /// Checks that the row has this status, and that its remedy contains `fix`.
    #[track_caller]
    fn has(&self, id: &str, status: &str, fix: &str) {
        let row = self.row(id);
        assert_eq!(row["status"], status, "{row:#}");
        assert!(row["fix"].as_str().unwrap().contains(fix), "`{fix}` is missing: {row:#}");
        for field in ["found", "needed", "why"] {
            assert!(!row[field].as_str().unwrap().is_empty(), "`{field}` is empty: {row:#}");
        }
        let least = if status == "broken" { 2 } else { 1 };
        assert!(self.status >= least, "the exit status is {}", self.status);
    }
}

fn json() -> Command {
    let mut command = doctor();
    command.args(["doctor", "--json"]);
    command
}

/// Runs the doctor with these files in place of the system's.
fn with_files(files: &[(&str, &str)], arguments: &[&str]) -> Said {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Said::of(json().arg("--root").arg(root.path()).args(arguments))
}

/// Runs the doctor in a process in which a seccomp filter answers `call` with `answer`.
fn filtered(call: libc::c_long, answer: u32) -> Said {
    let mut command = json();
    let refuse = move || refuse(call, answer);
    // SAFETY: between fork and exec it makes two system calls with memory of its own stack, and nothing else.
    unsafe { command.pre_exec(refuse) };
    Said::of(&mut command)
}

/// Makes the kernel answer one system call of this process and its children with `answer`, and do all others.
fn refuse(call: libc::c_long, answer: u32) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        // The number of the call is the first word that a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32) },
        statement(libc::BPF_RET | libc::BPF_K, answer),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes only numbers; the second reads the program, which lives until the call
    // returns.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

#[test]
fn here_a_node_works() {
    let said = Said::of(&mut json());
    assert!(said.status <= 1, "{:#}", said.report);
    for id in ["kernel.memfd", "kernel.pidfd", "kernel.parent_death", "proc", "descriptors", "exchange.host"]
    {
        assert!(said.is_ok(id), "{:#}", said.row(id));
    }
    assert!(said.row("exchange.host")["found"].as_str().unwrap().contains("GB/s"));
    assert!(said.report["versions"]["kernel"].as_str().unwrap().contains("Linux"));
}

#[test]
fn text_has_a_line_for_each_check_and_no_escapes() {
    let output = doctor().arg("doctor").env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.is_ascii() && !text.contains('\x1b'), "{text}");
    assert!(text.lines().any(|line| line.starts_with("ok kernel.memfd")), "{text}");
    let output = doctor().arg("doctor").env("LC_ALL", "C.UTF-8").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("✓ kernel.memfd")), "{text}");
    let output = doctor().args(["doctor", "--for-issue"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("```text\n") && text.contains("\nkernel: Linux"), "{text}");
}

#[test]
fn a_filter_that_refuses_memfds_is_named() {
    let said = filtered(libc::SYS_memfd_create, EPERM);
    said.has("kernel.memfd", "broken", "memfd_create");
    said.has("kernel.memfd", "broken", "seccomp=");
    assert!(said.is_ok("kernel.pidfd"), "what is not refused works on");
}

#[test]
fn a_filter_that_refuses_pidfds_is_named() {
    let said = filtered(libc::SYS_pidfd_open, EPERM);
    said.has("kernel.pidfd", "broken", "let pidfd_open");
    assert!(said.is_ok("kernel.memfd") && said.is_ok("kernel.futex"));
}

#[test]
fn a_filter_that_refuses_messages_with_descriptors_is_named() {
    let said = filtered(libc::SYS_sendmsg, EPERM);
    said.has("kernel.seqpacket", "broken", "let socketpair, sendmsg, recvmsg through");
    assert!(said.is_ok("kernel.memfd"));
}

#[test]
fn a_filter_that_kills_costs_one_check() {
    let said = filtered(libc::SYS_memfd_create, libc::SECCOMP_RET_KILL_PROCESS);
    said.has("kernel.memfd", "broken", "seccomp=");
    assert!(said.row("kernel.memfd")["found"].as_str().unwrap().contains("SIGSYS"));
    assert!(said.is_ok("kernel.seqpacket") && said.is_ok("kernel.pidfd") && said.is_ok("kernel.events"));
}

#[test]
fn few_descriptors_are_named_with_their_limit() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 32 && ulimit -Hn 32 && exec \"$0\" doctor --json", DOCTOR]);
    let said = Said::of(&mut named(command));
    said.has("descriptors", "broken", "ulimit -n");
    assert!(said.row("descriptors")["found"].as_str().unwrap().contains("32 open files"));
}

#[test]
fn without_proc_it_says_what_to_mount() {
    with_files(&[], &[]).has("proc", "broken", "mount -t proc");
    // Where a namespace may be made, /proc is really missing: the program then finds itself by its own name.
    let without = |program: &str, arguments: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs none /proc && exec {program} {arguments}");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script]);
        named(command)
    };
    let may = without("true", "").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    println!("a machine without /proc can be had: {may}");
    if may {
        Said::of(&mut without(DOCTOR, "doctor --json")).has("proc", "broken", "mount -t proc");
    }
}

#[test]
fn a_gpu_that_is_named_and_not_there_is_found() {
    let said = Said::of(json().env("CUDA_VISIBLE_DEVICES", "GPU-deadbeef-0000-0000-0000-000000000000"));
    said.has("visible.cuda", "broken", "unset CUDA_VISIBLE_DEVICES");
    assert!(said.row("visible.cuda")["found"].as_str().unwrap().contains("GPU-deadbeef"));
}

#[test]
fn a_gpu_without_a_driver_is_told_how_to_get_one() {
    let gpu = "sys/bus/pci/devices/0000:1b:00.0";
    let files = [(format!("{gpu}/vendor"), "0x10de\n"), (format!("{gpu}/class"), "0x030200\n")];
    let files = files.each_ref().map(|(path, text)| (path.as_str(), *text));
    let said = with_files(&files, &[]);
    if said.report["versions"].get("cuda").is_none() {
        said.has("driver", "broken", "--gpus all");
    } else {
        assert!(said.is_ok("driver"), "this machine has one: {:#}", said.row("driver"));
    }
}

/// A file of the driver for the root, so that the doctor tries MPS.
const DRIVER: (&str, &str) =
    ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue\n");

fn with_mps(program: Option<&str>, temporary: &Path) -> Said {
    let (root, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = root.path().join(DRIVER.0);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, DRIVER.1).unwrap();
    if let Some(text) = program {
        let control = path.path().join("nvidia-cuda-mps-control");
        fs::write(&control, text).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = json();
    command.arg("--root").arg(root.path()).env("PATH", path.path()).env("TMPDIR", temporary);
    Said::of(&mut command)
}

#[test]
fn mps_without_its_program_is_named() {
    with_mps(None, &std::env::temp_dir()).has("mps", "limited", "install nvidia-cuda-mps-control");
}

#[test]
fn mps_without_a_folder_is_named() {
    with_mps(Some("#!/bin/sh\nexit 0\n"), Path::new("/proc")).has("mps", "limited", "TMPDIR");
}

#[test]
fn an_mps_daemon_that_does_not_start_is_named() {
    let said = with_mps(Some("#!/bin/sh\nexit 3\n"), &std::env::temp_dir());
    said.has("mps", "limited", "nvidia-cuda-mps-control -f");
    assert!(said.row("mps")["found"].as_str().unwrap().contains("exit status: 3"));
}

#[test]
fn a_trace_that_could_not_be_written_is_found_before() {
    Said::of(json().args(["--trace", "/proc/trace.json"])).has("trace", "broken", "TENSORPOST_TRACE=");
    let said = Said::of(json().env("TENSORPOST_TRACE", "/is/not/there/trace.json"));
    said.has("trace", "broken", "folder that this user may write to");
}

#[test]
fn a_full_disk_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = |program: &str, arguments: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o size=64k none \"$DISK\" && exec {program} {arguments}");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script]).env("DISK", folder.path());
        named(command)
    };
    let mounts = on_disk("true", "").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    println!("a disk can be mounted: {mounts}");
    if mounts {
        Said::of(&mut on_disk(DOCTOR, "doctor --json --trace \"$DISK/trace.json\"")).has(
            "trace",
            "broken",
            "make room",
        );
        return;
    }
    // Limit the size of the doctor's file: the one fault of the trace that is left to cause.
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 16 && exec \"$0\" doctor --json --trace \"$DISK/trace.json\"";
    command.args(["-c", script, DOCTOR]).env("DISK", folder.path());
    Said::of(&mut named(command)).has("trace", "broken", "ulimit -f");
}

#[test]
fn a_worker_program_that_is_none_is_named() {
    let missing = Said::of(json().args(["--worker-program", "/is/not/there"]));
    missing.has("program", "broken", "ls -l /is/not/there");
    Said::of(json().args(["--worker-program", "/dev/null"])).has("program", "broken", "chmod +x /dev/null");
}

#[test]
fn limits_of_a_container_are_held_against_what_a_node_needs() {
    let group = |name: &str| format!("sys/fs/cgroup/box/{name}");
    let files = [
        ("proc/self/cgroup".to_owned(), "0::/box\n"),
        (group("memory.max"), "2147483648\n"),
        (group("memory.current"), "0\n"),
        (group("cpu.max"), "50000 100000\n"),
        (group("pids.max"), "24\n"),
        (group("pids.current"), "4\n"),
    ];
    let files = files.each_ref().map(|(path, text)| (path.as_str(), *text));
    let said = with_files(&files, &["--processes", "4"]);
    said.has("cgroup.memory", "limited", "host_budget(512 << 20)");
    said.has("cgroup.cpu", "limited", "--cpus=2");
    said.has("cgroup.pids", "broken", "pids.max");
    let said = with_files(&files, &["--processes", "1", "--host-budget", "1000000"]);
    assert!(said.is_ok("cgroup.memory") && said.is_ok("cgroup.pids"));
}

#[test]
fn what_the_doctor_did_not_start_is_no_task() {
    let output = doctor().args(["doctor", "--task", "nonsense"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no task of the doctor"));
}
