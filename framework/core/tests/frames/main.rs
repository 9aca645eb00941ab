//! Tests that a lying peer does no harm (WIRE-1): frames and notices are changed on their way.

#![cfg(feature = "testing")]

mod forged;
mod notices;
mod parts;
mod seeds;
mod written_parts;
