#!/usr/bin/env python3
"""Runs the programs of two builds in turn and prints one table: before, after, after over before.

    alternate.py BEFORE AFTER [--rounds 6] [--seconds 240]
                 [--only message_cost,message,tensor,fanout,pipeline_bench]

BEFORE and AFTER are folders with `message_cost`, `pipeline_bench` and the benches `message`, `tensor` and
`fanout`, as before-after.sh gathers them; a program that is not in both is left out. The order changes from
round to round, so that a machine that gets slower or faster meanwhile does so for both. No round begins that
would not end before SECONDS.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND = 1.02
# The most that one run may take, in seconds; it takes a tenth of it.
DEADLINE = 60
# The criterion benches that go through the framework, without their baselines.
BENCHES = {"message": "tensorpost", "tensor": "hand-over", "fanout": "fanout-stream/(1|8)$"}
PROGRAMS = ["message_cost", *BENCHES, "pipeline_bench"]
# The rows of pipelines: the cost of an item, from items a second or from microseconds an item.
PIPELINES = re.compile(
    r"^\| *(?P<what>(?:line with|four stages|broadcast|stage of)[^|]*)\| *(?P<number>[\d.]+)",
    re.MULTILINE,
)


def one_thread_per_core():
    """Returns the processors that may be used, without the second thread of any core: two that talk must not
    share one."""
    allowed, chosen = sorted(os.sched_getaffinity(0)), []
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        text = siblings.read_text() if siblings.exists() else str(cpu)
        first = int(re.match(r"\d+", text.strip()).group())
        if first == cpu or first not in allowed:
            chosen.append(cpu)
    return chosen if len(chosen) > 1 else allowed


def run(command, home):
    environment = {**os.environ, "CRITERION_HOME": str(home)}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=DEADLINE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def measure(folder, program, seconds):
    """Returns (median, best sample) in nanoseconds by measurement."""
    with tempfile.TemporaryDirectory() as home:
        if program == "message_cost":
            lines = run([str(folder / program)], home)
            found = re.findall(r"^(\S+) +best +([\d.]+) ns, median +([\d.]+) ns", lines, re.MULTILINE)
            return {f"{program}: {what}, thread time": (float(median), float(best)) for what, best, median in found}
        if program == "pipeline_bench":
            lines = run([str(folder / program), "--quick", "--runs", "1"], home)
            found = {}
            for row in PIPELINES.finditer(lines):
                number = float(row["number"])
                nanos = 1e9 / number if "items/s" in row["what"] else number * 1e3
                found[f"{program}: {row['what'].split(', over')[0].strip()}"] = (nanos, nanos)
            return found
        options = ["--noplot", "--warm-up-time", "0.3", "--measurement-time", str(seconds), "--sample-size", "100"]
        run([str(folder / program), "--bench", *options, BENCHES[program]], home)
        found = {}
        for about in Path(home).glob("**/new/benchmark.json"):
            what = json.loads(about.read_text())["full_id"]
            samples = json.loads((about.parent / "sample.json").read_text())
            median = json.loads((about.parent / "estimates.json").read_text())["median"]["point_estimate"]
            best = min(took / count for took, count in zip(samples["times"], samples["iters"]))
            found[what] = (median, best)
        return found


def shown(nanos):
    return f"{nanos:.1f} ns" if nanos < 1e3 else f"{nanos / 1e3:.3f} us"


def verdict(medians, best):
    if medians <= BOUND:
        return "yes"
    return "by the best samples" if best <= BOUND else "NO"


def table(taken):
    what = "median over the rounds of the median (best sample)"
    rows = [(what, "before", "after", "ratio", "of best samples", "of pairs", f"<= {BOUND}")]
    for what, rounds in taken.items():
        pairs = [(a, b) for a, b in rounds if a and b]
        if not pairs:
            continue
        middle = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
        # This is not the best of all samples: an adjusted clock shows in one sample.
        best = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
        each = [after[0] / before[0] for before, after in pairs]
        ratio, of_best = middle[1] / middle[0], best[1] / best[0]
        cells = [f"{shown(m)} ({shown(b)})" for m, b in zip(middle, best)]
        spread = f"{min(each):.3f} to {max(each):.3f}"
        rows.append((what, *cells, f"{ratio:.3f}", f"{of_best:.3f}", spread, verdict(ratio, of_best)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=Path)
    options.add_argument("after", type=Path)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--seconds", type=float, default=240, help="no round begins that would not end before")
    options.add_argument("--sample-seconds", type=float, default=1, help="criterion's measurement time")
    options.add_argument("--only", default=",".join(PROGRAMS), help="programs, with commas between")
    options = options.parse_args()
    sides = [options.before.resolve(), options.after.resolve()]
    programs = [name for name in options.only.split(",") if all((side / name).exists() for side in sides)]

    os.sched_setaffinity(0, one_thread_per_core())
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    taken, failed, began, longest, done = {}, False, time.monotonic(), 0.0, 0
    for number in range(options.rounds):
        start = time.monotonic()
        if start - began + longest > options.seconds:
            break
        for program in programs:
            order, result = (0, 1) if number % 2 == 0 else (1, 0), [{}, {}]
            try:
                for side in order:
                    result[side] = measure(sides[side], program, options.sample_seconds)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"round {number + 1}: {error}", file=sys.stderr)
                failed = True
                continue
            for what in result[0].keys() & result[1].keys():
                taken.setdefault(what, []).append((result[0][what], result[1][what]))
        done += 1
        longest = max(longest, time.monotonic() - start)
        print(f"# round {done} of {options.rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(f"{done} rounds, on processors {cpus}; load {os.getloadavg()[0]:.1f}\n")
    print(table(dict(sorted(taken.items()))))
    return 1 if failed or not taken else 0


if __name__ == "__main__":
    sys.exit(main())
