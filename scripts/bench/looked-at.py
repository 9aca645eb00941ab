#!/usr/bin/env python3
"""Measures what a message costs more when its node can be looked into, and when a watcher looks.

    looked-at.py FOLDER [--rounds 8] [--seconds 200]

FOLDER has the bench `message`, as before-after.sh gathers it, and the command `tensorpost`. Three runs take
turns, each round in another order: with TENSORPOST_CONSOLE=off; with the default, and nobody looks; and with
two looks a second at it (`tensorpost top --once --json`, from another core). It prints one table, medians of
the rounds' medians, over the first.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import alternate  # noqa: E402

WAYS = ["off", "on", "looked at"]


def look(command, over):
    """Looks twice a second at any node that runs, until `over`."""
    count = 0
    while not over.wait(0.5):
        done = subprocess.run([command, "top", "--once", "--json"], capture_output=True, timeout=30, check=False)
        count += done.returncode == 0
    return count


def measure(folder, way, seconds):
    os.environ["TENSORPOST_CONSOLE"] = "off" if way == "off" else ""
    if not os.environ["TENSORPOST_CONSOLE"]:
        del os.environ["TENSORPOST_CONSOLE"]
    over, looks = threading.Event(), []
    watcher = threading.Thread(target=lambda: looks.append(look(folder / "tensorpost", over)))
    if way == "looked at":
        watcher.start()
    try:
        return alternate.measure(folder, "message", seconds), looks
    finally:
        over.set()
        if watcher.ident:
            watcher.join()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--seconds", type=float, default=200, help="no round begins after so many")
    options = options.parse_args()
    # The watcher gets a core of its own, which is left over.
    cores = alternate.one_thread_per_core()
    os.sched_setaffinity(0, cores)
    taken, looks, began, rounds = {}, 0, time.monotonic(), 0
    while rounds < options.rounds and time.monotonic() - began < options.seconds:
        turn = rounds % len(WAYS)
        for way in WAYS[turn:] + WAYS[:turn]:
            found, looked = measure(options.folder.resolve(), way, 1)
            looks += sum(looked)
            for what, (median, best) in found.items():
                taken.setdefault(what, {}).setdefault(way, []).append((median, best))
        rounds += 1
    print(f"{rounds} rounds on {len(cores)} cores, {looks} looks\n")
    print("| | " + " | ".join(f"{way}: median (best), over off" for way in WAYS) + " |")
    print("|---" * (len(WAYS) + 1) + "|")
    for what, ways in sorted(taken.items()):
        base = [statistics.median(run[at] for run in ways["off"]) for at in (0, 1)]
        cells = []
        for way in WAYS:
            median, best = (statistics.median(run[at] for run in ways[way]) for at in (0, 1))
            cells.append(f"{median:.1f} ns ({best:.1f}), {median / base[0]:.3f} ({best / base[1]:.3f})")
        print(f"| {what} | " + " | ".join(cells) + " |")
    return 0


sys.exit(main())
