"""Published state: the latest version of a value that other actors replace."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from ._errors import AskError, DeadlineError, DecodeError, NodeError, SchemaError, SendError, UnhandledError, plain
from ._message import MARK, Info, info_of
from ._native import INHERITED, Address
from ._types import u64

_M = TypeVar("_M")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
"""Seconds until the next look for a topic that was not there; doubled each time. The registry has no event
for a new name."""

QUESTION = MARK + "newer"

MOST_HEARD = 1 << 62
"""The highest number that a topic believes a reader to have from a topic before it. Any process can be a
reader, and its number must leave numbers for later versions. A reader believes twice as much of a topic."""


@dataclass(frozen=True)
class Version(Generic[_M]):
    """One version of a published value."""

    number: int
    """Counts from 1; what was published later has a higher number."""
    value: _M
    """The value, whole."""


class TopicClosed(NodeError):
    """No more versions will come: the node is shutting down, or the subscriber was closed."""


def question_of(message: type) -> type:
    """Returns the message by which a topic of these is asked for a newer version;
    ``tensorpost::published::Newer`` in Rust."""
    known: type | None
    if (known := vars(message).get(QUESTION)) is not None:
        return known
    info = info_of(message)
    if info is None or info.is_variant:
        shown = getattr(message, "__name__", None) or repr(message)
        raise SchemaError(f"`{shown}` is no message; give it the decorator @tp.message")
    if info.reply is not None:
        raise SchemaError(f"`{info.name}` has a reply, and so cannot be published")
    newest = _made("Newest", Info("Newest", False, None), life=u64, number=u64, value=message | None)
    name = f"tensorpost::Newer<{info.name}>"
    question = _made("Newer", Info(name, False, None, newest), than=u64, life=u64)
    setattr(message, QUESTION, question)
    return question


def _made(name: str, info: Info, **fields: Any) -> type:
    made = dataclass(type(name, (), {"__annotations__": fields, "__module__": __name__}))
    setattr(made, MARK, info)
    return made


class Subscriber(Generic[_M]):
    """Follows the latest version of a value that is published under a name: :meth:`Node.subscribe` and
    :meth:`Env.subscribe` make one. It holds the newest version, which lives until the next has come and
    nothing uses it any more. ::

        @tp.actor
        class Evaluator:
            def __init__(self):
                self.weights = tp.env().subscribe(Weights, "weights")

            @tp.handler
            def evaluate(self, batch: Batch) -> float:
                weights = self.weights.ready(timeout=30).value

    The topic is an actor, such as ``tensorpost::published::Topic`` in Rust. It need not exist yet, and
    another one may take its place later.
    """

    def __init__(
        self,
        message: type[_M],
        name: str,
        lookup: Callable[[str], Address[Any]],
        is_over: Callable[[], bool],
    ) -> None:
        self._name, self._message = name, message
        self._seen = 0
        self._state = _State()
        question = question_of(message)
        follow = threading.Thread(
            target=_follow, args=(self._state, question, name, lookup, is_over), name="tp-latest", daemon=True
        )
        # When the program drops the subscriber, it must not keep a version.
        weakref.finalize(self, self._state.close)
        follow.start()

    def latest(self) -> Version[_M] | None:
        """Returns the latest version that has come; None before the first. Never waits. From here on
        :meth:`changed` waits for a newer one."""
        return self._saw(self._state.newest)

    def ready(self, *, timeout: float | None = None) -> Version[_M]:
        """Returns the latest version, as soon as there is one. Raises :class:`DeadlineError` if there is none
        within ``timeout`` seconds, and :class:`TopicClosed` if none will come."""
        return self._wait(0, timeout)

    def changed(self, *, timeout: float | None = None) -> Version[_M]:
        """Returns the latest version, as soon as there is one that this object has not returned yet. Raises
        as :meth:`ready`."""
        return self._wait(self._seen, timeout)

    async def changed_async(self) -> Version[_M]:
        """As :meth:`changed`, in a coroutine. Cancelling it changes nothing."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(told.set)
            except RuntimeError:
                pass  # the loop was closed, and nobody waits

        with self._state.telling(tell):
            while True:
                told.clear()
                newest, over = self._state.look()
                if newest is not None and newest.number > self._seen:
                    return cast("Version[_M]", self._saw(newest))
                if over:
                    raise self._closed()
                await told.wait()

    def __iter__(self) -> Iterator[Version[_M]]:
        """Yields each version that there is time for, until no more will come."""
        while True:
            try:
                yield self.changed()
            except TopicClosed:
                return

    async def __aiter__(self) -> AsyncIterator[Version[_M]]:
        while True:
            try:
                yield await self.changed_async()
            except TopicClosed:
                return

    def close(self) -> None:
        """Drops the version that it holds, and takes no more."""
        self._state.close()

    def __enter__(self) -> Subscriber[_M]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        newest = self._state.newest
        return f"Subscriber[{self._message.__name__}]({self._name!r}, version {0 if newest is None else newest.number})"

    def _saw(self, newest: Version[Any] | None) -> Version[_M] | None:
        if newest is not None:
            self._seen = newest.number
        return newest

    def _wait(self, than: int, timeout: float | None) -> Version[_M]:
        newest, over = self._state.wait(than, timeout)
        if newest is not None and newest.number > than:
            return cast("Version[_M]", self._saw(newest))
        if over:
            raise self._closed()
        if than > 0:
            why = f"there was none after version {than}"
        elif self._state.refused is not None:
            why = self._state.refused
        else:
            why = "its topic has no version yet" if self._state.found else "there is no topic of this name"
        raise DeadlineError(f"nothing was published under `{self._name}` within {timeout} s: {why}")

    def _closed(self) -> TopicClosed:
        return TopicClosed(f"no more versions of `{self._name}` will come: the node is shutting down, or this was closed")


