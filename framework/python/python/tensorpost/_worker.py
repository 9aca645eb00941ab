"""Runs in a worker: finds the class of an actor, makes the actor, and gives it its messages."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import math
import os
import pickle
import sys
import threading
import time
import traceback
from typing import Any

from . import _actor, _main, _script, _torch
from ._compile import arguments_plan
from ._errors import DecodeError, NodeError, plain
from ._native import Address, Delivered, Mailbox, Tensor

is_worker = False
"""Whether this process is one: it starts no node."""
MOST_COMPARED = 32 << 10
"""An order by an actor with more bytes than this carries no values of the script."""
_loading = threading.Lock()
_began_in = _main.first_folder


def _forked() -> None:
    """Resets the state in a forked child: the parent is the worker, and not the child."""
    global is_worker, _loading
    is_worker, _loading = False, threading.Lock()
    main: Any = threading.main_thread()
    # An actor's thread was not started by Python, and is made the main one here. Before 3.12.4 Python does
    # not convert such a thread, and the child would fail at its exit.
    if isinstance(main, threading._DummyThread):
        main.__class__, main._name, main._daemon = getattr(threading, "_MainThread"), "MainThread", False  # noqa: B009
        main._set_tstate_lock()


os.register_at_fork(after_in_child=_forked)


class _Pickler(pickle.Pickler):
    needs: str | None = None
    """Something of it that is in the program's main module."""
    met: list[Address[Any]] | None = None
    """Where the addresses in it are put."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Address):
            if self.met is not None:
                self.met.append(obj)
            return "address", obj._bytes()
        if isinstance(obj, Tensor):
            raise NodeError("the arguments hold a tensor; start the actor without it, and send it in a message")
        if (name := _main.holds(obj)) is not None:
            self.needs = name
            return "main", name
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, mailbox: Mailbox, main: tuple[str | None, str | None]) -> None:
        super().__init__(file)
        self.mailbox, self.main = mailbox, main

    def persistent_load(self, pid: Any) -> Any:
        return self.mailbox.address(pid[1]) if pid[0] == "address" else _main.named(pid[1], *self.main)

    def find_class(self, module: str, name: str, /) -> Any:
        # Some objects give the pickler their own name.
        return _main.named(name, *self.main) if module in _main.NAMES else super().find_class(module, name)


def place_of(cls: type) -> str:
    """Returns the place where a worker finds a class."""
    if "<locals>" in cls.__qualname__:
        raise NodeError(f"`{cls.__qualname__}` is defined in a function, where a worker cannot find it; define it in a module")
    is_in_main = cls.__module__ in _main.NAMES
    first, *rest = cls.__qualname__.split(".")
    found: Any = _main.names().get(first) if is_in_main else getattr(sys.modules.get(cls.__module__), first, None)
    for part in rest:
        found = getattr(found, part, None)
    if found is not None and found is not cls:
        raise NodeError(
            f"`{cls.__qualname__}` is the name of something else by now, and a worker would find that: give each its own name, "
            "or pass what differs as an argument"
        )
    return f"{_main.MAIN if is_in_main else cls.__module__}:{cls.__qualname__}"


def order_of(
    cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], *, met: list[Address[Any]] | None = None
) -> tuple[str, bytes]:
    """Names an actor's class for a worker, and pickles everything else that it needs. ``met`` gets the
    addresses in it, which must belong to the worker's node."""
    name, inner = place_of(cls), io.BytesIO()
    pickler = _Pickler(inner, protocol=5)
    pickler.met = met
    try:
        pickler.dump((args, kwargs))
    except NodeError:
        raise
    except Exception as error:
        raise NodeError(f"the arguments of `{cls.__qualname__}` cannot be pickled: {error}") from error
    needed = cls.__qualname__ if cls.__module__ in _main.NAMES else pickler.needs
    try:
        main = _main.where(needed or "")
    except NodeError:
        if needed is not None:
            raise
        main = None, None
    read = _script.reads(cls, _main.names()) if cls.__module__ in _main.NAMES else {}
    rest = {"main": main, "reads": read, "call": inner.getvalue(), **_main.surroundings()}
    order = pickle.dumps(rest, protocol=5)
    if is_worker and len(order) > MOST_COMPARED:
        # An actor's request to start another is bounded, and its arguments come first.
        order = pickle.dumps({**rest, "reads": {}}, protocol=5)
    return name, order



