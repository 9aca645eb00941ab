"""Actors with PyTorch tensors, for the tests on the host and on GPUs: they need only the package, and no
checkout."""

from __future__ import annotations

import os

import torch

import tensorpost as tp


@tp.message(reply=tp.f64)
class Sum:
    values: tp.Tensor[tp.f32]


@tp.message
class Work:
    id: tp.u64
    values: tp.Tensor[tp.f32]
    how: str = "new"


@tp.message
class Given:
    """A message whose receiver owns its tensor."""

    id: tp.u64
    values: tp.Owned[tp.f32]
    how: str = ""


@tp.message
class Own:
    how: str


@tp.message(reply=bool)
class Owns: ...


@tp.message(reply=list[tp.u64])
class Counts: ...


@tp.message
class Seen:
    what: str


@tp.actor
class Adder:
    """Adds, in one way or another, and sends the result on."""

    def __init__(self, sink: tp.Address[Work]) -> None:
        self.sink = sink

    @tp.handler
    def sum(self, message: Sum) -> float:
        return float(message.values.torch().double().sum())

    @tp.handler
    def work(self, work: Work) -> None:
        x, how = work.values.torch(), work.how
        assert x is work.values.torch(), "it is shown once"
        if how == "new":
            out = x + 1
        elif how == "forward":
            out = x
        elif how == "view":
            out = x[1:]
        elif how == "pool":
            made = tp.empty(tuple(x.shape), tp.f32)
            out = torch.add(x, 1, out=made.torch())
        elif how == "part of the pool":
            made = tp.empty((2, *x.shape), tp.f32)
            out = torch.add(x, 1, out=made.torch()[1])
        elif how == "write":
            x.add_(1)
            out = x.clone()
        elif how == "write after sending":
            made = tp.empty(tuple(x.shape), tp.f32).torch()
            torch.add(x, 1, out=made)
            self.sink.send(Work(work.id, made))
            made.zero_()
            return
        elif how == "many":
            for number in range(64):
                self.sink.send(Work(number, tp.empty((1 << 18,), tp.f32).torch().fill_(number)))
            return
        elif how.startswith("keep all, "):
            kept = [tp.empty((4,), tp.f32).torch().fill_(number) for number in range(40)]
            for number in [*range(40), 0, 39]:
                self.sink.send(Work(number, kept[number]))
            which = how.removeprefix("keep all, write ")
            if which.isdecimal():
                kept[int(which)].add_(1)
            return
        elif how in ("write and forget", "forget"):
            made = tp.empty(tuple(x.shape), tp.f32).torch()
            torch.add(x, 1, out=made)
            self.sink.send(Work(work.id, made))
            if how == "write and forget":
                made.zero_()
            del made
            for _ in range(4):
                self.sink.send(Work(work.id, tp.empty((1,), tp.f32).torch().zero_()))
            return
        elif how == "gradient":
            weight = torch.ones_like(x, requires_grad=True)
            out = x * weight
        else:
            raise ValueError(how)
        self.sink.send(Work(work.id, out))

    @tp.handler
    def given(self, given: Given) -> None:
        assert given.values.writable
        x = given.values.torch()
        x.neg_().add_(1)
        self.sink.send(Work(given.id, x if given.how == "torch" else given.values))

    @tp.handler
    def counts(self, _: Counts) -> list[int]:
        return list(tp.env().tensors)


@tp.actor
class ToItself:
    """Sends itself tensors of its own memory, which it could write."""

    @tp.handler
    def owns(self, own: Own) -> None:
        made = tp.empty(4, tp.f32)
        made.torch().zero_()
        tp.env().address.send(Work(7, made, own.how))

    @tp.handler
    def work(self, work: Work) -> None:
        x = work.values.torch()
        if work.how == "in inference mode":
            with torch.inference_mode():
                x.add_(1)
        elif work.how == "a view":
            x[1:3].zero_()
        elif work.how == "another":
            x.detach().add_(1)


@tp.actor
class Process:
    """Tells which process it is in."""

    @tp.handler
    def owns(self, _: Owns) -> bool:
        return os.getpid() > 0
