"""Tensors of PyTorch, CuPy and JAX between actors on a GPU: two processes, values compared.

    python test_gpu.py             without pytest: says of each test how it went
    REQUIRE_GPU=1 python ..        a test that is skipped is a failure

It runs from the installed package, with `gpu_actors.py` beside it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("torch") is None and "pytest" in sys.modules and os.environ.get("REQUIRE_GPU") != "1":
    import pytest

    pytest.skip("PyTorch is not installed", allow_module_level=True)

import gpu_actors as app  # noqa: E402

import tensorpost as tp  # noqa: E402

TIMEOUT = 120.0


class Skipped(Exception):
    """A test is skipped, with the reason."""


def why_not() -> str | None:
    """Returns why no test here can run."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture(autouse=True)
    def _needs_a_gpu() -> None:
        reason = why_not()
        if reason is not None:
            if os.environ.get("REQUIRE_GPU") == "1":
                pytest.fail(reason)
            pytest.skip(reason)

    Skipped = pytest.skip.Exception  # type: ignore[misc,assignment]


class Pair:
    """A node with the two actors in processes of their own."""

    def __init__(self, **environment: str) -> None:
        self.node = tp.Node(console=False)
        self.environment = environment

    def __enter__(self) -> Pair:
        self.back = self.node.spawn(app.Back, device="cuda:0", environment=self.environment)
        self.front = self.node.spawn(app.Front, self.back, device="cuda:0", environment=self.environment)
        return self

    def __exit__(self, *error: Any) -> None:
        self.node.__exit__(*error)

    def tried(self, what: str) -> str:
        return str(self.front.ask(app.Try(what), timeout=TIMEOUT))

    def counts(self, of: Any) -> tp.Tensors:
        return tp.Tensors(*of.ask(app.Counts(), timeout=TIMEOUT))


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise Skipped(f"{library} is not installed")


def test_torch_to_torch() -> None:
    with Pair() as pair:
        assert pair.tried("step add") == ""
        assert pair.tried("step forward") == ""
        assert pair.tried("step view") == ""
        assert pair.tried("step pool") == ""


def test_kernels_are_in_flight() -> None:
    with Pair() as pair:
        assert pair.tried("step busy") == ""


def test_what_is_made_in_a_handler_is_sent_without_a_copy() -> None:
    with Pair() as pair:
        assert pair.tried("step add") == ""
        assert pair.tried("step forward") == ""
        front, back = pair.counts(pair.front), pair.counts(pair.back)
        assert front.copied == 0 and front.without_copy >= 40, front
        assert back.copied == 0 and back.forwarded >= 20 and back.without_copy >= 20, back


def test_without_the_pool_there_is_one_copy_each() -> None:
    with Pair(TENSORPOST_TORCH_POOL="0") as pair:
        assert pair.tried("step add") == ""
        front = pair.counts(pair.front)
        assert front.copied >= 20 and front.without_copy == 0, front


def test_memory_that_was_sent_is_not_used_anew() -> None:
    with Pair() as pair:
        assert pair.tried("reuse") == ""


def test_handed_over_for_good() -> None:
    with Pair() as pair:
        assert pair.tried("owned") == ""


def test_a_write_in_place_fails_the_actor_with_the_field() -> None:
    import torch

    with tp.Node(console=False) as node:
        writer = node.spawn(app.Writer, device="cuda:0")
        watch = node.watch(writer)
        writer.send(app.Item(torch.ones(8)), timeout=TIMEOUT)
        event = watch.recv(timeout=TIMEOUT)
        # A tensor that came from the host was copied for the actor, and a write to it is found as any other.
        assert event is not None and event.kind == "down"
        assert "Item.x: the handler has written this tensor in place" in str(event.reason), event.reason
    with Pair() as pair:
        watch = pair.node.watch(pair.back)
        try:
            pair.tried("step write")
        except tp.AskError:
            pass
        event = watch.recv(timeout=TIMEOUT)
        assert event is not None and "Step.x: the handler has written this tensor in place" in str(event.reason), event


def test_a_side_stream_that_was_joined() -> None:
    with Pair() as pair:
        assert pair.tried("step side stream") == ""


def test_two_actors_in_one_worker() -> None:
    with tp.Node(console=False) as node:
        back = node.spawn(app.Back, device="cuda:0")
        beside = node.spawn(app.Front, back, device="cuda:0", beside=back)
        other = node.spawn(app.Front, back, device="cuda:0")
        for how in ("step add", "step busy", "step forward", "reuse"):
            assert beside.ask(app.Try(how), timeout=TIMEOUT) == "", how
            assert other.ask(app.Try(how), timeout=TIMEOUT) == "", how
        # Each actor allocates in a pool of its own.
        for actor in (back, beside, other):
            counts = tp.Tensors(*actor.ask(app.Counts(), timeout=TIMEOUT))
            assert counts.copied == 0 and counts.without_copy > 0, counts


def test_cupy() -> None:
    needs("cupy")
    with Pair() as pair:
        assert pair.tried("step cupy") == ""
        assert pair.tried("step cupy, its own stream") == ""


def test_jax() -> None:
    needs("jax")
    with Pair(XLA_PYTHON_CLIENT_PREALLOCATE="false", XLA_PYTHON_CLIENT_MEM_FRACTION="0.05") as pair:
        assert pair.tried("step jax") == ""


