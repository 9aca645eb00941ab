#!/usr/bin/env bash
# Gathers all test programs of the workspace in one folder, for run.sh, which plays all of them several times at once on a
# machine with many cores: no cargo is needed there.
#
#   scripts/whole-runs/build.sh [FOLDER]        default: target/whole-runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${1:-target/whole-runs}"
# These call cargo or the compiler, which the other machine lacks.
readonly LEFT_OUT='refusals macros sources'

rm -rf "$folder"
mkdir -p "$folder/programs"
cargo test --workspace --all-features --no-run --message-format=json 2>/dev/null |
    python3 scripts/whole-runs/gather.py "$PWD" "$folder" $LEFT_OUT
find "$folder/programs" -type f -perm -u+x -exec strip {} +
tar -C "$folder/programs" -c . | xz -9 -T1 >"$folder/programs.txz"
rm -r "$folder/programs"
cp scripts/whole-runs/run.sh "$folder/"
du -sm "$folder"
