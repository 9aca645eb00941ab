#!/usr/bin/env python3
"""This framework beside its peers on the host, in turn, one table.

    peers.py [--rounds 3] [--frames 400] [--only NAME ...] [--pipelines] [--built FOLDER] [--python PYTHON] [--ray-python PYTHON]
             [--dora PROGRAM] [--photographs FOLDER] [--out FILE]

Handing memory over to another process, one tensor to eight, and the image pipeline of the example `10-image-pipeline` in each one's
way; with --pipelines only that. Builds the programs with cargo, or takes them from FOLDER, which has `hand_over`,
`10-image-pipeline`, `iceoryx2`, `dora-nodes`, `pipeline_threads` and `libtensorpost_peer_stages.so`. PyTorch is measured where PYTHON
has it, Ray where its Python has it, dora where PROGRAM, dora's command, is there. What does not run says why. The table is in
Markdown: medians over the rounds.
"""

import argparse
import filecmp
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAMES = ["tensorpost", "iceoryx2", "dora", "ray", "ray compiled graph", "torch.multiprocessing", "threads"]
SIZES = ["4KiB", "1MiB", "64MiB"]
UNITS = [("trip", "us a trip"), ("rate", "messages a second"), ("cpu", "us of processor time a message")]
FIGURES = [
    *((f"{figure}.{size}", f"{size}, {unit}") for figure, unit in UNITS for size in SIZES),
    *((f"fanout.{count}", f"1 MiB to {count} at a time, us for each") for count in [1, 8]),
    *((f"again.{size}", f"{size}, sent again, of a million") for size in SIZES),
    ("pipeline.images", "image pipeline, images a second"),
    ("again.pipeline", "image pipeline, sent again, of a million"),
    ("copies.64MiB", "64 MiB, copies of it in the time of a trip"),
]
# Behind the point, where not 2.
DIGITS = {"rate": 0, "again": 0, "copies": 4}
# How often a message's bytes are copied, and who says so.
COPIED = {
    "tensorpost": "0",
    "iceoryx2": "0 (its documentation)",
    "dora": "0 from 4 KiB on, while its pool has room (its documentation)",
    "ray": "once, into the object store (its documentation)",
    "ray compiled graph": "once, into the channel (how it works)",
    "torch.multiprocessing": "once, into shared memory (its documentation)",
    "threads": "0",
}
PROGRAMS = ["hand_over", "10-image-pipeline", "iceoryx2", "dora-nodes", "pipeline_threads", "libtensorpost_peer_stages.so"]
SECONDS = 600
COPY = 64 << 20


class Missing(Exception):
    """Why something was not measured."""


def build(folder, package):
    command = ["cargo", "build", "--release", "--message-format", "short", *package]
    subprocess.run(command, cwd=folder, check=True)
    named = os.environ.get("CARGO_TARGET_DIR")
    return (Path(named) if named else folder / "target") / "release"


def programs(options):
    """Where each program is, built if need be."""
    if options.built:
        return {name: options.built.resolve() / name for name in PROGRAMS}
    own = build(ROOT, ["-p", "tensorpost-benches", "--bin", "hand_over"])
    build(ROOT, ["-p", "tensorpost-examples", "--bin", "10-image-pipeline"])
    stages = build(HERE / "stages", [])
    return {
        **{name: own / name for name in ["hand_over", "10-image-pipeline"]},
        "iceoryx2": build(HERE / "iceoryx2", []) / "tensorpost-peer-iceoryx2",
        "dora-nodes": build(HERE / "dora", []) / "tensorpost-peer-dora",
        **{name: stages / name for name in ["pipeline_threads", "libtensorpost_peer_stages.so"]},
    }


