#!/usr/bin/env python3
"""Measures this framework beside its peers on the host, in turn, and prints one table.

    peers.py [--rounds 3] [--frames 400] [--only NAME ...] [--pipelines | --gpu] [--built FOLDER]
             [--python PYTHON] [--ray-python PYTHON] [--dora PROGRAM] [--photographs FOLDER] [--out FILE]

It measures handing memory over to another process, one tensor to eight, and the image pipeline of the example
`10-image-pipeline`, each in the peer's own way. With --pipelines it measures only the pipeline. With --gpu
tensors of one GPU go to another process on it. Builds the programs with cargo, or takes them from FOLDER,
which has `hand_over`, `10-image-pipeline`, `iceoryx2`, `dora-nodes`, `pipeline_threads` and
`libtensorpost_peer_stages.so`, and for --gpu `gpu_bench` alone. PyTorch is measured where PYTHON has it, and
with --gpu the package `tensorpost` where PYTHON has it too. Ray is measured where its Python has it, and dora
where its command PROGRAM exists. A peer that cannot run is listed with the reason. The table is in Markdown:
medians over the rounds.
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
GPU_NAMES = ["tensorpost", "tensorpost from PyTorch", "ray", "torch.multiprocessing"]
GPU_FIGURES = [
    *((f"trip.{size}", f"{size}, us a trip") for size in ["4KiB", "64MiB"]),
    *((f"trip.kernels.{size}", f"{size}, a kernel on each side, us a trip") for size in ["4KiB", "64MiB"]),
    *((f"stream.{size}", f"{size}, fresh, messages a second") for size in ["4KiB", "64MiB"]),
]
GPU_COPIED = {
    "tensorpost": "0",
    "tensorpost from PyTorch": "0",
    "ray": "0 (CUDA IPC, its documentation)",
    "torch.multiprocessing": "0 (CUDA IPC, its documentation)",
}
# The prefixes of the figures that the programs print.
GPU_PREFIXES = {
    "post.isolated.": "tensorpost.",
    "tensorpost.isolated.": "tensorpost from PyTorch.",
    "torch.isolated.": "torch.multiprocessing.",
    "ray.": "ray.",
}
# The number of decimals of a figure, if it is not 2.
DIGITS = {"rate": 0, "stream": 0, "again": 0, "copies": 4}
# How often a message's bytes are copied, and the source of the claim.
COPIED = {
    "tensorpost": "0",
    "iceoryx2": "0 (its documentation)",
    "dora": "0 from 4 KiB on, while its pool has room (its documentation)",
    "ray": "once, into the object store (its documentation)",
    "ray compiled graph": "once, into the channel (how it works)",
    "torch.multiprocessing": "once, into shared memory (its documentation)",
    "threads": "0",
}
# The folder and cargo's arguments for each program, and its name there where it differs.
PROGRAMS = {
    "hand_over": (ROOT, ["-p", "tensorpost-benches", "--bin", "hand_over"], None),
    "gpu_bench": (ROOT, ["-p", "tensorpost-benches", "--bin", "gpu_bench"], None),
    "10-image-pipeline": (ROOT, ["-p", "tensorpost-examples", "--bin", "10-image-pipeline"], None),
    "iceoryx2": (HERE / "iceoryx2", [], "tensorpost-peer-iceoryx2"),
    "dora-nodes": (HERE / "dora", [], "tensorpost-peer-dora"),
    "pipeline_threads": (HERE / "stages", [], None),
    "libtensorpost_peer_stages.so": (HERE / "stages", [], None),
}
SECONDS = 600
COPY = 64 << 20


class Missing(Exception):
    """The reason why something was not measured."""


def build(folder, package):
    command = ["cargo", "build", "--release", "--message-format", "short", *package]
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(f"it was not built: {error}") from error
    named = os.environ.get("CARGO_TARGET_DIR")
    return (Path(named) if named else folder / "target") / "release"


class Programs:
    """The path of each program: built when it is first asked for, or in a folder."""

    def __init__(self, folder):
        self.folder, self.built = folder and folder.resolve(), {}

    def __getitem__(self, name):
        if self.folder:
            return self.folder / name
        if name not in self.built:
            place, package, called = PROGRAMS[name]
            self.built[name] = build(place, package) / (called or name)
        return self.built[name]


def run(command):
    """Returns the output of a program."""
    words = [str(word) for word in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        with subprocess.Popen(words, **pipes, start_new_session=True) as program:
            try:
                out, said = program.communicate(timeout=SECONDS)
            except BaseException:
                # The signal also ends all its children.
                os.killpg(program.pid, signal.SIGKILL)
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if program.returncode != 0:
        lines = said.strip().splitlines()
        # The program that ends other processes may print the last line.
        wrong = [line for line in lines if "error" in line.lower()] or lines or [f"exit status {program.returncode}"]
        raise Missing(wrong[-1])
    return out


def figures(command):
    for line in run(command).splitlines():
        name, value = line.rsplit(" ", 1)
        yield name, float(value)


def gpu_figures(command):
    """The figures of one GPU. The programs print other lines too."""
    known = dict(GPU_FIGURES)
    for line in run(command).splitlines():
        name, _, value = line.rpartition(" ")
        if name == "post.isolated.stream.4KiB":
            continue  # it runs no kernels, and no peer has such a figure
        name = name.replace("stream.kernels.", "stream.")
        for prefix, whose in GPU_PREFIXES.items():
            figure = name.removeprefix(prefix)
            if name.startswith(prefix) and figure in known:
                yield whose + figure, float(value)


def images(name, command, out, wanted):
    """Returns images a second, from the first file to the last, so the start and end of processes do not
    count. All images are those of the example. The program also prints figures."""
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


def table(found, names, labels, copied):
    rows = [["", *names], ["---"] * (len(names) + 1)]
    for key, label in labels:
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
    rows.append(["bytes copied, by design", *(copied[name] for name in names)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--only", nargs="+", choices=[*NAMES, GPU_NAMES[1]])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pipelines", action="store_true")
    which.add_argument("--gpu", action="store_true")
    parser.add_argument("--built", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ray-python")
    parser.add_argument("--dora", default="dora")
    parser.add_argument("--photographs", type=Path, default=ROOT / "examples" / "data")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.only = options.only or (GPU_NAMES if options.gpu else NAMES)
    return options


def commands(options):
    """Returns the measurements that hand memory over, by the prefix of their figures, and those that run the
    image pipeline, given a folder to write to. Programs are built when they are asked for."""
    program = Programs(options.built)
    ray, stages = options.ray_python or options.python, "libtensorpost_peer_stages.so"
    # dora starts in a folder of its own, so a path to it must be absolute.
    command = os.path.abspath(options.dora) if os.sep in options.dora else options.dora

    def dora():
        return [program["dora-nodes"], "--dora", command]

    hand_over = {
        ("tensorpost", "threads"): lambda: [program["hand_over"]],
        ("iceoryx2",): lambda: [program["iceoryx2"]],
        ("dora",): dora,
        ("ray",): lambda: [ray, HERE / "ray_host.py"],
        ("ray compiled graph",): lambda: [ray, HERE / "ray_host.py", "--compiled"],
        ("torch.multiprocessing",): lambda: [options.python, HERE / "torch_host.py"],
    }
    photographs, frames = options.photographs, options.frames
    pipelines = {
        "tensorpost": lambda out: [program["10-image-pipeline"], "--images", photographs, "--frames", frames, "--out", out],
        "iceoryx2": lambda out: [program["iceoryx2"], "pipeline", photographs, frames, out],
        "dora": lambda out: [*dora(), "pipeline", photographs, frames, out],
        "ray": lambda out: [ray, HERE / "ray_pipeline.py", program[stages], photographs, frames, out],
        "torch.multiprocessing": lambda out: [options.python, HERE / "torch_pipeline.py", program[stages], photographs, frames, out],
        "threads": lambda out: [program["pipeline_threads"], photographs, frames, out],
    }
    return hand_over, pipelines


def gpu_commands(options):
    """Returns the measurements that hand tensors of a GPU over, by the prefix of their figures."""
    program = Programs(options.built)
    times = HERE / "gpu_times.py" if options.built else ROOT / "framework" / "python" / "tests" / "gpu_times.py"
    return {
        "tensorpost": lambda: [program["gpu_bench"], "--device", "cuda:0", "--modes", "isolated", "--only", "trip,stream"],
        "tensorpost from PyTorch": lambda: [options.python, times, "--tensorpost"],
        "ray": lambda: [options.ray_python or options.python, HERE / "ray_gpu.py"],
        "torch.multiprocessing": lambda: [options.python, HERE / "torch_ipc.py"],
    }


def in_turn(work, rounds, folder):
    """Returns the figures of each round, and the reasons for missing ones. The order is reversed in each
    second round."""
    found, missing = {}, {}
    for number in range(rounds):
        for who, measure in work if number % 2 == 0 else reversed(work):
            if who in missing:
                continue
            print(f"round {number + 1} of {rounds}: {who}", file=sys.stderr, flush=True)
            try:
                with tempfile.TemporaryDirectory(dir=folder) as out:
                    for name, value in measure(Path(out)):
                        found.setdefault(name, []).append(value)
            except Missing as why:
                missing[who] = str(why)
    return found, missing


def told(options, found, missing, names, labels, copied, notes):
    """Writes the table."""
    names = [name for name in names if name in options.only and any(key.startswith(name + ".") for key in found)]
    notes = [
        f"In brackets: tensorpost's over it. {os.cpu_count()} processors, {options.rounds} rounds, load {os.getloadavg()[0]:.1f} at the end.",
        *notes,
        *(f"{who}: left out: {why}" for who, why in missing.items()),
    ]
    text = table(found, names, labels, copied) + "\n\n" + "\n".join(notes) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 1 if any(who.startswith("tensorpost") for who in missing) else 0


def on_gpu(options):
    work = [(who, lambda _, command=command: gpu_figures(command())) for who, command in gpu_commands(options).items() if who in options.only]
    found, missing = in_turn(work, options.rounds, None)
    notes = [
        "iceoryx2 and dora's Rust nodes hand host memory over: not measured on a GPU.",
    ]
    return told(options, found, missing, GPU_NAMES, GPU_FIGURES, GPU_COPIED, notes)


def main():
    options = arguments()
    if options.gpu:
        return on_gpu(options)
    hand_over, pipelines = commands(options)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        wanted, work, missing = folder / "wanted", [], {}
        try:
            run(pipelines["tensorpost"](wanted))
        except Missing as why:
            missing["image pipelines"], pipelines = str(why), {}
        for names, command in hand_over.items():
            if not options.pipelines and not set(names).isdisjoint(options.only):
                work.append((" and ".join(names), lambda _, command=command: figures(command())))
        for name, command in pipelines.items():
            if name in options.only:

                def pipeline(out, name=name, command=command):
                    return images(name, command(out), out, wanted)

                work.append((f"{name}'s image pipeline", pipeline))
        found, why = in_turn(work, options.rounds, folder)
        missing |= why
    copy = copying()
    for name in NAMES:
        if trips := found.get(f"{name}.trip.64MiB"):
            found[f"{name}.copies.64MiB"] = [trip / copy for trip in trips]
    notes = [f"One copy of 64 MiB takes {copy:,.0f} us.", "Ray's GPU objects need GPUs: see --gpu."]
    return told(options, found, missing, NAMES, FIGURES, COPIED, notes)


if __name__ == "__main__":
    sys.exit(main())
