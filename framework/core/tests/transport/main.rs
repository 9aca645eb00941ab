//! Transports of several processes in one: leases, hand-overs, split tensors, bounds, asks, clocks, sleeping
//! readers, deaths, two nodes, and streams with a failure on them.

#![cfg(feature = "testing")]

mod asks;
mod bounds;
mod changing;
mod clocks;
mod deaths;
mod exclusive;
mod forged_links;
mod growth;
mod holds;
mod idle;
mod leases;
#[cfg(feature = "bindings")]
mod lending;
mod nodes;
mod parts;
mod reader;
mod retirement;
mod stream_failures;
