"""Batches of images for a training loop: :class:`Loader`."""

from __future__ import annotations

import itertools
import os
import reprlib
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _native
from ._errors import LoaderError
from ._node import Node
from ._transforms import Recipe, Transform, recipe
from ._types import whole

EXTENSIONS = (".jpg", ".jpeg", ".png")
MIB = 1 << 20
MOST_WORKERS = 128
MOST = (1 << 64) - 1
_numbers = itertools.count()


class Broken(NamedTuple):
    """A file that was left out of its batch."""

    index: int
    path: str
    why: str


class Times(NamedTuple):
    """Seconds that all workers of a loader together have taken for each step: :attr:`Loader.times`."""

    read: float
    decode: float
    transform: float
    write: float


class Batch:
    """Samples in one tensor of shape ``(samples, 3, height, width)``. ``pixels, labels = batch`` unpacks
    it."""

    __slots__ = ("broken", "indices", "labels", "paths", "pixels")

    def __init__(self, pixels: Any, labels: Any, indices: list[int], paths: list[str], broken: list[Broken]) -> None:
        self.pixels = pixels
        """A tensor of PyTorch, an array of numpy, or a :class:`tensorpost.Tensor`. It may be written."""
        self.labels = labels
        """In the same form; None where there are none."""
        self.indices = indices
        """The files' indices in the loader's list."""
        self.paths = paths
        self.broken = broken
        """Files that were left out of it."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.pixels, self.labels))

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.indices)

    def __repr__(self) -> str:
        left_out = f", {len(self.broken)} broken" if self.broken else ""
        return f"Batch({len(self)} samples{left_out})"


def _listed(root: str) -> tuple[list[str], list[int] | None, list[str]]:
    """Lists the images below a folder, in the order of torchvision's ``ImageFolder``."""
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith(".") and entry.is_dir())
    except OSError as error:
        raise LoaderError(f"{root}: the folder cannot be read: {error}") from error
    files: list[str] = []
    labels: list[int] = []
    # The classes' own folders, and the one that they are in, must not be inside another one.
    seen: dict[tuple[int, int], str] = {}
    for folder in [root, *(os.path.join(root, name) for name in classes)]:
        _once(folder, seen)
    for label, folder in enumerate(classes or [""]):
        for at, names in sorted(_walked(os.path.join(root, folder), seen)):
            found = [os.path.join(at, name) for name in sorted(names) if name.lower().endswith(EXTENSIONS)]
            files += found
            labels += [label] * len(found)
    if not files:
        raise LoaderError(
            f"{root}: there is no image in this folder or below, no file that ends in {', '.join(EXTENSIONS)}; where there are folders in "
            "it, each is a class"
        )
    return files, labels if classes else None, classes


def _once(folder: str, seen: dict[tuple[int, int], str]) -> None:
    """Notes a folder, and raises if links lead to it a second time, also from inside of it."""
    try:
        status = os.stat(folder)
    except OSError as error:
        raise LoaderError(f"{folder}: the folder cannot be read: {error}") from error
    if (other := seen.setdefault((status.st_dev, status.st_ino), folder)) != folder:
        raise LoaderError(
            f"{folder} is by a link the same folder as {other}, and its files would be samples twice; remove the link, or give the paths "
            "of the files"
        )


