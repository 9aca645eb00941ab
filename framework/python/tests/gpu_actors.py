"""Actors for `test_gpu.py` and `gpu_times.py`, which need only the installed package, and a GPU."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

import tensorpost as tp


@tp.message(reply=tp.Tensor[tp.f32])
class Step:
    """A tensor that the other side computes with and sends back."""

    how: str
    x: tp.Tensor[tp.f32]


@tp.message(reply=tp.Tensor[tp.f32])
class Echo:
    x: tp.Tensor[tp.f32]


@tp.message
class Item:
    x: tp.Tensor[tp.f32]


@tp.message(reply=tp.Tensor[tp.f32])
class Owning:
    x: tp.Owned[tp.f32]


@tp.message(reply=list[tp.u64])
class Counts: ...


@tp.message(reply=list[float])
class Run:
    """An order for the front actor."""

    what: str
    elements: tp.u64
    rounds: tp.u64


@tp.message(reply=str)
class Try:
    what: str


def _library(name: str) -> Any:
    return __import__(name)


@tp.actor
class Back:
    """The other side."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.last: Any = None

    def warmup(self) -> None:
        x = torch.zeros(256, 256, device=tp.env().device)
        (x @ x + 1).mul_(2).sum().item()

    @tp.handler
    def step(self, step: Step) -> Any:
        if step.how == "add":
            return step.x.torch() + 1
        if step.how == "forward":
            return step.x
        if step.how == "view":
            return step.x.torch()[1:]
        if step.how == "busy":
            # Kernels are in flight when the reply goes out: nothing waits for them here.
            x = step.x.torch()
            y = torch.eye(2048, device=x.device)
            for _ in range(50):
                y = (y @ y).clamp_(0, 1)
            return x + y.sum() / 2048
        if step.how == "write":
            return step.x.torch().add_(1).clone()
        if step.how == "pool":
            out = tp.empty(tuple(step.x.shape), tp.f32)
            torch.add(step.x.torch(), 1, out=out.torch())
            return out
        if step.how == "cupy":
            cupy = _library("cupy")
            with cupy.cuda.ExternalStream(tp.env().stream):
                y = cupy.from_dlpack(step.x) + cupy.float32(1)
                self.kept = y
                return y
        if step.how == "cupy, its own stream":
            cupy = _library("cupy")
            y = cupy.from_dlpack(step.x) + cupy.float32(1)
            return y
        if step.how == "jax":
            jax = _library("jax")
            return jax.numpy.from_dlpack(step.x) + 1
        if step.how == "side stream":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # Floats represent these numbers exactly: each sum is exact.
                y = step.x.torch()
                for _ in range(20):
                    y = y + 1
                y = y - 19
            # PyTorch asks this of every user of two streams; tensors are sent in the order of the actor's
            # stream.
            torch.cuda.current_stream().wait_stream(stream)
            return y
        raise ValueError(step.how)

    @tp.handler
    def echo(self, echo: Echo) -> Any:
        return echo.x

    @tp.handler
    def item(self, item: Item) -> None:
        self.last = item.x.torch() + 1  # one operation

    @tp.handler
    def owning(self, owning: Owning) -> Any:
        owning.x.torch().neg_()
        return owning.x

    @tp.handler
    def counts(self, _: Counts) -> list[int]:
        return list(tp.env().tensors)


