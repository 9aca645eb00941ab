//! The properties that a device must have between processes, tested on the device that `TENSORPOST_DEVICE`
//! names: `cuda:0` on a machine with a GPU, the host otherwise.
//!
//! On a GPU, run it with `--test-threads=1`: some cases look at what is free there.
//!
//! With `REQUIRE_GPU=1`, anything but a GPU is a failure. The last line of a good run says how many cases
//! used one.

#![expect(unsafe_code, reason = "sets a variable before there are threads")]

mod algebra;
mod faults;
mod graphs;
mod hangs;
#[cfg(feature = "hosts")]
mod hosts;
mod memory;
mod receive;
mod reuse;
mod scenes;
mod spares;
mod streams;

use algebra::a_tensor_that_is_not_on_the_host_says_how_it_gets_there;
use faults::{
    a_device_that_is_not_there_is_named, a_device_without_room_says_who_holds_it,
    a_kernel_that_faults_ends_its_worker_alone, a_kernel_that_faults_restarts_its_mps_group,
    more_actors_than_streams_share_them,
};
use graphs::{
    a_graph_is_launched_again_while_it_runs, a_graph_takes_part_in_the_order_of_messages,
    a_graph_takes_part_in_the_order_of_messages_under_mps, a_graph_with_other_tensors_makes_the_same_bits,
    a_pass_that_fails_launches_nothing,
};
use hangs::a_stream_that_stands_still_is_named_with_whom_it_waits_for;
use memory::{memory_that_nobody_holds_comes_back, what_a_worker_uses_of_a_gpu_is_in_the_figures};
use receive::{
    a_gpu_out_of_reach_is_copied_from_through_the_host, a_gpu_reads_the_memory_of_another_where_it_is,
    an_actor_gets_tensors_where_it_wants_them, tensors_from_the_same_process_are_brought_too, two_gpus,
};
use reuse::{
    memory_that_a_dead_client_of_mps_wrote_stays_its_owners,
    memory_that_a_dead_process_wrote_stays_its_owners,
};
use scenes::{
    VISIBLE, a_node_that_is_killed_leaves_no_mps_daemon, a_node_that_is_killed_leaves_nothing_on_the_device,
    workers_that_count_the_gpus_differently_mean_the_same,
};
use spares::{
    a_client_of_mps_that_is_killed_at_rest_costs_nobody_else,
    a_worker_goes_on_in_a_spare_that_has_opened_the_device, spares_end_with_their_mps_group_and_are_replaced,
};
use streams::{a_worker_has_as_many_streams_as_its_spawn_says, forty_workers_share_a_gpu_under_mps};
use tensorpost::node::Sharing;
use tensorpost::prelude::*;
use tensorpost_actors::matmul::{Chain, ChainArgs, Checker, CheckerArgs, Outcome, Run, Tally, Task, Verdict};
use tensorpost_tests::cases;
use tensorpost_tests::harness::{self, Builder};

mod images;
use images::{
    a_kernel_of_the_users_is_a_stage, convolutions_agree, edges_agree_beside_and_in_place, gray_bytes_agree,
    normalise_agrees, parts_of_tensors_agree, resize_agrees, statistics_agree, what_does_not_fit_is_refused,
};

mod ready;
use ready::ready_made_stages_agree_with_the_host;
mod pipelines;
use pipelines::{
    a_pipelines_last_work_is_done_before_its_workers_end, a_report_says_why_workers_took_turns_on_a_gpu,
};
mod parts;
use parts::{
    a_packed_part_is_a_view, several_workers_write_columns_of_one_tensor,
    several_workers_write_columns_of_one_tensor_under_mps,
};

/// Called in each process before `main`, and so in a worker before it is one.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE: extern "C" fn() = count_the_other_way_round;

