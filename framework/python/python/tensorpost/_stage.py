"""Stages of pipelines: the decorator, and the input and result types of a class or a function."""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin

from . import _actor
from ._compile import interface_of, plan_of, reply_of
from ._errors import SchemaError
from ._message import info_of
from ._native import Plan

_S = TypeVar("_S", bound=Callable[..., Any])

STAGE = "__tensorpost_stage__"

_SEVERAL = (
    list,
    tuple,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)


@dataclass
class StageInfo:
    """The data that the decorator keeps."""

    names: dict[str, Any] | None
    """Names of the place where it was defined, for annotations that are text."""


@dataclass
class Form:
    """The input type, the result type and the arguments of a stage."""

    of: Any
    name: str
    takes: type | None
    """None of a source."""
    makes: type | None
    """None of a sink."""
    method: str | None
    """The method of a class that takes items."""
    parameters: list[inspect.Parameter]
    """Of ``__init__``, or of the function behind the item."""
    hints: dict[str, Any]
    has_env: bool
    """Whether a parameter ``env`` is among them, which is in no program's arguments."""

    @property
    def plans(self) -> tuple[Plan | None, Plan | None]:
        """The plans by which items are read and written."""
        return (None if self.takes is None else plan_of(self.takes)), (None if self.makes is None else plan_of(self.makes))


def stage(what: _S, /) -> _S:
    """Makes a class or a function a stage of pipelines, whose items are messages::

        @tp.stage
        def brighten(frame: Frame, by: float) -> Frame:
            return Frame(frame.id, frame.pixels.torch() * by)

        @tp.stage
        class Detect:
            def __init__(self, env, weights: str):
                self.net = load(weights).to(env.device)

            def process(self, frame: Frame) -> Boxes | None:
                ...

    The annotations declare its input and results. It returns an item, ``None`` for none, or several: a list,
    or by ``yield``. The annotation is then ``Frame | None``, ``list[Frame]`` or ``Iterator[Frame]``. A stage
    that makes nothing, ``-> None``, is the end of a pipeline. A coroutine is waited for, and no other item is
    taken meanwhile.

    Further parameters of a function, and those of ``__init__``, are the stage's arguments; a parameter
    ``env`` gets the result of :func:`env`. In a class the method is called ``process``, or has the decorator
    :func:`handler`. ``warmup(self)`` runs before the first item, ``finish(self)`` after the last one, and may
    return items as well; ``stopped(self)`` runs at the stage's clean end.

    A source has no item parameter: a function with ``yield``, or a class with ``__iter__``, whose result is
    annotated with ``Iterator[Frame]``.
    """
    if not isinstance(what, type) and not inspect.isfunction(what):
        raise SchemaError(f"@tp.stage stands on a class or a function, and not on {what!r}")
    frame = sys._getframe(1)
    names = dict(frame.f_locals) if frame.f_locals is not frame.f_globals else None
    setattr(what, STAGE, StageInfo(names))
    try:
        form_of(what)
    except NameError:
        pass  # what is defined below it is known when it is started
    return what


def info(of: Any) -> StageInfo:
    """Returns the data that the decorator keeps of a stage."""
    known = vars(of).get(STAGE) if isinstance(of, type) or inspect.isfunction(of) else None
    if known is None:
        name = getattr(of, "__qualname__", None) or repr(of)
        raise SchemaError(f"`{name}` is no stage; give it the decorator @tp.stage")
    return typing.cast(StageInfo, known)


def _hints(of: Any, function: Any) -> dict[str, Any]:
    names = {**(info(of).names or {}), of.__name__: of}
    annotated = {name: hint for name, hint in function.__annotations__.items() if name != "env"}
    holder = types.SimpleNamespace(__annotations__=annotated)
    return typing.get_type_hints(holder, globalns=function.__globals__, localns=names, include_extras=True)


def _item(of: Any, where: str) -> type:
    """Checks that a type is a class of messages without a reply."""
    described = info_of(of)
    if described is None or described.is_variant:
        name = getattr(of, "__name__", None) or repr(of)
        raise SchemaError(f"{where}: `{name}` is no message; give it the decorator @tp.message")
    if reply_of(of) is not type(None):
        raise SchemaError(f"{where}: {of.__name__} has a reply, and nobody replies to the items of a pipeline")
    return typing.cast(type, of)


