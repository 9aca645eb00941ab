//! Shared code of all test binaries, which test the public API across real processes.
//!
//! A binary's workers are the binary itself, run again, and are taken over before its `main`, which is
//! [`harness::run`]. Every case starts a node of its own. Nothing sleeps to let
//! something happen: a case waits for events ([`gate`], replies, channels), or looks again until a deadline
//! ([`wait::until`]). A case that has not ended within [`harness::DEADLINE`] fails by name, so nothing hangs.

pub mod chrome;
pub mod faults;
pub mod gate;
pub mod harness;
pub mod holder;
pub mod intruder;
pub mod log;
pub mod network;
pub mod pipes;
pub mod players;
#[cfg(test)]
mod prose;
pub mod random;
pub mod user;
pub mod wait;
pub mod want;
