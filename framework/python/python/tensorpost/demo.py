"""``python -m tensorpost.demo``: a Rust actor and a Python actor in processes of their own, and this program.

A picture goes from here to the Rust actor, which inverts it in place, and from there to the Python actor,
which examines it with numpy. The result comes back here. The pixels are not copied on the way.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Annotated

import tensorpost as tp


@tp.message
class Picture:
    """A picture in shades of gray, from 0 to 1. In Rust it is ``struct Picture``, in ``src/demo.rs``."""

    id: tp.u64
    pixels: Annotated[tp.Tensor, tp.TensorSpec("f32")]


@tp.message
class Found:
    """The result for a picture."""

    id: tp.u64
    brightness: tp.f64
    brightest: tuple[tp.u32, tp.u32]
    process: tp.u32


@tp.actor
class Look:
    """Looks at pictures."""

    def __init__(self, sink: tp.Address[Found]) -> None:
        self.sink = sink

    @tp.handler
    def picture(self, picture: Picture) -> None:
        """Finds the brightest place, and passes it on."""
        import numpy as np

        pixels = np.from_dlpack(picture.pixels)
        row, column = np.unravel_index(int(pixels.argmax()), pixels.shape)
        self.sink.send(Found(picture.id, float(pixels.mean()), (int(row), int(column)), os.getpid()))


def main() -> int:
    """Runs the demonstration."""
    parser = argparse.ArgumentParser(prog="python -m tensorpost.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=5, help="how many (%(default)s)")
    parser.add_argument("--size", type=int, default=256, help="rows and columns of each (%(default)s)")
    options = parser.parse_args()
    try:
        import numpy as np
    except ImportError:
        print("the demonstration makes its pictures with numpy: pip install numpy", file=sys.stderr)
        return 1
    with tp.Node() as node:
        sink, found = node.channel(Found)
        look = node.spawn(Look, sink, name="look")
        invert = node.spawn_demo(look)
        print(f"this is process {os.getpid()}; workers: " + ", ".join(f"{one.name} {one.pid}" for one in node.workers()))
        random = np.random.default_rng(0)
        for number in range(options.pictures):
            pixels = random.uniform(0.2, 1.0, (options.size, options.size)).astype(np.float32)
            row, column = (int(place) for place in random.integers(0, options.size, 2))
            pixels[row, column] = 0.0  # the darkest place, and the brightest once it is inverted
            began = time.perf_counter()
            invert.send(Picture(number, tp.Tensor(pixels)))
            answer = found.recv(timeout=30)
            took = (time.perf_counter() - began) * 1e3
            right = "as it must be" if answer.brightest == (row, column) else f"and not {(row, column)}"
            print(
                f"picture {answer.id}: brightness {answer.brightness:.3f}, brightest at {answer.brightest}, {right}; "
                f"seen by process {answer.process}, {took:.2f} ms"
            )
            if answer.brightest != (row, column):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
