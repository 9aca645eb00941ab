//! Where hosts listen: an agent at every address of its machine, or at the one that it is given.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener, TcpStream};

use tempfile::TempDir;
use tensorpost::hosts::Hosts;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{Builder, Case};

use crate::{BUILD, Other, address, key_in};

/// A head and two agents. The node is dropped first, and ends its agents.
struct Three {
    _node: Node,
    _agents: [Other; 2],
    _folder: TempDir,
}

/// Starts a head with two agents, the first of which may be told where to listen. The second has the first
/// start an actor, and so has connected to it. Also returns the address of the first.
fn three(builder: Builder, listen: &str, has_key: bool, bind: Option<&str>) -> (Three, SocketAddr) {
    let folder = tempfile::tempdir().expect("a folder");
    let (hosts, key) = (Hosts::head(listen).name("first").build_name(BUILD), key_in(folder.path()));
    let hosts = if has_key { hosts.key_file(&key) } else { hosts };
    let node = builder.hosts(hosts).start().expect("a head");
    let key = has_key.then_some(("TENSORPOST_KEY_FILE", key.as_os_str()));
    let bind = bind.map(|at| ("TENSORPOST_BIND", OsStr::new(at)));
    let of_first: Vec<_> = key.into_iter().chain(bind).collect();
    let first = Other::serving_with(&node, &address(&node), &of_first);
    let second = Other::asking_with(&node, key.as_slice());
    let at = node.hosts().expect("hosts")[1].address.parse().expect("an address");
    (Three { _node: node, _agents: [first, second], _folder: folder }, at)
}

/// The head sees the agent come from 127.0.0.1.
fn an_agent_listens_at_the_one_address_that_it_is_given(builder: Builder) {
    let (three, at) = three(builder, "127.0.0.1:0", true, Some("127.3.0.2"));
    assert_eq!(at.ip().to_string(), "127.3.0.2");
    drop(TcpStream::connect(at).expect("it listens there"));
    TcpStream::connect(("127.3.0.3", at.port())).expect_err("it listens nowhere else");
    drop(three);
}

fn hosts_reach_each_other_over_ipv6(builder: Builder) {
    let (three, at) = three(builder, "[::1]:0", true, None);
    assert_eq!(at.ip().to_string(), "::1", "the address that the head sees");
    drop(TcpStream::connect(("127.0.0.1", at.port())).expect("it listens there, too"));
    drop(three);
}

/// The second agent reaches the first where that listens, and not where the head sees it.
fn hosts_without_a_key_reach_each_other_over_ipv6(builder: Builder) {
    let (three, at) = three(builder, "[::1]:0", false, None);
    assert_eq!(at.ip().to_string(), "127.0.0.1");
    drop(three);
}

fn ipv6_possible() -> Result<(), String> {
    TcpListener::bind("[::1]:0").map(drop).map_err(|error| format!("this machine has no IPv6: {error}"))
}

pub(crate) fn cases() -> Vec<Case> {
    let of_ipv6 = cases![hosts_reach_each_other_over_ipv6, hosts_without_a_key_reach_each_other_over_ipv6];
    let of_ipv6 = of_ipv6.into_iter().map(|case| case.only_where(ipv6_possible));
    cases![an_agent_listens_at_the_one_address_that_it_is_given].into_iter().chain(of_ipv6).collect()
}
