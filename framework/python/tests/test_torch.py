"""PyTorch tensors on the host. The tests run if torch is installed."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

import tensorpost as tp

torch: Any = pytest.importorskip("torch")

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@tp.message
class Frame:
    pixels: tp.Tensor[tp.f32, 2, ...]


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back(dtype: str) -> None:
    source = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3)
    tensor = tp.Tensor(source)
    back = torch.from_dlpack(tensor)
    assert back.dtype == source.dtype and torch.equal(back, source)
    assert back.data_ptr() == source.data_ptr(), "it is the same memory"


def test_views_keep_their_strides() -> None:
    source = torch.arange(24).reshape(4, 6)[::2, 1::2].T
    tensor = tp.Tensor(source)
    assert (tensor.shape, tensor.strides) == (tuple(source.shape), source.stride())
    assert torch.equal(torch.from_dlpack(tensor), source)


def test_in_a_message_and_on_to_numpy() -> None:
    source = torch.randn(2, 3)
    body, tensors = tp.encode(Frame(source))
    frame = tp.decode(Frame, body, tensors)
    np.testing.assert_array_equal(np.from_dlpack(frame.pixels), source.numpy())


def test_a_tensor_lives_as_long_as_it_is_used() -> None:
    source = torch.ones(1000)
    tensor = tp.Tensor(source)
    del source
    gc.collect()
    back = torch.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert float(back.sum()) == 1000


def test_memory_comes_back() -> None:
    array = np.zeros(100)
    gone = weakref.ref(base := array.view(type("Array", (np.ndarray,), {})))
    back = torch.from_dlpack(tp.Tensor(base))
    del base, array
    gc.collect()
    assert gone() is not None
    del back
    until = time.monotonic() + 30
    while gone() is not None:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_taken() -> None:
    with pytest.raises(tp.EncodeError, match=r"^Frame.pixels: the Tensor requires a gradient; detach it first, with `.detach\(\)`"):
        tp.encode(Frame(torch.zeros(2, 1, requires_grad=True)))
    with pytest.raises(tp.TensorError, match=r"is sparse; make it dense first, with `.to_dense\(\)`"):
        tp.Tensor(torch.eye(3).to_sparse())
    with pytest.raises(tp.TensorError, match=r"is sparse; make it dense first"):
        tp.Tensor(torch.eye(3).to_sparse_csr())
    with pytest.raises(tp.TensorError, match=r"is quantized; convert it first, with `.dequantize\(\)`"):
        tp.Tensor(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    with pytest.raises(tp.TensorError, match=r"its dtype is complex32.*convert it first"):
        tp.Tensor(torch.zeros(2, dtype=torch.complex32))
    with pytest.raises(tp.TensorError, match="the Tensor does not give itself by DLPack"):
        tp.Tensor(torch.zeros(2, device="meta"))
    with pytest.raises(tp.EncodeError, match="its dtype must be f32 and is f64; convert it first"):
        tp.encode(Frame(torch.zeros(2, 1, dtype=torch.float64)))
    pairs = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(tp.TensorError, match="is nested; send its parts"):
        tp.Tensor(pairs)
    with pytest.raises(tp.TensorError, match=r"has a layout of MKL-DNN|does not give itself"):
        tp.Tensor(torch.ones(2, 2).to_mkldnn())


def test_what_memory_alone_does_not_say_is_refused() -> None:
    spectrum = torch.tensor([1 + 2j, 3 + 4j, 5 - 6j])
    negated = spectrum.conj().imag
    assert negated.is_neg()
    for one in (negated, negated[1:], negated.view(3, 1)):
        with pytest.raises(tp.TensorError, match=r"has a minus sign that is not in its memory.*with `.resolve_neg\(\)`"):
            tp.Tensor(one)
    assert tp.Tensor(negated.resolve_neg()).numpy().tolist() == [-2, -4, 6]
    with pytest.raises(tp.TensorError, match=r"is the conjugate of what is in its memory.*`.resolve_conj\(\)`"):
        tp.Tensor(spectrum.conj())
    with pytest.raises(tp.TensorError, match="is zeros without memory"):
        tp.Tensor(torch._efficientzerotensor((3,)))


def test_a_storage_that_is_smaller_than_its_shape_is_refused() -> None:
    for left in (4, 4096):
        shrunk = torch.ones(1_000_000)
        views = [shrunk, shrunk[5:], shrunk.view(1000, 1000).t(), torch.as_strided(shrunk, (2, 2), (1, 999_998))]
        assert all(tp.Tensor(one).nbytes >= 16 for one in views)
        shrunk.untyped_storage().resize_(left)
        for one in views:
            with pytest.raises(tp.TensorError, match=f"the Tensor has {left} bytes of memory, and its shape and strides reach over"):
                tp.Tensor(one)
        if left == 4096:
            assert tp.Tensor(shrunk[:1024]).nbytes == 4096 and tp.Tensor(shrunk[:0]).nbytes == 0
    with pytest.raises(tp.TensorError, match="has .* bytes of memory|its data is null"):
        shrunk.untyped_storage().resize_(0)
        tp.Tensor(shrunk)


def test_work_with_gradients_on_what_was_received() -> None:
    received = torch.from_dlpack(tp.Tensor(torch.ones(3)))
    weight = torch.ones(3, requires_grad=True)
    (received * weight).sum().backward()
    assert torch.equal(weight.grad, torch.ones(3))


def test_actors_take_and_give_tensors_of_torch() -> None:
    import actors_of_python as app

    with tp.Node(console=False) as node:
        sink, scaled = node.channel(app.Scale)
        statistics = node.spawn(app.Statistics, sink, 2.0)
        values = torch.arange(4, dtype=torch.float32)
        assert statistics.ask(app.Mean(values), timeout=60) == 1.5
        statistics.send(app.Scale(1, values), timeout=60)
        assert torch.from_dlpack(scaled.recv(timeout=60).values).tolist() == [0, 2, 4, 6]