class _Telling:
    def __init__(self, state: _State, tell: Callable[[], None]) -> None:
        self.state, self.tell = state, tell

    def __enter__(self) -> None:
        with self.state.changed:
            self.state.listeners.append(self.tell)

    def __exit__(self, *_: object) -> None:
        with self.state.changed:
            self.state.listeners.remove(self.tell)


class _State:
    """The state that the asking thread and the readers share."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.newest: Version[Any] | None = None
        self.found = False
        self.refused: str | None = None
        """Why the actor that has the name is no topic of these."""
        self.over = False
        self.listeners: list[Callable[[], None]] = []

    def check_fork(self) -> None:
        if self.process != os.getpid():
            raise TopicClosed(INHERITED)

    def look(self) -> tuple[Version[Any] | None, bool]:
        self.check_fork()
        with self.changed:
            return self.newest, self.over

    def wait(self, than: int, timeout: float | None) -> tuple[Version[Any] | None, bool]:
        def is_there() -> bool:
            return self.over or (self.newest is not None and self.newest.number > than)

        self.check_fork()
        with self.changed:
            self.changed.wait_for(is_there, timeout)
            return self.newest, self.over

    def telling(self, tell: Callable[[], None]) -> _Telling:
        return _Telling(self, tell)

    def put(self, version: Version[Any]) -> bool:
        """Stores a version, and returns whether more are wanted."""
        with self.changed:
            if self.over:
                return False
            # The version before is dropped here, unless a reader has it.
            self.newest = version
            self._tell()
            return True

    def ended(self) -> None:
        """Notes that no more versions will come; the last one stays."""
        with self.changed:
            self.over = True
            self._tell()

    def close(self) -> None:
        # The asking thread may hold the lock, and does not exist in a forked child.
        if self.process != os.getpid():
            return
        with self.changed:
            self.over, self.newest = True, None
            self._tell()

    def pause(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.over, seconds)

    def _tell(self) -> None:
        self.changed.notify_all()
        for tell in self.listeners:
            tell()


def _follow(
    state: _State, question: Any, name: str, lookup: Callable[[str], Address[Any]], is_over: Callable[[], bool]
) -> None:
    """Asks the topic that is currently under ``name`` for newer versions, again and again."""
    than = life = 0
    pause = _FIRST_PAUSE
    try:
        while not (state.over or is_over()):
            before = pause
            try:
                topic = lookup(name)
                state.found, state.refused = True, None
                while not state.over:
                    newest = topic.ask(question(than, life))
                    if newest.value is None:
                        break  # the topic is shutting down, and this process soon is
                    if newest.number <= than or newest.number > 2 * MOST_HEARD:
                        # A topic that does not keep the order is not accepted, nor one whose number leaves no
                        # room for a later topic.
                        print(f"tensorpost: `{name}` gave version {newest.number} after {than}", file=sys.stderr)
                        pause = before  # it is asked less and less often, and fills no log
                        break
                    than, life = newest.number, newest.life
                    if not state.put(Version(newest.number, newest.value)):
                        return
                    del newest
                    pause = _FIRST_PAUSE
            except UnhandledError as error:
                state.refused = str(error)
            except (NodeError, SendError, AskError, DeadlineError):
                pass  # it is not there, or not now; who reads keeps what there is
            except DecodeError as error:
                print(f"tensorpost: a version of `{name}` cannot be read: {plain(str(error))}", file=sys.stderr)
                pause = before
            state.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    finally:
        state.ended()
