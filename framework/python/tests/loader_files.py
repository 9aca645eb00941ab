"""Files for the tests of the loader, and the results of numpy and PIL for them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from pathlib import Path

import numpy as np
from PIL import Image

DATA = Path(__file__).parents[3] / "examples" / "data"
PHOTOGRAPHS = sorted(path for path in DATA.iterdir() if path.suffix in (".jpg", ".png"))


def numbered(folder: Path, count: int) -> list[Path]:
    """Makes PNGs of 8 x 8 pixels of one value: the number of the file."""
    paths = []
    for number in range(count):
        pixels = np.empty((8, 8, 3), np.uint8)
        pixels[:] = (number % 256, number // 256, 7)
        paths.append(folder / f"{number:05}.png")
        Image.fromarray(pixels).save(paths[-1], compress_level=1)
    return paths


def numbers(pixels: np.ndarray) -> list[int]:
    """Returns the numbers of the files of these samples; fails if a sample is a mix of several."""
    assert (pixels == pixels[:, :, :1, :1]).all() and (pixels[:, 2] == 7).all()
    return [int(one[0, 0, 0]) + 256 * int(one[1, 0, 0]) for one in pixels]


def by_pil(path: Path, height: int, width: int, filter: Image.Resampling = Image.Resampling.BILINEAR) -> np.ndarray:
    """Returns torchvision's result for a file, with its back end PIL."""
    image = Image.open(path).convert("RGB").resize((width, height), filter)
    return np.asarray(image).transpose(2, 0, 1)


class Late:
    """A file that keeps its readers waiting: this process has a lease on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The kernel sends this signal when a reader waits. The test polls instead.
        signal.signal(signal.SIGIO, lambda *_: None)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        assert self.take()

    def take(self) -> bool:
        """Makes the next reader wait, also if one has waited before. False while another process has the file
        open."""
        with contextlib.suppress(BlockingIOError):  # there is none yet
            fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        try:
            fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def is_wanted(self) -> bool:
        """Whether a reader waits for it."""
        return fcntl.fcntl(self.file, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def give(self, content: bytes = b"") -> None:
        """Gives the waiting reader this content."""
        os.write(self.file, content)
        os.close(self.file)
