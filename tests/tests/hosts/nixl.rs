//! Tensors that go from node to node by the NIXL that is installed, as those of a GPU do: of the host, with the arenas there too.
//!
//! All processes of both hosts have to know that, so the head is a process of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use tensorpost::hosts::{Hosts, Nixl};
use tensorpost::node::Console;
use tensorpost::prelude::*;
use tensorpost_tests::harness::{Builder, Case};
use tensorpost_tests::wait::ask;

use crate::actors::Echo;
use crate::logs::lines;
use crate::{OTHER, Other, address, find, program};

/// Names NIXL's library.
pub(crate) const LIBRARY: &str = "TENSORPOST_NIXL";
const PATIENCE: Duration = Duration::from_secs(50);

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

/// The head.
pub(crate) fn run_as_head() -> ! {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("console");
    let hosts = Hosts::head("127.0.0.1:0").name("first").nixl(Nixl::WhereFaster);
    let builder = program(Node::builder()).console(Console::At(path.clone())).hosts(hosts);
    let node = builder.start().expect("a head");
    let other = Other::staging_at(&address(&node), 1);
    let mut console = tensorpost_core::console::Console::at(&path).expect("a console");
    let (echo, stream) = (find::<Echo>(&node, "echo"), node.host_stream().expect("a stream"));
    let mut goes_there_and_back = |number: u64| {
        // Two runs, and what goes by gRPC beside them.
        let large = (0..5_000_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let (large, small) = (large.collect::<Vec<_>>(), vec![number; 7]);
        let tensors =
            [&large, &small].map(|all| stream.from_slice(&[all.len()], all).expect("room").freeze());
        let echoed = ask(&node, &echo, Echo { number, tensors: tensors.to_vec(), ..Echo::empty() });
        let came: Vec<_> = echoed.tensors.iter().map(|t| t.to_vec::<u64>().expect("numbers")).collect();
        assert!(came == [large, small], "message {number} is not what was sent");
    };
    let mut log = || {
        let all = lines(&mut console);
        let failed = all.iter().find(|line| line.text.contains("NIXL has failed"));
        assert!(failed.is_none(), "{failed:?}");
        let chosen = |line: &&tensorpost_core::console::LogLine| line.text.contains("by NIXL: ");
        all.iter().filter(chosen).map(|line| line.host.is_some()).collect::<Vec<_>>()
    };
    let since = Instant::now();
    let mut number = 0;
    while !(log().contains(&true) && log().contains(&false)) {
        assert!(since.elapsed() < PATIENCE, "NIXL was not chosen on both hosts");
        goes_there_and_back(number);
        number += 1;
    }
    (number..number + 5).for_each(&mut goes_there_and_back);
    log();
    other.end();
    let report = node.shutdown(Duration::from_secs(20)).expect("a report");
    std::process::exit(i32::from(!report.is_clean()));
}

pub(crate) fn cases() -> Vec<Case> {
    let name = concat!(module_path!(), "::large_tensors_go_by_nixl_where_it_is_faster");
    vec![Case::new(name, large_tensors_go_by_nixl_where_it_is_faster).only_where(is_named)]
}