def named(name_of_it: str, what: str) -> Any:
    module, _, name = name_of_it.partition(":")
    if not name:
        module, _, name = name_of_it.rpartition(".")
    if not module:
        raise NodeError(f"`{name_of_it}` names no {what}; say `module:{what.capitalize()}`")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NodeError(
            f"there is no module `{error.name}` for the {what} `{name_of_it}`: it is looked for where the program says, and not in the "
            "working directory; name its folder, with `Python::path` in Rust and in sys.path in Python"
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NodeError(f"the module `{module}` has no `{name}`; it is {getattr(found, '__file__', None) or found!r}") from None
    return found


def find(name: str, what: str, path: list[str], own: bool, args: bytes) -> tuple[Any, Any]:
    """Finds the object with this name in a module, and reads the further data from a Python program."""
    rest = None
    # One at a time: the path and the modules belong to the process.
    with _loading:
        if own:
            rest = pickle.loads(args)
            _main.enter(rest)
            if name.startswith(f"{_main.MAIN}:"):
                found = _main.named(name.partition(":")[2], *rest["main"])
                _script.compare(found, rest["reads"], vars(_main.load(*rest["main"])))
                return found, rest
        else:
            # Relative to the folder in which the worker began: an actor may change the directory.
            first = [os.path.join(_began_in, folder) for folder in path]
            sys.path[:] = [*first, *(folder for folder in sys.path if folder not in first)]
        return named(name, what), rest


def unpickled(mailbox: Mailbox, rest: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Reads the arguments from a Python program."""
    return _Unpickler(io.BytesIO(rest["call"]), mailbox, rest["main"]).load()  # type: ignore[no-any-return]


def _make(mailbox: Mailbox, actor: str, path: list[str], own: bool, args: bytes) -> Any:
    cls, rest = find(actor, "class", path, own, args)
    _actor.info(cls)
    # GPU work in the actor's constructor is enqueued on the actor's stream.
    _torch.enter(mailbox)
    if rest is not None:
        call_args, call_kwargs = unpickled(mailbox, rest)
        return cls(*call_args, **call_kwargs)
    init: Any = getattr(cls, "__init__")  # noqa: B009
    fields = list(inspect.signature(init).parameters.values())[1:] if init is not object.__init__ else []
    return cls(**values(mailbox, cls, fields, _actor.hints(cls, init) if fields else {}, args))


def values(mailbox: Mailbox, of: Any, fields: list[inspect.Parameter], hints: dict[str, Any], args: bytes) -> dict[str, Any]:
    """Reads the arguments of a class or a function from a Rust program."""
    head = args[0]
    if head == 0xC0:
        args = b"\x90"
    elif not (0x80 <= head <= 0x9F or 0xDC <= head <= 0xDF):
        args = b"\x91" + args  # the only one, by itself
    plan = arguments_plan(of, fields, hints)
    read: dict[str, Any] = vars(mailbox.decode(plan, args))
    return read


def text_of(error: BaseException, skip: int) -> str:
    """Returns the text of an exception with its traceback, without our own frames at its beginning."""
    where = error.__traceback__
    for _ in range(skip):
        where = where.tb_next if where is not None and where.tb_next is not None else where
    try:
        text = "".join(traceback.format_exception(type(error), error, where)).rstrip()
    except BaseException as other:
        return f"{shown(error)}\n(its traceback cannot be had: {type(other).__name__})"
    return _sendable(text)


def said(error: BaseException) -> str:
    """Returns the text of an exception. Never raises, although the text is made by the program's own code."""
    try:
        return _sendable(str(error))
    except BaseException as other:
        return f"its text cannot be had, because its `__str__` raised {type(other).__name__}"


def shown(error: BaseException) -> str:
    """Returns an exception in one line, as the last line of a traceback. Never raises."""
    text = said(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _sendable(text: str) -> str:
    """Returns a text without lone surrogates, which names of files bring along and no message can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Refused(Exception):
    """A message that no handler gets."""


class _Lines:
    """Prints lines of one kind on stderr: at most one in a second, with the number of those left out. Other
    processes cause them, without end if they like."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_out = 0
        self.next = -math.inf

    def tell(self, line: str) -> None:
        now = time.monotonic()
        if now < self.next:
            self.left_out += 1
            return
        self.next = now + 1.0
        self.put(f"{line}{self.more('; ')}")

    def more(self, between: str = "") -> str:
        """Says how many were left out since the last line."""
        count, self.left_out = self.left_out, 0
        return f"{between}{count} more like it {'was' if count == 1 else 'were'} left out" if count > 0 else ""

    def end(self) -> None:
        if more := self.more():
            self.put(more)

    def put(self, line: str) -> None:
        try:
            print(f"tensorpost: {self.name}: {plain(line)}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass  # closed, or nobody reads it


class _Actor:
    """An actor and its handlers."""

    def __init__(self, mailbox: Mailbox, made: Any) -> None:
        self.mailbox, self.made = mailbox, made
        self.by_key: dict[int | None, tuple[_actor.Handler, Any]] = {}
        for handler in _actor.handlers_of(type(made)):
            key = None if handler.plan is None else _actor._way_of(handler.message)[1]
            self.by_key[key] = handler, getattr(made, handler.name)
        self.plain = [
            (key, handler.plan, handler.reply, method)
            for key, (handler, method) in self.by_key.items()
            if key is not None and handler.plan is not None and not handler.is_async
        ]
        self.waits = any(handler.is_async for handler, _ in self.by_key.values())
        self.tasks: set[asyncio.Task[None]] = set()
        self.open: set[Delivered] = set()
        """The messages that Python has and that have no answer yet."""
        self.broken: BaseException | None = None
        """An error of this module's own code in the event loop."""
        self.refused, self.not_sent = _Lines(mailbox.name), _Lines(mailbox.name)

    def find(self, given: Delivered) -> tuple[_actor.Handler, Any, Any]:
        """Returns the handler of a message, its method, and the message's value."""
        key = given.key
        handler, method = self.by_key.get(key, (None, None))
        if handler is None:
            raise _Refused(self.unknown(key))
        if handler.plan is None:
            event = given.event()
            assert event is not None
            return handler, method, _actor.Lifecycle(*event)
        try:
            return handler, method, given.value(handler.plan)
        except DecodeError as error:
            raise _Refused(f"{handler.message.__name__} is malformed: {error}") from None

    def unknown(self, key: int | None) -> str:
        if key is None:
            return "it has no handler for tp.Lifecycle"
        known = ", ".join(f"{handler.message.__name__} ({key:016x})" for key, (handler, _) in self.by_key.items() if key is not None)
        return (
            f"{type(self.made).__qualname__} has no handler for a message with key {key:016x}; it handles {known}. Where the name is "
            "the same, the two definitions differ: compare tp.schema(..) with `Portable::schema()` of Rust"
        )

    def refuse(self, given: Delivered, why: str) -> None:
        given.unread(why)
        self.refused.tell(f"a message was refused: {why}")

    def fail(self, given: Delivered, handler: _actor.Handler, error: BaseException, skip: int) -> None:
        flush()
        name = f"{type(self.made).__qualname__}.{handler.name}"
        what = f"its handler {name} of {handler.message.__name__} raised {shown(error)}"
        given.fail(what, f"{what}\n{text_of(error, skip)}")

    def unsent(self, given: Delivered, handler: _actor.Handler, error: BaseException) -> None:
        given.unsent(why := shown(error))
        self.not_sent.tell(f"the reply of {type(self.made).__qualname__}.{handler.name} was not sent: {why}")

    def reply(self, given: Delivered, handler: _actor.Handler, value: Any) -> None:
        # Checked first: if the handler has written memory that it must not write, nothing of it may be sent.
        given.check_writes()
        try:
            given.reply(handler.reply, value)
        except Exception as error:
            self.unsent(given, handler, error)

    def handle(self, given: Delivered) -> bool:
        """Handles a message on this thread. Returns False if the actor has failed."""
        try:
            handler, method, value = self.find(given)
        except _Refused as refused:
            self.refuse(given, str(refused))
            return True
        try:
            reply = method(value)
            leave_fork(self.mailbox)
            del value
            self.reply(given, handler, reply)
        except BaseException as error:
            leave_fork(self.mailbox, error)
            self.fail(given, handler, error, 1)
            return False
        return True

    def run(self) -> None:
        while (served := self.mailbox.serve(self.plain)) is not None:
            given, how, error = served
            self.open.add(given)
            if how == "forked":
                leave_fork(self.mailbox, error)
            if how == "other":
                if not self.handle(given):
                    return
            elif how == "malformed":
                assert error is not None
                self.refuse(given, f"{self.by_key[given.key][0].message.__name__} is malformed: {said(error)}")
            elif how == "unsent":
                assert error is not None
                self.unsent(given, self.by_key[given.key][0], error)
            else:
                assert error is not None
                self.fail(given, self.by_key[given.key][0], error, 0)
                return
            self.open.discard(given)
            del served, given, error
        self.stopped()

    def break_off(self, error: BaseException) -> None:
        """Fails the actor for an error outside of its handlers. All messages without an answer get this as
        their answer: a frame of the error's traceback, or a task, may keep them for ever."""
        what = f"it raised {type(error).__name__} outside of its handlers: {said(error)}"
        why = f"{what}\n{text_of(error, 1)}"
        while self.open:
            self.open.pop().fail(what, why)
        self.mailbox.fail(why)

    def end(self) -> None:
        """Ends what is left: tasks that were cancelled before they began, and lines that were left out."""
        while self.open:
            self.open.pop().refuse("the actor has ended")
        self.refused.end()
        self.not_sent.end()
        flush()

    async def await_handler(self, given: Delivered, handler: _actor.Handler, method: Any, value: Any) -> None:
        try:
            reply = await method(value)
            leave_fork(self.mailbox)
            self.reply(given, handler, reply)
        except BaseException as error:
            leave_fork(self.mailbox, error)
            self.fail(given, handler, error, 1)
            self.done.set()
        self.open.discard(given)

    def ended(self, task: asyncio.Task[None]) -> None:
        """Notes the end of a task. Handlers' own errors do not come here."""
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.breaks(error)

    def breaks(self, error: BaseException) -> None:
        """Ends the event loop for an error of this module's own code, which the loop would only print."""
        self.broken = self.broken or error
        self.done.set()

    def begin(self, given: Delivered) -> bool:
        """Handles a message, or begins to. Returns False if the actor has failed."""
        self.open.add(given)
        handler, method = self.by_key.get(given.key, (None, None))
        if handler is None or not handler.is_async:
            goes_on = self.handle(given)
            self.open.discard(given)
            return goes_on
        try:
            handler, method, value = self.find(given)
        except _Refused as refused:
            self.refuse(given, str(refused))
            self.open.discard(given)
            return True
        task = asyncio.get_running_loop().create_task(self.await_handler(given, handler, method, value))
        self.tasks.add(task)
        task.add_done_callback(self.ended)
        return True

    def some(self) -> None:
        """Handles messages that have come, or the news that no more come."""
        try:
            self.mailbox.drain()
            while (given := self.mailbox.take()) is not None:
                if not self.begin(given):
                    self.done.set()
                    return
            if self.mailbox.closed:
                self.done.set()
        except BaseException as error:
            self.breaks(error)

    async def run_async(self) -> None:
        self.done = asyncio.Event()
        bell = self.mailbox.bell()
        loop = asyncio.get_running_loop()
        loop.add_reader(bell, self.some)
        try:
            await self.done.wait()
        finally:
            loop.remove_reader(bell)
        if self.broken is not None:
            # Told before the tasks are cancelled, which would answer that they were cancelled.
            self.break_off(self.broken)
            return
        for task in list(self.tasks):
            task.cancel()
        stopped = getattr(self.made, "stopped", None)
        if inspect.iscoroutinefunction(stopped):
            await stopped()
        else:
            self.stopped()

    def warm_up(self) -> None:
        warmup = getattr(self.made, "warmup", None)
        if warmup is not None:
            warmup()

    def stopped(self) -> None:
        stopped = getattr(self.made, "stopped", None)
        if stopped is not None:
            stopped()


def leave_fork(mailbox: Mailbox, error: BaseException | None = None) -> None:
    """Ends a child that an actor's code has forked, and that has returned from that code: the actor belongs
    to the parent. The child ends as a program that is done, or that raised ``error``. Returns in any other
    process."""
    if not mailbox.is_inherited:
        return
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else error.code is not None
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        flush()
    finally:
        os._exit(status)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # closed, or nobody reads it


def run(mailbox: Mailbox, actor: str, path: list[str], own: bool, args: bytes) -> None:
    """Runs an actor on this thread until its mailbox is closed."""
    _actor.enter(mailbox)
    try:
        running = _Actor(mailbox, _make(mailbox, actor, path, own, args))
        leave_fork(mailbox)
    except BaseException as error:
        leave_fork(mailbox, error)
        flush()
        mailbox.fail(f"{shown(error)}\n{text_of(error, 1)}")
        return
    try:
        _torch.enter(mailbox)
        _torch.allocate(mailbox)
        running.warm_up()
        leave_fork(mailbox)
    except BaseException as error:
        leave_fork(mailbox, error)
        flush()
        mailbox.fail(f"{shown(error)}\n{text_of(error, 1)}")
        return
    mailbox.ready()
    try:
        if running.waits:
            asyncio.run(running.run_async())
        else:
            running.run()
        leave_fork(mailbox)
    except BaseException as error:
        leave_fork(mailbox, error)
        running.break_off(error)
    finally:
        running.end()


__all__ = ["find", "flush", "leave_fork", "order_of", "run", "text_of", "unpickled", "values"]
