"""Actors, messages and tensors of Tensorpost in Python.

A class with :func:`message` equals a type with ``#[gpu_message(portable)]`` in Rust: the same canonical
schema, the same key, the same bytes. Tensors come from and go to numpy, PyTorch and others by DLPack, without
a copy::

    import numpy as np, tensorpost as tp

    @tp.message
    class Frame:
        id: tp.u64
        pixels: tp.Tensor[tp.f32, 3, ..., ...]

    body, tensors = tp.encode(Frame(1, np.zeros((3, 2, 2), np.float32)))
    frame = tp.decode(Frame, body, tensors)
    np.from_dlpack(frame.pixels)          # the same memory, read-only

A class with :func:`actor` is an actor, which a :class:`Node` runs in a process of its own. Rust and Python
actors send each other messages, and the tensors in them are not copied on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from ._actor import Env, Lifecycle, Restart, Tensors, actor, always, empty, env, handler, never, on_failure
from ._compile import interface_of, plan_of
from ._errors import (
    AskError,
    DeadlineError,
    DecodeError,
    EncodeError,
    Error,
    LoaderError,
    NodeError,
    PipelineError,
    SchemaError,
    SendError,
    SpawnError,
    TensorError,
)
from ._loader import Batch, Broken, Loader
from ._message import field, info_of, message, variant
from ._native import Address, Tensor, __version__
from ._native import differences as _differences
from ._node import Channel, Node, Restarted, Shutdown, Watch, Worker
from ._pipeline import Death, Description, Failure, Flow, Lost, Pipeline, Report, StageReport
from ._published import Subscriber, TopicClosed, Version
from ._stage import stage
from ._transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from ._types import (
    Array,
    Length,
    Owned,
    Tagged,
    TensorSpec,
    Untagged,
    bf16,
    char,
    complex64,
    complex128,
    f4e2m1x2,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

__all__ = [
    "Address",
    "Array",
    "AskError",
    "Batch",
    "Broken",
    "CenterCrop",
    "Channel",
    "DeadlineError",
    "Death",
    "DecodeError",
    "Description",
    "Duration",
    "EncodeError",
    "Env",
    "Error",
    "Failure",
    "Flow",
    "Length",
    "Lifecycle",
    "Loader",
    "LoaderError",
    "Lost",
    "Node",
    "NodeError",
    "Normalize",
    "Owned",
    "Pipeline",
    "PipelineError",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Report",
    "Resize",
    "Restart",
    "Restarted",
    "SchemaError",
    "SendError",
    "Shutdown",
    "SpawnError",
    "StageReport",
    "Subscriber",
    "Tagged",
    "Tensor",
    "TensorError",
    "TensorSpec",
    "Tensors",
    "TopicClosed",
    "Untagged",
    "Version",
    "Watch",
    "Worker",
    "__version__",
    "actor",
    "always",
    "bf16",
    "char",
    "complex128",
    "complex64",
    "decode",
    "differences",
    "empty",
    "encode",
    "env",
    "f16",
    "f32",
    "f4e2m1x2",
    "f64",
    "f8e4m3",
    "f8e5m2",
    "field",
    "handler",
    "i16",
    "i32",
    "i64",
    "i8",
    "key",
    "message",
    "never",
    "on_failure",
    "schema",
    "stage",
    "u16",
    "u32",
    "u64",
    "u8",
    "variant",
]

_T = TypeVar("_T")


@message(frozen=True)
class Duration:
    """A span of time, ``std::time::Duration`` in Rust. (``datetime.timedelta`` has no nanoseconds.)"""

    secs: u64
    nanos: u32 = field(default=0, optional=False)

    def total_seconds(self) -> float:
        """Returns the whole span in seconds."""
        return self.secs + self.nanos * 1e-9


def schema(of: Any) -> str:
    """Returns the canonical text of a message, as ``Portable::schema()`` does in Rust, or that of another
    type."""
    info = info_of(of)
    if info is not None and not info.is_variant:
        return interface_of(of)[0]
    return plan_of(of).schema()


def key(of: type) -> int:
    """Returns the key of a message: the 64-bit FNV-1a hash of its :func:`schema`."""
    return interface_of(of)[1]


def differences(this: type | str, that: type | str, *, names: tuple[str, str] = ("this", "that")) -> list[str]:
    """Returns the differences of two definitions of a message, as a node reports them for a worker: a heading
    with the two keys, and a line for each difference. Each argument is a message, or the text of one's
    :func:`schema`. The list is empty if they are the same. It is an error if they have different names,
    because then they are two messages.
    """
    here, there = (one if isinstance(one, str) else schema(one) for one in (this, that))
    lines = _differences(here, there, *names)
    if not lines and here != there:
        raise SchemaError("these are not two definitions of one message: they have other names, or one is no schema of a message")
    return lines


def encode(value: Any, of: Any = None) -> tuple[bytes, list[Tensor]]:
    """Returns the bytes of a value, as Rust writes them, and the tensors in it, in the order of their
    indices.

    ``of`` is its type; for a message that is its class. A field for tensors may hold a :class:`Tensor`, or
    any object with ``__dlpack__`` in host memory. The memory is borrowed: do not write it while one of the
    tensors is used.
    """
    return plan_of(type(value) if of is None else of).encode(value)


@overload
def decode(of: type[_T], body: bytes, tensors: Sequence[Any] = ...) -> _T: ...
@overload
def decode(of: Any, body: bytes, tensors: Sequence[Any] = ...) -> Any: ...
def decode(of: Any, body: bytes, tensors: Sequence[Any] = ()) -> Any:
    """Decodes bytes that :func:`encode` or Rust wrote, with the tensors that came with them. The bytes need
    not be trusted: if they are not a value of the type, this raises a :class:`DecodeError`.
    """
    return plan_of(of).decode(body, list(tensors))
