"""The memory of values from another process's bytes (WIRE-1): their number bounds it, as in Rust."""

from __future__ import annotations

import contextlib
import enum
import gc
import struct
import threading
import tracemalloc
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorpost as tp


@tp.message
class Small:
    a: tp.u64 = 0
    b: tp.u64 = 0
    c: str = ""
    d: str | None = None
    e: list[tp.u64] = tp.field(default_factory=list)


@tp.message
class Pair:
    left: tp.u64
    right: tp.u64


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@tp.variant
class Few:
    x: tp.u64


@tp.variant
class Many:
    x: tp.u64
    y: tp.u64


def items(count: int, *elements: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + b"".join(elements[at % len(elements)] for at in range(count))


def entries(count: int, value: bytes) -> bytes:
    return b"\xdf" + struct.pack(">I", count) + b"".join(b"\xce" + struct.pack(">I", key + 300) + value for key in range(count))


def numbers(count: int, *_: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + b"".join(b"\xce" + struct.pack(">I", at + 300) for at in range(count))


def message(type_: Any) -> Any:
    class Holds:
        of: type_

    Holds.__annotations__ = {"of": type_}
    return tp.message(Holds)


KINDS: dict[str, tuple[Any, Any]] = {
    "objects of defaults": (list[Small], lambda n: items(n, b"\x80")),
    "objects": (list[Pair], lambda n: items(n, b"\x92\x01\x02")),
    "lists": (list[list[tp.u64]], lambda n: items(n, b"\x90")),
    "texts": (list[str], lambda n: items(n, b"\xa2ab", "\xa4\N{GRINNING FACE}".encode()[1:])),
    "small numbers": (list[tp.u64], lambda n: items(n, b"\x07")),
    "numbers": (list[tp.u64], numbers),
    "floats": (list[tp.f64], lambda n: items(n, b"\x07")),
    "tuples": (list[tuple[tp.u64, tp.u64]], lambda n: items(n, b"\x92\x01\x02")),
    "sets": (list[set[tp.u64]], lambda n: items(n, b"\x90")),
    "a set": (set[tp.u64], numbers),
    "dicts": (list[dict[tp.u64, tp.u64]], lambda n: items(n, b"\x80")),
    "a dict": (dict[tp.u64, tp.u64], lambda n: entries(n, b"\x07")),
    "bytes": (list[bytes], lambda n: items(n, b"\xc4\x00")),
    "members": (list[Colour], lambda n: items(n, b"\xa3RED")),
    "nothing": (list[tp.u64 | None], lambda n: items(n, b"\xc0")),
    "variants": (list[Annotated[Few | Many, tp.Untagged()]], lambda n: items(n, b"\x92\x01\x02")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_takes_no_more_than_its_bytes_allow(kind: str) -> None:
    type_, body_of = KINDS[kind]
    holds = message(type_)
    count, most = 1 << 17, None
    while most is None:
        body = b"\x81\xa2of" + body_of(count)
        gc.collect()
        tracemalloc.start()
        try:
            value = tp.decode(holds, body, [])
            most = tracemalloc.get_traced_memory()[1]
            assert len(value.of) == count
        except tp.DecodeError as error:
            why = f"{len(body)} bytes would take more than {32 * len(body) + 2**20} bytes"
            # If there is no room, no variant of an untagged enum fits.
            assert why in str(error) or kind == "variants" and "it fits none of" in str(error)
            # The refusal itself is bounded too.
            assert tracemalloc.get_traced_memory()[1] <= 32 * len(body) + 2**20
            count //= 2
        finally:
            tracemalloc.stop()
    assert most <= 32 * len(body) + 2**20, f"{most / len(body):.0f} for each byte"
    # Values of ordinary programs are let through.
    assert count >= 1_000


READ = {kind: message(type_) for kind, (type_, _) in KINDS.items()}


@given(kind=st.sampled_from(sorted(KINDS)), head=st.sampled_from([b"", b"\x81\xa2of", b"\x91"]), body=st.binary(max_size=300))
def test_any_bytes_are_a_value_or_an_error(kind: str, head: bytes, body: bytes) -> None:
    with contextlib.suppress(tp.DecodeError):
        tp.decode(READ[kind], head + body, [])


def test_a_variant_that_does_not_fit_costs_nothing() -> None:
    holds = message(list[Annotated[Few | Many, tp.Untagged()]])
    value = tp.decode(holds, b"\x81\xa2of" + items(4_000, b"\x82\xa1x\xcd\x01\x00\xa1y\xcd\x01\x00"), [])
    assert len(value.of) == 4_000


def test_other_threads_run_while_a_long_body_is_read() -> None:
    holds, body = message(list[tp.f64]), b"\x81\xa2of" + items(1 << 20, b"\xcb" + struct.pack(">d", 1.5))
    ready, done = threading.Event(), threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        ready.set()
        while not done.is_set():
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    ready.wait()
    before = turns
    tp.decode(holds, body, [])
    during = turns - before
    done.set()
    thread.join()
    assert during > 0
