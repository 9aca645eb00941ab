//! Tests of the rings against a model, against a peer that writes anything, and with two threads.

mod corruption;
mod model;
mod stress;
