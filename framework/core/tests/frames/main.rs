//! What a lying peer cannot do (WIRE-1): frames and notices that are changed on their way.

#![cfg(feature = "testing")]

mod forged;
mod notices;
mod parts;
mod seeds;
mod written_parts;
