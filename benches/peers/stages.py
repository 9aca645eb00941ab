"""The stages of the example `10-image-pipeline` for Python: the functions of the crate `stages`, called
without the GIL."""

import ctypes
import os
from pathlib import Path

import numpy

HEIGHT, WIDTH = 384, 512
# The plane with the edges that were found in the image's own memory.
EDGES_PLANE = 1
ENDINGS = {".jpg", ".jpeg", ".png"}


def photographs(folder):
    """Returns a folder's images, in the order of their names' bytes."""
    files = [file for file in Path(folder).iterdir() if file.suffix.lower() in ENDINGS and not file.name.startswith(".")]
    if not files:
        raise FileNotFoundError(f"no image in {folder}: put a .jpg, .jpeg or .png file there, or give another folder")
    return sorted(files, key=os.fsencode)


def target(out, number, photograph):
    """Returns the example's name for the file of frame `number` of `photograph`."""
    return Path(out) / f"{number:05}-{photograph.stem}.png"


class Stages:
    """`library` is the crate's shared library."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))

    def call(self, name, *arguments):
        """Calls a function that prints its errors on standard error."""
        if getattr(self.library, f"tensorpost_{name}")(*arguments) != 0:
            raise ValueError(f"the stage {name} failed: see standard error")

    @staticmethod
    def address(array, dtype, count):
        if array.dtype != dtype or array.size != count or not array.flags.c_contiguous:
            raise ValueError(f"an array of {count} values of {dtype}, without gaps, is needed; this one is {array.dtype} {array.shape}")
        return ctypes.c_void_p(array.ctypes.data)

    def shape(self, file):
        """Returns the shape of a photograph's pixels."""
        width, height = ctypes.c_uint32(), ctypes.c_uint32()
        self.call("size", os.fsencode(file), ctypes.byref(width), ctypes.byref(height))
        return height.value, width.value, 3

    def decode(self, file, pixels):
        self.call("decode", os.fsencode(file), self.address(pixels, numpy.uint8, pixels.size), ctypes.c_size_t(pixels.size))

    def resize(self, pixels, planes):
        """Resizes and normalises."""
        height, width, _ = pixels.shape
        source, target = self.address(pixels, numpy.uint8, height * width * 3), self.address(planes, numpy.float32, 3 * HEIGHT * WIDTH)
        self.call("resize", source, ctypes.c_uint32(width), ctypes.c_uint32(height), target)

    def edges(self, planes, magnitudes):
        source = self.address(planes, numpy.float32, 3 * HEIGHT * WIDTH)
        self.call("edges", source, self.address(magnitudes, numpy.float32, HEIGHT * WIDTH))

    def edges_in_place(self, planes):
        self.call("edges_in_place", self.address(planes, numpy.float32, 3 * HEIGHT * WIDTH))

    def write(self, file, magnitudes):
        self.call("write", os.fsencode(file), self.address(magnitudes, numpy.float32, HEIGHT * WIDTH))
