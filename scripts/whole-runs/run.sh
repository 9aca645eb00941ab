#!/usr/bin/env bash
# Plays all programs that build.sh gathered RUNS times at once. Each run has two cores of its own and two busy
# loops beside it, as on a small machine that others use. Programs that fail have their logs in LOGS.
#
#   run.sh RUNS [FIRST CORE]        default: as many as there are pairs of cores, from core 0
#
# HALF=1 or HALF=2 plays only every second program, for a machine that is available for some minutes only.
# HALF='1 2' plays both halves at once, each run on two pairs of cores, for a machine with twice as many.
# Programs look for themselves and for data at the paths with which they were built. The script, as root,
# makes a link to CHECKOUT there.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly FIRST="${2:-0}"
read -ra HALVES <<<"${HALF:-0}"
readonly RUNS="${1:-$((($(nproc) - FIRST) / 2 / ${#HALVES[@]}))}"
readonly LOGS="${LOGS:-${OUT:-$PWD/logs}}" CHECKOUT="${CHECKOUT:-$(git rev-parse --show-toplevel 2>/dev/null || (cd .. && pwd))}"
# A program takes two minutes at most when it runs alone, and four beside busy loops.
readonly MOST_SECONDS="${MOST_SECONDS:-400}"
readonly top="$(cat top.txt)"
rm -f played-*.txt
for half in "${HALVES[@]}"; do awk -v half="$half" 'half == 0 || NR % 2 == half - 1' tests.txt >"played-$half.txt"; done

if [[ ! -e "$top" ]]; then
    mkdir -p "$(dirname "$top")"
    ln -s "$CHECKOUT" "$top"
fi
for part in *.txz; do
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$part" "$top" || exit
done
# The runs have no driver, like the machines of continuous integration. With a driver, a run would measure the
# GPU's memory while others use it.
readonly scratch="$(mktemp -d)"
: >"$scratch/none"
mapfile -t drivers < <(find / -xdev -name 'libcuda.so*' 2>/dev/null; find /usr/local/nvidia -name 'libcuda.so*' 2>/dev/null)
mkdir -p "$LOGS" "$scratch/failed" "$top/target/tmp"

one_run() {
    local run="$1" half="$2" core="$3" program package result began log
    export TMPDIR="$scratch/tmp-$run-$half"
    mkdir "$TMPDIR"
    taskset -pc "$core,$((core + 1))" "$BASHPID" >/dev/null
    (taskset -pc "$core" "$BASHPID" >/dev/null; while :; do :; done) &
    local busy=($!)
    (taskset -pc "$((core + 1))" "$BASHPID" >/dev/null; while :; do :; done) &
    busy+=($!)
    while read -r program package; do
        log="$scratch/$run-${program##*/}.log"
        began=$EPOCHREALTIME
        (cd "$top/$package" && CARGO_MANIFEST_DIR="$top/$package" timeout -k 10 "$MOST_SECONDS" "$top/$program" >"$log" 2>&1 </dev/null)
        result=$?
        python3 -c 'import sys; sys.stdout.write(" ".join([*sys.argv[3:], str(round(float(sys.argv[2]) - float(sys.argv[1]), 1))]) + "\n")' \
            "$began" "$EPOCHREALTIME" "$run" "$result" "${program##*/}" >>"$LOGS/results.txt"
        if ((result != 0)); then cp "$log" "$scratch/failed/"; fi
    done <"played-$half.txt"
    kill "${busy[@]}"
}

# Makes one run with a loopback of its own, for programs that want a port by its number. It needs root. The
# call is SIOCSIFFLAGS: up and running.
apart() {
    python3 -c 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0x41))'
    one_run "$@"
}
hidden() {
    local driver half run core=$FIRST
    for driver in "${drivers[@]}"; do mount --bind "$scratch/none" "$driver"; done
    for half in $HALVES_TEXT; do
        for ((run = 0; run < RUNS; run++, core += 2)); do unshare -n bash -c "apart $run $half $core" & done
    done
    wait
}
# Only programs that have ended by then, in seconds, count.
readonly DEADLINE="${DEADLINE:-3600}"
export -f one_run apart hidden
export FIRST RUNS MOST_SECONDS LOGS top scratch HALVES_TEXT="${HALVES[*]}"
began=$SECONDS
if ((${#drivers[@]})); then
    setsid unshare -m bash -c "drivers=($(printf '%q ' "${drivers[@]}")); hidden" &
else
    setsid bash -c hidden &
fi
all=$!
while kill -0 "$all" 2>/dev/null && ((SECONDS - began < DEADLINE)); do sleep 1; done
kill -KILL -- "-$all" 2>/dev/null
sort -n "$LOGS/results.txt" -o "$LOGS/results.txt"
tar -C "$scratch" -czf "$LOGS/failed.tgz" failed
echo "after $((SECONDS - began)) s: $(wc -l <"$LOGS/results.txt") programs of $((RUNS * $(cat played-*.txt | wc -l))) have ended"
awk '$2 != 0 { print "run " $1 ": " $3 " ended with " $2 " after " $4 " s" }' "$LOGS/results.txt"
awk '{ if ($4 > most[$3]) most[$3] = $4; sum[$1] += $4; n[$1] += 1 } END { for (run in sum) print "run " run ": " n[run] " programs, " sum[run] " s"; for (name in most) if (most[name] > 20) print name ": " most[name] " s at most" }' "$LOGS/results.txt" | sort
exit "$(awk '$2 != 0 { failed = 1 } END { print failed + 0 }' "$LOGS/results.txt")"
