"""The decorators that make a class a message, or a variant of a union."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import MISSING, dataclass
from typing import Any, Callable, TypeVar, dataclass_transform, overload

from ._errors import SchemaError

_C = TypeVar("_C", bound=type)

MARK = "__tensorpost__"
OPTIONS = "tensorpost"


@dataclass
class Info:
    """The data that a decorator keeps of its class."""

    name: str
    is_variant: bool
    style: str | None
    """``"unit"``, ``"newtype"``, ``"tuple"`` or ``"struct"``; ``None`` for what its fields suggest."""
    reply: Any = None
    names: dict[str, Any] | None = None
    """Names of the place where the class was defined, for annotations that are text."""


def info_of(cls: Any) -> Info | None:
    """Returns the data of a class, if it has a decorator of its own."""
    return vars(cls).get(MARK) if isinstance(cls, type) else None


def field(
    *,
    name: str | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    optional: bool | None = None,
    omit_default: bool = False,
    skip: bool = False,
    kw_only: Any = MISSING,
) -> Any:
    """Describes a field of a message.

    ``name``: its name on the wire, if it is not that of the attribute (``#[serde(rename = ..)]``).
    ``default``, ``default_factory``: as in dataclasses.
    ``optional``: whether it may be absent (``#[serde(default)]``). A field with a default may, unless this
    says otherwise.
    ``omit_default``: a value that equals the default is not written (``#[serde(skip_serializing_if = ..)]``).
    ``skip``: it is not on the wire at all (``#[serde(skip)]``), and must have a default.
    """
    has_default = default is not MISSING or default_factory is not MISSING
    if not has_default and (optional or omit_default or skip):
        raise SchemaError("a field that may be absent needs a default, or a default_factory")
    if omit_default and optional is False:
        raise SchemaError("a field with omit_default may be absent, and so is optional")
    options = {"name": name, "optional": optional, "omit_default": omit_default, "skip": skip}
    arguments: dict[str, Any] = {"metadata": {OPTIONS: options}}
    for key, value in (("default", default), ("default_factory", default_factory), ("kw_only", kw_only)):
        if value is not MISSING:
            arguments[key] = value
    return dataclasses.field(**arguments)


def _decorate(cls: type, info: Info, frame: Any, **options: Any) -> type:
    from ._compile import check

    if frame.f_locals is not frame.f_globals:
        info.names = dict(frame.f_locals)
    made: type = dataclass(**options)(cls)
    setattr(made, MARK, info)
    check(made)
    return made


@overload
def message(cls: _C, /) -> _C: ...
@overload
def message(
    *, name: str | None = ..., reply: Any = ..., tuple: bool | None = ..., frozen: bool = ..., kw_only: bool = ...
) -> Callable[[_C], _C]: ...
@dataclass_transform(field_specifiers=(field,))
def message(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    reply: Any = None,
    tuple: bool | None = None,
    frozen: bool = False,
    kw_only: bool = False,
) -> Any:
    """Makes a dataclass of a class that equals a type with ``#[gpu_message(portable)]`` in Rust, or with
    ``#[derive(Portable)]`` if it is used inside another type. Its fields are those of the annotations, in
    this order::

        @tp.message(reply=bool)
        class Frame:
            id: tp.u64
            pixels: tp.Tensor[tp.f32, 3, ..., ...]
            note: str | None = None

    ``name``: the name of the type in Rust, if it differs from the class's.
    ``reply``: the type of the reply; without it the reply is empty.
    ``tuple``: whether its fields have no names in Rust, as in ``struct Frame(u64, Tensor)``. A class without
    fields is ``struct Stop;``, and with ``tuple=False`` it is ``struct Stop {}``.
    ``frozen``, ``kw_only``: as in dataclasses. Fields with defaults may come before others with ``kw_only``.
    """
    frame = sys._getframe(1)
    style = None if tuple is None else ("tuple" if tuple else "struct")

    def decorate(cls: type) -> type:
        info = Info(name or cls.__name__, False, style, reply)
        return _decorate(cls, info, frame, frozen=frozen, kw_only=kw_only)

    return decorate if cls is None else decorate(cls)


@overload
def variant(cls: _C, /) -> _C: ...
@overload
def variant(
    *, name: str | None = ..., tuple: bool | None = ..., frozen: bool = ..., kw_only: bool = ...
) -> Callable[[_C], _C]: ...
@dataclass_transform(field_specifiers=(field,))
def variant(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    tuple: bool | None = None,
    frozen: bool = False,
    kw_only: bool = False,
) -> Any:
    """Makes a dataclass of a class that is a variant of an enum in Rust. The enum is a union of such
    classes::

        @tp.variant
        class Still: ...

        @tp.variant(tuple=True)
        class Blurred:
            radius: tp.f32

        How = Still | Blurred            # enum How { Still, Blurred(f32) }

    ``name``: the name of the variant, if it differs from the class's.
    ``tuple``: whether its fields have no names in Rust. A class without fields is ``Still``, with
    ``tuple=True`` it is ``Still()``, and with ``tuple=False`` ``Still {}``.
    ``frozen``, ``kw_only``: as in dataclasses.
    """
    frame = sys._getframe(1)
    style = None if tuple is None else ("tuple" if tuple else "struct")

    def decorate(cls: type) -> type:
        return _decorate(cls, Info(name or cls.__name__, True, style), frame, frozen=frozen, kw_only=kw_only)

    return decorate if cls is None else decorate(cls)
