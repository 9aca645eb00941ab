"""PyTorch tensors, in and out of actors, on the host."""

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
    with tp.Node(console=False, start_deadline=TIMEOUT) as node:
        yield node


class Adder:
    """An actor, and its results."""

    def __init__(self, node: tp.Node) -> None:
        sink, self.results = node.channel(app.Work)
        # A worker that imports PyTorch starts slowly.
        self.address = node.spawn(app.Adder, sink, restart=tp.on_failure(20))
        self.watch = node.watch(self.address)

    def send(self, message: Any) -> None:
        self.address.send(message, timeout=TIMEOUT)

    def recv(self) -> Any:
        return self.results.recv(timeout=TIMEOUT).values

    def counts(self) -> tp.Tensors:
        return tp.Tensors(*self.address.ask(app.Counts(), timeout=TIMEOUT))

    def fails(self, message: Any) -> str:
        """Sends a message that ends the actor's life, and returns why it ended; the next life follows."""
        self.send(message)
        event = self.watch.recv(timeout=TIMEOUT)
        assert event is not None and event.kind == "down"
        up = self.watch.recv(timeout=TIMEOUT)
        assert up is not None and up.kind == "up"
        return str(event.reason)


@pytest.fixture(scope="module")
def adder(node: tp.Node) -> Adder:
    return Adder(node)


def values() -> Any:
    return torch.arange(6, dtype=torch.float32).reshape(3, 2)


def test_in_and_out(adder: Adder) -> None:
    before = adder.counts()
    assert adder.address.ask(app.Sum(values()), timeout=TIMEOUT) == 15
    adder.send(app.Work(1, values()))
    back = adder.recv()
    assert torch.equal(back.torch(), values() + 1) and not back.writable
    assert back.torch() is back.torch()
    assert difference(adder.counts(), before) == (0, 0, 1, 24)


def difference(now: tp.Tensors, before: tp.Tensors) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(now, before, strict=True))


@pytest.mark.parametrize(
    ("how", "expected", "counts"),
    [
        ("forward", values(), (1, 0, 0, 0)),
        ("view", values()[1:], (1, 0, 0, 0)),
        ("pool", values() + 1, (0, 1, 0, 0)),
        ("part of the pool", values() + 1, (0, 1, 0, 0)),
    ],
)
def test_nothing_is_copied(adder: Adder, how: str, expected: Any, counts: tuple[int, ...]) -> None:
    before = adder.counts()
    adder.send(app.Work(1, values(), how))
    assert torch.equal(adder.recv().torch(), expected)
    assert difference(adder.counts(), before) == counts


def test_a_program_has_a_pool_too(node: tp.Node, adder: Adder) -> None:
    before = node.tensors
    made = node.empty((3, 2), tp.f32)
    assert made.writable and "writable" in repr(made)
    made.torch().copy_(values())
    # Views of PyTorch and numpy stand on the same memory.
    for tensor in (made, made.torch()[1:], made.numpy().T):
        adder.send(app.Work(1, tensor, "forward"))
    for expected in (values(), values()[1:], values().T):
        assert torch.equal(adder.recv().torch(), expected)
    assert difference(node.tensors, before) == (0, 3, 0, 0)
    adder.send(app.Work(4, values(), "forward"))
    back = adder.recv().torch()
    adder.send(app.Work(5, back[:2], "forward"))
    assert torch.equal(adder.recv().torch(), values()[:2])
    # The memory that has come back is the program's own.
    assert difference(node.tensors, before) == (0, 4, 1, 24)


def test_odd_shapes_and_types(node: tp.Node) -> None:
    for dtype, name in [(tp.f32, "float32"), (bool, "bool"), (tp.bf16, "bfloat16"), ("u8", "uint8"), (tp.i64, "int64")]:
        for shape in [(), (0,), (3, 0, 2), (2, 3)]:
            made = node.empty(shape, dtype)
            assert made.torch().dtype == getattr(torch, name) and made.torch().shape == torch.Size(shape)
    assert node.empty(5, tp.f32).shape == (5,)
    with pytest.raises(tp.TensorError, match="'f8' is no dtype; say tp.f32, torch.float32"):
        node.empty(3, "f8")
    with pytest.raises(tp.Error, match="no actor runs on this thread"):
        tp.empty(3, tp.f32)


