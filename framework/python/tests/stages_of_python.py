"""Stages for the tests, in a module that workers import."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

import tensorpost as tp


@tp.message
class Sample:
    id: tp.u64
    values: tp.Tensor[tp.f32]


@tp.message
class Sum:
    id: tp.u64
    sum: tp.f32
    who: str


@tp.message
class Draft:
    id: tp.u64
    values: tp.Owned[tp.f32]


@tp.message
class Other:
    there: tp.u16


@tp.message(reply=bool)
class Asked: ...


@tp.stage
def total(sample: Sample, by: tp.f32 = 1.0) -> Sum:
    return Sum(sample.id, float(sample.values.numpy().sum()) * by, "total")


@tp.stage
def double(sample: Sample) -> Sample:
    return Sample(sample.id, sample.values.numpy() * np.float32(2))


@tp.stage
def forward(sample: Sample) -> Sample:
    return sample


@tp.stage
class Several:
    """Makes no result of every third item, two of others, and one more at the end."""

    def __init__(self, env, path: str, at_least: tp.u32 = 0) -> None:  # type: ignore[no-untyped-def]
        assert env.name.startswith("Several"), env.name
        self.path, self.seen, self.at_least, self.warm = Path(path), 0, at_least, False

    def warmup(self) -> None:
        self.warm = True

    def process(self, sample: Sample) -> Iterator[Sum] | None:
        assert self.warm and tp.env().device == "cpu"
        self.seen += 1
        return None if sample.id % 3 == 0 else self.two(sample)

    def two(self, sample: Sample) -> Iterator[Sum]:
        yield Sum(sample.id, 1.0, "first")
        yield Sum(sample.id, 2.0, "second")

    def finish(self) -> list[Sum]:
        return [Sum(self.seen, 0.0, "finish")]

    def stopped(self) -> None:
        self.path.write_text(f"{self.seen} {self.at_least}")


@tp.stage
async def slowly(sample: Sample) -> Sum:
    await asyncio.sleep(0)
    return Sum(sample.id, 0.0, "slowly")


@tp.stage
async def apart(sample: Sample) -> AsyncIterator[Sum]:
    for part in range(2):
        await asyncio.sleep(0)
        yield Sum(sample.id, float(part), "apart")


@tp.stage
def in_place(draft: Draft) -> Draft:
    draft.values.numpy()[:] += 1
    return draft


@tp.stage
def samples(count: tp.u64) -> Iterator[Sample]:
    for number in range(count):
        yield Sample(number, np.full(4, number, np.float32))


@tp.stage
class Samples:
    def __init__(self, count: tp.u64) -> None:
        self.count = count

    async def __aiter__(self) -> AsyncIterator[Sample]:
        for number in range(self.count):
            yield Sample(number, np.full(4, number, np.float32))

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self.count):
            if number == 5:
                raise ValueError("no five")
            yield Sample(number, np.full(4, number, np.float32))


@tp.stage
class Collect:
    def __init__(self, path: str) -> None:
        self.path, self.sums = Path(path), 0.0

    @tp.handler
    def add(self, sum: Sum) -> None:
        self.sums += sum.sum

    def finish(self) -> None:
        self.path.write_text(str(self.sums))


@tp.stage
def picky(sample: Sample) -> Sum:
    if sample.id % 10 == 3:
        raise ValueError(f"not {sample.id}")
    return Sum(sample.id, 0.0, "picky")


@tp.stage
class Mortal:
    """Ends its process at one item, in its first life, in the way that the argument names."""

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, sample: Sample) -> Sum:
        if sample.id == 20 and tp.env().incarnation == 0:
            if self.how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return Sum(sample.id, 0.0, str(tp.env().incarnation))


@tp.stage
class Unmade:
    def __init__(self) -> None:
        raise RuntimeError("it cannot be made")

    def process(self, sample: Sample) -> Sum: ...


@tp.stage
def wrong(other: Other) -> Sum:
    return Sum(other.there, 0.0, "wrong")


@tp.stage
def liar(sample: Sample) -> Sum:
    return sample  # type: ignore[return-value]


def undecorated(sample: Sample) -> Sum: ...
