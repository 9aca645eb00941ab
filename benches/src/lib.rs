//! What the benches share: the bare parts that Tensorpost is compared with, in the same run, and the reading
//! of results.
//!
//! Every number that counts is a ratio of two medians of one run; absolute times move from machine to
//! machine, and on a shared one from minute to minute. The benches are in `benches/`, the table of their
//! results comes from the program `report`.

pub mod baseline;
pub mod cores;
pub mod memory;
pub mod notes;
pub mod results;
pub mod table;
