#!/usr/bin/env bash
# The tests of core in which threads meet, under ThreadSanitizer: two accesses that nothing orders are an error.
#
#   scripts/tsan.sh [test …]     names of test binaries of tensorpost-core; without any, those below
#
# Wants nightly Rust with the component rust-src: the standard library is instrumented too. What it covers, and when it last
# ran: framework/core/tests/README.md.
#
# It knows no fences (`fence(SeqCst)` and `Acquire` behind a relaxed load are none to it). Where the fence stands behind a load,
# the load itself acquires under `cfg(tensorpost_tsan)`, which is set here. scripts/tsan.supp is for what else rests on a fence,
# each with the model that explores it; there are none in it yet.
# One test at a time: memory is mapped and unmapped by system calls that it does not see, so it takes what two tests that run side
# by side write to one address, one after the other, for a race.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TARGET=x86_64-unknown-linux-gnu
export RUSTFLAGS="-Zsanitizer=thread --cfg tensorpost_tsan"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/tsan}" CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_OPT_LEVEL=1
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp halt_on_error=0 exitcode=66 history_size=4"

if [ $# -eq 0 ]; then
    set -- transport transport_faults frames
fi
tests=()
for name in "$@"; do
    tests+=(--test "$name")
done
exec cargo +nightly test -Zbuild-std --target "$TARGET" -p tensorpost-core --features testing,ndarray --lib "${tests[@]}" -- \
    --test-threads=1
