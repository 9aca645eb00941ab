#!/usr/bin/env bash
# The tests that need no memory files, processes or sockets, under Miri: undefined behaviour that happens to work is an error.
#
#   scripts/miri.sh [filter …]
#
# Wants nightly Rust with the components miri and rust-src. What it covers, and when it last ran: framework/core/tests/README.md.
#
# Host memory is addressed by number, so provenance has to be permissive. The interpreter itself fails on words that are
# written both plainly and atomically (`weak_memory.rs`, nightly of 2026-05-19); loom explores these in its place. Stress tests,
# random layouts, thousands of names and full tables take hours there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-disable-weak-memory-emulation"
export PROPTEST_CASES=2

readonly FILTERS=(
    ids
    lease::lease lease::writers
    lease::table
    message::nesting message::wire message::check
    node::control node::limits node::questions node::reclaim node::registry node::restart node::roster node::taint node::watches
    observe::metrics observe::text observe::trace::chrome observe::trace::record observe::trace::timeline
    tensor::dlpack tensor::dtype tensor::layout
    transport::ring transport::doorbell transport::entry transport::spin
)

if [ $# -eq 0 ]; then
    set -- "${FILTERS[@]}"
fi
exec cargo +nightly miri test -p tensorpost-core --features testing,dlpack --lib -- \
    --skip stress --skip random --skip handlers_that_never_ended --skip names_have_bounds \
    --skip one_process_does_not_take_the_names_of_all --skip locations_are_unique_bounded "$@"
