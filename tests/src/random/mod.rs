//! Random runs: a pipeline drawn from a seed, in which anything can fail, and an oracle that judges it.
//!
//! ```text
//!   seed ── draw ── spec ── build ── pipeline ── logs and report ── oracle ── verdicts
//!                     └───────────── shrink ←──────────────────────────┘
//! ```
//!
//! Every item carries its [history], and every part writes down the items that it got. So the law of
//! conservation is checked edge by edge. The report has to name each item that one part made and the next did
//! not get. No item comes twice, to a wrong place, out of order, or with other content. `PIPELINES.md` has
//! the exact promises, and [`oracle`] judges them.
//!
//! [`spec`] defines a run, and [`draw`] draws one from a seed. [`build`](mod@build) builds its pipeline from
//! the [`parts`], and [`run`] plays it in this process. [`campaign`] plays many runs in processes of their
//! own, and [`shrink`] makes a spec that fails smaller.
//!
//! The unit tests here leave out the modules that build and run pipelines: those would be compiled once more
//! for them, and take longest.

#[cfg(not(test))]
pub mod build;
#[cfg(not(test))]
pub mod campaign;
pub mod draw;
pub mod history;
pub mod oracle;
#[cfg(not(test))]
pub mod parts;
pub mod plan;
pub mod recipe;
#[cfg(not(test))]
pub mod run;
pub mod shrink;
pub mod spec;
pub mod thing;