def _walked(top: str, seen: dict[tuple[int, int], str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the folders below one, each once, and the names of the files in them. Hidden folders and files
    are left out, because tools make them, such as ``._1.png``. Links are followed."""
    for at, folders, names in os.walk(top, followlinks=True):
        yield at, [name for name in names if not name.startswith(".")]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            _once(os.path.join(at, name), seen)


class _Form:
    """The form in which batches are given: the library of their tensors, and the device."""

    def __init__(self, to: str, device: Any, floats: bool, made: Recipe) -> None:
        if to not in ("torch", "numpy", "tensor"):
            raise LoaderError(f'to is "torch", "numpy" or "tensor", and not {to!r}')
        device = str(device)
        kind, _, ordinal = device.partition(":")
        self.ordinal: int | None = None
        if kind == "cuda" and (ordinal or "0").isdecimal():
            self.ordinal = int(ordinal or 0)
        elif device not in ("cpu", "host"):
            raise LoaderError(f'device is "cpu", or a GPU such as "cuda:0", and not {device!r}')
        if to == "numpy" and self.ordinal is not None:
            raise LoaderError(f'numpy has no arrays on {device}; say to="torch", or device="cpu"')
        self.to, self.normalize = to, made.normalize
        self.library: Any = None
        try:
            if to == "torch":
                import torch as library
            elif to == "numpy":
                import numpy as library
            else:
                library = None
            self.library = library
        except ImportError as error:
            raise LoaderError(f'{to} is not installed: {error}; install it, or say to="tensor"') from error
        # A GPU gets bytes, a quarter of the size of floats, and converts them to floats.
        self.floats_there = floats and self.ordinal is not None and to == "torch"
        self.floats = floats and not self.floats_there
        self.numbers: tuple[Any, Any] | None = None

    def pixels(self, tensor: _native.Tensor) -> Any:
        if self.to == "tensor":
            return tensor
        if self.to == "numpy":
            return tensor.numpy()
        pixels = tensor.torch()
        if not self.floats_there:
            return pixels
        torch = self.library
        with torch.no_grad():
            pixels = pixels.to(torch.float32).div_(255)
            if self.normalize is not None:
                if self.numbers is None:
                    both = (self.normalize.mean, self.normalize.std)
                    mean, std = (torch.tensor(one, device=pixels.device).view(1, 3, 1, 1) for one in both)
                    self.numbers = mean, std
                pixels.sub_(self.numbers[0]).div_(self.numbers[1])
        return pixels

    def labels(self, labels: list[int]) -> Any:
        if self.to == "tensor":
            return labels
        if self.to == "numpy":
            return self.library.array(labels, dtype=self.library.int64)
        made = self.library.tensor(labels, dtype=self.library.int64)
        if self.ordinal is None:
            return made
        return made.pin_memory().to(f"cuda:{self.ordinal}", non_blocking=True)


def _numbers_of(labels: Iterable[Any] | Callable[[str], Any], paths: list[str]) -> list[int]:
    """Returns the labels of paths as numbers. A label that is no integer is refused."""
    given = [labels(path) for path in paths] if callable(labels) else list(labels)
    if len(given) != len(paths):
        raise LoaderError(f"there are {len(given)} labels for {len(paths)} files")
    numbers = []
    for index, label in enumerate(given):
        try:
            number = int(label)
            is_one = bool(number == label)
        except Exception:
            is_one = False
        if not is_one or not -(1 << 63) <= number < 1 << 63:
            kind = type(label)
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            raise LoaderError(
                f"labels[{index}] is {reprlib.repr(label)}, of type {name}, and a label is an integer of at most 64 bits; give each class "
                "a number, and look other values up with `Batch.indices` in a list of your own"
            )
        numbers.append(number)
    return numbers


def _number(name: str, number: Any, least: int, most: int, what: str = "") -> int:
    """Returns an argument as an int, if it is a whole number in this range, of whatever library."""
    if (found := whole(number, least, most)) is None:
        what = what or f"a number from {least} to {'2**64 - 1' if most == MOST else most}"
        raise LoaderError(f"{name} is {what}, and not {number!r}")
    return found


class Loader:
    """Batches of images for a training loop. Files are read, decoded (JPEG and PNG), transformed and put into
    batches by worker processes in Rust, ahead of the program. ::

        transforms = [tp.RandomResizedCrop(224, 224), tp.RandomHorizontalFlip(), tp.Normalize()]
        with tp.Loader("train", transforms, batch=64, shuffle=True, workers=8, device="cuda:0") as loader:
            for epoch in range(90):
                for pixels, labels in loader:
                    train(pixels, labels)

    ``files``: a folder, whose folders are the classes, as for torchvision's ``ImageFolder``; or paths.
    ``transforms``: the transforms of each image, in this order. All images must end in one size.
    ``batch``: samples in a batch; the last one of an epoch may have fewer, and is left out with
    ``drop_last``.
    ``shuffle``: whether each epoch has another order. The order and the random transforms of a sample depend
    only on ``seed`` and the epoch's number, and not on the number of workers.
    ``workers``: processes that decode, at most 128; one for each processor that this process may use unless
    said otherwise.
    ``device``: where batches go: ``"cpu"``, or ``"cuda:0"``.
    ``prefetch``: bytes of batches that are under way or ready at a time, at least one batch; 256 MiB or three
    batches unless said otherwise.
    ``on_error``: ``"raise"`` ends an epoch at a broken file; ``"skip"`` leaves it out of its batch, and
    :attr:`Batch.broken` names it.
    ``labels``: for a list of paths: an integer for each, or a function of the path.
    ``dtype``: ``"f32"``, from 0 to 1 and normalised, or ``"u8"``.
    ``to``: ``"torch"``, ``"numpy"``, or ``"tensor"`` for a :class:`tensorpost.Tensor`.
    ``node``: an existing node. Without it the loader has one of its own.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        transforms: Iterable[Transform] = (),
        *,
        batch: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        workers: int | None = None,
        device: Any = "cpu",
        prefetch: int | None = None,
        on_error: str = "raise",
        labels: Sequence[int] | Callable[[str], int] | None = None,
        drop_last: bool = False,
        dtype: str = "f32",
        to: str = "torch",
        node: Node | None = None,
    ) -> None:
        self._closed = True
        dtype = getattr(dtype, "__name__", dtype)
        if dtype not in ("f32", "u8"):
            raise LoaderError(f'dtype is "f32" or "u8", and not {dtype!r}')
        if on_error not in ("raise", "skip"):
            raise LoaderError(f'on_error is "raise" or "skip", and not {on_error!r}')
        batch = _number("batch", batch, 1, 1 << 16)
        workers = None if workers is None else _number("workers", workers, 1, MOST_WORKERS)
        seed = _number("seed", seed, 0, MOST)
        made = recipe(transforms)
        if dtype == "u8" and made.normalize is not None:
            raise LoaderError('Normalize makes floats; leave it out, or dtype="u8"')
        self._form = _Form(to, device, dtype == "f32", made)
        self.classes: list[str] = []
        """The names of the folders, by label."""
        self.broken: dict[str, str] = {}
        """Files that were left out so far, and why."""
        if isinstance(files, str | os.PathLike):
            root = os.fspath(files)
            if labels is not None:
                raise LoaderError("labels are for a list of paths; those of a folder are the folders in it")
            self._paths, self._labels, self.classes = _listed(root)
        else:
            root = ""
            self._paths = [os.fspath(path) for path in files]
            if not self._paths:
                raise LoaderError("the list of files is empty")
            self._labels = None if labels is None else _numbers_of(labels, self._paths)
        self._batch, self._shuffle, self._seed, self._drop_last = batch, bool(shuffle), seed, drop_last
        self._skip = on_error == "skip"
        bytes_each = batch * 3 * made.size[0] * made.size[1] * (4 if self._form.floats else 1)
        if prefetch is None:
            prefetch = max(256 * MIB, 3 * bytes_each)
        prefetch = _number("prefetch", prefetch, 0, MOST, "a number of bytes")
        self._ahead = max(1, prefetch // bytes_each)
        relative = (os.path.relpath(path, root) if root else path for path in self._paths)
        self._digest = 0
        for path in relative:
            self._digest = zlib.crc32(os.fsencode(path) + b"\0", self._digest)
        self._epoch = self._position = 0
        self._begun = False
        self._current: _Epoch | None = None
        self._own = node is None
        self._node = node or Node(host_budget=max(4096 * MIB, prefetch + 4 * bytes_each + 256 * MIB))
        self._label = f"loader {next(_numbers)}"
        normal = made.normalize if self._form.floats else None
        library = _native.__file__
        try:
            self._native = _native.Loader(
                self._node._native,
                sys.executable or "python3",
                os.fspath(library),
                [os.fsencode(os.path.abspath(path)) for path in self._paths],
                made.steps,
                made.size,
                self._form.floats,
                None if normal is None else (normal.mean, normal.std),
                workers or min(_native.processors(), MOST_WORKERS),
                self._label,
                self._form.ordinal,
            )
        except BaseException:
            if self._own:
                self._node.shutdown()
            raise
        self._closed = False

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch."""
        files = len(self._paths)
        return files // self._batch if self._drop_last else -(-files // self._batch)

    @property
    def paths(self) -> list[str]:
        """The files, by index."""
        return list(self._paths)

    @property
    def labels(self) -> list[int] | None:
        """The label of each file, by index."""
        return None if self._labels is None else list(self._labels)

    @property
    def epoch(self) -> int:
        """The number of the epoch that was begun last, or was set."""
        return self._epoch

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._node.workers() if worker.name.startswith(self._label + " ") and worker.state == "Running"]

    @property
    def times(self) -> Times:
        """The seconds that the workers have taken for each step so far."""
        return Times(*self._native.times())

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch, from its beginning. Without this, epochs are numbered from
        0."""
        number = _number("an epoch", epoch, 0, MOST)
        self._end()
        self._epoch, self._position, self._begun = number, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the program: which samples it has got. Batches that were made ahead are
        made again."""
        return {
            "version": 1,
            "epoch": self._epoch,
            "position": self._position,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "files": len(self._paths),
            "digest": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from that position: the next iteration gives exactly the remaining samples of that epoch.
        The files, the seed and ``shuffle`` must be the same; the size of a batch, the workers and the device
        need not be."""
        known = self.state_dict()
        if not isinstance(state, dict) or set(state) != set(known) or state["version"] != 1:
            raise LoaderError(f"this is no state of a loader of this version: {state!r}")
        for name in ("files", "digest", "seed", "shuffle"):
            if state[name] != known[name]:
                what = "the files are others, or in another order" if name == "digest" else f"{name} was {state[name]}, and is {known[name]}"
                raise LoaderError(f"the state is another loader's: {what}")
        epoch, position = state["epoch"], state["position"]
        if (at := whole(position, 0, len(self._paths))) is None:
            raise LoaderError(f"the state's position is {position!r}, of {len(self._paths)} files")
        self.set_epoch(epoch)
        self._position = at

    def _end(self) -> None:
        if self._current is not None:
            self._current._interrupted = not self._current._over
            self._current = None
            self._native.stop()

    def __iter__(self) -> Iterator[Batch]:
        """Begins the next epoch, or the rest of one after :meth:`load_state_dict`. An iteration that is under
        way ends."""
        if self._closed:
            raise LoaderError("the loader was closed")
        self._end()
        files = len(self._paths)
        whole = self._position + (files - self._position) // self._batch * self._batch if self._drop_last else files
        if self._begun or self._position >= whole > 0:
            self._epoch, self._position = self._epoch + 1, 0
            whole = files // self._batch * self._batch if self._drop_last else files
        self._begun = True
        self._native.begin(
            self._seed, self._epoch, self._shuffle, whole, self._position, self._batch, self._ahead, self._skip
        )
        self._current = _Epoch(self)
        return self._current

    def close(self) -> None:
        """Ends the workers. An iteration that is under way ends with an error."""
        if self._closed:
            return
        self._end()
        self._closed = True
        self._native.close()
        if self._own and not self._node._native.is_inherited:
            self._node.shutdown()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        at = "closed" if self._closed else f"epoch {self._epoch}, {self._position} had"
        return f"Loader({len(self._paths)} files, {at})"


class _Epoch:
    """An iteration over an epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._over = self._interrupted = False
        self._one_at_a_time = threading.Lock()

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Batch:
        if self._loader._node._native.is_inherited:
            # Before the lock, which another thread of the parent may hold.
            raise LoaderError(_native.INHERITED)
        with self._one_at_a_time:
            return self._next()

    def _next(self) -> Batch:
        loader = self._loader
        left_out: list[Broken] = []  # of batches in which nothing was whole, too
        while True:
            if self._interrupted:
                raise LoaderError("this iteration was ended: the loader was closed, or another iteration or state was begun")
            if self._over:
                raise StopIteration
            try:
                given = loader._native.next()
            except LoaderError:
                self._over = True
                raise
            if given is None:
                self._over = True
                loader._position = len(loader._paths)
                raise StopIteration
            tensor, indices, broken, position = given
            loader._position = position
            left_out += [Broken(index, loader._paths[index], why) for index, why in broken]
            loader.broken.update((one.path, one.why) for one in left_out)
            if tensor is None:
                continue
            form = loader._form
            labels = None if loader._labels is None else form.labels([loader._labels[index] for index in indices])
            return Batch(form.pixels(tensor), labels, indices, [loader._paths[index] for index in indices], left_out)


__all__ = ["Batch", "Broken", "Loader", "Times"]
