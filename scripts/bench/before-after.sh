#!/usr/bin/env bash
# Shows whether a change costs anything: builds REV and the working tree, runs the programs of both in turn,
# and prints one table.
#
#   scripts/bench/before-after.sh REV [FOLDER [option of alternate.py]…]        default: target/before-after
#   scripts/bench/before-after.sh REV FOLDER --gather                          builds, and runs nothing
#
# FOLDER can be copied to a quieter machine without cargo. There, run
# `FOLDER/alternate.py FOLDER/before FOLDER/after`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

revision="$(git rev-parse --verify "${1:?a revision to compare with}^{commit}")"
folder="$(realpath -m "${2:-target/before-after}")"
shift $(($# < 2 ? $# : 2))
# The tree is kept from call to call with its builds.
tree="$PWD/target/before-tree"

# gather TREE FOLDER: builds the programs of TREE and copies them to FOLDER. Each tree has a target folder of
# its own, because the crates of both have the same names.
gather() {
    mkdir -p "$2"
    (
        cd "$1"
        cargo bench --no-run -p tensorpost-benches --bench message --bench tensor --bench fanout 2>&1 | tee /dev/stderr |
            sed -n 's|^ *Executable benches/\(.*\)\.rs (\(.*\))$|\2 \1|p' |
            while read -r path name; do cp "$path" "$2/$name"; done
        cargo build --release -p tensorpost-benches --bin pipeline_bench
        cp target/release/pipeline_bench "$2/"
        # An old revision may lack this program.
        if [[ -f tests/src/bin/message_cost.rs ]]; then
            cargo build --release -p tensorpost-tests --bin message_cost
            cp target/release/message_cost "$2/"
        fi
    )
    strip "$2"/*
}

rm -rf "$folder"
if [[ -d "$tree" ]]; then
    git -C "$tree" checkout --quiet --detach "$revision"
else
    git worktree add --quiet --detach "$tree" "$revision"
fi
gather "$tree" "$folder/before"
gather "$PWD" "$folder/after"
cp scripts/bench/alternate.py "$folder/"
if [[ "${1:-}" != --gather ]]; then
    "$folder/alternate.py" "$folder/before" "$folder/after" "$@"
fi
