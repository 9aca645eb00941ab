"""Actors for `test_reading.py`: one is sent numbers by several, in its own worker and in others."""

from __future__ import annotations

import numpy as np

import tensorpost as tp


@tp.message
class Number:
    sender: tp.u64
    number: tp.u64


@tp.message(reply=tp.u64)
class Weighed:
    """As `Number`, with a tensor, and asked."""

    sender: tp.u64
    number: tp.u64
    values: tp.Tensor[tp.f32]


@tp.message(reply=list[tp.u64])
class Counts: ...


@tp.message(reply=tp.u64)
class SendAll:
    sender: tp.u64
    many: tp.u64


@tp.actor
class Sink:
    """It fails where what one sends is out of order."""

    def __init__(self) -> None:
        self.counts = [0] * 8

    def count(self, sender: int, number: int) -> None:
        if self.counts[sender] != number:
            raise RuntimeError(f"from {sender} came {number}, and {self.counts[sender]} was to come")
        self.counts[sender] += 1

    @tp.handler
    def number(self, given: Number) -> None:
        self.count(given.sender, given.number)

    @tp.handler
    def weighed(self, given: Weighed) -> int:
        self.count(given.sender, given.number)
        return int(given.values.numpy().sum())

    @tp.handler
    def counted(self, _: Counts) -> list[int]:
        return self.counts


@tp.actor
class Sender:
    def __init__(self, sink: tp.Address[Number]) -> None:
        self.sink = sink

    @tp.handler
    def send_all(self, order: SendAll) -> int:
        """Mostly sent, and some asked with a tensor: the sum of what came back."""
        total = 0
        for number in range(order.many):
            if number % 7 == 0:
                values = np.full(3, number % 100, dtype=np.float32)
                total += self.sink.ask(Weighed(order.sender, number, values), timeout=60)
            else:
                self.sink.send(Number(order.sender, number), timeout=60)
        return total
