//! Tensors that go from node to node by the installed NIXL, as those of a GPU do: the host's tensors too,
//! with the arenas there.
//!
//! All processes of both hosts have to know that, so the head is a process of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use tensorpost::hosts::{Hosts, Nixl};
use tensorpost::node::Console;
use tensorpost::prelude::*;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_watch::console::LogLine;

use crate::actors::Echo;
use crate::gateways::{Dies, was_lost};
use crate::logs::lines;
use crate::{BUILD, OTHER, Other, address, find};

/// Names NIXL's library.
pub(crate) const LIBRARY: &str = "TENSORPOST_NIXL";
const WAIT_FOR_PROBES: Duration = Duration::from_secs(30);

fn is_named() -> Result<(), String> {
    match std::env::var_os(LIBRARY) {
        Some(_) => Ok(()),
        None => Err(format!("{LIBRARY} names no libnixl_capi.so, which is in the wheel `nixl`")),
    }
}

fn large_tensors_go_by_nixl_where_it_is_faster(_: Builder) {
    let mut head = Command::new(std::env::current_exe().expect("this program"));
    head.args(std::env::args_os().skip(1)).env(OTHER, "nixl").env("TENSORPOST_TESTING_STAGE_HOST", "1");
    let status = head.status().expect("it starts");
    assert!(status.success(), "the head ended with {status}");
}

/// Runs as the head.
pub(crate) fn run_as_head() -> ! {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let hosts = Hosts::head("127.0.0.1:0").name("first").build_name(BUILD).lanes(1).nixl(Nixl::WhereFaster);
    let builder = Node::builder().console(Console::At(path.clone())).hosts(hosts);
    let node = builder.start().expect("a head");
    let other = Other::staging_at(&address(&node), 1);
    let mut console = tensorpost_watch::console::Console::at(&path).expect("a console");
    let (echo, stream) = (find::<Echo>(&node, "echo"), node.host_stream().expect("a stream"));
    // Two runs, with other traffic by gRPC beside them.
    let data: Vec<_> = (0..4_500_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let goes_there_and_back = |number: u64| {
        let (mut large, small) = (data.clone(), vec![number; 7]);
        large.iter_mut().step_by(100_000).for_each(|word| *word ^= number);
        let tensors =
            [&large, &small].map(|all| stream.from_slice(&[all.len()], all).expect("room").freeze());
        let echoed = loop {
            match node.block_on(echo.ask(Echo { number, tensors: tensors.to_vec(), ..Echo::empty() })) {
                Ok(echoed) => break echoed,
                // The gateway that was killed had the ask.
                lost => drop(was_lost(lost)),
            }
        };
        let came: Vec<_> = echoed.tensors.iter().map(|t| t.to_vec::<u64>().expect("numbers")).collect();
        assert!(came == [large, small], "message {number} is not what was sent");
    };
    // How often each side probed a route, and how often it chose the route.
    let mut probes = || {
        let all = lines(&mut console);
        let failed = all.iter().find(|line| line.text.contains("NIXL has failed"));
        assert!(failed.is_none(), "{failed:?}");
        let count = |is_meant: &dyn Fn(&LogLine) -> bool| all.iter().filter(|line| is_meant(line)).count();
        let probed =
            |there: bool| count(&|line| line.text.contains("MiB took") && line.host.is_some() == there);
        ([false, true].map(probed), count(&|line| line.text.contains("by NIXL: ")))
    };
    let mut number = 0;
    let mut goes_on_until_probed = |before: [usize; 2]| {
        let since = Instant::now();
        loop {
            let (probed, chosen) = probes();
            if probed.into_iter().zip(before).all(|(now, before)| now > before) {
                (0..3).for_each(|_| goes_there_and_back(number));
                return (probed, chosen);
            }
            assert!(since.elapsed() < WAIT_FOR_PROBES, "NIXL was not probed on both hosts again: {probed:?}");
            goes_there_and_back(number);
            number += 1;
        }
    };
    let (probed, _) = goes_on_until_probed([0; 2]);
    // The same holds with the next gateway of either host.
    Dies::OF_AGENT.kill(&node, &other);
    let (probed, _) = goes_on_until_probed(probed);
    Dies::OF_HEAD.kill(&node, &other);
    let (_, chosen) = goes_on_until_probed(probed);
    // On a busy machine gRPC may be faster now and then, and is chosen rightly.
    assert!(chosen > 0, "NIXL was never chosen");
    other.end();
    let report = node.shutdown(Duration::from_secs(20)).expect("a report");
    std::process::exit(i32::from(!report.is_clean()));
}

pub(crate) fn cases() -> Vec<Case> {
    let name = concat!(module_path!(), "::large_tensors_go_by_nixl_where_it_is_faster");
    vec![Case::new(name, large_tensors_go_by_nixl_where_it_is_faster).only_where(is_named)]
}
