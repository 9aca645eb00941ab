//! Faults and their written form.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The environment variable that arms faults in processes that start: any number of [`Fault`]s, separated by
/// `;`. A fault for one worker only has `worker/` before it (`node/` for the node).
pub const VARIABLE: &str = "TENSORPOST_FAULTS";

/// The action at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// The process is killed (`SIGKILL`).
    Kill,
    /// The process is stopped (`SIGSTOP`) until another process continues it.
    Stop,
    /// The thread panics.
    Panic,
    /// The thread sleeps.
    Delay(Duration),
}

/// A planned fault: a point, a passage of it, and an action. It is written `point@nth=action`, with `kill`,
/// `stop`, `panic` or `delay:MILLISECONDS` for the action; `@1` can be left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fault {
    /// The name of the point.
    pub point: String,
    /// The passage, counted from one.
    pub nth: u64,
    /// The action there.
    pub action: Action,
}

/// The reason why a fault was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fault; write `point@nth=action`, with `kill`, `stop`, `panic` or `delay:MILLISECONDS`")]
pub struct BadFault(pub String);

impl Fault {
    /// Creates a fault at the first passage of `point`.
    pub fn new(point: impl Into<String>, action: Action) -> Self {
        Fault { point: point.into(), nth: 1, action }
    }

    /// Sets the passage at which the fault strikes, counted from one; 0 means the first too.
    pub fn at(mut self, nth: u64) -> Self {
        self.nth = nth.max(1);
        self
    }
}

impl FromStr for Fault {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let bad = || BadFault(text.to_owned());
        let (place, action) = text.split_once('=').ok_or_else(bad)?;
        let (point, nth) = match place.split_once('@') {
            Some((point, nth)) => (point, nth.trim().parse().map_err(|_| bad())?),
            None => (place, 1),
        };
        let action = match action.trim() {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "panic" => Action::Panic,
            other => {
                let time = other.strip_prefix("delay:").and_then(|time| time.trim().parse().ok());
                Action::Delay(Duration::from_millis(time.ok_or_else(bad)?))
            }
        };
        let point = point.trim();
        if point.is_empty() || point.contains('/') || nth == 0 {
            Err(bad())
        } else {
            Ok(Fault::new(point, action).at(nth))
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}=", self.point, self.nth)?;
        match self.action {
            Action::Kill => f.write_str("kill"),
            Action::Stop => f.write_str("stop"),
            Action::Panic => f.write_str("panic"),
            Action::Delay(time) => write!(f, "delay:{}", time.as_millis()),
        }
    }
}

/// Parses the faults in `text` that are for the process called `name`.
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "only then is the variable read"))]
pub(super) fn faults_for(name: &str, text: &str) -> Vec<Result<Fault, BadFault>> {
    let faults = text.split(';').map(str::trim).filter(|fault| !fault.is_empty());
    let for_it = faults.filter_map(|fault| match fault.split_once('/') {
        Some((whose, fault)) => (whose.trim() == name).then_some(fault),
        None => Some(fault),
    });
    for_it.map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_can_be_written_and_read() {
        let all = [
            Fault::new("transport.send.written", Action::Kill).at(3),
            Fault::new("a", Action::Stop),
            Fault::new("b", Action::Panic).at(u64::MAX),
            Fault::new("c", Action::Delay(Duration::from_millis(20))),
        ];
        for fault in all {
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert_eq!(
            " wire.decode = delay: 5 ".parse(),
            Ok(Fault::new("wire.decode", Action::Delay(Duration::from_millis(5))))
        );
        for bad in
            ["", "a", "=kill", "a@=kill", "a@0=kill", "a@x=kill", "a=die", "a=delay", "a=delay:x", "w/a=kill"]
        {
            assert_eq!(bad.parse::<Fault>(), Err(BadFault(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn a_process_takes_what_is_for_it() {
        let text = "blur/a=kill; b@2=stop;;node/c=panic;nonsense";
        let taken =
            |name| faults_for(name, text).into_iter().map(|fault| fault.map(|f| f.point)).collect::<Vec<_>>();
        let nonsense = || Err(BadFault("nonsense".into()));
        assert_eq!(taken("blur"), [Ok("a".into()), Ok("b".into()), nonsense()]);
        assert_eq!(taken("node"), [Ok("b".into()), Ok("c".into()), nonsense()]);
    }
}
