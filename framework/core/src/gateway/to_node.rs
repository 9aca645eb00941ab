//! Messages for this host's node that several files here send.

use std::os::fd::OwnedFd;

use tensorpost_hosts::ids::HostLife;

use crate::transport::Transport;
use crate::transport::gateway_messages::FromGateway;

/// Tells the node something. Errors are ignored: if the node is gone, this process ends in a moment.
pub(super) fn tell(transport: &Transport, said: FromGateway) {
    let _ = transport.control.send(said.sealed(), Vec::new());
}

/// Tells the node that this host has joined, and hands over what outlives this process: its page and its
/// listening socket.
pub(super) fn began(transport: &Transport, own: HostLife, page: OwnedFd, socket: OwnedFd) {
    let said = FromGateway::Began { result: Ok((own.host.0, own.life.0)) };
    let _ = transport.control.send(said.sealed(), vec![page, socket]);
}

/// Tells the node that this host could not join.
pub(super) fn failed(transport: &Transport, why: String) {
    tell(transport, FromGateway::Began { result: Err(why) });
}