/// Makes the workers count the GPUs from the other end: a device's identity must not depend on its number.
extern "C" fn count_the_other_way_round() {
    let is_worker = std::env::var_os("TENSORPOST_WORKER").is_some();
    if !is_worker || scenes::take_order() || std::env::var_os(VISIBLE).is_some() {
        return;
    }
    let gpus =
        (0..16).filter(|number| std::path::Path::new(&format!("/dev/nvidia{number}")).exists()).count();
    let order: Vec<String> = (0..gpus).rev().map(|number| number.to_string()).collect();
    if gpus > 1 {
        // SAFETY: this is the first call of the program; there is no other thread.
        unsafe { std::env::set_var(VISIBLE, order.join(",")) };
    }
}

fn main() {
    if scenes::play() {
        return;
    }
    #[cfg(feature = "hosts")]
    if hosts::be_the_other() {
        return;
    }
    let mut cases = cases![
        a_tensor_that_is_not_on_the_host_says_how_it_gets_there,
        a_chain_of_products_is_right_every_time,
        a_chain_of_products_is_wrong_when_the_wait_is_taken_out,
        a_gpu_is_there_if_one_is_required,
        a_device_that_is_not_there_is_named,
        a_device_without_room_says_who_holds_it,
        more_actors_than_streams_share_them,
        a_worker_goes_on_in_a_spare_that_has_opened_the_device,
        a_worker_has_as_many_streams_as_its_spawn_says,
        forty_workers_share_a_gpu_under_mps,
        a_graph_with_other_tensors_makes_the_same_bits,
        a_graph_is_launched_again_while_it_runs,
        a_graph_takes_part_in_the_order_of_messages,
        what_a_worker_uses_of_a_gpu_is_in_the_figures,
        a_stream_that_stands_still_is_named_with_whom_it_waits_for,
        an_actor_gets_tensors_where_it_wants_them,
        tensors_from_the_same_process_are_brought_too,
        resize_agrees,
        normalise_agrees,
        edges_agree_beside_and_in_place,
        convolutions_agree,
        gray_bytes_agree,
        statistics_agree,
        parts_of_tensors_agree,
        a_kernel_of_the_users_is_a_stage,
        ready_made_stages_agree_with_the_host,
        what_does_not_fit_is_refused,
        several_workers_write_columns_of_one_tensor,
        a_packed_part_is_a_view,
        a_pipelines_last_work_is_done_before_its_workers_end,
        a_report_says_why_workers_took_turns_on_a_gpu,
        a_node_that_is_killed_leaves_nothing_on_the_device,
        workers_that_count_the_gpus_differently_mean_the_same,
    ];
    let of_a_gpu = cases![
        a_chain_of_products_is_right_every_time_under_mps,
        a_kernel_that_faults_ends_its_worker_alone,
        a_kernel_that_faults_restarts_its_mps_group,
        a_client_of_mps_that_is_killed_at_rest_costs_nobody_else,
        spares_end_with_their_mps_group_and_are_replaced,
        memory_that_a_dead_process_wrote_stays_its_owners,
        memory_that_a_dead_client_of_mps_wrote_stays_its_owners,
        a_pass_that_fails_launches_nothing,
        a_graph_takes_part_in_the_order_of_messages_under_mps,
        memory_that_nobody_holds_comes_back,
        several_workers_write_columns_of_one_tensor_under_mps,
        a_node_that_is_killed_leaves_no_mps_daemon,
    ];
    cases.extend(of_a_gpu.into_iter().map(|case| case.only_where(there_is_a_gpu)));
    let of_two = cases![
        a_gpu_reads_the_memory_of_another_where_it_is,
        a_gpu_out_of_reach_is_copied_from_through_the_host,
    ];
    cases.extend(of_two.into_iter().map(|case| case.only_where(|| two_gpus().map(drop))));
    #[cfg(feature = "hosts")]
    cases.extend(hosts::cases());
    harness::run(cases)
}

