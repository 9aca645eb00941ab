//! What the sources may say, read from them.

mod dependencies;
mod wall_clock;
