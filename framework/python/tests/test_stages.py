"""Python stages in Rust pipelines. Each test is a run of the Rust half, which does the checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "what",
    [
        "order",
        "several",
        "ends",
        "coroutines",
        "in_place",
        "chosen",
        "loop",
        "skipped",
        "dead",
        "failed",
        "lost",
        "again",
        "refused",
        "described",
        "rate",
    ],
)
def test_a_pipeline_of_rust_with_stages_of_python(what: str) -> None:
    program = os.environ.get("TENSORPOST_PEER")
    if not program:
        pytest.skip("TENSORPOST_PEER names no program: scripts/python/test builds it")
    run = subprocess.run([program, "stages", what, sys.executable, str(HERE)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