@pytest.mark.parametrize("how", ["torch", "tensor"])
def test_handed_over_for_good(node: tp.Node, adder: Adder, how: str) -> None:
    before = adder.counts()
    made = node.empty((3, 2), tp.f32)
    made.torch().copy_(values())
    adder.send(app.Given(1, made, how))
    assert torch.equal(adder.recv().torch(), 1 - values())
    assert torch.equal(made.torch(), values()), "the sender still has it, so the receiver's was a copy"
    # The sender no longer holds it, so it is written in place, and sent on as it is.
    adder.send(app.Given(2, values(), how))
    assert torch.equal(adder.recv().torch(), 1 - values())
    forwarded, without_copy, copied, _ = difference(adder.counts(), before)
    assert (forwarded, without_copy, copied) == (1, 1, 0)


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


def test_a_write_into_a_shared_one_fails_the_actor(node: tp.Node) -> None:
    address = node.spawn(app.ToItself, restart=tp.on_failure(20))
    watch = node.watch(address)
    for how in ("a view", "another", "in inference mode"):
        address.send(app.Own(how), timeout=TIMEOUT)
        event, up = watch.recv(timeout=TIMEOUT), watch.recv(timeout=TIMEOUT)
        assert event is not None and event.kind == "down" and up is not None and up.kind == "up"
        text = "ToItself.work of Work raised TensorError: Work.values: the handler has written this tensor in place"
        assert text in str(event.reason)
        assert "annotate the field with tp.Owned, or write a copy, as of `.clone()`" in str(event.reason)


def test_a_write_after_sending_fails_the_actor(adder: Adder) -> None:
    reason = adder.fails(app.Work(1, values(), "write after sending"))
    assert "has written a tensor in place after it sent it; send it last" in reason
    adder.recv()


def test_a_write_after_sending_is_found_where_the_tensor_has_gone(adder: Adder) -> None:
    assert "has written a tensor in place after it sent it" in adder.fails(app.Work(1, values(), "write and forget"))
    for _ in range(5):
        adder.recv()
    adder.send(app.Work(1, values(), "forget"))
    assert torch.equal(adder.recv().torch(), values() + 1)
    for _ in range(4):
        adder.recv()


def test_of_many_that_were_sent_and_kept_each_write_is_found(adder: Adder) -> None:
    def received() -> None:
        for number in [*range(40), 0, 39]:
            got = adder.results.recv(timeout=TIMEOUT)
            assert got.id == number and got.values.shape == (4,)

    for which in ("0", "17", "39"):
        assert "has written a tensor in place after it sent it" in adder.fails(app.Work(1, values(), f"keep all, write {which}"))
        received()
    adder.send(app.Work(1, values(), "keep all, and write none"))
    received()
    adder.send(app.Work(1, values(), "new"))
    assert torch.equal(adder.recv().torch(), values() + 1), "and the actor lives"


def test_a_handler_sends_more_than_the_pool_has() -> None:
    """64 MiB out of a pool of 16: memory that the receiver has released is free again before the handler is
    done."""
    with tp.Node(console=False, start_deadline=TIMEOUT, host_budget=16 << 20) as small:
        adder = Adder(small)
        adder.send(app.Work(1, values(), "many"))
        for number in range(64):
            assert float(adder.recv().torch()[-1]) == number


def test_memory_of_others_is_read_only(adder: Adder) -> None:
    """On the host the system enforces it: the worker is killed. (Its stderr says where.)"""
    assert "SIGSEGV" in adder.fails(app.Work(1, values(), "write"))


def test_gradients_are_refused_with_the_field(adder: Adder) -> None:
    reason = adder.fails(app.Work(1, values(), "gradient"))
    assert "EncodeError: Work.values: the Tensor requires a gradient; detach it first, with `.detach()`" in reason


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
        (lambda: torch.zeros(2, dtype=torch.complex32), "its dtype is complex32.*convert it first"),
        (lambda: torch.zeros((1,) * 9), "at most 8; reshape it first"),
    ],
)
def test_what_cannot_be_sent_names_the_field(adder: Adder, bad: Callable[[], Any], why: str) -> None:
    with pytest.raises(tp.EncodeError, match=f"^Work.values: .*{why}"):
        adder.send(app.Work(1, bad()))
    assert adder.address.ask(app.Sum(torch.ones(2)), timeout=TIMEOUT) == 2


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
