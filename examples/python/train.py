"""Trains a small PyTorch network on photographs with tensorpost's loader, and resumes after an interruption.

    python examples/python/train.py [--folder FOLDER] [--epochs 30] [--device cuda:0] [--state train.pt]

The folders in FOLDER are the classes. Without it, each photograph of examples/data is a class, and random
crops of it are its samples: the network learns to tell from which photograph a crop comes. Ctrl-C saves the
position; the next call goes on with exactly the remaining samples of that epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import tensorpost as tp

PHOTOGRAPHS = Path(__file__).resolve().parents[1] / "data"
TRANSFORMS = [tp.RandomResizedCrop(64, 64, scale=(0.3, 1.0)), tp.RandomHorizontalFlip(), tp.Normalize()]


def network(classes: int) -> Any:
    from torch import nn

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(3, 16), *block(16, 32), *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
    return nn.Sequential(*layers)


def opened(options: argparse.Namespace) -> tuple[tp.Loader, int]:
    """Returns the loader, and the number of classes."""
    how: dict[str, Any] = {"batch": options.batch, "shuffle": True, "seed": 1, "workers": options.workers, "device": options.device}
    if options.folder is not None:
        loader = tp.Loader(options.folder, TRANSFORMS, on_error="skip", **how)
        return loader, len(loader.classes)
    photographs = sorted(path for path in PHOTOGRAPHS.iterdir() if path.suffix in (".jpg", ".png"))
    # List each path many times: each index gets random crops of its own.
    loader = tp.Loader(photographs * 64, TRANSFORMS, labels=[*range(len(photographs))] * 64, **how)
    return loader, len(photographs)


def train(options: argparse.Namespace, loader: tp.Loader, classes: int) -> float:
    """Returns the share of the last epoch's samples that were classified correctly, as they came."""
    import torch

    torch.manual_seed(1)
    model = network(classes).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if options.state and os.path.exists(options.state):
        saved = torch.load(options.state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        print(f"goes on behind sample {saved['loader']['position']} of epoch {saved['loader']['epoch']}")
    share = 0.0
    try:
        while True:
            right, seen = torch.zeros((), device=options.device), 0
            for pixels, labels in loader:
                guess = model(pixels)
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(guess, labels).backward()
                optimizer.step()
                right += (guess.argmax(1) == labels).sum()  # read once an epoch: nothing waits for the GPU here
                seen += len(labels)
            share = float(right) / max(seen, 1)
            print(f"epoch {loader.epoch}: {share:.1%} of {seen} samples right", flush=True)
            if loader.epoch + 1 >= options.epochs:
                return share
    except KeyboardInterrupt:
        print(f"interrupted in epoch {loader.epoch}")
        return share
    finally:
        if options.state:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(state, options.state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", help="a folder of folders, which are the classes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--state", help="a file to keep the state in, and to go on from")
    parser.add_argument("--at-least", type=float, default=0.0, help="fail where a smaller share of the last epoch is right")
    options = parser.parse_args()
    loader, classes = opened(options)
    with loader:
        share = train(options, loader, classes)
    return 0 if share >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
