//! Rules for the sources, checked by reading them.

mod dependencies;
mod fields;
mod methods;
mod security;
mod wall_clock;
