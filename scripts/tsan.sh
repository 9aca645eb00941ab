#!/usr/bin/env bash
# Runs the tests of tensorpost-core in which threads meet under ThreadSanitizer. There two accesses that
# nothing orders are an error.
#
#   scripts/tsan.sh [test …]     names of test binaries of tensorpost-core; default: those below
#
# It needs nightly Rust with the component rust-src, because the standard library is instrumented too.
# framework/core/tests/README.md says what it covers and when it last ran.
#
# ThreadSanitizer knows no fences: it ignores `fence(SeqCst)`, and `fence(Acquire)` behind a relaxed load.
# Where a fence stands behind a load, the load itself acquires under `cfg(tensorpost_tsan)`, which this script
# sets. scripts/tsan.supp is for other code that rests on a fence, each entry with the model that explores it;
# so far it has no entry.
#
# Tests run one at a time, because ThreadSanitizer does not see the system calls that map and unmap memory. If
# two tests run side by side and write to one address, one after the other, it reports a race.
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
