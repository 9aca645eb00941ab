//! Rules for the sources, checked by reading them.

mod dependencies;
mod security;
mod wall_clock;
