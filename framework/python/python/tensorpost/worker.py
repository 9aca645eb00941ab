"""A worker of a node: ``python -m tensorpost.worker``, which a node starts. Started by hand, it does
nothing."""

from __future__ import annotations

import faulthandler
import sys

from . import _worker
from ._native import run_worker


def main() -> int:
    """Runs the worker; the process ends with it."""
    _worker.is_worker = True
    # Lines that a handler has printed must be out when its process is killed.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    # A write into another process's memory ends this process: the traceback then shows where it was.
    if sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable(all_threads=False)
    run_worker()
    _worker.is_worker = False
    print("python -m tensorpost.worker is started by a node; start a node with tp.Node(), or `Python` in Rust", file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main())
