"""The topic that a Python program starts: an actor that keeps the newest version of a value. It answers as
``tensorpost::published::Topic`` does, so readers in both languages follow it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from . import _actor, _worker
from ._published import MOST_HEARD, question_of


@_actor.actor
class Topic:
    """Runs in the worker. It gets the message's class, or its name, and makes a class with the right handlers
    for it."""

    def __new__(cls, message: Any) -> Topic:
        return object.__new__(_class_of(message if isinstance(message, type) else _worker.named(message, "message")))

    def __init__(self, message: str) -> None:
        # Tells this topic from one that was under the same name before; a reader that knows no topic says 0.
        self.life = int.from_bytes(os.urandom(8), "big") or 1
        # The highest number that it has given out or heard of.
        self.last = 0
        self.newest: tuple[int, Any] | None = None
        self.changed = asyncio.Event()
        self.stopping = False
        self.told: Any = None

    @_actor.handler(_actor.Lifecycle)
    def event(self, _: _actor.Lifecycle) -> None:
        """Does nothing: an actor's class needs a handler, and those of the messages are in the derived
        classes."""

    def replace(self, value: Any) -> None:
        self.last += 1
        # The version before is dropped here, unless a reader has it.
        self.newest = self.last, value
        self.tell()

    def tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def outnumber(self, number: int) -> None:
        """Gives the current version, and all later ones, higher numbers than this."""
        if number < self.last or number > MOST_HEARD:
            return
        self.last = number
        if self.newest is not None:
            self.last += 1
            self.newest = self.last, self.newest[1]
            self.tell()

    async def newer(self, life: int, than: int) -> tuple[int, int, Any]:
        if self.told is None:
            self.told = asyncio.create_task(self.until_stopping())
        if life != self.life:
            # The reader's version comes from a topic before this one: everything here is newer, and must have
            # a higher number.
            self.outnumber(than)
            newest = 0
        else:
            newest = than
        while self.newest is None or self.newest[0] <= newest:
            if self.stopping:
                return self.life, newest, None
            await self.changed.wait()
        return self.life, *self.newest

    async def until_stopping(self) -> None:
        """Answers all questions from the beginning of a shutdown on, because the shutdown waits for that."""
        told = _actor._Told()
        await told.wait(_actor.env()._mailbox.stopping(told))
        self.stopping = True
        self.tell()


def _class_of(message: type) -> type[Topic]:
    question = question_of(message)
    reply: Any = _actor.reply_of(question)

    def publish(self: Topic, value: Any) -> None:
        self.replace(value)

    async def newer(self: Topic, asked: Any) -> Any:
        return reply(*await self.newer(asked.life, asked.than))

    handlers = {"publish": _actor.handler(message)(publish), "tell_newer": _actor.handler(question)(newer)}
    return type(f"Topic[{message.__name__}]", (Topic,), handlers)


__all__ = ["Topic"]