/// The device to test, and whether it is a GPU.
fn device() -> (Device, bool) {
    let name = std::env::var("TENSORPOST_DEVICE").unwrap_or_else(|_| "host".to_owned());
    let device: Device = name.parse().unwrap_or_else(|error| panic!("TENSORPOST_DEVICE={name}: {error}"));
    let is_gpu = device.kind() == DeviceKind::Cuda;
    if !is_gpu && std::env::var_os("REQUIRE_GPU").is_some_and(|required| required == "1") {
        panic!("REQUIRE_GPU=1, and TENSORPOST_DEVICE is {name}");
    }
    (device, is_gpu)
}

/// The condition of cases that have nothing to test on the host. Where a GPU is required they fail without
/// one.
fn there_is_a_gpu() -> Result<(), String> {
    let (device, is_gpu) = device();
    is_gpu.then_some(()).ok_or_else(|| format!("TENSORPOST_DEVICE is {device}, which is no GPU"))
}

/// A node whose workers share the GPU through MPS.
fn node_under_mps(builder: Builder) -> (Device, Node) {
    (device().0, builder.sharing(Sharing::Mps).start().unwrap())
}

fn a_gpu_is_there_if_one_is_required(_: Builder) {
    let (device, is_gpu) = device();
    println!("{device} is {}", if is_gpu { "a GPU" } else { "the host" });
}

/// Has a chain multiply `repetitions` times, with several results under way, and reports how right they were.
fn chain(builder: Builder, repetitions: u64, skip_waits: bool) -> Verdict {
    let (device, is_gpu) = device();
    // The matrices are large enough that the device is still at work when the message comes.
    let size = match (is_gpu, cfg!(debug_assertions)) {
        (true, _) => 512,
        (false, true) => 32,
        (false, false) => 96,
    };
    // Memory goes round in steps with which 13 has nothing in common, so the old contents are another
    // chain's.
    let task = Task { size, products: 50, starts: 13 };
    // Without waits the device has to be at work when the result comes: half a millisecond for each copy.
    let head_start = if is_gpu && skip_waits { 1 << 30 } else { 0 };
    let node = builder.start().expect("a node");
    let checker = node.spawn::<Checker>(CheckerArgs { task, skip_waits }).device(device.clone());
    // Few results exist at a time: their memory goes round, and old contents there are wrong.
    let checker = checker.mailbox(4).start().expect("a checker");
    let next: Address<Outcome> = checker.address();
    let chain =
        node.spawn::<Chain>(ChainArgs { task, next, head_start }).device(device).start().expect("a chain");
    let (chain, tally) = (chain.address::<Run>(), checker.address::<Tally>());
    let verdict = node.block_on(async {
        for repetition in 0..repetitions {
            // This waits until the checker's mailbox has the result, not until the device is through with it.
            chain.ask(Run { repetition }).await.expect("a chain that runs");
        }
        tally.ask(Tally { repetitions }).await.expect("a verdict")
    });
    println!("{verdict:?}");
    assert_eq!(verdict.error, None);
    assert_eq!(verdict.checked, repetitions);
    verdict
}

/// CLOCK-1 between two processes, CLOCK-2 for the memory that goes round.
fn a_chain_of_products_is_right_every_time(builder: Builder) {
    // The host's products are slow without optimisation.
    let repetitions = if device().1 { 1000 } else { 200 };
    let verdict = chain(builder, repetitions, false);
    assert_eq!(verdict.wrong, 0, "{verdict:?}");
    assert!(verdict.early < repetitions, "the device was never at work when a result came: {verdict:?}");
}

/// The same where both processes compute at once.
fn a_chain_of_products_is_right_every_time_under_mps(builder: Builder) {
    let verdict = chain(builder.sharing(Sharing::Mps), 1000, false);
    assert_eq!(verdict.wrong, 0, "{verdict:?}");
}

/// Shows that the test above would notice.
fn a_chain_of_products_is_wrong_when_the_wait_is_taken_out(builder: Builder) {
    // Under MPS, where there is a GPU: with time slices of its own, the second process comes after the first
    // has had one.
    let builder = if device().1 { builder.sharing(Sharing::Mps) } else { builder };
    let verdict = chain(builder, 200, true);
    assert!(verdict.wrong > 20, "hardly a result was wrong without a wait: {verdict:?}");
}
