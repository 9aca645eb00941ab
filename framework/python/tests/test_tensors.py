"""Host tensors, from numpy and from a library that is written here with C structs, and back."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorpost as tp

DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
DTYPES += ["complex64", "complex128"]


def eventually(is_so: Callable[[], bool]) -> None:
    """Waits for a condition: another library's memory is released on a separate thread."""
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until, "it is not let go of"
        gc.collect()
        time.sleep(0.001)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_there_and_back(dtype: str) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    tensor = tp.Tensor(array)
    assert (tensor.shape, tensor.strides, tensor.ndim, tensor.size) == ((2, 3), (3, 1), 2, 6)
    assert (tensor.nbytes, tensor.device) == (array.nbytes, "host")
    back = np.from_dlpack(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert back.ctypes.data == array.ctypes.data, "it is the same memory"
    assert not back.flags.writeable
    assert tensor.tobytes() == array.tobytes()


def test_views_keep_their_strides() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, 1::2].T
    tensor = tp.Tensor(array)
    assert (tensor.shape, tensor.strides) == ((3, 2), (2, 12))
    np.testing.assert_array_equal(np.from_dlpack(tensor), array)
    assert tensor.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    np.testing.assert_array_equal(np.from_dlpack(tp.Tensor(array)), array)


def test_a_read_only_array_stays_so() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert not np.from_dlpack(tp.Tensor(array)).flags.writeable


def test_a_copy_can_be_written() -> None:
    array = np.arange(5, dtype=np.int16)
    copy = np.from_dlpack(tp.Tensor(array), copy=True)
    assert copy.ctypes.data != array.ctypes.data
    copy = np.from_dlpack(Only(tp.Tensor(array).__dlpack__(max_version=(1, 0), copy=True)))
    copy[0] = 9
    assert (copy[0], array[0]) == (9, 0)


