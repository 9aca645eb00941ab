"""The transforms that a :class:`tensorpost.Loader` applies to each image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ._errors import LoaderError
from ._types import whole

FILTERS = ("nearest", "box", "bilinear", "bicubic", "lanczos")
MOST = 1 << 15


def _size(of: Any, *names: str) -> None:
    for name in names or ("height", "width"):
        side = getattr(of, name)
        if (pixels := whole(side, 1, MOST)) is None:
            raise LoaderError(f"{type(of).__name__}: {name} is a number of pixels from 1 to {MOST}, and not {side!r}")
        object.__setattr__(of, name, pixels)


def _filter(of: object, name: str) -> None:
    if name not in FILTERS:
        raise LoaderError(f"{type(of).__name__}: interpolation is one of {', '.join(FILTERS)}, and not {name!r}")


def _probability(of: object, p: float) -> None:
    if not 0 <= p <= 1:
        raise LoaderError(f"{type(of).__name__}: p is a probability from 0 to 1, and not {p!r}")


def _range(of: object, name: str, low: float, high: float, most: float) -> None:
    if not 0 < low <= high <= most:
        raise LoaderError(f"{type(of).__name__}: {name} is two numbers above 0, the smaller one first, at most {most}, and not {(low, high)!r}")


@dataclass(frozen=True)
class Resize:
    """Resizes to ``height`` rows and ``width`` columns, whatever the image's shape was; with ``height`` alone
    the shorter side gets this length, and the other follows. Pixels are averaged when the image shrinks, as
    PIL and torchvision (``antialias=True``) do."""

    height: int
    width: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _size(self, *(["height"] if self.width is None else []))
        _filter(self, self.interpolation)


@dataclass(frozen=True)
class CenterCrop:
    """Crops the middle. An image that is smaller is a broken file."""

    height: int
    width: int

    def __post_init__(self) -> None:
        _size(self)


@dataclass(frozen=True)
class RandomCrop:
    """Crops a random part of this size; all places are equally likely. An image that is smaller is a broken
    file."""

    height: int
    width: int

    def __post_init__(self) -> None:
        _size(self)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops a random part of the image and resizes it. Its share of the image's area is drawn from ``scale``,
    and its width divided by its height from ``ratio``, as torchvision does."""

    height: int
    width: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        _size(self)
        _range(self, "scale", *self.scale, 1.0)
        _range(self, "ratio", *self.ratio, math.inf)
        _filter(self, self.interpolation)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Swaps left and right, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self, self.p)


@dataclass(frozen=True)
class RandomVerticalFlip:
    """Swaps top and bottom, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _probability(self, self.p)


@dataclass(frozen=True)
class Normalize:
    """Computes ``(value - mean) / std`` for each channel, of values from 0 to 1. It must come last. The
    defaults are ImageNet's numbers."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
                raise LoaderError(f"Normalize: {name} is three numbers, for red, green and blue, and not {numbers!r}")
        if not all(number > 0 for number in self.std):
            raise LoaderError(f"Normalize: std is three numbers above 0, and not {self.std!r}")


Transform = Resize | CenterCrop | RandomCrop | RandomResizedCrop | RandomHorizontalFlip | RandomVerticalFlip | Normalize


class Recipe(NamedTuple):
    """The parameters for the workers."""

    steps: list[tuple[str, list[float], str]]
    size: tuple[int, int]
    normalize: Normalize | None


def _step(one: object) -> tuple[str, list[float], str]:
    match one:
        case Resize(height, None, interpolation):
            return "resize", [height], interpolation
        case Resize(height, width, interpolation):
            return "resize", [height, width or 0], interpolation
        case CenterCrop(height, width):
            return "center_crop", [height, width], ""
        case RandomCrop(height, width):
            return "random_crop", [height, width], ""
        case RandomResizedCrop(height, width, scale, ratio, interpolation):
            return "random_resized_crop", [height, width, *scale, *ratio], interpolation
        case RandomHorizontalFlip(p):
            return "flip_horizontal", [p], ""
        case RandomVerticalFlip(p):
            return "flip_vertical", [p], ""
    raise LoaderError(
        f"{one!r} is no transform of a loader; there are Resize, CenterCrop, RandomCrop, RandomResizedCrop, RandomHorizontalFlip, "
        "RandomVerticalFlip and Normalize, which run without Python. Do others with the batch"
    )


def recipe(transforms: Iterable[Transform]) -> Recipe:
    """Checks the transforms, and makes the recipe: every sample must get the same size."""
    listed: Sequence[Transform] = list(transforms)
    normalize = listed[-1] if listed and isinstance(listed[-1], Normalize) else None
    steps = listed[:-1] if normalize is not None else listed
    if any(isinstance(one, Normalize) for one in steps):
        raise LoaderError("Normalize comes once, and last")
    size: tuple[int, int] | None = None
    for one in steps:
        match one:
            case Resize(_, None, _):
                size = None
            case Resize(height, width) | CenterCrop(height, width) | RandomCrop(height, width) | RandomResizedCrop(height, width):
                assert width is not None
                size = (height, width)
    told = [_step(one) for one in steps]
    if size is None:
        raise LoaderError(
            "the transforms do not say how large a sample is, and a batch has one size; end with Resize(height, width), a crop, or both"
        )
    return Recipe(told, size, normalize)
