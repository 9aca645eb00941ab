"""The fixtures of the tests: the Rust half, and the report of seeds."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# A run in the background ignores these, and so would all processes that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

GOLDEN = Path(__file__).parents[2] / "core" / "tests" / "portable"


class Peer:
    """The program in `peer/`, which answers questions."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the Rust half ended at {question}"
        return json.loads(line)


@pytest.fixture(scope="session")
def peer() -> Iterator[Peer]:
    program = os.environ.get("TENSORPOST_PEER")
    if not program:
        pytest.skip("TENSORPOST_PEER names no program: scripts/python/test builds it")
    peer = Peer(program)
    yield peer
    peer.process.stdin.close()  # type: ignore[union-attr]
    assert peer.process.wait(timeout=30) == 0


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Ends the run if a test hangs, and prints the stacks of all threads."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
