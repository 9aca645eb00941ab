//! The rings against a model, against a peer that writes anything, and under two threads.

mod corruption;
mod model;
mod stress;
