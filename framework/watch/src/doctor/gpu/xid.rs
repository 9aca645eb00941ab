//! Errors that the driver has put into the kernel's log and that point to the hardware or the driver. The log
//! has the faults of programs' own kernels too, which are no fault of the machine.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::super::Check;
use super::super::system::Root;

/// Most records that are read.
const RECORDS: usize = 1 << 16;
/// Bytes of the longest record.
const RECORD: usize = 8192;

/// The error numbers that point to the hardware or the driver, with a text and a remedy.
const KNOWN: [(&[u32], &str, &str); 5] = [
    (
        &[48, 63, 64, 92, 94, 95],
        "errors of its memory",
        "nvidia-smi -r, and nvidia-smi -q -d ECC,ROW_REMAPPER; replace it where they come back",
    ),
    (
        &[74],
        "errors of NVLink",
        "nvidia-smi nvlink -e; reset all GPUs of the machine (nvidia-smi -r), seat the bridge anew",
    ),
    (&[79], "it fell off the bus", "reboot; look at its power, its temperature and its slot"),
    (&[61, 62], "its microcontroller stopped", "nvidia-smi -r, or reboot"),
    (&[119, 120], "its system processor does not answer", "nvidia-smi -r, or reboot; install a newer driver"),
];

/// Reads the error numbers in the log, each with its GPU's place; `None` where the log cannot be read.
pub(super) fn read(root: &Root) -> Option<Vec<(String, u32)>> {
    let mut log =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(root.path("dev/kmsg")).ok()?;
    let mut found = Vec::new();
    let mut record = [0; RECORD];
    for _ in 0..RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => found.extend(String::from_utf8_lossy(&record[..length]).lines().filter_map(parse)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The kernel overwrote records meanwhile; reading goes on behind them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// `NVRM: Xid (PCI:0000:1b:00): 79, …`
fn parse(line: &str) -> Option<(String, u32)> {
    let (_, rest) = line.split_once("NVRM: Xid (")?;
    let (place, rest) = rest.split_once("): ")?;
    let number = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some((place.to_owned(), number))
}

/// Returns one line for each kind of error that was found.
pub(super) fn judge(found: &Option<Vec<(String, u32)>>) -> Vec<Check> {
    let Some(found) = found else {
        return vec![Check::ok(
            "xid",
            "the kernel's log cannot be read by this user (sudo dmesg | grep Xid)",
        )];
    };
    let mut checks = Vec::new();
    for (numbers, words, fix) in KNOWN {
        let mut here = found.iter().filter(|(_, number)| numbers.contains(number));
        if let Some((place, number)) = here.next() {
            let more = here.count();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            checks.push(
                Check::limited(
                    "xid",
                    format!("{words}: Xid {number} of {place}{more} since the machine started"),
                )
                .needs("none", "the driver reported a fault of the GPU")
                .fix(fix),
            );
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok("xid", "no fault of a GPU in the kernel's log"));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use crate::doctor::system::tests::Fake;

    #[test]
    fn faults_of_hardware_are_told_from_those_of_programs() {
        let log = "6,1,1,-;NVRM: loading\n4,2,9,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=7, a program's own\n";
        let own = Fake::new(&[("dev/kmsg", log)]);
        let checks = judge(&read(&own.root()));
        assert_eq!((checks.len(), checks[0].status), (1, Status::Ok));
        let log = format!(
            "{log}4,3,9,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n4,4,9,-;NVRM: Xid (PCI:0000:1b:00): 94, contained\n"
        );
        let checks = judge(&read(&Fake::new(&[("dev/kmsg", &log)]).root()));
        assert!(checks.iter().all(|check| check.status == Status::Limited && !check.fix.is_empty()));
        assert!(
            checks.iter().any(|check| check.found.contains("off the bus") && check.fix.contains("reboot"))
        );
        assert_eq!(checks.len(), 2);
        let checks = judge(&read(&Fake::new(&[]).root()));
        assert!(checks[0].found.contains("cannot be read"));
    }
}
