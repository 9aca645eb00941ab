//! Random runs: a pipeline drawn from a seed, with everything that can go wrong in it, and an oracle that
//! judges it.
//!
//! ```text
//!   seed ── draw ── spec ── build ── pipeline ── logs and report ── oracle ── verdicts
//!                     └───────────── shrink ←──────────────────────────┘
//! ```
//!
//! Every item carries its [history], and every part writes down what it got. So the law of conservation is
//! checked edge by edge: what one part made and the next did not get has to be named in the report; nothing
//! comes twice, nowhere else, out of order, or with another content. What exactly is promised is in
//! `PIPELINES.md`, and how that is judged in [`oracle`].
//!
//! [`spec`] says what a run is, [`draw`] draws one from a seed, [`build`](mod@build) writes its pipeline down
//! of the [`parts`], [`run`] does one in this process, [`campaign`] does many in processes of their own,
//! [`shrink`] makes a spec that fails smaller.
//!
//! The unit tests here do without what builds and runs pipelines: it would be compiled once more for them,
//! and takes longest.

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
