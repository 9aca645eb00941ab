//! Heads that strangers from a thousand addresses flood: a host with the key joins all the same, and the log
//! counts the strangers.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::time::Instant;

use rustix::process::{Signal, set_parent_process_death_signal};
use tensorpost::hosts::Hosts;
use tensorpost::node::Console;
use tensorpost::prelude::*;
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder, Case};
use tensorpost_tests::network::{self, Network};
use tensorpost_tests::wait::{ask, until};
use tensorpost_watch::console;

use crate::actors::{Echo, Echoer};
use crate::flood::Flood;
use crate::logs::lines;
use crate::{BUILD, OTHER, Other, address, key_in};

/// The scenes. Each is played in a process of its own, because a flood takes thousands of descriptors.
const OF_IPV4: &str = "flooded over IPv4";
const OF_IPV6: &str = "flooded over IPv6";

/// The places of connections that have not shown the key (`MAX_STRANGERS`).
const PLACES: u64 = 512;

/// The lines of the log in a second about one kind of refusal.
const LINES: u64 = 4;

/// Counts the lines of the log about refusals. Also returns the latest number of connections that lost their
/// places.
fn refusals(console: &mut console::Console) -> (u64, u64) {
    let refusals = lines(console).into_iter().filter(|line| line.text.starts_with("refused: "));
    let (mut told, mut lost) = (0_u64, 0_u64);
    for line in refusals {
        told += 1;
        let count = line.text.rsplit_once("count=").and_then(|(_, count)| count.parse().ok());
        if line.text.contains("kind=Flood") {
            lost = lost.max(count.expect("a number"));
        }
    }
    (told, lost)
}

fn flooded(listen: &str, from: fn(u16) -> IpAddr) {
    let folder = tempfile::tempdir().expect("a folder");
    let (key, path) = (key_in(folder.path()), folder.path().join("console"));
    let hosts = Hosts::head(listen).name("first").build_name(BUILD).key_file(&key);
    let node = Node::builder().console(Console::At(path.clone())).hosts(hosts).start().expect("a head");
    let at = address(&node);
    let mut console = console::Console::at(&path).expect("its console");
    let began = Instant::now();
    let flood = Flood::start(at.parse().expect("an address"), from);
    until("all places are taken", || refusals(&mut console).1 > PLACES);

    let mut other = Other::serving_with(&node, &at, &[("TENSORPOST_KEY_FILE", key.as_os_str())]);
    let hosts = node.hosts().expect("hosts");
    let echo = node.spawn::<Echoer>(()).on(&hosts[1]).start().expect("an actor there");
    let echoed = ask(&node, &echo.address(), Echo::empty());
    assert_ne!(echoed.pid, std::process::id());
    let (_, before) = refusals(&mut console);
    until("the flood goes on", || refusals(&mut console).1 > before);
    drop(flood);
    let (told, lost) = refusals(&mut console);
    // There are two kinds: no place, and no key.
    assert!(told <= 2 * LINES * (began.elapsed().as_secs() + 2), "{told} lines about {lost} strangers");
    drop(echo);
    other.kill();
}

/// Becomes a head, where a test has started this process as one.
pub(crate) fn play(scene: &str) {
    match scene {
        OF_IPV4 => {
            set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
            flooded("127.0.0.1:0", |number| {
                IpAddr::from([127, 1 + (number / 250) as u8, (number % 250) as u8, 2])
            });
        }
        OF_IPV6 => {
            Network::own().take("2001:db8::/32");
            // Half of them are in one network of the least size, and each of the others in one of its own.
            flooded("[::1]:0", |number| match number % 2 {
                0 => Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, number).into(),
                _ => Ipv6Addr::new(0x2001, 0xdb8, 1, number, 0, 0, 0, 7).into(),
            });
        }
        _ => unreachable!("no scene is called {scene}"),
    }
}

fn a_flood_over_ipv4_keeps_nobody_with_the_key_out(_: Builder) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let status = command.env(OTHER, OF_IPV4).status().expect("it starts");
    assert!(status.success(), "{status}");
}

fn a_flood_over_ipv6_keeps_nobody_with_the_key_out(_: Builder) {
    let program = std::env::current_exe().expect("this program");
    let status = network::alone(&program).env(OTHER, OF_IPV6).status().expect("it starts");
    assert!(status.success(), "{status}");
}

pub(crate) fn cases() -> Vec<Case> {
    let of_ipv6 = cases![a_flood_over_ipv6_keeps_nobody_with_the_key_out];
    let of_ipv6 = of_ipv6.into_iter().map(|case| case.only_where(network::ipv6_possible));
    // A flood takes a processor, and hosts in other cases would fall silent.
    harness::alone(
        cases![a_flood_over_ipv4_keeps_nobody_with_the_key_out].into_iter().chain(of_ipv6).collect(),
    )
}
