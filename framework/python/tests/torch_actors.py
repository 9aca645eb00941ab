"""Actors with tensors of PyTorch, for the tests on the host and on GPUs: no checkout is needed, only the package."""

from __future__ import annotations

import os
from typing import Any

import tensorpost as tp


@tp.message(reply=tp.f64)
class Sum:
    values: tp.Tensor[tp.f32]


@tp.message
class Work:
    id: tp.u64
    values: tp.Tensor[tp.f32]


@tp.message
class Given:
    """Its tensor is the receiver's."""

    id: tp.u64
    values: tp.Owned[tp.f32]
    how: str = ""


@tp.message(reply=bool)
class Owns: ...


@tp.message(reply=list[tp.u64])
class Counts: ...


@tp.message
class Seen:
    what: str


@tp.actor
class Adder:
    """It adds, in one way or another, and sends the result on."""

    def __init__(self, sink: tp.Address[Work], how: str) -> None:
        import torch

        self.torch, self.sink, self.how = torch, sink, how
        self.last: Any = None

    @tp.handler
    def sum(self, message: Sum) -> float:
        return float(message.values.torch().double().sum())

    @tp.handler
    def work(self, work: Work) -> None:
        torch, x = self.torch, work.values.torch()
        assert x is work.values.torch(), "it is shown once"
        if self.how == "new":
            out = x + 1
        elif self.how == "forward":
            out = x
        elif self.how == "view":
            out = x[1:]
        elif self.how == "pool":
            made = tp.empty(tuple(x.shape), tp.f32)
            out = torch.add(x, 1, out=made.torch())
        elif self.how == "part of the pool":
            made = tp.empty((2, *x.shape), tp.f32)
            out = torch.add(x, 1, out=made.torch()[1])
        elif self.how == "write":
            x.add_(1)
            out = x.clone()
        elif self.how == "write a view":
            x[0].zero_()
            out = x.clone()
        elif self.how == "write in inference mode":
            with torch.inference_mode():
                y = work.values.torch()
                y += 1
            out = x.clone()
        elif self.how == "write after sending":
            made = tp.empty(tuple(x.shape), tp.f32).torch()
            torch.add(x, 1, out=made)
            self.sink.send(Work(work.id, made))
            made.zero_()
            return
        elif self.how == "gradient":
            weight = torch.ones_like(x, requires_grad=True)
            out = x * weight
        else:
            raise ValueError(self.how)
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
    """It sends itself tensors of its own memory, which it could write."""

    def __init__(self, how: str) -> None:
        self.how = how

    @tp.handler
    def owns(self, _: Owns) -> bool:
        made = tp.empty(4, tp.f32)
        made.torch().zero_()
        tp.env().address.send(Work(7, made))
        return True

    @tp.handler
    def work(self, work: Work) -> None:
        x = work.values.torch()
        if self.how == "in inference mode":
            import torch

            with torch.inference_mode():
                x.add_(1)
        elif self.how == "a view":
            x[1:3].zero_()
        elif self.how == "another":
            x.detach().add_(1)


@tp.actor
class Process:
    """It says where it is."""

    @tp.handler
    def owns(self, _: Owns) -> bool:
        return os.getpid() > 0
