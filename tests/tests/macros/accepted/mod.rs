//! Code that must compile and run. Each file denies all warnings, so code from the derives gives none.

#![allow(dead_code, unreachable_pub, reason = "forms that nobody uses, and some with `pub`")]
#![allow(clippy::large_enum_variant, reason = "what users may write")]

mod actor_forms;
mod checks;
mod enums;
mod generics;
mod macro_rules;
mod main_forms;
mod portable;
mod replies;
mod shadowed_names;
mod stage_forms;
mod structs;
