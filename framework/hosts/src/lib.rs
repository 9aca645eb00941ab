#![doc = include_str!("../README.md")]

pub mod frame;
pub mod ids;
pub mod limits;
pub mod session;
pub mod verdict;

#[cfg(test)]
mod testing;
