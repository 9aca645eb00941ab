//! Rules for the sources, checked by reading them.

mod circles;
mod dependencies;
mod fields;
mod methods;
mod security;
mod wall_clock;
