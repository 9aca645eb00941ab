"""Actors for `test_reading.py`: several send numbers to one, in its own worker and in others."""

from __future__ import annotations

import numpy as np

import tensorpost as tp


@tp.message
class Number:
    sender: tp.u64
    number: tp.u64


@tp.message(reply=tp.u64)
class Weighed:
    """As `Number`, but with a tensor, and sent as an ask."""

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
    """Fails if the numbers of a sender are out of order."""

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
        """Sends most numbers, and asks some with a tensor. Returns the sum of the replies."""
        total = 0
        for number in range(order.many):
            if number % 7 == 0:
                values = np.full(3, number % 100, dtype=np.float32)
                total += self.sink.ask(Weighed(order.sender, number, values), timeout=60)
            else:
                self.sink.send(Number(order.sender, number), timeout=60)
        return total
