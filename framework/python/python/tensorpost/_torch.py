"""PyTorch on GPUs: makes it work on an actor's stream, and allocate in the actor's pool."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import _native
from ._native import Mailbox

_kept: list[Any] = []
"""The allocator, and the pools of actors, which have to stay as long as the process."""


def work_on(ordinal: int, handle: int) -> None:
    """Makes PyTorch work on this stream, on this thread."""
    import torch

    torch.cuda.set_device(ordinal)
    stream = torch.cuda.ExternalStream(handle, device=ordinal)  # type: ignore[no-untyped-call, unused-ignore]
    torch.cuda.set_stream(stream)


def current(ordinal: int) -> int:
    """Returns the stream that PyTorch works on, on this thread, as DLPack numbers it."""
    import torch

    return torch.cuda.current_stream(ordinal).cuda_stream or 1


def enter(mailbox: Mailbox) -> None:
    """Makes PyTorch, if it is loaded, work on the actor's stream from here on. Called when an actor's thread
    begins, and when its module has been loaded."""
    gpu = mailbox.gpu()
    if gpu is not None and "torch" in sys.modules:
        work_on(*gpu)


def allocate(mailbox: Mailbox) -> None:
    """Makes PyTorch allocate in the pool on this thread from here on: tensors in the pool are sent without a
    copy."""
    gpu = mailbox.gpu()
    if gpu is None or "torch" not in sys.modules:
        return
    import torch

    why = None
    if os.environ.get("TENSORPOST_TORCH_POOL") == "0":
        why = "TENSORPOST_TORCH_POOL=0 says so"
    elif not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        why = f"PyTorch {torch.__version__} has no torch.cuda.MemPool; 2.6 and later have one"
    if why is None:
        try:
            _enter_pool(mailbox, gpu[0])
        except Exception as error:
            why = f"it refused: {type(error).__name__}: {error}"
    if why is not None:
        print(
            f"tensorpost: {mailbox.name}: PyTorch does not allocate in the pool, so each tensor that it makes is copied when it is "
            f"sent: {why}",
            file=sys.stderr,
            flush=True,
        )


def _enter_pool(mailbox: Mailbox, ordinal: int) -> None:
    import torch

    work_on(*mailbox.gpu())  # type: ignore[misc]
    mailbox.lend_pool()
    if not _kept:
        library = _native.__file__
        assert library is not None
        _kept.append(torch.cuda.memory.CUDAPluggableAllocator(library, "tensorpost_alloc", "tensorpost_free"))
    # Each actor's thread has its own: PyTorch lets one thread at a time allocate in a pool.
    pool = torch.cuda.MemPool(_kept[0].allocator())  # type: ignore[no-untyped-call, unused-ignore]
    # For good: entering it for each message would cost more than the allocations.
    entered = torch.cuda.use_mem_pool(pool, device=ordinal)
    entered.__enter__()
    _kept.extend((pool, entered))
