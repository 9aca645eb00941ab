#!/usr/bin/env python3
"""The image pipeline of the example `10-image-pipeline` with Ray: an actor for each stage, which gets the
result of the stage before it.

    ray_pipeline.py LIBRARY PHOTOGRAPHS FRAMES OUT

LIBRARY is the shared library of the crate `stages`. A stage's image is the result of a method: Ray copies it
into its object store, and the next stage reads it there. `ray.wait` keeps no more images under way than a
channel of the other pipelines holds.
"""

import os
import sys
from pathlib import Path

WINDOW = 16
STORE = 1 << 30


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    library, photographs, frames, out = sys.argv[1:]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import numpy
        import ray
    except ImportError as error:
        sys.exit(f"{error}; `pip install ray numpy` has it")
    import stages

    @ray.remote(num_cpus=0)
    class Stage:
        def __init__(self, library):
            self.stages = stages.Stages(library)

        def decode(self, photograph):
            pixels = numpy.empty(self.stages.shape(photograph), dtype=numpy.uint8)
            self.stages.decode(photograph, pixels)
            return pixels

        def resize(self, pixels):
            planes = numpy.empty((3, stages.HEIGHT, stages.WIDTH), dtype=numpy.float32)
            self.stages.resize(pixels, planes)
            return planes

        def edges(self, planes):
            # An array from the store may not be written.
            magnitudes = numpy.empty((stages.HEIGHT, stages.WIDTH), dtype=numpy.float32)
            self.stages.edges(planes, magnitudes)
            return magnitudes

        def write(self, file, magnitudes):
            self.stages.write(file, magnitudes)

    paths = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")]))
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    Path(out).mkdir(parents=True, exist_ok=True)
    files = [file.resolve() for file in stages.photographs(photographs)]
    decode, resize, edges, write = [Stage.remote(str(Path(library).resolve())) for _ in range(4)]
    out, pending = Path(out).resolve(), []
    for number in range(int(frames)):
        if len(pending) >= WINDOW:
            done, pending = ray.wait(pending)
            ray.get(done)
        photograph = files[number % len(files)]
        magnitudes = edges.edges.remote(resize.resize.remote(decode.decode.remote(photograph)))
        pending.append(write.write.remote(stages.target(out, number, photograph), magnitudes))
    ray.get(pending)
    ray.shutdown()


if __name__ == "__main__":
    main()
