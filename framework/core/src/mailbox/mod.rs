//! Mailboxes across processes: bytes and leases from one process to another, in order, bounded, and woken up for.
//!
//! This folder knows no tensor. [`ring`] and [`doorbell`] are the protocols in shared memory, [`spin`] says when to stop
//! polling, [`post`] is a process's post office, built of these: a link to each peer, a reader that delivers, senders
//! that wait for credit and room. [`port`] is what it asks of the node, [`lives`] what the node says of who ended.

pub mod doorbell;
pub mod lives;
pub mod port;
pub mod post;
pub mod ring;
pub mod spin;
