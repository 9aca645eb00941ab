#!/usr/bin/env python3
"""Handing host memory over to another process: this framework beside its peers, in turn, one table.

    hand_over.py [--rounds 3] [--built FOLDER] [--python PYTHON] [--out FILE]

Builds `hand_over` and the peer programs with cargo, or takes them from FOLDER, which has `hand_over` and `iceoryx2`. PyTorch is
measured where PYTHON has it. What does not run says why. The table is in Markdown: medians over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = ["4KiB", "1MiB", "64MiB"]
FIGURES = [("trip", "us a trip"), ("rate", "messages a second"), ("cpu", "us of processor time a message")]
SECONDS = 300


def build(folder, package):
    command = ["cargo", "build", "--release", "--message-format", "short", *package]
    subprocess.run(command, cwd=folder, check=True)


def target(folder):
    named = os.environ.get("CARGO_TARGET_DIR")
    return Path(named) if named else folder / "target"


def programs(options):
    """Who, and how it is run."""
    if options.built:
        yield "tensorpost", [options.built / "hand_over"]
        yield "iceoryx2", [options.built / "iceoryx2"]
    else:
        root = HERE.parent.parent
        build(root, ["-p", "tensorpost-benches", "--bin", "hand_over"])
        yield "tensorpost", [target(root) / "release" / "hand_over"]
        peer = HERE / "iceoryx2"
        build(peer, [])
        yield "iceoryx2", [target(peer) / "release" / "tensorpost-peer-iceoryx2"]
    yield "torch.multiprocessing", [options.python, HERE / "torch_host.py"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--built", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found, missing = {}, {}
    commands = list(programs(options))
    for number in range(options.rounds):
        for who, command in commands if number % 2 == 0 else reversed(commands):
            if who in missing:
                continue
            print(f"round {number + 1} of {options.rounds}: {who}", file=sys.stderr, flush=True)
            try:
                done = subprocess.run(command, text=True, capture_output=True, timeout=SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                missing[who] = str(error)
                continue
            if done.returncode != 0:
                missing[who] = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
                continue
            for line in done.stdout.splitlines():
                name, value = line.rsplit(" ", 1)
                found.setdefault(name, []).append(float(value))
    names = [name for name in ["tensorpost", "iceoryx2", "torch.multiprocessing", "threads"] if any(key.startswith(name + ".") for key in found)]
    rows = [["", *names], ["---"] * (len(names) + 1)]
    for figure, unit in FIGURES:
        for size in SIZES:
            row = [f"{size}, {unit}"]
            own = found.get(f"tensorpost.{figure}.{size}")
            for name in names:
                values = found.get(f"{name}.{figure}.{size}")
                if not values:
                    row.append("")
                    continue
                value = statistics.median(values)
                text = f"{value:,.0f}" if figure == "rate" else f"{value:,.2f}"
                if own and name != "tensorpost":
                    text += f" ({statistics.median(own) / value:.3g})"
                row.append(text)
            rows.append(row)
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = [f"In brackets: tensorpost's over it. {os.cpu_count()} processors, {options.rounds} rounds, load {os.getloadavg()[0]:.1f} at the end."]
    notes += [f"{who} was left out: {why}" for who, why in missing.items()]
    text = table + "\n\n" + "\n".join(notes) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if "tensorpost" in missing else 0


if __name__ == "__main__":
    sys.exit(main())
