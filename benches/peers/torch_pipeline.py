#!/usr/bin/env python3
"""The image pipeline of the example `10-image-pipeline` with torch.multiprocessing: a process for each stage,
a queue between two.

    torch_pipeline.py LIBRARY PHOTOGRAPHS FRAMES OUT

LIBRARY is the shared library of the crate `stages`. PyTorch moves a tensor into shared memory when it is put
into a queue, and the next stage reads it there; edges are found in the memory in which the image came.
"""

import sys
from multiprocessing import connection
from pathlib import Path

import stages

ITEMS = 16


def work(name, library, files, frames, out, come, go, end):
    """Runs a stage. It stays until all images are written: the next stages ask it for the memory that it has
    sent."""
    import torch

    torch.set_num_threads(1)
    made = stages.Stages(library)
    for number in range(frames):
        file = files[number % len(files)]
        if name == "decode":
            item = torch.empty(made.shape(file), dtype=torch.uint8)
            made.decode(file, item.numpy())
        else:
            at, item = come.get()
            if at != number:
                raise ValueError(f"image {at} came for image {number}")
        if name == "resize":
            planes = torch.empty((3, stages.HEIGHT, stages.WIDTH))
            made.resize(item.numpy(), planes.numpy())
            item = planes
        elif name == "edges":
            made.edges_in_place(item.numpy())
            item = item[stages.EDGES_PLANE]
        elif name == "write":
            made.write(stages.target(out, number, file), item.numpy())
            continue
        go.put((number, item))
    if name != "write":
        end.wait()


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    library, photographs, frames, out = sys.argv[1:]
    try:
        import torch.multiprocessing as multiprocessing
    except ImportError as error:
        sys.exit(f"{error}; `pip install torch numpy` has it")
    Path(out).mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    names, end = ["decode", "resize", "edges", "write"], context.Event()
    queues = [None, *(context.Queue(ITEMS) for _ in names[1:]), None]
    files = stages.photographs(photographs)
    processes = []
    for at, name in enumerate(names):
        arguments = (name, library, files, int(frames), out, queues[at], queues[at + 1], end)
        processes.append(context.Process(target=work, args=arguments, daemon=True))
        processes[-1].start()
    # A process that fails ends alone: the others would wait for it.
    running = {process.sentinel: process for process in processes}
    while processes[-1].is_alive():
        for sentinel in connection.wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                sys.exit(f"the stage {names[processes.index(process)]} ended with {process.exitcode}")
    end.set()
    for process in processes:
        process.join(10)


if __name__ == "__main__":
    main()
