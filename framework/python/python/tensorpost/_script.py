"""Compares the values of a script that the code of an actor or a stage reads.

A worker loads the script once more. A value that the script has read from its input, its arguments or a clock
would be another one there, without a word, and so would one that the program sets below its guard. So the
program sends the plain values that such code names: globals, attributes of the script's classes and of the
program's other modules, and defaults of parameters. A worker in which one of them differs refuses to start
the code.
"""

from __future__ import annotations

import dis
import functools
import os
import types
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ._errors import NodeError
from ._main import MAIN

PLAIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN_NAMES = frozenset(
    ("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "decimal.Decimal", "fractions.Fraction", "uuid.UUID")
)
MOST = 1000
"""Values with more elements than this are not compared, and of longer texts a checksum is."""
GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


class _Opaque(Exception):
    """A value that is not plain data, or too large."""


def _plain(value: Any, left: list[int]) -> Any:
    """Returns a value as plain data, a copy; ``left`` is the number of elements that may still come."""
    kind = type(value)
    left[0] -= 1
    if left[0] < 0:
        raise _Opaque
    if kind in (str, bytes) and len(value) > MOST:
        # Its beginning and a checksum: an order stays small.
        data = value if kind is bytes else value.encode(errors="surrogatepass")
        return f"{value[:40]!r}.. of {len(value)}, checksum {zlib.crc32(data):08x}"
    if kind is str and value == MAIN:
        # The script's `__name__` is another in a worker.
        return "__main__"
    if kind in PLAIN:
        return value
    if f"{kind.__module__}.{kind.__qualname__}" in PLAIN_NAMES:
        # A worker reads the values before it loads the script or other libraries.
        if type(getattr(value, "tzinfo", None)).__module__ not in ("builtins", "datetime", "zoneinfo"):
            raise _Opaque
        return value
    if kind.__module__.startswith("pathlib"):
        # Versions of Python have its class in other modules, where another one cannot load it.
        return str(value)
    if kind in (tuple, list, set, frozenset):
        return kind([_plain(element, left) for element in value])
    if kind is dict:
        return {_plain(key, left): _plain(element, left) for key, element in value.items()}
    if kind.__module__ == "numpy" and getattr(value, "size", MOST) < MOST and hasattr(value, "tolist"):
        return _plain(value.tolist(), left)
    raise _Opaque


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Adds a value, if it is plain."""
    try:
        values[name] = _plain(value, [MOST])
    except Exception:
        pass  # such as a list that is in itself, or a value that cannot be looked at


def _functions(of: Any) -> Iterator[types.FunctionType]:
    """Yields a function, or those of a class."""
    if isinstance(of, type):
        for member in vars(of).values():
            for part in (member, *(getattr(member, name, None) for name in ("__func__", "fget", "fset", "fdel", "__wrapped__"))):
                if isinstance(part, types.FunctionType):
                    yield part
    elif isinstance(of, types.FunctionType):
        yield of


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """Yields the code of a function, with the functions inside."""
    left = [function.__code__]
    while left:
        code = left.pop()
        left.extend(inner for inner in code.co_consts if isinstance(inner, types.CodeType))
        yield code


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if "<" in function.__qualname__:
        return  # several may have this name, such as `<lambda>`
    code, defaults = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults)
    yield from (function.__kwdefaults__ or {}).items()


@functools.cache
def _installed() -> tuple[str, ...]:
    """Returns the folders of modules that are not the program's own."""
    import sysconfig

    return tuple(path + os.sep for name, path in sysconfig.get_paths().items() if name.endswith("lib"))


def _is_own(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or file.startswith(_installed()) or module.__name__.partition(".")[0] == "tensorpost":
        return False
    # Those of the user or the distribution are in no folder of `sysconfig`.
    return not {"site-packages", "dist-packages"}.intersection(file.split(os.sep))


def reads(of: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plain values that the code of ``of`` names, also by way of the script's functions and
    classes. ``names`` are the script's globals."""
    values: dict[str, Any] = {}
    module, left, seen = of.__module__, [of], {id(of)}

    def meet(thing: Any) -> None:
        if id(thing) not in seen and thing.__module__ == module:
            seen.add(id(thing))
            left.append(thing)

    while left:
        thing = left.pop()
        if isinstance(thing, type):
            for base in thing.__bases__:
                meet(base)
            for name, member in vars(thing).items():
                if not name.startswith("__") and "<" not in thing.__qualname__:
                    _put(values, f"{thing.__qualname__}.{name}", member)
        for function in _functions(thing):
            for name, default in _defaults(function):
                _put(values, f"{function.__qualname__}({name})", default)
            for code in _codes(function):
                before, named = None, ""
                for step in dis.get_instructions(code):
                    if step.opname in GLOBALS and step.argval in names and not step.argval.startswith("__"):
                        before, named = names[step.argval], step.argval
                        if isinstance(before, type | types.FunctionType):
                            meet(before)
                        else:
                            _put(values, named, before)
                        continue
                    # No `getattr`: a module's `__getattr__` may load much, or fail.
                    if step.opname in ATTRIBUTES and isinstance(before, types.ModuleType) and step.argval in vars(before):
                        if _is_own(before):
                            _put(values, f"{named}.{step.argval}", vars(before)[step.argval])
                    before = None
    return values


_compared: dict[str, Any] = {}


def compare(of: Any, told: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Raises :class:`NodeError` if a value of this worker is another than the program has ``told``."""
    for name, value in reads(of, names).items():
        # An actor may change its globals later; the value at the script's load counts.
        _compared.setdefault(name, value)
    for name, value in told.items():
        here = _compared.get(name)
        if type(here) is not type(value) or (here != value and repr(here) != repr(value)):
            what = f"the global `{name}`" if name.isidentifier() else f"`{name}`"
            raise NodeError(
                f"`{of.__qualname__}` reads {what}, which is {here!r:.80} in its worker and {value!r:.80} in the program: a worker loads "
                f"the script once more; pass `{name}` as an argument"
            )
