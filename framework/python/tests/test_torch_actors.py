"""Tensors of PyTorch, in and out of actors, on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorpost as tp

torch: Any = pytest.importorskip("torch")

import torch_actors as app  # noqa: E402

TIMEOUT = 120.0


@pytest.fixture(scope="module")
def node() -> Iterator[tp.Node]:
    with tp.Node(console=False) as node:
        yield node


Make = Callable[[str], tuple[Any, Any]]


@pytest.fixture
def adder(node: tp.Node) -> Make:
    def make(how: str) -> tuple[Any, Any]:
        sink, results = node.channel(app.Work)
        return node.spawn(app.Adder, sink, how), results

    return make


def values() -> Any:
    return torch.arange(6, dtype=torch.float32).reshape(3, 2)


def test_in_and_out(adder: Make) -> None:
    address, results = adder("new")
    assert address.ask(app.Sum(values()), timeout=TIMEOUT) == 15
    address.send(app.Work(1, values()), timeout=TIMEOUT)
    back = results.recv(timeout=TIMEOUT).values
    assert torch.equal(back.torch(), values() + 1) and not back.writable
    assert back.torch() is back.torch()
    assert address.ask(app.Counts(), timeout=TIMEOUT) == [0, 0, 1, 24]


@pytest.mark.parametrize(
    ("how", "expected", "counts"),
    [
        ("forward", values(), [1, 0, 0, 0]),
        ("view", values()[1:], [1, 0, 0, 0]),
        ("pool", values() + 1, [0, 1, 0, 0]),
        ("part of the pool", values() + 1, [0, 1, 0, 0]),
    ],
)
def test_nothing_is_copied(adder: Make, how: str, expected: Any, counts: list[int]) -> None:
    address, results = adder(how)
    address.send(app.Work(1, values()), timeout=TIMEOUT)
    assert torch.equal(results.recv(timeout=TIMEOUT).values.torch(), expected)
    assert address.ask(app.Counts(), timeout=TIMEOUT) == counts


def test_a_program_has_a_pool_too(node: tp.Node, adder: Make) -> None:
    address, results = adder("forward")
    before = node.tensors
    made = node.empty((3, 2), tp.f32)
    assert made.writable and "writable" in repr(made)
    made.torch().copy_(values())
    # Views of PyTorch and numpy stand on the same memory.
    address.send(app.Work(1, made), timeout=TIMEOUT)
    address.send(app.Work(2, made.torch()[1:]), timeout=TIMEOUT)
    address.send(app.Work(3, made.numpy().T), timeout=TIMEOUT)
    for expected in (values(), values()[1:], values().T):
        assert torch.equal(results.recv(timeout=TIMEOUT).values.torch(), expected)
    assert node.tensors.without_copy - before.without_copy == 3 and node.tensors.copied == before.copied
    received = results
    address.send(app.Work(4, values()), timeout=TIMEOUT)
    back = received.recv(timeout=TIMEOUT).values.torch()
    address.send(app.Work(5, back[:2]), timeout=TIMEOUT)
    assert torch.equal(received.recv(timeout=TIMEOUT).values.torch(), values()[:2])
    # It is the program's own memory that has come back.
    assert node.tensors.without_copy - before.without_copy == 4 and node.tensors.copied - before.copied == 1


def test_odd_shapes_and_types(node: tp.Node) -> None:
    for dtype, name in [(tp.f32, "float32"), (bool, "bool"), (tp.bf16, "bfloat16"), ("u8", "uint8"), (tp.i64, "int64")]:
        for shape in [(), (0,), (3, 0, 2), (2, 3)]:
            made = node.empty(shape, dtype)
            assert made.torch().dtype == getattr(torch, name) and made.torch().shape == torch.Size(shape)
    assert node.empty(5, tp.f32).shape == (5,)
    with pytest.raises(tp.TensorError, match="'f8' is no dtype; say tp.f32 or one of"):
        node.empty(3, "f8")
    with pytest.raises(tp.Error, match="no actor runs on this thread"):
        tp.empty(3, tp.f32)


@pytest.mark.parametrize("how", ["torch", "tensor"])
def test_handed_over_for_good(node: tp.Node, adder: Make, how: str) -> None:
    address, results = adder("new")
    made = node.empty((3, 2), tp.f32)
    made.torch().copy_(values())
    kept = app.Given(1, made, how)
    address.send(kept, timeout=TIMEOUT)
    assert torch.equal(results.recv(timeout=TIMEOUT).values.torch(), 1 - values())
    assert torch.equal(made.torch(), values()), "the sender still has it, so the receiver's was a copy"
    # Not held by the sender any more, it is written where it is, and sent on as it is.
    address.send(app.Given(2, values(), how), timeout=TIMEOUT)
    back = results.recv(timeout=TIMEOUT).values
    assert torch.equal(back.torch(), 1 - values())
    forwarded, without_copy, copied, _ = address.ask(app.Counts(), timeout=TIMEOUT)
    assert (forwarded + without_copy, copied) == (2, 0) and forwarded >= 1


def test_what_is_owned_without_an_actor() -> None:
    array = np.arange(3, dtype=np.float32)
    body, tensors = tp.encode(app.Given(1, array))
    given = tp.decode(app.Given, body, tensors)
    given.values.torch().zero_()
    assert given.values.writable and array.tolist() == [0, 1, 2]
    assert tp.schema(app.Given).replace("Given", "Work") != "" and "tensor" in tp.schema(app.Given)

    @tp.message
    class Plain:
        x: tp.Tensor

    def other() -> type:
        @tp.message
        class Plain:
            x: tp.Owned

        return Plain

    assert tp.key(Plain) == tp.key(other()), "on the wire it is a tensor as any"


@pytest.mark.parametrize("how", ["a view", "another", "in inference mode"])
def test_a_write_into_a_shared_one_fails_the_actor(node: tp.Node, how: str) -> None:
    address = node.spawn(app.ToItself, how)
    watch = node.watch(address)
    assert address.ask(app.Owns(), timeout=TIMEOUT)
    event = watch.recv(timeout=TIMEOUT)
    assert event is not None and event.kind == "down"
    assert "ToItself.work of Work raised TensorError: Work.values: the handler has written this tensor in place" in str(event.reason)
    assert "annotate the field with tp.Owned, or write a copy, as of `.clone()`" in str(event.reason)


def test_a_write_after_sending_fails_the_actor(node: tp.Node, adder: Make) -> None:
    address, _ = adder("write after sending")
    watch = node.watch(address)
    address.send(app.Work(1, values()), timeout=TIMEOUT)
    event = watch.recv(timeout=TIMEOUT)
    assert event is not None and "has written a tensor in place after it sent it; send it last" in str(event.reason)


def test_memory_of_others_is_read_only(node: tp.Node, adder: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """The system sees to it on the host: the worker is killed, and says where."""
    address, _ = adder("write")
    watch = node.watch(address)
    address.send(app.Work(1, values()), timeout=TIMEOUT)
    event = watch.recv(timeout=TIMEOUT)
    assert event is not None and event.kind == "down" and "SIGSEGV" in str(event.reason)
    said = capfd.readouterr().err
    assert "Segmentation fault" in said and "torch_actors.py" in said and "in work" in said


def test_gradients_are_refused_with_the_field(node: tp.Node, adder: Make) -> None:
    address, _ = adder("gradient")
    watch = node.watch(address)
    address.send(app.Work(1, values()), timeout=TIMEOUT)
    event = watch.recv(timeout=TIMEOUT)
    assert event is not None
    assert "EncodeError: Work.values: the Tensor requires a gradient; detach it first, with `.detach()`" in str(event.reason)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: torch.zeros(2, dtype=torch.float64), "its dtype must be f32 and is f64; convert it first"),
        (lambda: torch.zeros(2, requires_grad=True), r"requires a gradient; detach it first, with `.detach\(\)`"),
        (lambda: torch.eye(3).to_sparse(), r"is sparse; make it dense first, with `.to_dense\(\)`"),
        (lambda: torch.eye(3).to_sparse_csr(), "is sparse; make it dense first"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), r"is quantized; convert it first, with `.dequantize\(\)`"),
        (lambda: torch.zeros(2, device="meta"), "does not give itself by DLPack"),
        (lambda: torch.zeros(2, dtype=torch.complex64), "its dtype is complex64.*convert it first"),
        (lambda: torch.zeros((1,) * 9), "at most 8; reshape it first"),
    ],
)
def test_what_cannot_be_sent_names_the_field(adder: Make, bad: Callable[[], Any], why: str) -> None:
    address, _ = adder("new")
    with pytest.raises(tp.EncodeError, match=f"^Work.values: .*{why}"):
        address.send(app.Work(1, bad()), timeout=TIMEOUT)
    assert address.ask(app.Sum(torch.ones(2)), timeout=TIMEOUT) == 2


@tp.message
class OnGpu:
    inner: list[tp.Tensor[tp.f32, ..., "cuda"]]


@tp.message
class Shaped:
    first: tp.Tensor
    rows: dict[str, tp.Tensor[tp.f32, ..., 3]]


def test_shapes_and_devices_name_the_field() -> None:
    with pytest.raises(tp.EncodeError, match=r"^OnGpu.inner\[0\]: .*must be on.*copy it there first, with `.cuda\(\)`"):
        tp.encode(OnGpu([torch.zeros(2)]))
    with pytest.raises(tp.EncodeError, match=r"^Shaped.rows\['a'\]: its shape must be \[_, 3\] and is \[2, 2\]; reshape"):
        tp.encode(Shaped(torch.ones(1), {"a": torch.zeros(2, 2)}))


def test_more_than_the_pool_names_the_field() -> None:
    with tp.Node(console=False, host_budget=16 << 20) as node:
        sink, _ = node.channel(Shaped)
        big = torch.zeros(3 << 20, 3)
        with pytest.raises(tp.TensorError, match=r"^Shaped.rows\['b'\]: it cannot be sent: a tensor of 37748736 bytes") as caught:
            sink.send(Shaped(torch.ones(1), {"a": torch.zeros(1, 3), "b": big}), timeout=TIMEOUT)
        assert "tp.Node(host_budget=..)`, or send it in pieces" in str(caught.value)


def test_a_device_that_there_is_not(node: tp.Node) -> None:
    with pytest.raises(tp.SpawnError, match="no CUDA driver|cuda:4711"):
        node.spawn(app.Process, device="cuda:4711")
    with pytest.raises(tp.SpawnError, match="`gpu` as a device"):
        node.spawn(app.Process, device="gpu")
    address = node.spawn(app.Process, device="host", receive_on="cpu")
    assert address.ask(app.Owns(), timeout=TIMEOUT)
