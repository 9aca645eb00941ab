//! Runs of seeds: fresh ones for as long as whoever runs this has time, and all that have once found
//! something.

mod faults;
mod random;
