"""The types of `peer/src/types.rs` and of `framework/core/tests/tensors/portable.rs`, in Python."""

from __future__ import annotations

import enum
from typing import Annotated, Optional

import tensorpost as tp


@tp.message(reply=tp.u64)
class Image:
    id: tp.u64
    pixels: tp.Tensor[tp.f32, 3, ..., ..., "host"]
    extras: dict[str, list[tp.Tensor[tp.u8]]]


@tp.message
class Scalars:
    integers: tuple[tp.u8, tp.u16, tp.u32, tp.u64, tp.i8, tp.i16, tp.i32, tp.i64]
    sizes: tuple[tp.u64, tp.i64]
    floats: tp.Array[float, 2]
    single: tp.f32
    truth: bool
    letter: tp.char
    text: str
    nothing: None
    other: str
    patience: tp.Duration


@tp.variant
class Unit: ...


@tp.variant(tuple=True)
class Newtype:
    value: tp.u8


@tp.variant(tuple=True)
class Tuple:
    first: tp.u8
    second: tp.i8 | None


@tp.variant(name="a struct")
class Struct:
    deep: dict[tp.u8, tp.Array[bool, 2]]


Way = Unit | Newtype | Tuple | Struct


@tp.message
class Tree:
    value: tp.i64
    children: list[Tree]


@tp.variant(name="NOT_YET")
class NotYet: ...


@tp.variant(name="ONE_LINE", tuple=True)
class OneLine:
    line: str


Told = Annotated[NotYet | OneLine, tp.Tagged("kind", "what")]


@tp.variant(tuple=True)
class Ok:
    value: Tree


@tp.variant(tuple=True)
class Err:
    error: str


@tp.message(name='Job "1"', reply=Ok | Err, kw_only=True)
class Job:
    each_way: list[Way] = tp.field(name="eachWay")
    left_out: tp.u8 | None = tp.field(name="leftOut", default=None, omit_default=True)
    absent: tp.u8 | None = None
    tree: Tree
    told: Told
    here: int = tp.field(default=0, skip=True)


class Level(enum.Enum):
    Low = enum.auto()
    High = "very high"


@tp.message
class Stop: ...


@tp.message(tuple=True)
class Pair:
    first: tp.u16
    second: Optional[str]


@tp.message(tuple=True)
class Wrapped:
    inner: tp.i32


@tp.message
class Circle:
    radius: float


@tp.variant(tuple=True)
class Round:
    circle: Circle


@tp.variant
class Square:
    side: tp.f32
    level: Level


@tp.variant
class Nothing: ...


Figure = Annotated[Round | Square | Nothing, tp.Tagged("figure")]


@tp.variant
class Named:
    name: str
    tensor: tp.Tensor


@tp.variant(tuple=True)
class Both:
    left: tp.u8
    right: bool


@tp.variant(tuple=True)
class Number:
    value: tp.i64


Loose = Annotated[Named | Both | Number | Nothing, tp.Untagged()]


@tp.variant(tuple=True)
class Leaf:
    value: tp.u32


@tp.variant
class Add:
    left: Expression
    right: Expression


@tp.variant(tuple=True)
class Call:
    callee: Function


@tp.message
class Function:
    name: str
    body: Optional[Expression]


Expression = Leaf | Add | Call


@tp.message(name="Everything", reply=Level)
class Everything:
    stop: Stop
    pair: Pair
    wrapped: Wrapped
    figures: list[Figure]
    loose: list[Loose]
    expression: Expression
    function: Function
    raw: bytes
    maybe_raw: bytes | None
    names: set[str]
    levels: dict[tp.i16, Level]
    nested: dict[str, dict[tp.u8, list[tuple[tp.f32, float | None]]]]
    tensor: tp.Tensor[..., ..., "host"]
    maybe: Optional[tp.Tensor[tp.i64]]
    unit: tuple[()]


MESSAGES = {"Image": Image, "Scalars": Scalars, "Job": Job, "Tree": Tree, "Everything": Everything}