class Only:
    """An object that gives a capsule, and takes no arguments."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Old(Only):
    """A library that does not know versions."""

    def __dlpack__(self) -> Any:
        return self.capsule


def test_capsules_with_and_without_a_version() -> None:
    array = np.arange(4, dtype=np.float64)
    tensor = tp.Tensor(array)
    for version, name in [((1, 0), "dltensor_versioned"), ((1, 9), "dltensor_versioned"), ((0, 8), "dltensor"), (None, "dltensor")]:
        capsule = tensor.__dlpack__(max_version=version)
        assert f'"{name}"' in repr(capsule)
        again = tp.Tensor(Old(capsule))
        np.testing.assert_array_equal(np.from_dlpack(again), array)
        assert f'"used_{name}"' in repr(capsule)
        with pytest.raises(tp.TensorError, match="can be taken once"):
            tp.Tensor(Old(capsule))
    assert tensor.__dlpack_device__() == (1, 0)


def test_an_array_lives_as_long_as_it_is_used() -> None:
    class Array(np.ndarray):
        """An array that can have weak references."""

    array = np.zeros(1000, np.uint8).view(Array)
    gone = weakref.ref(array)
    tensor = tp.Tensor(array)
    unused = tensor.__dlpack__(max_version=(1, 0))
    back = np.from_dlpack(tensor)
    del array, tensor
    gc.collect()
    assert gone() is not None
    del back
    gc.collect()
    assert gone() is not None, "a capsule that nobody took has it"
    del unused
    eventually(lambda: gone() is None)


class Managed(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Foreign:
    """A tensor of a C library, which counts how often it is released, and on which threads."""

    def __init__(self, **fields: int) -> None:
        self.data, self.shape = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_int64 * 1)(4)
        self.threads: list[int] = []
        self.deleter = DELETER(lambda _: self.threads.append(threading.get_ident()))
        self.managed = Managed(
            major=1, deleter=ctypes.cast(self.deleter, ctypes.c_void_p), data=ctypes.addressof(self.data), device=1,
            ndim=1, code=2, bits=32, lanes=1, shape=ctypes.addressof(self.shape),
        )  # fmt: skip
        for name, value in fields.items():
            setattr(self.managed, name, value)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor_versioned", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.managed.device, self.managed.id


def test_the_deleter_runs_once_and_on_a_thread_of_its_own() -> None:
    foreign = Foreign()
    tensor = tp.Tensor(foreign)
    arrays = [np.from_dlpack(tensor) for _ in range(10)]
    np.testing.assert_array_equal(arrays[0], [1, 2, 3, 4])
    del tensor
    assert foreign.threads == []
    del arrays
    eventually(lambda: len(foreign.threads) > 0)
    # One thread releases all tensors, in order: a second call for the first tensor would have come before
    # this one.
    another = Foreign()
    tp.Tensor(another)
    eventually(lambda: len(another.threads) > 0)
    assert len(foreign.threads) == 1 and foreign.threads[0] != threading.get_ident()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"code": 5}, "its dtype is complex32"),
        ({"lanes": 2}, "have 2 lanes.*give it an axis of 2 instead"),
        ({"device": 2, "id": 3}, "is on cuda:3.*copy it there first"),
        ({"device": 8}, "DLPack's type 8"),
        ({"major": 2}, "is of version 2.0"),
        ({"ndim": 9}, "at most 8; reshape it first"),
        ({"byte_offset": 1}, "no multiple of the 4 bytes of f32; copy it first"),
        ({"data": 0}, "its data is null"),
    ],
)
def test_what_cannot_be_taken_is_let_go_of(fields: dict[str, int], why: str) -> None:
    foreign = Foreign(**fields)
    with pytest.raises(tp.TensorError, match=why):
        tp.Tensor(foreign)
    if "device" not in fields:
        eventually(lambda: len(foreign.threads) == 1)


def test_tensors_of_other_threads() -> None:
    def work() -> None:
        for _ in range(200):
            array = np.random.default_rng().random(10)
            np.testing.assert_array_equal(np.from_dlpack(tp.Tensor(array)), array)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_what_is_no_tensor() -> None:
    with pytest.raises(tp.TensorError, match="a list is no tensor; give a tp.Tensor, or an object with `__dlpack__`"):
        tp.Tensor([1, 2])
    with pytest.raises(tp.TensorError, match="does not give itself by DLPack"):
        tp.Tensor(np.array(["text"]))
    with pytest.raises(tp.TensorError, match="strides are not negative; make it contiguous first"):
        tp.Tensor(np.arange(3)[::-1])
    with pytest.raises(tp.TensorError, match="gave no capsule"):
        tp.Tensor(Only(None))


def test_an_array_past_the_end_of_its_memory_is_refused() -> None:
    strided = np.lib.stride_tricks.as_strided
    owner, loan = np.arange(6, dtype=np.float32), bytearray(24)
    for base in (owner, np.frombuffer(loan, np.float32), np.frombuffer(memoryview(loan)[4:], np.float32)):
        inside = strided(base, (2, len(base) - 1), (4, 4))
        assert tp.Tensor(inside).numpy().tolist() == inside.tolist()
        for beyond in (strided(base, (7,)), strided(base[1:], (len(base),)), strided(base, (2, 2), (4 * len(base), 4))):
            for one in (beyond, beyond[1:], beyond.view(np.int32)):
                with pytest.raises(tp.TensorError, match="bytes of memory, and its shape and strides reach over"):
                    tp.Tensor(one)
    # An object that describes its memory as CuPy does.
    whole = types.SimpleNamespace(mem=types.SimpleNamespace(ptr=owner.ctypes.data, size=20))
    lent = types.SimpleNamespace(data=whole, __dlpack_device__=owner.__dlpack_device__, __dlpack__=owner.__dlpack__)
    with pytest.raises(tp.TensorError, match="has 20 bytes of memory, and its shape and strides reach over 24"):
        tp.Tensor(lent)
    whole.mem.size = 24
    assert tp.Tensor(lent).nbytes == 24


def test_an_array_with_a_mask_is_refused() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    with pytest.raises(tp.TensorError, match=r"has a mask, which is not sent with it; fill it first, with `.filled\(0\)`"):
        tp.Tensor(masked)
    assert tp.Tensor(masked.filled(0)).numpy().tolist() == [0, 2]


def test_dtypes_are_named_as_other_libraries_do() -> None:
    with tp.Node(console=False) as node:
        for theirs, name in [
            (np.float32, "f32"),
            (np.dtype("uint8"), "u8"),
            (np.bool_, "bool"),
            (np.complex64, "complex64"),
            (complex, "complex128"),
            (tp.f8e4m3, "f8e4m3"),
            ("f8e5m2fnuz", "f8e5m2fnuz"),
        ]:
            assert node.empty(3, theirs).dtype == name
        # numpy has no floats of 8 bits.
        with pytest.raises(tp.TensorError, match="numpy has no f8e4m3"):
            node.empty(3, tp.f8e4m3).numpy()
        with pytest.raises(tp.SchemaError, match="there are no tensors of datetime64"):
            node.empty(3, np.datetime64)
        with pytest.raises(tp.SchemaError, match="there are no tensors of >f4"):
            node.empty(3, np.dtype(">f4"))
    assert tp.TensorSpec(dtype=np.int16) == tp.TensorSpec(dtype="i16")
    assert tp.Tensor[np.float64, 3, ...] == tp.Tensor[tp.f64, 3, ...]


def test_a_budget_of_a_gpu_is_bytes_or_a_share() -> None:
    for wrong in (1.5, 0.0, -1, True):
        with pytest.raises(tp.NodeError, match="say bytes, as an int, or a share"):
            tp.Node(gpu_budget=wrong)
    for budget in (0.5, 1 << 30, np.int64(1 << 30)):
        with tp.Node(gpu_budget=budget, console=False):  # type: ignore[arg-type]
            pass


def test_what_cannot_be_given() -> None:
    tensor = tp.Tensor(np.zeros(2))
    with pytest.raises(BufferError, match="has no streams"):
        tensor.__dlpack__(stream=1)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="take it on the host"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert repr(tensor) == "Tensor(f64, shape=[2], host)"


def test_a_program_may_end_with_tensors() -> None:
    """Deleters need the interpreter, and must not take it when it is gone."""
    program = (
        "import numpy as np, tensorpost as tp, threading\n"
        "kept = [tp.Tensor(np.zeros(1000)) for _ in range(2000)]\n"
        "views = [np.from_dlpack(one) for one in kept]\n"
        "del kept[::2], views[::2]\n"
    )
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_process_may_end() -> None:
    """A forked process has the tensors, but not the thread that releases them."""
    program = (
        "import os, sys, numpy as np, tensorpost as tp\n"
        "kept = [tp.Tensor(np.zeros(10)) for _ in range(100)]\n"
        "del kept[::2]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    del kept\n"
        "    sys.exit(3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
