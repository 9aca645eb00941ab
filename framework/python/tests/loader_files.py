"""Files for the tests of the loader, and what numpy and PIL make of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
from PIL import Image

DATA = Path(__file__).parents[3] / "examples" / "data"
PHOTOGRAPHS = sorted(path for path in DATA.iterdir() if path.suffix in (".jpg", ".png"))


def numbered(folder: Path, count: int) -> list[Path]:
    """PNGs of 8 x 8 pixels that are all of one value: the number of the file."""
    paths = []
    for number in range(count):
        pixels = np.empty((8, 8, 3), np.uint8)
        pixels[:] = (number % 256, number // 256, 7)
        paths.append(folder / f"{number:05}.png")
        Image.fromarray(pixels).save(paths[-1], compress_level=1)
    return paths


def numbers(pixels: np.ndarray) -> list[int]:
    """Which of the numbered files these are; an error if a sample is mixed of several."""
    assert (pixels == pixels[:, :, :1, :1]).all() and (pixels[:, 2] == 7).all()
    return [int(one[0, 0, 0]) + 256 * int(one[1, 0, 0]) for one in pixels]


def by_pil(path: Path, height: int, width: int, filter: Image.Resampling = Image.Resampling.BILINEAR) -> np.ndarray:
    """What torchvision makes of it, with its back end PIL."""
    image = Image.open(path).convert("RGB").resize((width, height), filter)
    return np.asarray(image).transpose(2, 0, 1)


class Fifo:
    """A file that whoever reads it has to wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def writer(self) -> int | None:
        """A descriptor to write to it, if somebody reads it or waits for a writer. Reading goes on until it is closed."""
        try:
            return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None

    def reader(self, processes: list[int]) -> int | None:
        """The process that reads it."""
        for process in processes:
            folder = f"/proc/{process}/fd"
            try:
                links = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
            except OSError:
                continue
            if str(self.path) in links:
                return process
        return None
