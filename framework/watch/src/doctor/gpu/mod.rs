//! The checks of NVIDIA GPUs. The driver, the management library, the toolkit and the MPS daemon are each
//! asked in a process of their own, all at once and from the beginning. When the driver has answered, two
//! processes for each pair of GPUs are started.

use std::collections::BTreeMap;

use tensorpost_core::api::watch::mps::CONTROL;
use tensorpost_core::api::watch::probe::{DriverFacts, Refusal};

use self::driver::Machine;
use self::libraries::ToolkitFacts;
use super::exchange;
use super::subprocess::{Again, End, LONG, Running, Task};
use super::system::{Root, find_program};
use super::{Check, Options};
use crate::draw::bytes;
use crate::nvml::{NvmlError, NvmlFacts};

mod driver;
mod health;
pub(super) mod libraries;
pub(super) mod mps;
mod pairs;
mod slots;
mod toolkit;
mod variables;
mod visible;
mod xid;

/// The processes that were started first.
pub(super) struct EarlyProcesses {
    driver: Result<Running, End>,
    nvml: Result<Running, End>,
    toolkit: Result<Running, End>,
    mps: Option<Result<Running, End>>,
    machine: Machine,
}

impl EarlyProcesses {
    pub(super) fn begin(options: &Options) -> Self {
        let again = &options.again;
        let machine = Machine::read(&Root::new(&options.root));
        let start = |task| again.start(task, LONG);
        let path = std::env::var_os("PATH");
        let has_mps = machine.has_driver && find_program(CONTROL, path.as_deref()).is_some();
        EarlyProcesses {
            driver: start(Task::Driver),
            nvml: start(Task::Nvml),
            toolkit: start(Task::Toolkit),
            mps: has_mps.then(|| start(Task::Mps)),
            machine,
        }
    }

    pub(super) fn checks(
        self,
        options: &Options,
        root: &Root,
        can_exchange: bool,
        bytes: u64,
        versions: &mut BTreeMap<String, String>,
    ) -> Vec<Check> {
        let facts = heard::<DriverFacts>(self.driver).unwrap_or_else(|why| DriverFacts {
            gpus: Err(Refusal { code: None, text: why }),
            ..DriverFacts::default()
        });
        let gpus = facts.gpus.clone().unwrap_or_default();
        // The exchanges take longest.
        let exchanges = can_exchange.then(|| pairs::Exchanges::begin(&options.again, &gpus, bytes));
        let nvml = heard::<Result<NvmlFacts, NvmlError>>(self.nvml)
            .unwrap_or_else(|why| Err(NvmlError { code: None, text: why }));
        note_versions(versions, &facts, nvml.as_ref().ok(), &self.machine);

        let mut checks = vec![driver::judge(&self.machine, &facts, nvml.as_ref().err())];
        let names = variables::Named::here();
        checks.extend(visible::judge(&names, &facts, nvml.as_ref().ok()));
        if self.machine.is_absent() && gpus.is_empty() {
            // Without a GPU the remaining checks have no subject.
            return checks;
        }
        checks.extend(health::judge(&gpus, nvml.as_ref().ok()));
        checks.extend(xid::judge(&xid::read(root)));
        checks.push(toolkit::judge(&heard::<ToolkitFacts>(self.toolkit), facts.version));
        if let Some(exchanges) = exchanges {
            let topology = nvml.as_ref().map_or(&[][..], |facts| &facts.topology);
            checks.extend(exchanges.checks(&options.again, topology));
        }
        checks.push(mps::judge(self.mps.map(mps::hear)));
        checks.extend(variables::judge(&names));
        checks.extend(slots::judge(&slots::read(root)));
        checks
    }
}

/// Returns the message of a process, or the text of its end if it sent none.
fn heard<T: serde::de::DeserializeOwned>(running: Result<Running, End>) -> Result<T, String> {
    running.and_then(|mut running| running.next()).map_err(|end| end.text())
}

fn note_versions(
    versions: &mut BTreeMap<String, String>,
    facts: &DriverFacts,
    nvml: Option<&NvmlFacts>,
    machine: &Machine,
) {
    let mut note =
        |name: &str, text: Option<String>| versions.extend(text.map(|text| (name.to_owned(), text)));
    note("cuda", (facts.version > 0).then(|| driver::cuda(facts.version)));
    note("driver", nvml.and_then(|facts| facts.driver.clone()).or_else(|| machine.kernel_part.clone()));
    note("libcuda", facts.library.clone());
    let gpus = facts.gpus.as_deref().unwrap_or_default();
    let names: Vec<_> = gpus.iter().map(|gpu| format!("{} ({})", gpu.name, bytes(gpu.bytes))).collect();
    note("gpus", (!names.is_empty()).then(|| names.join(", ")));
}

/// Returns the way to start this program again from within a process of the doctor.
fn again() -> Again {
    Again::of_task()
}
