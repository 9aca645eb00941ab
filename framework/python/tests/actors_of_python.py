"""Actors for the tests, in a module that workers import."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np

import tensorpost as tp


@tp.message(reply=tp.f64)
class Mean:
    values: tp.Tensor[tp.f32]


@tp.message
class Scale:
    id: tp.u64
    values: tp.Tensor[tp.f32]


@tp.message(reply=str)
class Play:
    """The number of steps to send."""

    count: tp.u32


@tp.actor
class Player:
    """Sends small tensors, until there is no room for one within a second."""

    def __init__(self, out: tp.Address[Scale]) -> None:
        self.out = out

    @tp.handler
    def play(self, play: Play) -> str:
        for number in range(play.count):
            try:
                self.out.send(Scale(number, np.full(4, number, np.float32)), timeout=1)
            except tp.DeadlineError as error:
                return f"at {number}: {error}"
        return "all were sent"


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


@tp.message(reply=tp.Tensor[tp.f32])
class Late:
    """Its reply belongs to a library that waits for another actor while it exports the tensor."""

    other: tp.Address[Where]
    how: str


@tp.message(reply=tp.Tensor)
class Reply:
    how: str


@tp.message(reply=str)
class Open: ...


@tp.message(reply=str)
class Gate: ...


@tp.message(reply=list[tp.u64])
class LetGo:
    count: tp.u64


@tp.message(reply=tp.u64)
class Most: ...


@tp.message(reply=tp.u64)
class Make:
    count: tp.u64
    elements: tp.u64


@tp.message
class Weights:
    """The value that a Rust topic publishes."""

    step: tp.u64
    values: tp.Tensor[tp.f32, 4]


@tp.message(reply=list[tuple[tp.u64, tp.u64, list[tp.f32]]])
class Read:
    until: tp.u64


@tp.message(reply=list[tp.u64])
class Look:
    how: str
    values: tp.Tensor[tp.u64]
    begins: tp.Address[Seen]


@tp.message
class Bytes:
    values: tp.Tensor[tp.u64]


@tp.actor
class Looker:
    """Reads a tensor that may not be ready yet."""

    @tp.handler
    def look(self, m: Look) -> list[int]:
        if m.how == "bytes of a busy process":
            # So that its own clocks are further on than any that it has to wait for.
            for _ in range(500):
                tp.Tensor(np.arange(4, dtype=np.uint64)).tobytes()
        m.begins.send(Seen(m.how))
        if m.how == "numpy":
            return [int(x) for x in m.values.numpy()]
        if m.how == "copy":
            return [int(x) for x in np.from_dlpack(m.values, copy=True)]
        return [int(x) for x in np.frombuffer(m.values.tobytes(), np.uint64)]


@tp.actor
class Replies:
    """Most of its replies cannot be sent."""

    asked = 0

    @tp.handler
    def reply(self, reply: Reply) -> Any:
        self.asked += 1
        return {"text": "text", "good": np.array([self.asked])}.get(reply.how, np.zeros(2, "M8[s]"))


@tp.actor
class AwaitedReplies(Replies):
    @tp.handler
    async def reply(self, reply: Reply) -> Any:
        await asyncio.sleep(0)
        return super().reply(reply)


@tp.actor
class Reader:
    """Two subscribers that must agree: one waits in a thread, the other in a coroutine."""

    def __init__(self) -> None:
        self.weights = tp.env().subscribe(Weights, "weights")
        self.other = tp.env().subscribe(Weights, "weights")

    @tp.handler
    async def read(self, read: Read) -> list[tuple[int, int, list[float]]]:
        if read.until == 0:
            assert self.weights.latest() is None
            try:
                raise AssertionError(self.weights.changed(timeout=0.2))
            except tp.DeadlineError as error:
                assert "there is no topic of this name" in str(error), error
            return []
        seen = []
        while not seen or seen[-1][1] < read.until:
            version = await self.other.changed_async()
            seen.append((version.number, version.value.step, version.value.values.numpy().tolist()))
        same = self.weights.latest()
        while same is None or same.number < seen[-1][0]:
            same = self.weights.changed(timeout=30)
        assert same.number == seen[-1][0] and repr(same.value.step) in repr(seen), (same, seen)
        assert self.weights.latest() == same and f"version {same.number}" in repr(self.weights)
        return seen


@tp.actor
class Statistics:
    """Rust starts it too."""

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


@tp.message(reply=str)
class Bear:
    how: str


@tp.actor
class Parent:
    """Starts actors. It replies with what the new one says of itself, or with the error."""

    def __init__(self, sink: tp.Address[Scale]) -> None:
        self.sink = sink
        policy = tp.on_failure(1).backoff(0.01, 0.1)
        self.first = tp.env().spawn(Statistics, sink, 2.0, name="first child", restart=policy)

    @tp.handler
    def bear(self, bear: Bear) -> str:
        env, how = tp.env(), bear.how
        try:
            if how in ("beside", "here", "stranger"):
                beside = {"beside": self.first, "here": env.address, "stranger": self.sink}[how]
                child = env.spawn(Statistics, self.sink, kwargs={"by": 2.0}, label=how, beside=beside)
            elif how == "long":
                child = env.spawn(Counter, bytes(70_000))
            else:
                child = env.spawn(Broken if how == "broken" else Mean)
        except tp.NodeError as error:
            return f"{type(error).__name__}: {error}"
        return str(child.ask(Where(), timeout=30))

    @tp.handler
    async def later(self, gate: Gate) -> str:
        child = await asyncio.to_thread(tp.env().spawn, Counter)
        return str(await child.ask_async(Count(), timeout=30))


class Waits:
    """An array that asks an actor before it tells its device."""

    def __init__(self, late: Late) -> None:
        self.late, self.values = late, np.arange(3, dtype=np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        other, how = self.late.other, self.late.how
        if how == "asks":
            assert other.ask(Where(), timeout=30)
        elif how == "asks in a coroutine":
            assert asyncio.run(other.ask_async(Where(), timeout=30))
        else:
            assert tp.env().lookup("late's other", timeout=30) == other
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)


@tp.actor
class IsLate:
    @tp.handler
    def late(self, late: Late) -> Any:
        return Waits(late)


@tp.actor
class Asker:
    """Asks an actor what it has no handler for."""

    def __init__(self, to: tp.Address[Unknown]) -> None:
        self.to = to

    @tp.handler
    async def count(self, count: Count) -> int:
        await self.to.ask_async(Unknown(), timeout=30)
        return 0


@tp.message(reply=tp.u64)
class Flood:
    """The number of messages to send, and the least time: after them there is one each 10 ms. It ends early
    where there is no room for a message for so long."""

    count: tp.u32
    seconds: tp.f64
    patience: tp.f64


@tp.actor
class Flooder:
    """Sends an actor messages that it does not handle. The address in its arguments names no types."""

    def __init__(self, to: tp.Address[Unknown]) -> None:
        self.to = to

    @tp.handler
    def flood(self, flood: Flood) -> int:
        sent = 0
        until = time.monotonic() + flood.seconds
        while sent < flood.count or time.monotonic() < until:
            try:
                self.to.send(Unknown(), timeout=flood.patience)
            except (TimeoutError, tp.SendError):
                return sent  # nobody reads them any more
            sent += 1
            if sent > flood.count:
                time.sleep(0.01)
        return sent


class Untold(Exception):
    def __str__(self) -> str:
        raise ValueError("there is no text")


@tp.actor
class Fails:
    """Its failures are hard to tell."""

    @tp.handler
    def crash(self, crash: Crash) -> None:
        if crash.why == "untold":
            raise Untold
        if crash.why == "no utf-8":
            raise OSError("\udcff.txt")
        # From here on the package's own code for failures fails.
        tp._worker._Actor.fail = None  # type: ignore[assignment, method-assign]
        if crash.why == "nothing that tells":
            tp._worker._Actor.break_off = None  # type: ignore[assignment, method-assign]
        raise ValueError(crash.why)


@tp.actor
class AwaitedFails(Fails):
    @tp.handler
    async def crash(self, crash: Crash) -> None:
        await asyncio.sleep(0)
        super().crash(crash)

    @tp.handler
    async def gate(self, gate: Gate) -> str:
        await asyncio.Event().wait()
        return ""


@tp.actor
class MixedFails(Fails):
    """Its failing handler runs in the event loop, and is no coroutine."""

    @tp.handler
    async def gate(self, gate: Gate) -> str:
        await asyncio.Event().wait()
        return ""


@tp.actor
class Counter:
    """Counts, and reports how much memory it has."""

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
    """Waits for a file."""

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
    """Passes on the events of another actor."""

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


@tp.actor
class Keeper:
    """Keeps the tensors that it gets until it is told to drop them."""

    def __init__(self) -> None:
        self.kept: list[Scale] = []
        self.most = 0

    @tp.handler
    def scale(self, scale: Scale) -> None:
        self.kept.append(scale)
        self.most = max(self.most, len(self.kept))

    @tp.handler
    def let_go(self, given: LetGo) -> list[int]:
        gone = [scale.id for scale in self.kept[: given.count]]
        for scale in self.kept[: given.count]:
            assert (scale.values.numpy() == scale.id).all(), scale
        del self.kept[: given.count]
        return gone

    @tp.handler
    def the_most(self, most: Most) -> int:
        return self.most

    @tp.handler
    def kill(self, kill: Kill) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@tp.actor
class Relay:
    """Passes on the tensors that it gets, and sends tensors of its own as long as there is room."""

    def __init__(self, keeper: tp.Address[Scale]) -> None:
        self.keeper = keeper

    @tp.handler
    def scale(self, scale: Scale) -> None:
        self.keeper.send(scale)

    @tp.handler
    def make(self, make: Make) -> int:
        for number in range(make.count):
            values = tp.empty(make.elements, tp.f32)
            values.numpy()[:] = number
            if not self.keeper.try_send(Scale(number, values)):
                return number
        return make.count

    @tp.handler
    def the_most(self, most: Most) -> int:
        return int(self.keeper.ask(most))

    @tp.handler
    def let_go(self, given: LetGo) -> list[int]:
        return list(self.keeper.ask(given))
