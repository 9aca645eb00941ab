"""The types for annotations: numbers of a width, tensors, arrays, and the tags of unions.

A number of a width is an ``int`` or a ``float`` for Python and for type checkers; ``Annotated`` adds its
width.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from types import EllipsisType
from typing import Annotated, Any, get_args, get_origin

from ._errors import SchemaError
from ._native import Tensor


@dataclass(frozen=True)
class Scalar:
    """The name of a type of scalars, as Rust has it."""

    name: str
    """Such as ``"u8"``."""
    tensors_only: bool = False
    """Whether there are tensors of it, and no fields."""


u8 = Annotated[int, Scalar("u8")]
u16 = Annotated[int, Scalar("u16")]
u32 = Annotated[int, Scalar("u32")]
u64 = Annotated[int, Scalar("u64")]
i8 = Annotated[int, Scalar("i8")]
i16 = Annotated[int, Scalar("i16")]
i32 = Annotated[int, Scalar("i32")]
i64 = Annotated[int, Scalar("i64")]
f16 = Annotated[float, Scalar("f16", tensors_only=True)]
bf16 = Annotated[float, Scalar("bf16", tensors_only=True)]
f32 = Annotated[float, Scalar("f32")]
f64 = Annotated[float, Scalar("f64")]
f8e4m3 = Annotated[float, Scalar("f8e4m3", tensors_only=True)]
f8e5m2 = Annotated[float, Scalar("f8e5m2", tensors_only=True)]
f4e2m1x2 = Annotated[float, Scalar("f4e2m1x2", tensors_only=True)]
complex64 = Annotated[complex, Scalar("complex64", tensors_only=True)]
complex128 = Annotated[complex, Scalar("complex128", tensors_only=True)]
char = Annotated[str, Scalar("char")]

_NAMES = {
    "bool": "bool bool_",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0": "float8_e8m0fnu",
    "f4e2m1x2": "float4_e2m1fn_x2",
    "complex64": "complex64",
    "complex128": "complex128",
}
"""The names that PyTorch, NumPy and ml_dtypes have for a dtype."""

DTYPES = frozenset(_NAMES)
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names.split()}
DEVICES = frozenset(("host", "cuda"))


@dataclass(frozen=True)
class TensorSpec:
    """The requirements of a field on its tensors, as ``#[tensor(dtype = .., shape = .., device = ..)]`` in
    Rust. ``None`` allows anything. It is used in ``Annotated``:
    ``Annotated[Tensor, TensorSpec(dtype="f32")]``.
    """

    dtype: Any = None
    """Type of the elements, such as ``"f32"``, ``tp.f32``, ``torch.float32`` or ``np.float32``."""
    shape: tuple[int | None, ...] | None = None
    """Extent of each axis, ``None`` for any."""
    device: str | None = None
    """Kind of device: ``"host"`` or ``"cuda"``."""

    def __post_init__(self) -> None:
        if self.dtype is not None:
            if (name := dtype_of(self.dtype)) is None:
                raise SchemaError(f"{self.dtype!r} is no dtype; there are {', '.join(sorted(DTYPES))}")
            object.__setattr__(self, "dtype", name)
        if self.device is not None and self.device not in DEVICES:
            raise SchemaError(f'{self.device!r} is no kind of device; there are "host" and "cuda"')
        for axis in self.shape or ():
            if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < 2**64):
                raise SchemaError(f"{axis!r} is no extent of an axis; give a number, or None for any")


def whole(number: Any, least: int, most: int) -> int | None:
    """Returns a number as an int, if it is a whole one in this range: also one of numpy. A bool is none."""
    try:
        found = None if isinstance(number, bool) else operator.index(number)
    except TypeError:
        return None
    return found if found is not None and least <= found <= most else None


@dataclass(frozen=True)
class ForGood:
    """Marks a tensor in ``Annotated``: its receiver owns it, and may write it."""


def _of_library(asked: Any) -> str | None:
    """Returns the name that PyTorch or NumPy has for ``asked``, if that is a dtype of theirs. Imports
    nothing."""
    kind = type(asked)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(asked).removeprefix("torch.")
    if kind.__module__.partition(".")[0] == "numpy" and isinstance(getattr(asked, "isnative", None), bool):
        # There are no tensors of numbers in the other byte order.
        return str(asked.name) if asked.isnative else str(asked)
    if isinstance(asked, type) and asked.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
        return asked.__name__
    return None


def dtype_of(asked: Any) -> str | None:
    """Returns the name of a dtype, if ``asked`` is one: ours, or one of PyTorch or NumPy. Raises
    :class:`SchemaError` for a dtype of theirs that tensors here cannot have."""
    if asked is bool:
        return "bool"
    if asked is float:
        return "f64"
    if asked is complex:
        return "complex128"
    if (theirs := _of_library(asked)) is not None:
        if (name := _OURS.get(theirs)) is None:
            raise SchemaError(f"there are no tensors of {theirs}; there are those of {', '.join(sorted(DTYPES))}")
        return name
    if isinstance(asked, str) and asked in DTYPES:
        return asked
    if get_origin(asked) is Annotated:
        for extra in get_args(asked)[1:]:
            if isinstance(extra, Scalar) and extra.name in DTYPES:
                return extra.name
    return None


def tensor_of(asked: Any) -> Any:
    """Reads ``Tensor[dtype, axis, axis, ...]``: each axis is an extent or ``...``; a kind of device may come
    last."""
    parts = asked if isinstance(asked, tuple) else (asked,)
    dtype, rest = None, list(parts)
    if rest and (dtype := dtype_of(rest[0])) is not None:
        rest = rest[1:]
    device = rest.pop() if rest and isinstance(rest[-1], str) and rest[-1] in DEVICES else None
    for axis in rest:
        if not isinstance(axis, int | EllipsisType) or isinstance(axis, bool):
            raise SchemaError(
                f"Tensor[..] has a dtype, such as tp.f32, then extents, `...` for any, then a kind of device, and not {axis!r}"
            )
    shape = tuple(None if axis is ... else axis for axis in rest) if rest else None
    return Annotated[Tensor, TensorSpec(dtype, shape, device)]


class Owned:
    """A tensor that its receiver owns, and may write in place: ``Owned[f32, 3, ...]``, as :class:`Tensor` is
    annotated, or ``Owned`` alone. On the wire it is an ordinary tensor. If another holder still has the
    memory, such as the sender, the receiver gets a copy.
    """

    def __class_getitem__(cls, asked: Any) -> Any:
        return Annotated[tensor_of(asked), ForGood()]


@dataclass(frozen=True)
class Length:
    """The number of items of a list, in ``Annotated``: ``Annotated[list[tp.u8], Length(3)]`` is ``[u8; 3]``
    in Rust."""

    items: int

    def __post_init__(self) -> None:
        if isinstance(self.items, bool) or not isinstance(self.items, int) or not 0 <= self.items < 2**64:
            raise SchemaError(f"{self.items!r} is no number of items")


class Array:
    """``Array[T, 3]`` is short for ``Annotated[list[T], Length(3)]``."""

    def __class_getitem__(cls, asked: Any) -> Any:
        if not isinstance(asked, tuple) or len(asked) != 2:
            raise SchemaError("write Array[type of the items, their number]")
        return Annotated[list[asked[0]], Length(asked[1])]


@dataclass(frozen=True)
class Tagged:
    """The tag of a union, in ``Annotated``: ``Annotated[A | B, Tagged("kind")]``. With one name, the
    variant's name is a field among the others (``#[serde(tag = "kind")]``); with two, the content is in the
    second field (``#[serde(tag = "kind", content = "what")]``). Without this, a variant is a map from its
    name.
    """

    tag: str
    content: str | None = None


@dataclass(frozen=True)
class Untagged:
    """Marks a union in ``Annotated``: the first variant that fits is taken (``#[serde(untagged)]``)."""
