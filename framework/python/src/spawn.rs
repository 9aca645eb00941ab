//! The settings of an actor that Python starts: for the program, and for an actor.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorpost_core::actor::{Python as Start, RemoteActor};
use tensorpost_core::device::Device;
use tensorpost_core::node::{Restart, Spawn, Spawned};

use crate::address::PyAddress;
use crate::context::Context;
use crate::failure::exception;
use crate::node::{Policy, policy};

/// The settings as the package gives them: name, label, capacity of the mailbox, restart policy, device,
/// device of received tensors, bytes and share of each GPU for its worker, and the keys of its messages.
pub(crate) type Given = (
    Option<String>,
    Option<String>,
    u32,
    Option<Policy>,
    Option<String>,
    Option<String>,
    Option<u64>,
    Option<f64>,
    Option<Vec<u64>>,
);

/// See the module.
pub(crate) struct Settings {
    name: Option<String>,
    label: Option<String>,
    mailbox: u32,
    restart: Restart,
    device: Option<Device>,
    receive_on: Option<Device>,
    gpu_budget: Option<u64>,
    gpu_share: Option<f64>,
    takes: Option<Vec<u64>>,
}

impl Settings {
    pub(crate) fn read(py: Python<'_>, given: Given) -> PyResult<Self> {
        let (name, label, mailbox, restart, device, receive_on, gpu_budget, gpu_share, takes) = given;
        let named = |name: String| {
            let device = if name == "cpu" { Ok(Device::host()) } else { name.parse::<Device>() };
            device.map_err(|error| exception(py, "SpawnError", error.to_string()))
        };
        let restart = restart.map_or(Ok(Restart::never()), |restart| policy(py, restart))?;
        let (device, receive_on) = (device.map(named).transpose()?, receive_on.map(named).transpose()?);
        Ok(Settings { name, label, mailbox, restart, device, receive_on, gpu_budget, gpu_share, takes })
    }

    /// Gives a spawn these settings.
    pub(crate) fn give<'b, A: RemoteActor, By>(&self, spawn: Spawn<'b, A, By>) -> Spawn<'b, A, By> {
        let mut spawn = spawn.mailbox(self.mailbox).restart(self.restart);
        if let Some(bytes) = self.gpu_budget {
            spawn = spawn.gpu_budget(bytes);
        }
        if let Some(share) = self.gpu_share {
            spawn = spawn.gpu_share(share);
        }
        if let Some(device) = &self.device {
            spawn = spawn.device(device.clone());
        }
        if let Some(device) = &self.receive_on {
            spawn = spawn.receive_on(device.clone());
        }
        if let Some(name) = &self.name {
            spawn = spawn.name(name);
        }
        if let Some(label) = &self.label {
            spawn = spawn.label(label);
        }
        if let Some(keys) = &self.takes {
            spawn = spawn.takes(keys.clone());
        }
        spawn
    }

    /// Returns the address of the actor that was started with them.
    pub(crate) fn address(self, started: &Spawned<Start>, context: Arc<Context>) -> PyAddress {
        let raw = match self.takes {
            Some(keys) => started.raw_address().only(keys),
            None => started.raw_address(),
        };
        PyAddress::new(raw, context).named(self.name.or(self.label)).in_worker(started.worker())
    }
}