def run(command):
    """What a program prints."""
    words = [str(word) for word in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        with subprocess.Popen(words, **pipes, start_new_session=True) as program:
            try:
                out, said = program.communicate(timeout=SECONDS)
            except BaseException:
                # With all that it has started.
                os.killpg(program.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if program.returncode != 0:
        lines = said.strip().splitlines()
        # What ends other processes may have the last word.
        wrong = [line for line in lines if "error" in line.lower()] or lines or [f"exit status {program.returncode}"]
        raise Missing(wrong[-1])
    return out


def figures(command):
    for line in run(command).splitlines():
        name, value = line.rsplit(" ", 1)
        yield name, float(value)


def images(name, command, out, wanted):
    """Images a second, from the first file to the last: what starts and ends processes is not in it. All are those of the example.
    And what the program prints figures of."""
    printed = [line.rsplit(" ", 1) for line in run(command).splitlines() if line.startswith(f"{name}.")]
    found = sorted(file.name for file in out.iterdir())
    if found != sorted(file.name for file in wanted.iterdir()):
        raise Missing(f"it wrote {len(found)} files, and not those of the example")
    _, different, unread = filecmp.cmpfiles(wanted, out, found, shallow=False)
    if different or unread:
        wrong = different + unread
        raise Missing(f"{len(wrong)} of {len(found)} files differ from those of the example, such as {wrong[0]}")
    times = [(out / name).stat().st_mtime_ns for name in found]
    yield f"{name}.pipeline.images", (len(times) - 1) * 1e9 / (max(times) - min(times))
    yield from ((figure, float(value)) for figure, value in printed)


def copying():
    """Microseconds that one copy of 64 MiB takes one thread, into memory that it has written before."""
    source, target, times = bytearray(COPY), bytearray(COPY), []
    for _ in range(11):
        start = time.perf_counter()
        memoryview(target)[:] = source
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def table(found, names):
    rows = [["", *names], ["---"] * (len(names) + 1)]
    for key, label in FIGURES:
        row, own = [label], found.get(f"tensorpost.{key}")
        for name in names:
            values = found.get(f"{name}.{key}")
            if not values:
                row.append("")
                continue
            value = statistics.median(values)
            text = f"{value:,.{DIGITS.get(key.split('.')[0], 2)}f}"
            if own and name != "tensorpost" and not key.startswith("copies."):
                text += f" ({statistics.median(own) / value:.3g})"
            row.append(text)
        if any(row[1:]):
            rows.append(row)
    rows.append(["bytes copied, by design", *(COPIED[name] for name in names)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--pipelines", action="store_true")
    parser.add_argument("--built", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ray-python")
    parser.add_argument("--dora", default="dora")
    parser.add_argument("--photographs", type=Path, default=ROOT / "examples" / "data")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def commands(options):
    """What hands memory over, by whom it prints figures of; and what runs the image pipeline, given a folder to write to."""
    program = programs(options)
    ray, stages = options.ray_python or options.python, program["libtensorpost_peer_stages.so"]
    # It is started in a folder of its own.
    command = os.path.abspath(options.dora) if os.sep in options.dora else options.dora
    dora = [program["dora-nodes"], "--dora", command]
    hand_over = {
        ("tensorpost", "threads"): [program["hand_over"]],
        ("iceoryx2",): [program["iceoryx2"]],
        ("dora",): dora,
        ("ray",): [ray, HERE / "ray_host.py"],
        ("ray compiled graph",): [ray, HERE / "ray_host.py", "--compiled"],
        ("torch.multiprocessing",): [options.python, HERE / "torch_host.py"],
    }
    photographs, frames = options.photographs, options.frames
    pipelines = {
        "tensorpost": lambda out: [program["10-image-pipeline"], "--images", photographs, "--frames", frames, "--out", out],
        "iceoryx2": lambda out: [program["iceoryx2"], "pipeline", photographs, frames, out],
        "dora": lambda out: [*dora, "pipeline", photographs, frames, out],
        "ray": lambda out: [ray, HERE / "ray_pipeline.py", stages, photographs, frames, out],
        "torch.multiprocessing": lambda out: [options.python, HERE / "torch_pipeline.py", stages, photographs, frames, out],
        "threads": lambda out: [program["pipeline_threads"], photographs, frames, out],
    }
    return hand_over, pipelines


def main():
    options = arguments()
    hand_over, pipelines = commands(options)
    found, missing = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        wanted, work = folder / "wanted", []
        try:
            run(pipelines["tensorpost"](wanted))
        except Missing as why:
            missing["image pipelines"], pipelines = str(why), {}
        for names, command in hand_over.items():
            if not options.pipelines and not set(names).isdisjoint(options.only):
                work.append((" and ".join(names), lambda _, command=command: figures(command)))
        for name, command in pipelines.items():
            if name in options.only:

                def pipeline(out, name=name, command=command):
                    return images(name, command(out), out, wanted)

                work.append((f"{name}'s image pipeline", pipeline))
        for number in range(options.rounds):
            for who, measure in work if number % 2 == 0 else reversed(work):
                if who in missing:
                    continue
                print(f"round {number + 1} of {options.rounds}: {who}", file=sys.stderr, flush=True)
                try:
                    with tempfile.TemporaryDirectory(dir=folder) as out:
                        for name, value in measure(Path(out)):
                            found.setdefault(name, []).append(value)
                except Missing as why:
                    missing[who] = str(why)
    copy = copying()
    for name in NAMES:
        if trips := found.get(f"{name}.trip.64MiB"):
            found[f"{name}.copies.64MiB"] = [trip / copy for trip in trips]
    names = [name for name in NAMES if name in options.only and any(key.startswith(name + ".") for key in found)]
    notes = [
        f"In brackets: tensorpost's over it. {os.cpu_count()} processors, {options.rounds} rounds, load {os.getloadavg()[0]:.1f} at the end. "
        f"One copy of 64 MiB takes {copy:,.0f} us.",
        *(f"{who}: left out: {why}" for who, why in missing.items()),
        "Ray's GPU objects need GPUs: not measured on the host.",
    ]
    text = table(found, names) + "\n\n" + "\n".join(notes) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if any(who.startswith("tensorpost") for who in missing) else 0


if __name__ == "__main__":
    sys.exit(main())