def test_bad_input_names_the_field() -> None:
    import torch

    with Pair() as pair:
        assert "Echo.x: its dtype must be f32 and is f64; convert it first" in pair.tried("other dtype")
        assert "Echo.x: the Tensor is sparse; make it dense first" in pair.tried("sparse")
        assert "Echo.x: the Tensor requires a gradient; detach it first" in pair.tried("gradient")
        assert pair.tried("host tensor") == "", "what comes from the host is brought to the actor's device"
        if torch.cuda.device_count() > 1:
            assert 'is on cuda:1, and this actor works on cuda:0; copy it there first, with `.to("cuda:0")`' in pair.tried("other gpu")


def test_the_program_sends_and_receives_gpu_tensors() -> None:
    import torch

    with tp.Node(console=False) as node:
        back = node.spawn(app.Back, device="cuda:0")
        for number in range(20):
            x = torch.full((1 << 20,), float(number), device="cuda")
            reply = back.ask(app.Step("add", x), timeout=TIMEOUT)
            assert reply.device == "cuda:0"
            assert bool((reply.torch() == number + 1).all()), number
        assert node.tensors.copied == 20


def test_an_actor_uses_all_of_its_gpu() -> None:
    """The pool's budget, a quarter, bounds the lent memory: the rest is GPU memory outside of any pool, and
    is copied when sent."""
    import torch

    count = int(torch.cuda.mem_get_info()[0] * 0.9) >> 30
    with tp.Node(console=False) as node:
        hog = node.spawn(app.Hog, device="cuda:0")
        last = hog.ask(app.Fill(0.9), timeout=TIMEOUT).torch()
        # The actor's process has a context of its own by then.
        assert count - 4 <= last[0].item() + 1 <= count and last.tolist() == [last[0].item()] * 4


def test_a_topic_keeps_versions_on_the_gpu_that_they_were_made_on() -> None:
    with tp.Node(console=False) as node:
        topic = node.topic(app.Weights, "weights")
        (pid,) = (worker.pid for worker in node.workers() if worker.name == "weights")
        trainer = node.spawn(app.Trainer, topic, device="cuda:0")
        evaluators = [node.spawn(app.Evaluator, device="cuda:0") for _ in range(2)]
        trainer.send(app.Train(30), timeout=TIMEOUT)
        for evaluator in evaluators:
            assert evaluator.ask(app.Sums(30), timeout=TIMEOUT) == [30.0, 600.0]
        with node.subscribe(app.Weights, "weights") as late:
            version = late.ready(timeout=TIMEOUT).value
            assert (version.step, version.layer.device) == (30, "cuda:0")
            assert float(version.layer.torch().mean()) == 600.0
        # Neither PyTorch nor a context of its own: the topic only holds leases.
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" not in maps
        print(f"the topic {'has' if 'libcuda' in maps else 'has not'} loaded the driver")


def test_an_actor_on_the_host_refuses_gpu_tensors_and_gets_copies() -> None:
    import torch

    with tp.Node(console=False) as node:
        host = node.spawn(app.HostSide, device="host")
        assert host.ask(app.Mean(torch.full((1000,), 2.0, device="cuda")), timeout=TIMEOUT) == "cpu 2.0"


def png(path: Path, width: int, height: int, value: int) -> None:
    """Writes a PNG without a library."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    rows = b"".join(b"\0" + bytes((value * 31 + row * 7 + at) % 256 for at in range(3 * width)) for row in range(height))
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def test_batches_of_the_loader_on_the_gpu_are_those_of_the_host() -> None:
    import tempfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.png" for number in range(37)]
        for number, file in enumerate(files):
            png(file, 40 + number, 60, number)
        steps = [tp.RandomResizedCrop(32, 48), tp.RandomHorizontalFlip(), tp.Normalize()]
        how: dict[str, Any] = {"batch": 8, "shuffle": True, "workers": 2, "labels": range(37)}
        with tp.Loader(files, steps, **how) as host, tp.Loader(files, steps, device="cuda:0", **how) as gpu:
            for _ in range(3):
                for there, here in zip(host, gpu, strict=True):
                    assert here.pixels.is_cuda and here.labels.is_cuda and here.indices == there.indices
                    assert torch.equal(here.labels.cpu(), there.labels)
                    # A GPU may divide by multiplying with the reciprocal.
                    torch.testing.assert_close(here.pixels.cpu(), there.pixels, rtol=1e-5, atol=1e-5)
                    here.pixels.zero_()  # its own


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def main() -> int:
    require = os.environ.get("REQUIRE_GPU") == "1"
    reason, failed, wanted = why_not(), 0, sys.argv[1:]
    for test in TESTS:
        if wanted and not any(word in test.__name__ for word in wanted):
            continue
        began = time.perf_counter()
        try:
            if reason is not None:
                raise Skipped(reason)
            test()
            said = "ok"
        except Skipped as skipped:
            said = f"{'FAILED: ' if require else ''}left out: {skipped}"
            failed += require
        except BaseException:
            traceback.print_exc()
            said = "FAILED"
            failed += 1
        print(f"{said:8} {test.__name__} ({time.perf_counter() - began:.1f} s)", flush=True)
    print(f"{failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
