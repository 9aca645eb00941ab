"""Actors for the tests, in a module that workers import."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np

import tensorpost as tp


@tp.message(reply=tp.f64)
class Mean:
    values: tp.Tensor[tp.f32]


@tp.message
class Scale:
    id: tp.u64
    values: tp.Tensor[tp.f32]


@tp.message
class Crash:
    why: str


@tp.message
class Kill: ...


@tp.message(reply=tp.u64)
class Count: ...


@tp.message(reply=bool)
class Other:
    there: tp.u16


@tp.message
class Unknown: ...


@tp.message(reply=str)
class Where: ...


@tp.message
class Seen:
    what: str


@tp.message(reply=str)
class Pass:
    to: tp.Address[Where]


@tp.message(reply=str)
class Open: ...


@tp.message(reply=str)
class Gate: ...


@tp.actor
class Statistics:
    """It is started by Rust, too."""

    def __init__(self, sink: tp.Address[Scale], by: tp.f32) -> None:
        self.sink, self.by = sink, by

    @tp.handler
    def mean(self, mean: Mean) -> float:
        return float(np.from_dlpack(mean.values).mean())

    @tp.handler
    def scale(self, scale: Scale) -> None:
        values = np.from_dlpack(scale.values)
        assert not values.flags.writeable
        self.sink.send(Scale(scale.id + 1, values * np.float32(self.by)))

    @tp.handler
    def crash(self, crash: Crash) -> None:
        raise ValueError(crash.why)

    @tp.handler
    def kill(self, kill: Kill) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @tp.handler
    def other(self, other: Other) -> bool:
        return True

    @tp.handler
    def where(self, where: Where) -> str:
        return f"{tp.env().name} {tp.env().incarnation} {os.getpid()}"

    @tp.handler
    def pass_on(self, given: Pass) -> str:
        return given.to.ask(Where(), timeout=30)


@tp.actor
class Counter:
    """It counts, and tells how much memory it has."""

    def __init__(self) -> None:
        self.sum = 0.0

    @tp.handler
    def scale(self, scale: Scale) -> None:
        self.sum += float(np.from_dlpack(scale.values)[0])

    @tp.handler
    def count(self, count: Count) -> int:
        return int(self.sum)

    @tp.handler
    def where(self, where: Where) -> str:
        with open("/proc/self/statm") as pages:
            return pages.read().split()[1]


@tp.actor
class Slow:
    """It waits for a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    @tp.handler
    def where(self, where: Where) -> str:
        while not os.path.exists(self.path):
            time.sleep(0.005)
        return "at last"

    @tp.handler
    def seen(self, seen: Seen) -> None:
        self.where(Where())


@tp.actor
class Doors:
    """Its handlers are coroutines."""

    def __init__(self, other: tp.Address[Where]) -> None:
        self.open = asyncio.Event()
        self.other = other
        self.bad = False

    @tp.handler
    async def gate(self, gate: Gate) -> str:
        await self.open.wait()
        return await self.other.ask_async(Where(), timeout=30)

    @tp.handler
    def opens(self, given: Open) -> str:
        self.open.set()
        return "open"

    @tp.handler
    async def crash(self, crash: Crash) -> None:
        await asyncio.sleep(0)
        raise ValueError(crash.why)


@tp.actor(restart=tp.on_failure(2))
class Watcher:
    """It passes on what it sees of another."""

    def __init__(self, other: tp.Address[Where], sink: tp.Address[Seen]) -> None:
        self.sink = sink
        tp.env().watch(other)

    @tp.handler
    def event(self, event: tp.Lifecycle) -> None:
        self.sink.send(Seen(event.kind))

    @tp.handler
    def where(self, where: Where) -> str:
        return "watching"

    def stopped(self) -> None:
        print("the watcher has stopped")


@tp.actor
class Broken:
    """It cannot be made."""

    def __init__(self) -> None:
        raise OSError("no camera")

    @tp.handler
    def where(self, where: Where) -> str:
        return ""
