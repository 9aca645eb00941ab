//! The shared code of the benches: the bare parts with which Tensorpost is compared, in the same run, and the
//! reading of results.
//!
//! Every number that counts is a ratio of two medians of one run; absolute times move from machine to
//! machine, and on a shared one from minute to minute. The benches are in `benches/`, and the program
//! `report` prints the table of their results.

pub mod baseline;
pub mod cores;
pub mod memory;
pub mod notes;
pub mod results;
pub mod table;
