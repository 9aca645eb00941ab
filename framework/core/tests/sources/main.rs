//! Rules for the sources, checked by reading them.

mod dependencies;
mod wall_clock;
