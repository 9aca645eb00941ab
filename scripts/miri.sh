#!/usr/bin/env bash
# Runs the tests that need no memory files, processes or sockets under Miri. There undefined behaviour is an
# error even if it happens to work.
#
#   scripts/miri.sh [filter …]
#
# It needs nightly Rust with the components miri and rust-src. framework/core/tests/README.md says what it
# covers and when it last ran.
#
# Host memory is addressed by number, so provenance has to be permissive. Miri itself fails on words that are
# written both plainly and atomically (`weak_memory.rs`, nightly of 2026-05-19). Its emulation of weak memory
# is therefore off, and loom explores these words instead. Tests with stress, random layouts, thousands of
# names or full tables are skipped, because they take hours under Miri.
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
    observe::metrics observe::text observe::trace::record
    series:: trace::chrome trace::timeline console::text
    tensor::dlpack tensor::dtype tensor::layout
    transport::ring transport::doorbell transport::entry transport::spin
)

if [ $# -eq 0 ]; then
    set -- "${FILTERS[@]}"
fi
exec cargo +nightly miri test -p tensorpost-core -p tensorpost-watch --features testing,dlpack --lib -- \
    --skip stress --skip random --skip handlers_that_never_ended --skip names_have_bounds \
    --skip one_process_does_not_take_the_names_of_all --skip locations_are_unique_bounded "$@"
