#!/usr/bin/env bash
# Gathers all test programs of the workspace in one folder. run.sh plays all of them several times at once on
# a machine with many cores and without cargo. The programs are packed in PARTS parts of much the same
# size, for machines that take only so much at a time. run.sh takes all parts that lie beside it.
#
#   PARTS=4 scripts/whole-runs/build.sh [FOLDER]        default: target/whole-runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${1:-target/whole-runs}"
# Some of these call cargo or the compiler. Others test programs that the other machine would need for them
# alone. The doctor's tests rightly find a broken driver, because run.sh hides its library.
readonly LEFT_OUT='refusals macros sources tensorpost_derive tensorpost_examples examples doctor'

rm -rf "$folder"
mkdir -p "$folder/programs"
cargo test --workspace --all-features --no-run --message-format=json 2>/dev/null |
    python3 scripts/whole-runs/gather.py "$PWD" "$folder" $LEFT_OUT
find "$folder/programs" -type f -perm -u+x -exec strip {} +
# The largest program goes first, each to the smallest part so far. A stronger preset takes ten times as long
# for a tenth less; a large dictionary finds the code that the programs have in common.
(cd "$folder/programs" && find . -type f -printf '%s %P\n') | sort -rn | awk -v parts="${PARTS:-4}" -v folder="$folder" '{
    least = 1
    for (part = 2; part <= parts; part++) if (has[part] < has[least]) least = part
    has[least] += $1
    print $2 > (folder "/part-" least)
}'
pack() {
    tar -C "$1/programs" -T "$1/part-$2" -c | xz -T1 --x86 --lzma2=preset=3,dict=192MiB >"$1/programs-$2.txz"
    rm "$1/part-$2"
}
export -f pack
seq "${PARTS:-4}" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'pack "$0" {}' "$folder"
rm -r "$folder/programs"
cp scripts/whole-runs/run.sh "$folder/"
du -sm "$folder"/*
