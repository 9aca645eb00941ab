//! The exchange between two processes that share memory of a device, as workers do: see `tensorpost_core`'s
//! `trial/exchange.rs` for the two sides. The doctor runs one exchange at a time, so that no other exchange
//! disturbs its measurements.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use tensorpost_core::api::device::DeviceId;
use tensorpost_core::api::watch::remedies::MEMORY;
use tensorpost_core::api::watch::trial::exchange::{
    ExchangeSide, OTHER_ENDED, Owned, Read, SideMessage, let_go_on,
};
use tensorpost_core::api::watch::{CHUNK_BYTES, Seqpacket};

use super::Check;
use super::subprocess::{Again, End, LONG, Running, Task};
use crate::draw;

/// An exchange that was begun.
pub(super) struct RunningExchange {
    owner: Running,
    reader: Running,
    /// Another descriptor of the reader's end, by which the doctor tells the owner to go on.
    door: Seqpacket,
}

/// Returns the size of an exchange, in bytes, on a machine with this much memory left.
pub(super) fn bytes_for(memory_left: Option<u64>) -> u64 {
    // The data is in memory twice, and the processes need some memory too.
    if memory_left.is_some_and(|left| left < 8 * CHUNK_BYTES) { CHUNK_BYTES / 64 } else { CHUNK_BYTES }
}

/// Starts both sides.
pub(super) fn begin(
    again: &Again,
    owner: DeviceId,
    reader: DeviceId,
    bytes: u64,
    faults: bool,
) -> Result<RunningExchange, End> {
    let (ours, theirs) = Seqpacket::pair().map_err(End::NotStarted)?;
    let door = theirs.try_clone().map_err(End::NotStarted)?;
    let mut environment = Vec::new();
    if owner != DeviceId::HOST {
        // Set the variables that workers have.
        for (variable, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "8")] {
            if std::env::var_os(variable).is_none() {
                environment.push((variable, value.into()));
            }
        }
    }
    let start = |side, socket: Seqpacket| {
        let input = Stdio::from(OwnedFd::from(socket));
        again.start_with(Task::Exchange(side), LONG, input, &environment)
    };
    Ok(RunningExchange {
        owner: start(ExchangeSide::Owner { device: owner, bytes }, ours)?,
        reader: start(ExchangeSide::Reader { of: owner, device: reader, faults }, theirs)?,
        door,
    })
}

impl RunningExchange {
    /// Lets the exchange go on when both sides are ready, and waits for their results.
    pub(super) fn finish(mut self) -> Result<(Read, Owned), String> {
        let why = match self.run() {
            Ok(exchanged) => return Ok(exchanged),
            Err(why) => why,
        };
        // The side that failed first has closed the socket, and the other side can report only that.
        drop(self.door);
        match hear(&mut self.owner) {
            Err(owner) if why == OTHER_ENDED => Err(owner),
            _ => Err(why),
        }
    }

    fn run(&mut self) -> Result<(Read, Owned), String> {
        for side in [&mut self.reader, &mut self.owner] {
            let SideMessage::Ready = hear(side)? else {
                return Err("a side answered out of turn".to_owned());
            };
        }
        let_go_on(&self.door)?;
        let SideMessage::Read(read) = hear(&mut self.reader)? else {
            return Err("the reader did not read".to_owned());
        };
        let SideMessage::Owned(owned) = hear(&mut self.owner)? else {
            return Err("the owner did not look".to_owned());
        };
        Ok((read, owned))
    }
}

fn hear(side: &mut Running) -> Result<SideMessage, String> {
    match side.next::<SideMessage>() {
        Ok(SideMessage::Failed(why)) => Err(why),
        Ok(said) => Ok(said),
        Err(end) => Err(end.text()),
    }
}

/// Runs the exchange on the host's device.
pub(super) fn on_host(again: &Again, bytes: u64) -> Check {
    let host = DeviceId::HOST;
    let begun = begin(again, host, host, bytes, true).map_err(|end| end.text());
    judge_host(begun.and_then(RunningExchange::finish))
}

fn judge_host(exchanged: Result<(Read, Owned), String>) -> Check {
    let id = "exchange.host";
    let needs = |check: Check| {
        check.needs("two processes that share host memory", "workers send each other tensors in it")
    };
    match exchanged {
        Ok((read, owned)) if read.right && read.waited && owned.intact => Check::ok(id, well(&read)),
        Ok((read, owned)) => needs(Check::broken(id, wrong(&read, &owned))).fix(
            "the kernel does not keep to what its calls promise: look for gVisor or a patched kernel (uname -a), and \
             report it with `tensorpost doctor --for-issue`",
        ),
        Err(why) => needs(Check::broken(id, why)).fix(format!(
            "see the other checks; if they are well, {MEMORY}, or report it with `tensorpost doctor --for-issue`"
        )),
    }
}

/// Returns the result in words, where all is well.
pub(super) fn well(read: &Read) -> String {
    let Read { gigabytes, bytes, .. } = read;
    format!("{} from process to process, all right, {gigabytes:.1} GB/s", draw::bytes(*bytes))
}

/// Returns what went wrong in the exchange, in words.
pub(super) fn wrong(read: &Read, owned: &Owned) -> String {
    let mut faults = Vec::new();
    if !read.right {
        faults.push("the copy has other bytes than the memory that it is of");
    }
    if !read.waited {
        faults.push("a stream did not wait for a clock of another process");
    }
    if !owned.intact {
        faults.push("memory that is mapped read-only was written");
    }
    faults.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn read() -> Read {
        Read { waited: true, right: true, reaches: true, gigabytes: 9.5, bytes: CHUNK_BYTES }
    }

    fn owned() -> Owned {
        Owned { intact: true, tried: true, fabric: None }
    }

    #[test]
    fn what_went_wrong_is_named() {
        let check = judge_host(Ok((read(), owned())));
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.contains("64.0 MiB") && check.found.contains("9.5 GB/s"), "{check:?}");
        for (exchanged, what) in [
            ((Read { right: false, ..read() }, owned()), "other bytes"),
            ((Read { waited: false, ..read() }, owned()), "did not wait"),
            ((read(), Owned { intact: false, ..owned() }), "read-only"),
        ] {
            let check = judge_host(Ok(exchanged));
            assert!(check.status == Status::Broken && check.found.contains(what), "{check:?}");
            assert!(check.fix.contains("uname -a"), "{check:?}");
        }
        let check = judge_host(Err("no room".to_owned()));
        assert!(check.found == "no room" && check.fix.contains("ulimit -v"), "{check:?}");
    }

    #[test]
    fn little_memory_is_not_used_up() {
        assert_eq!(bytes_for(None), CHUNK_BYTES);
        assert_eq!(bytes_for(Some(64 * CHUNK_BYTES)), CHUNK_BYTES);
        assert_eq!(bytes_for(Some(2 * CHUNK_BYTES)), CHUNK_BYTES / 64);
    }
}
