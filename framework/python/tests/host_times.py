"""The cost of a message in Python on the host: processor time of the sending thread and of the handling
thread.

    python host_times.py [--rounds 5] [--messages 20000]

Medians in microseconds. `torch`: the handler takes each tensor to PyTorch, if that is installed. `reply`: an
ask, on both sides, and the round trip by the clock. All memory is the processes' own, so that nothing is
copied, except a fresh array. Only Rust code runs on other threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorpost as tp

TIMEOUT = 300.0
WINDOW = 256
"""Messages on their way: less than the mailbox takes, so that sends do not wait."""


@tp.message
class Empty:
    id: tp.u64


@tp.message
class One:
    id: tp.u64
    x: tp.Tensor[tp.f32]


@tp.message
class Eight:
    id: tp.u64
    x: list[tp.Tensor[tp.f32]]


@tp.message
class OneTorch:
    id: tp.u64
    x: tp.Tensor[tp.f32]


@tp.message
class EightTorch:
    id: tp.u64
    x: list[tp.Tensor[tp.f32]]


@tp.message(reply=tp.Tensor[tp.f32])
class Echo:
    x: tp.Tensor[tp.f32]


@tp.message(reply=float)
class Used:
    """Asks for the seconds that the handlers' thread has used."""


@tp.actor
class Sink:
    def warmup(self) -> None:
        if importlib.util.find_spec("torch") is not None:
            import torch

            torch.zeros(1)

    @tp.handler
    def empty(self, empty: Empty) -> None: ...

    @tp.handler
    def one(self, one: One) -> None: ...

    @tp.handler
    def eight(self, eight: Eight) -> None: ...

    @tp.handler
    def one_torch(self, one: OneTorch) -> None:
        one.x.torch()

    @tp.handler
    def eight_torch(self, eight: EightTorch) -> None:
        for x in eight.x:
            x.torch()

    @tp.handler
    def echo(self, echo: Echo) -> Any:
        return echo.x

    @tp.handler
    def used(self, used: Used) -> float:
        return time.thread_time()


def streamed(sink: tp.Address[Any], make: Callable[[int], Any], messages: int, rounds: int) -> tuple[float, float]:
    """Returns the medians of making and sending a message, and of handling one."""
    sent, handled = [], []
    for _ in range(rounds):
        theirs, own = sink.ask(Used(), timeout=TIMEOUT), 0.0
        for first in range(0, messages, WINDOW):
            start = time.thread_time()
            for number in range(first, first + WINDOW):
                sink.send(make(number))
            own += time.thread_time() - start
            now = sink.ask(Used(), timeout=TIMEOUT)
        count = -(-messages // WINDOW) * WINDOW
        sent.append(own / count)
        # One in WINDOW messages is the ask.
        handled.append((now - theirs) / (count + count // WINDOW))
    return statistics.median(sent) * 1e6, statistics.median(handled) * 1e6


def asked(sink: tp.Address[Any], message: Any, messages: int, rounds: int) -> tuple[float, float, float]:
    own, theirs, trips = [], [], []
    for _ in range(rounds):
        used, start = sink.ask(Used(), timeout=TIMEOUT), time.thread_time()
        for _ in range(messages):
            began = time.perf_counter()
            sink.ask(message, timeout=TIMEOUT)
            trips.append(time.perf_counter() - began)
        own.append((time.thread_time() - start) / messages)
        theirs.append((sink.ask(Used(), timeout=TIMEOUT) - used) / messages)
    return statistics.median(own) * 1e6, statistics.median(theirs) * 1e6, statistics.median(trips) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20000)
    options = parser.parse_args()
    with tp.Node(console=False) as node:
        sink = node.spawn(Sink, mailbox=2 * WINDOW)
        tensors = [node.empty(1024, tp.f32) for _ in range(8)]
        kinds: dict[str, Callable[[int], Any]] = {
            "no tensor": Empty,
            "1 tensor": lambda number: One(number, tensors[0]),
            "8 tensors": lambda number: Eight(number, tensors),
            # Copied when it is sent; its own memory goes back to numpy.
            "1 fresh array": lambda number: One(number, np.zeros(1024, np.float32)),
        }
        if importlib.util.find_spec("torch") is not None:
            kinds |= {
                "1 tensor, torch": lambda number: OneTorch(number, tensors[0]),
                "8 tensors, torch": lambda number: EightTorch(number, tensors),
            }
        for what, make in kinds.items():
            sent, handled = streamed(sink, make, options.messages, options.rounds)
            print(f"{what}: sent {sent:.2f} us, handled {handled:.2f} us", flush=True)
        own, theirs, trip = asked(sink, Echo(tensors[0]), options.messages // 10, options.rounds)
        print(f"ask with 1 tensor, there and back: asked {own:.2f} us, handled {theirs:.2f} us, round trip {trip:.1f} us", flush=True)


if __name__ == "__main__":
    main()