@tp.actor
class Front:
    """Asks the other side, and checks the replies."""

    def __init__(self, back: tp.Address[Step]) -> None:
        self.back = back

    def warmup(self) -> None:
        x = torch.zeros(256, 256, device=tp.env().device)
        (x @ x + 1).mul_(2).sum().item()

    @tp.handler
    def tried(self, given: Try) -> str:
        """Returns an empty text if everything is right."""
        what, device = given.what, tp.env().device
        x = torch.arange(1 << 20, dtype=torch.float32, device=device)
        if what.startswith("step "):
            how = what[5:]
            wanted = {"forward": x, "view": x[1:]}.get(how, x + 1)
            for number in range(20):
                reply = self.back.ask(Step(how, x + number), timeout=60)
                got = reply.torch()
                wrong = (got - (wanted + number)).abs().max().item()
                # A sum of floats that is divided again is not exact.
                if wrong > (0.25 if how == "busy" else 0):
                    return f"{how}, {number}: off by {wrong}"
            return ""
        if what == "owned":
            for number in range(10):
                got = self.back.ask(Owning(x + number), timeout=60).torch()
                if not torch.equal(got, -(x + number)):
                    return f"{number}: {got}"
            made = tp.empty(4, tp.f32)
            made.torch().fill_(3)
            got = self.back.ask(Owning(made), timeout=60).torch()
            return "" if made.torch().tolist() == [3] * 4 and got.tolist() == [-3] * 4 else f"{made.torch()} {got}"
        if what == "reuse":
            # torch would reuse the memory of a dropped tensor at once: the piece that was sent must stay.
            replies = []
            for number in range(200):
                replies.append(self.back.ask(Step("forward", torch.full((5000,), float(number), device=device)), timeout=60))
            bad = [number for number, reply in enumerate(replies) if not bool((reply.torch() == number).all())]
            return f"overwritten: {bad}" if bad else ""
        if what in ("other dtype", "sparse", "gradient", "other gpu"):
            y = {
                "other dtype": lambda: x.double(),
                "sparse": lambda: torch.eye(3, device=device).to_sparse(),
                "gradient": lambda: torch.ones(3, device=device, requires_grad=True),
                "other gpu": lambda: torch.ones(3, device="cuda:1"),
            }[what]()
            try:
                self.back.ask(Echo(y), timeout=60)
            except tp.EncodeError as error:
                return str(error)
            return "nothing was raised"
        if what == "host tensor":
            return "" if self.back.ask(Echo(torch.ones(3)), timeout=60).torch().is_cuda else "it is on the host"
        raise ValueError(what)

    @tp.handler
    def counts(self, _: Counts) -> list[int]:
        return list(tp.env().tensors)

    @tp.handler
    def run(self, run: Run) -> list[float]:
        """Returns the microseconds of each round."""
        x = torch.zeros(run.elements, device=tp.env().device)
        torch.cuda.current_stream().synchronize()
        times = []
        if run.what == "stream":
            for number in range(3):
                start = time.perf_counter()
                for _ in range(run.rounds):
                    self.back.send(Item(torch.full((run.elements,), float(number), device=x.device)))
                self.back.ask(Counts(), timeout=120)
                times.append((time.perf_counter() - start) / run.rounds * 1e6)
            return times
        if run.what == "parts":
            return self.parts(x, run.rounds)
        kernels = run.what == "kernels"
        for number in range(run.rounds + run.rounds // 5):
            start = time.perf_counter()
            if kernels:
                y = torch.full((run.elements,), float(number), device=x.device)
                reply = self.back.ask(Step("add", y)).torch()
                torch.cuda.current_stream().synchronize()
            else:
                reply = self.back.ask(Echo(x)).torch()
            if number >= run.rounds // 5:
                times.append((time.perf_counter() - start) * 1e6)
            del reply
        return times


    def parts(self, x: Any, rounds: int) -> list[float]:
        """Measures the time on this thread of an allocation with a kernel, of a kernel with its output, and
        of a send. In a round trip it measures the ask, the conversion of the answer to PyTorch, and its drop.
        Returns medians."""
        item = Item(x)

        def sent() -> None:
            self.back.send(item)

        def timed(call: Any) -> float:
            times = []
            for number in range(rounds):
                # So few that nothing has to wait.
                if number % 50 == 0:
                    torch.cuda.current_stream().synchronize()
                    self.back.ask(Counts(), timeout=120)
                start = time.perf_counter()
                call()
                times.append((time.perf_counter() - start) * 1e6)
            times.sort()
            return times[len(times) // 2]

        alone = [timed(lambda: torch.full((1024,), 1.0, device=x.device)), timed(lambda: x + 1), timed(sent)]
        trips: list[list[float]] = [[], [], []]
        for _ in range(rounds):
            at = [time.perf_counter()]
            reply = self.back.ask(Echo(x))
            at.append(time.perf_counter())
            shown = reply.torch()
            at.append(time.perf_counter())
            del reply, shown
            at.append(time.perf_counter())
            for times, began, ended in zip(trips, at, at[1:], strict=False):
                times.append((ended - began) * 1e6)
        return alone + [statistics.median(times) for times in trips]


@tp.message
class Weights:
    step: tp.u64
    layer: tp.Tensor[tp.f32]


@tp.message
class Train:
    steps: tp.u64


@tp.message(reply=list[float])
class Sums:
    """Asks for the step of the first version that is not older, and for its mean."""

    step: tp.u64


@tp.actor
class Trainer:
    """Publishes versions that it has just begun to compute, and keeps none."""

    def __init__(self, weights: tp.Address[Weights]) -> None:
        self.weights = weights

    @tp.handler
    def train(self, train: Train) -> None:
        for step in range(1, train.steps + 1):
            layer = torch.zeros(1 << 20, device=tp.env().device)
            for _ in range(20):
                layer = layer + step
            self.weights.send(Weights(step, layer), timeout=60)


@tp.actor
class Evaluator:
    def __init__(self) -> None:
        self.weights = tp.env().subscribe(Weights, "weights")

    @tp.handler
    def sums(self, sums: Sums) -> list[float]:
        version = self.weights.ready(timeout=60)
        while version.value.step < sums.step:
            version = self.weights.changed(timeout=60)
        layer = version.value.layer.torch()
        assert layer.device == torch.device(tp.env().device), layer.device
        return [float(version.value.step), float(layer.double().mean())]


@tp.message(reply=str)
class Mean:
    x: tp.Tensor[tp.f32]


@tp.message(reply=tp.Tensor[tp.f32])
class Fill:
    """A share of the free memory of the GPU."""

    share: tp.f64


@tp.actor
class Hog:
    """Fills its GPU with tensors of a GiB, and sends a part of the last."""

    @tp.handler
    def fill(self, fill: Fill) -> Any:
        each = 1 << 30
        count = int(torch.cuda.mem_get_info()[0] * fill.share) // each
        kept = [torch.full((each // 4,), float(number), device=tp.env().device) for number in range(count)]
        assert [int(tensor[7].item()) for tensor in kept] == list(range(count))
        return kept[-1][:4]


@tp.actor
class HostSide:
    """Works on the host, and gets copies of tensors that were on a GPU."""

    @tp.handler
    def mean(self, mean: Mean) -> str:
        x = mean.x.torch()
        return f"{x.device} {float(x.mean())}"


@tp.actor
class Writer:
    """Writes the tensors that it gets, which it must not do."""

    @tp.handler
    def item(self, item: Item) -> None:
        item.x.torch()[0].add_(1)


if __name__ == "__main__":
    sys.exit("this is a module for test_gpu.py and gpu_times.py")
