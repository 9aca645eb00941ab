//! Runs of seeds: fresh ones for a time that the environment sets, and all that have once found something.

mod faults;
mod random;
