//! Asks NVIDIA's management library, in a process of its own.

use super::super::subprocess::say;
use crate::device::cuda::nvml;

pub(in crate::doctor) fn run() {
    say(&nvml::facts());
}
