#![doc = include_str!("../DESIGN.md")]

pub mod frame;
pub mod ids;
pub mod introduction;
pub mod join;
pub mod limits;
#[cfg(test)]
mod limits_tests;
pub mod net;
pub mod nixl;
pub mod refused;
pub mod security;
pub mod session;
pub mod verdict;

#[cfg(test)]
mod testing;
