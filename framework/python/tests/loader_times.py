"""The speed of the loader and of ``torch.utils.data.DataLoader``, with the same files and transforms.

    python loader_times.py [--device cuda:0] [--workers 2] [--batch 16] [--size 384 512] [--folder FOLDER]

It needs PyTorch, torchvision and Pillow. Without ``--folder`` it takes the photographs of ``--photographs``,
over and over, or of the repository that it is in; if there are none, it makes some. DataLoader uses PIL,
spawn, ``persistent_workers``, and with a GPU ``pin_memory`` and a copy that does not block. The two take
turns. A figure is the median of its turns; each is an epoch, from the call of ``iter`` until the last batch
is on its device.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Files:
    """The data set for DataLoader: one file after the other."""

    def __init__(self, folder: str, transform: Any) -> None:
        from torchvision.datasets import ImageFolder

        self.images = ImageFolder(folder, transform)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        import torch

        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        return self.images[index]


def made(folder: Path) -> list[Path]:
    """Makes photographs of smooth noise, as large as ImageNet's."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(8):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        noise = random.normal(0, 6, (375, 500, 3))
        Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(folder / f"made-{number}.jpg", quality=90)
    return sorted(folder.iterdir())


def linked(photographs: list[Path], folder: Path, count: int) -> None:
    """Links as many files as asked for, in two classes."""
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        place = folder / str(number % 2) / f"{number:06}{photograph.suffix}"
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(photograph.resolve())


def stopped(began: float, batches: Iterable[Any], device: str) -> tuple[float, float, int, float]:
    """Returns the seconds until the first and the last batch, the number of samples, and the mean of one
    batch."""
    import torch

    first, samples, mean = 0.0, 0, 0.0
    for pixels, labels in batches:
        samples += len(labels)
        if not first:
            mean = float(pixels.mean())
            first = time.perf_counter() - began
    if device != "cpu":
        torch.cuda.synchronize()
    return first, time.perf_counter() - began, samples, mean


def processor_seconds(processes: Iterable[int]) -> float:
    """Returns the processor seconds of these processes so far. They depend little on the load of the
    machine."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def moved(batches: Iterable[Any], device: str) -> Iterator[Any]:
    for pixels, labels in batches:
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def data_loader(options: argparse.Namespace, folder: str) -> Any:
    import torch
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(options.size), transforms.RandomHorizontalFlip()]
    if not options.random:
        steps = [transforms.Resize(options.size)]
    transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    return torch.utils.data.DataLoader(
        Files(folder, transform),
        batch_size=options.batch,
        shuffle=True,
        num_workers=options.workers,
        multiprocessing_context="spawn",
        persistent_workers=True,
        pin_memory=options.device != "cpu",
    )


def loader(options: argparse.Namespace, folder: str) -> Any:
    import tensorpost as tp

    steps: list[Any] = [tp.RandomResizedCrop(*options.size), tp.RandomHorizontalFlip()] if options.random else [tp.Resize(*options.size)]
    return tp.Loader(
        folder, [*steps, tp.Normalize(MEAN, STD)], batch=options.batch, shuffle=True, workers=options.workers, device=options.device
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="where batches are wanted (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=[384, 512], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--random", action="store_true", help="RandomResizedCrop and a flip, instead of Resize")
    parser.add_argument("--folder", help="files to load, a folder of folders")
    repository = [*Path(__file__).resolve().parents, Path()][3:4]
    parser.add_argument("--photographs", type=Path, default=Path(*repository) / "examples" / "data")
    parser.add_argument("--files", type=int, default=640, help="how many files to make of the photographs (%(default)s)")
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder
        if folder is None:
            place = Path(temporary)
            found = sorted(path for path in options.photographs.glob("*") if path.suffix in (".jpg", ".png"))
            if not found:
                (place / "photographs").mkdir()
                found = made(place / "photographs")
            (place / "files").mkdir()
            linked(found, place / "files", options.files)
            folder = str(place / "files")
            print(f"{options.files} files, of {', '.join(path.name for path in found)}")
        return measured(options, folder)


def measured(options: argparse.Namespace, folder: str) -> int:
    theirs = data_loader(options, folder)
    ours_began = time.perf_counter()
    ours = loader(options, folder)
    print(f"the loader's workers are there after {time.perf_counter() - ours_began:.2f} s")
    rates: dict[str, list[float]] = {"DataLoader": [], "tensorpost": []}
    busy = dict.fromkeys(rates, 0.0)
    for turn in range(options.turns + 1):
        for name in rates:
            processes = [child.pid for child in multiprocessing.active_children() if child.pid] if name == "DataLoader" else ours.processes
            was_busy = processor_seconds(processes)
            began = time.perf_counter()
            if name == "DataLoader":
                batches: Any = iter(theirs) if options.device == "cpu" else moved(theirs, options.device)
            else:
                batches = iter(ours)
            first, seconds, samples, _ = stopped(began, batches, options.device)
            if turn == 0:
                print(f"{name}: first batch after {first:.2f} s, in its first epoch")
                before = ours.times
                continue
            rates[name].append(samples / seconds)
            busy[name] += processor_seconds(processes) - was_busy
            print(f"{name}: {samples / seconds:.0f} images/s, first batch after {first * 1e3:.0f} ms")
    theirs_rate, ours_rate = (statistics.median(rates[name]) for name in ("DataLoader", "tensorpost"))
    print(
        f"median: DataLoader {theirs_rate:.0f}, tensorpost {ours_rate:.0f} images/s with {options.workers} workers, to {options.device}: "
        f"{ours_rate / theirs_rate:.2f} times as many"
    )
    images = options.turns * samples
    theirs_busy, ours_busy = (busy[name] / images * 1e3 for name in ("DataLoader", "tensorpost"))
    print(
        f"processor time of the workers, milliseconds an image: DataLoader {theirs_busy:.2f}, tensorpost {ours_busy:.2f}: "
        f"{theirs_busy / ours_busy:.2f} times as long"
    )
    spent = [now - then for now, then in zip(ours.times, before, strict=True)]
    parts = ", ".join(f"{name} {part / images * 1e3:.3f}" for name, part in zip(ours.times._fields, spent, strict=True))
    print(f"a worker's milliseconds an image: {parts}; together {sum(spent) / images * 1e3:.3f}")
    print("DataLoader's, in one process:")
    for name, milliseconds in pieces(options, folder).items():
        print(f"  {name} {milliseconds:.3f}")
    ours.close()
    return 0


def pieces(options: argparse.Namespace, folder: str) -> dict[str, float]:
    """Returns the milliseconds of each step of DataLoader's work for an image, here, on one thread."""
    import torch
    from PIL import Image
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    paths = [path for path, _ in ImageFolder(folder).samples[:40]]
    steps = {
        "decode": lambda path: Image.open(path).convert("RGB"),
        "resize": transforms.RandomResizedCrop(options.size) if options.random else transforms.Resize(options.size),
        "to floats": transforms.ToTensor(),
        "normalise": transforms.Normalize(MEAN, STD),
    }
    took = {}
    values: list[Any] = list(paths)
    for name, step in steps.items():
        began = time.perf_counter()
        values = [step(value) for value in values]
        took[name] = (time.perf_counter() - began) / len(values) * 1e3
    began = time.perf_counter()
    torch.stack(values[: options.batch])
    took["into a batch"] = (time.perf_counter() - began) / len(values[: options.batch]) * 1e3
    return took


if __name__ == "__main__":
    sys.exit(main())
