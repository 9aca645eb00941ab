"""Compares the script's global values that the code of an actor or a stage reads.

A worker loads the script once more. A global that the script has read from its input, its arguments or a
clock would have another value there, without a word. So the program sends the values that such code names,
and a worker in which one of them differs refuses to start it.
"""

from __future__ import annotations

import copy
import dis
import types
from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import NodeError

PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST = 1000
"""Values with more elements than this are not compared."""
GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")


def _size(value: Any, left: int) -> int:
    """Returns how many elements may still come, below 0 if ``value`` is not plain data or too large."""
    left -= 1
    if type(value) in PLAIN or left < 0:
        return left
    if type(value) is dict:
        value = [*value, *value.values()]
    elif type(value) not in (tuple, list, set, frozenset):
        return -1
    for element in value:
        if (left := _size(element, left)) < 0:
            return left
    return left


def _codes(of: Any) -> Iterator[types.CodeType]:
    """Yields the code of a function or of a class's methods, with the functions inside."""
    if isinstance(of, type):
        for member in vars(of).values():
            for part in (member, *(getattr(member, name, None) for name in ("__func__", "fget", "fset", "fdel", "__wrapped__"))):
                if isinstance(part, types.FunctionType):
                    yield from _codes(part)
    elif isinstance(of, types.FunctionType):
        left = [of.__code__]
        while left:
            code = left.pop()
            left.extend(inner for inner in code.co_consts if isinstance(inner, types.CodeType))
            yield code


def reads(of: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plain values among the globals ``names`` of the script that the code of ``of`` names, also
    by way of the script's functions and classes."""
    values: dict[str, Any] = {}
    module, left, seen = of.__module__, [of], {id(of)}
    while left:
        thing = left.pop()
        if isinstance(thing, type):
            left.extend(base for base in thing.__bases__ if base.__module__ == module and id(base) not in seen)
        for code in _codes(thing):
            for name in {step.argval for step in dis.get_instructions(code) if step.opname in GLOBALS}:
                if name.startswith("__") or name not in names:
                    continue
                value = names[name]
                if isinstance(value, type | types.FunctionType) and value.__module__ == module and id(value) not in seen:
                    seen.add(id(value))
                    left.append(value)
                elif _size(value, MOST) >= 0:
                    values[name] = value
    return values


_compared: dict[str, Any] = {}


def compare(what: str, told: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Raises :class:`NodeError` if a value of this worker is another than the program has ``told``."""
    for name, value in told.items():
        # An actor may change its globals later; the value at the script's load counts.
        if name not in _compared:
            _compared[name] = copy.deepcopy(names.get(name)) if _size(names.get(name), MOST) >= 0 else None
        here = _compared[name]
        if type(here) is not type(value) or (here != value and repr(here) != repr(value)):
            raise NodeError(
                f"`{what}` reads the global `{name}`, which is {here!r:.80} in its worker and {value!r:.80} in the program: a worker loads "
                f"the script once more; pass `{name}` as an argument"
            )
