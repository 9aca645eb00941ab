"""The training example: it learns, and goes on from where it was interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[3] / "examples" / "python" / "train.py"


def test_training_learns_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    state = ["--state", str(tmp_path / "train.pt")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen(
        [sys.executable, "-u", str(TRAIN), "--epochs", "1000", *state], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert training.stdout is not None
    assert training.stdout.readline().startswith("epoch 0: ")
    training.send_signal(signal.SIGINT)
    rest, _ = training.communicate(timeout=120)
    interrupted = re.search(r"interrupted in epoch (\d+)", rest)
    assert interrupted and training.returncode == 0, rest
    command = [sys.executable, str(TRAIN), "--epochs", str(int(interrupted[1]) + 4), "--at-least", "0.6", *state]
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, env=environment)
    assert again.returncode == 0, again.stdout
    first, *epochs = again.stdout.splitlines()
    position = re.fullmatch(r"goes on behind sample (\d+) of epoch (\d+)", first)
    assert position is not None, again.stdout
    # The rest of the epoch, and then whole epochs.
    begun = int(position[1]) < 320
    samples = [int(re.findall(r"of (\d+) samples", line)[0]) for line in epochs]
    assert samples == ([320 - int(position[1])] if begun else []) + [320] * (len(samples) - begun)
