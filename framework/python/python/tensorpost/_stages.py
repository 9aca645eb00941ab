"""Runs in the worker of a stage: finds the stage, compares its types with those of the pipeline, and gives it
its items."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from . import _actor, _stage, _torch, _worker
from ._compile import interface_of
from ._errors import SchemaError
from ._native import Call, Calls, Mailbox, differences

_END = object()


def _agree(name: str, verb: str, here: type | None, there: str | None) -> None:
    """Raises if the two sides' definitions of an item differ."""
    if here is None and there is None:
        return
    if here is None or there is None:
        mine = "nothing" if here is None else here.__name__
        other = "nothing" if there is None else json.loads(there)["message"]
        raise SchemaError(f"`{name}` {verb} {mine}, and its pipeline says {other}")
    text = interface_of(here)[0]
    if text == there:
        return
    lines = differences(text, there, "Python", "the pipeline")
    if not lines:
        raise SchemaError(f"`{name}` {verb} {json.loads(text)['message']}, and its pipeline says {json.loads(there)['message']}")
    raise SchemaError(f"what `{name}` {verb} is not what its pipeline says:\n" + "\n".join(lines))


class _Running:
    """A stage that was made."""

    def __init__(self, mailbox: Mailbox, form: _stage.Form, made: Any, given: dict[str, Any]) -> None:
        self.mailbox = mailbox
        self.form, self.made = form, made
        self.takes, self.makes = form.plans
        self.loop: asyncio.Runner | None = None
        self.items: Iterator[Any] | None = None
        self.process: Any
        if form.takes is None:
            self.process = made.__iter__ if form.method else partial(made, **given)
        else:
            self.process = getattr(made, form.method) if form.method else partial(made, **given)

    def method(self, name: str) -> Any:
        """Returns an optional method of a stage that is a class."""
        return getattr(self.made, name, None) if self.form.method else None

    def wait(self, awaited: Any) -> Any:
        """Runs a coroutine on the stage's own event loop, and returns its result."""
        if self.loop is None:
            self.loop = asyncio.Runner()
        return self.loop.run(_awaited(awaited))

    def emit(self, call: Call, made: Any) -> None:
        """Passes on the results of a call: an item, none, or several."""
        if inspect.isawaitable(made):
            made = self.wait(made)
        if made is None:
            return
        makes = self.form.makes
        if makes is not None and isinstance(made, makes):
            self.one(call, made)
        elif hasattr(made, "__aiter__"):
            self.wait(self.several(call, made))
        elif isinstance(made, str | bytes) or not hasattr(made, "__iter__"):
            self.one(call, made)
        else:
            for one in made:
                self.one(call, one)

    async def several(self, call: Call, made: Any) -> None:
        async for one in made:
            self.one(call, one)

    def one(self, call: Call, made: Any) -> None:
        makes = self.form.makes
        if makes is None or self.makes is None:
            raise TypeError(f"it made {_shown(made)}, and its annotation says that it makes nothing; write `-> {type(made).__name__}`")
        if not isinstance(made, makes):
            raise TypeError(f"it made {_shown(made)}, and its annotation says {makes.__name__}")
        call.emit(self.makes, made)

    def next(self) -> Any:
        """Makes the next item of a source."""
        if self.items is None:
            items = self.process()
            self.items = self.of_async(items) if hasattr(items, "__aiter__") else iter(items)
        return next(self.items, _END)

    def of_async(self, items: Any) -> Iterator[Any]:
        items = aiter(items)
        while (item := self.wait(anext(items, _END))) is not _END:
            yield item

    def answer(self, call: Call) -> None:
        kind = call.kind
        if kind == "item":
            assert self.takes is not None
            item = call.value(self.takes)
            made = self.process(item)
            # Before its results go on: a receiver that holds a forwarded tensor alone may write it.
            del item
            self.emit(call, made)
            del made
        elif kind == "next":
            item = self.next()
            if item is not _END:
                self.one(call, item)
            del item
        elif (finish := self.method("finish")) is not None:
            self.emit(call, finish())
        _worker.leave_fork(self.mailbox)
        call.done()

    def run(self, calls: Calls) -> None:
        while (call := calls.next()) is not None:
            try:
                self.answer(call)
            except BaseException as error:
                _worker.leave_fork(self.mailbox, error)
                _worker.flush()
                call.fail(f"`{self.form.name}` raised {_worker.shown(error)}\n{_worker.text_of(error, 2)}")
            del call
        stopped = self.method("stopped")
        if stopped is not None and inspect.isawaitable(said := stopped()):
            self.wait(said)
        if self.loop is not None:
            self.loop.close()


async def _awaited(awaited: Any) -> Any:
    return await awaited


def _shown(made: Any) -> str:
    name = type(made).__name__
    return f"an {name}" if name[:1] in "AEIOUaeiou" else f"a {name}"


def _make(
    mailbox: Mailbox, name: str, path: list[str], own: bool, args: bytes, schemas: tuple[str | None, str | None]
) -> _Running:
    found, rest = _worker.find(name, "stage", path, own, args)
    form = _stage.form_of(found)
    _agree(form.name, "takes", form.takes, schemas[0])
    _agree(form.name, "makes", form.makes, schemas[1])
    # GPU work in the stage's constructor is enqueued on the stage's stream.
    _torch.enter(mailbox)
    call_args: tuple[Any, ...] = ()
    if rest is not None:
        call_args, given = _worker.unpickled(mailbox, rest)
    else:
        given = _worker.values(mailbox, found, form.parameters, form.hints, args)
    if call_args:
        names = [parameter.name for parameter in form.parameters]
        given = {**dict(zip(names, call_args, strict=False)), **given}
    if form.has_env:
        given["env"] = _actor.env()
    if form.method is not None:
        return _Running(mailbox, form, found(**given), {})
    return _Running(mailbox, form, found, given)


def run(
    mailbox: Mailbox, calls: Calls, name: str, path: list[str], own: bool, args: bytes, schemas: tuple[str | None, str | None]
) -> None:
    """Runs a stage on this thread until no more calls come."""
    _actor.enter(mailbox)
    try:
        running = _make(mailbox, name, path, own, args, schemas)
        _torch.enter(mailbox)
        _torch.allocate(mailbox)
        warmup = running.method("warmup")
        if warmup is not None and inspect.isawaitable(warm := warmup()):
            running.wait(warm)
        _worker.leave_fork(mailbox)
    except BaseException as error:
        _worker.leave_fork(mailbox, error)
        _worker.flush()
        mailbox.fail(f"{_worker.shown(error)}\n{_worker.text_of(error, 1)}")
        return
    mailbox.ready()
    try:
        running.run(calls)
        _worker.leave_fork(mailbox)
    except BaseException as error:
        _worker.leave_fork(mailbox, error)
        what = f"it raised {type(error).__name__} outside of its items: {_worker.said(error)}"
        mailbox.fail(f"{what}\n{_worker.text_of(error, 1)}")
    finally:
        _worker.flush()