def _made(of: Any, where: str) -> type | None:
    """Returns the item type in a result's annotation."""
    if of is None or of is type(None):
        return None
    origin, arguments = get_origin(of), get_args(of)
    if origin is Union or origin is types.UnionType:
        some = [one for one in arguments if one is not type(None)]
        if len(some) != 1:
            raise SchemaError(f"{where}: a stage makes items of one type; say Frame | None for one that may make none")
        return _made(some[0], where)
    if origin in _SEVERAL:
        return _made(arguments[0], where)
    return _item(of, where)


def _method_of(cls: type, is_source: bool) -> str:
    if is_source:
        return "__iter__"
    marked = [name for name, method in inspect.getmembers(cls) if hasattr(method, _actor.HANDLER)]
    if len(marked) > 1:
        raise SchemaError(f"{cls.__qualname__}: a stage takes items of one type; {' and '.join(marked)} are both handlers")
    name = marked[0] if marked else "process"
    if not inspect.isfunction(getattr(cls, name, None)):
        raise SchemaError(f"{cls.__qualname__} has no method `process`, and none with @tp.handler, that takes its items")
    return name


def form_of(of: Any) -> Form:
    """Returns the input type, the result type and the arguments of a stage. A class with ``__iter__`` and
    without a method for items is a source, and so is a function whose first parameter is not a message."""
    info(of)
    if isinstance(of, type):
        return _form_of_class(of)
    where = of.__qualname__
    hints = _hints(of, of)
    makes = _made(hints.get("return"), f"{where} -> ..")
    parameters = list(inspect.signature(of).parameters.values())
    first = parameters[0] if parameters else None
    # A function without an item parameter before its arguments is a source.
    if first is not None and info_of(hints.get(first.name)) is not None:
        takes = _item(hints[first.name], f"{where}({first.name})")
        return _with_arguments(Form(of, where, takes, makes, None, parameters[1:], hints, False))
    if makes is None:
        shown = "nothing" if first is None else f"`{first.name}`"
        raise SchemaError(f"{where}: say which items it takes, as in def {of.__name__}(frame: Frame) -> ..; it has {shown} first")
    return _with_arguments(Form(of, where, None, makes, None, parameters, hints, False))


def _form_of_class(cls: type) -> Form:
    is_source = hasattr(cls, "__iter__") and not hasattr(cls, "process")
    name = _method_of(cls, is_source)
    method, where = getattr(cls, name), f"{cls.__qualname__}.{name}"
    hints = _hints(cls, method)
    makes = _made(hints.get("return"), f"{where} -> ..")
    takes = None
    if is_source:
        if makes is None:
            raise SchemaError(f"{where}: say what the source makes: def __iter__(self) -> Iterator[Frame]")
    else:
        parameters = list(inspect.signature(method).parameters.values())
        if len(parameters) != 2 or parameters[1].name not in hints:
            raise SchemaError(f"{where}: it has two parameters, self and the item with its type: def {name}(self, frame: Frame)")
        takes = _item(hints[parameters[1].name], f"{where}({parameters[1].name})")
    init: Any = getattr(cls, "__init__")  # noqa: B009
    own = inspect.isfunction(init)
    parameters = list(inspect.signature(init).parameters.values())[1:] if own else []
    return _with_arguments(Form(cls, cls.__qualname__, takes, makes, name, parameters, _hints(cls, init) if own else {}, False))


def _with_arguments(form: Form) -> Form:
    form.has_env = any(parameter.name == "env" for parameter in form.parameters)
    form.parameters = [parameter for parameter in form.parameters if parameter.name != "env"]
    return form


def schemas_of(form: Form) -> tuple[str | None, str | None]:
    """Returns the canonical texts of its input and result types."""
    takes = None if form.takes is None else interface_of(form.takes)[0]
    return takes, None if form.makes is None else interface_of(form.makes)[0]
