"""The decoder reads bytes that nobody thought of (WIRE-1): random ones, and honest bodies with changes.

Each body is a value or a :class:`tensorpost.DecodeError` that names the type. Nothing else is raised, no
panic of Rust's either. No body takes more memory than its bytes allow (MBX-2), and a value that was read is
written and read again. Addresses need a node and are refused here; the target `peers` of
`framework/core/fuzz` has them.

The bodies are read in a process of its own, because a defect may end the interpreter. That process notes each
body's number before it reads it, and the number alone makes the body: so the test names the one that did it.

`TENSORPOST_FUZZ_SECONDS` (5) says for how long bodies are drawn that are new in each run, and
`TENSORPOST_FUZZ_BODY` is the number of the first one. This shows one body again:
`PYTHONHASHSEED=0 python tests/test_fuzz.py --first NUMBER --count 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import faulthandler
import functools
import gc
import json
import mmap
import os
import random
import resource
import secrets
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from test_growth import KINDS, message
from types_of_rust import MESSAGES, Expression, Figure, Leaf, Loose, Told, Way

import tensorpost as tp
from tensorpost._types import Length, Scalar

# The same arithmetic as in `framework/core/src/limits.rs`.
DECODED_PER_BYTE = 32
DECODED_BASE = 1 << 20

# The interpreter's own memory may grow by this much while thousands of bodies are read.
RESIDENT = 128 << 20

# Honest bodies of each type that are changed.
HONEST = 64

# Bodies of the deterministic test; they take some two seconds.
SAME_EACH_TIME = 4_000

# The messages, and messages with one field of the other types.
UNIONS = {"Expression": Expression, "Figure": Figure, "Loose": Loose, "Told": Told, "Way": Way}
TYPES: dict[str, Any] = {
    **MESSAGES,
    **{name: message(of) for name, of in UNIONS.items()},
    **{name: message(of) for name, (of, _) in KINDS.items()},
}
NAMES = list(TYPES)

# A value of an untagged enum may fit an earlier variant when it is read again, as in serde.
UNTAGGED = {"Everything", "Loose", "variants"}

DTYPES = {"u8": np.uint8, "i64": np.int64, "f32": np.float32}

# Heads of MessagePack values: of each kind, at both ends of what a head can say, and a byte that begins none.
HEADS = [bytes([byte]) for byte in b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xc3\xe0\xff"]
WIDTHS = {
    1: b"\xc4\xcc\xd0\xd9",
    2: b"\xc5\xcd\xd1\xda\xdc\xde",
    4: b"\xc6\xca\xce\xd2\xdb\xdd\xdf",
    8: b"\xcb\xcf\xd3",
}
HEADS += [
    bytes([byte]) + rest * width
    for width, heads in WIDTHS.items()
    for byte in heads
    for rest in (b"\x00", b"\x7f", b"\xff")
]
HEADS += [b"\xc7\x02\x54", b"\xd4\x54\x00", b"\xd8\x00" + bytes(16)]
HEADS += [b"\x81\xa7$tensor" + index for index in (b"\x00", b"\x01", b"\xff", b"\xcf" + b"\xff" * 8)]


def integer(rng: random.Random, name: str) -> int:
    bits = int(name[1:])
    least, most = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.choice([least, most, rng.randint(least, most), rng.randint(max(least, -3), min(most, 300))])


def text(rng: random.Random) -> str:
    return "".join(rng.choice("ab\n\0\x7fß€𝄞") for _ in range(rng.choice([0, 1, 3, 40])))


def value_of(of: Any, rng: random.Random, depth: int = 4) -> Any:
    """Draws a value of an annotation, with at most `depth` containers inside each other."""
    origin, arguments = get_origin(of), get_args(of)
    if origin is Annotated:
        of, extras = arguments[0], arguments[1:]
        for extra in extras:
            if isinstance(extra, Scalar) and extra.name == "char":
                return rng.choice("aß𝄞")
            if isinstance(extra, Scalar) and extra.name[0] == "f":
                return rng.choice([0.0, -0.5, float("inf"), float("nan")])
            if isinstance(extra, Scalar):
                return integer(rng, extra.name)
            if isinstance(extra, Length):
                return [value_of(get_args(of)[0], rng, depth - 1) for _ in range(extra.items)]
            if isinstance(extra, tp.TensorSpec):
                shape = [2 if axis is None else axis for axis in extra.shape or (2,)]
                return np.zeros(shape, DTYPES[extra.dtype or "u8"])
        origin, arguments = get_origin(of), get_args(of)
    if of in (None, type(None)):
        return None
    if of is tp.Tensor:
        return np.zeros(3, np.uint8)
    if of is tp.Duration:
        return tp.Duration(rng.getrandbits(64), rng.randrange(1_000_000_000))
    if of is str:
        return text(rng)
    if of is bytes:
        return rng.randbytes(rng.choice([0, 5, 300]))
    if of in (bool, float):
        return of(rng.randrange(2))
    count = rng.randrange(3) if depth > 0 else 0
    if origin in (list, set):
        return origin(value_of(arguments[0], rng, depth - 1) for _ in range(count))
    if origin is dict:
        return {value_of(arguments[0], rng, 0): value_of(arguments[1], rng, depth - 1) for _ in range(count)}
    if origin is tuple:
        return tuple(value_of(one, rng, depth - 1) for one in arguments)
    if arguments:
        some = [one for one in arguments if depth > 0 or one in (type(None), Leaf)] or list(arguments)
        return value_of(rng.choice(some), rng, depth - 1)
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return rng.choice(list(of))
    return of(**{name: value_of(inner, rng, depth - 1) for name, inner in fields(of).items()})


@functools.cache
def fields(of: type) -> dict[str, Any]:
    hints = get_type_hints(of, include_extras=True)
    on_wire = (one for one in dataclasses.fields(of) if not one.metadata.get("tensorpost", {}).get("skip"))
    return {field.name: hints[field.name] for field in on_wire}


@functools.cache
def honest(name: str, number: int) -> tuple[bytes, list[tp.Tensor]]:
    """Makes a body as an honest sender writes it, and its tensors."""
    rng = random.Random(f"{name} {number}")
    if name in KINDS:
        return b"\x81\xa2of" + KINDS[name][1](rng.choice([0, 1, 3, 40, 400])), []
    return tp.encode(value_of(TYPES[name], rng))


def changed(body: bytes, other: bytes, rng: random.Random) -> bytes:
    """Changes a body in one place."""
    at, end = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    end = min(end, at + rng.choice([1, 2, 9, 300]))
    match rng.randrange(8):
        case 0 if body:
            at = rng.randrange(len(body))
            return body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :]
        case 1:
            return body[:at]
        case 2:
            return body[:at] + body[end:]
        case 3:
            return body[:end] + body[at:]
        case 4:
            return body[:at] + other[rng.randrange(len(other) + 1) :]
        case 5:
            return body[:at] + rng.choice(HEADS) + body[at:]
        case 6:
            return body[:at] + rng.choice(HEADS) + body[end:]
        case _:
            return rng.choice([b"\x91", b"\x81", b"\x81\xa4Leaf"]) * rng.choice([1, 63, 64, 65]) + body


def body_of(number: int) -> tuple[str, bytes, list[tp.Tensor]]:
    """Makes the body with this number, and the name of the type that it is read as."""
    rng = random.Random(number)
    name = rng.choice(NAMES)
    body, tensors = honest(name, rng.randrange(HONEST))
    match rng.randrange(4):
        case 0:
            pieces = (rng.choice([rng.choice(HEADS), rng.randbytes(1)]) for _ in range(rng.randrange(60)))
            body = b"".join(pieces)
        case 1 | 2:
            for _ in range(rng.choice([1, 1, 2, 5])):
                body = changed(body, honest(rng.choice(NAMES), rng.randrange(HONEST))[0], rng)
        case _:
            pass  # Honest bodies show that the types are right.
    if rng.randrange(4) == 0:
        tensors = tensors[: rng.randrange(len(tensors) + 1)]
    return name, body, tensors


def names() -> dict[str, str]:
    """Returns the name that errors of each type begin with."""
    named = {}
    for name, of in TYPES.items():
        try:
            tp.decode(of, b"", [])
        except tp.DecodeError as error:
            named[name] = str(error).removesuffix(": the body is empty")
            assert named[name] and named[name] != str(error), error
    assert len(named) == len(TYPES)
    return named


def read(name: str, body: bytes, tensors: list[tp.Tensor], begins: str) -> bool:
    """Reads a body and checks all that is promised. Returns whether it is a value."""
    of = TYPES[name]
    allowed = DECODED_PER_BYTE * len(body) + DECODED_BASE
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        value = tp.decode(of, body, tensors)
    except tp.DecodeError as error:
        value, why = None, str(error)
        assert why.startswith(begins) and len(why) > len(begins) + 2, f"it names nothing: {why}"
    else:
        why = None
    most = tracemalloc.get_traced_memory()[1] - before
    assert most <= allowed, f"{len(body)} bytes took {most}, and may take {allowed}"
    if why is None:
        again, its_tensors = tp.encode(value, of)
        twice, _ = tp.encode(tp.decode(of, again, its_tensors), of)
        # The items of a set have no order.
        assert name in UNTAGGED or len(twice) == len(again), "another value than was written"
    return why is None


def run(first: int, count: int | None, seconds: float | None, note: mmap.mmap | None) -> dict[str, int]:
    """Reads bodies from this number on, until so many were read or so much time has passed."""
    begins = names()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    until = None if seconds is None else time.monotonic() + seconds
    number, values = first, 0
    tracemalloc.start()
    while (count is None or number < first + count) and (until is None or time.monotonic() < until):
        name, body, tensors = body_of(number)
        if note is not None:
            note[:8] = struct.pack("<Q", number)
        try:
            values += read(name, body, tensors, begins[name])
        except BaseException as error:
            error.add_note(f"body {number}, read as {name}: {body.hex()}")
            raise
        number += 1
    tracemalloc.stop()
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
    assert grown <= RESIDENT, f"{number - first} bodies made the process {grown} bytes larger"
    return {"read": number - first, "values": values}


class Died(AssertionError):
    """The process that read the bodies ended."""


def in_a_process(tmp_path: Path, *arguments: str, patience: float = 300) -> dict[str, int]:
    """Runs this file, and returns what it has counted."""
    note = tmp_path / "number"
    note.write_bytes(bytes(8))
    # The fixture `_ends` allows less time than a long run takes.
    faulthandler.dump_traceback_later(patience + 60, exit=True)
    command = [sys.executable, __file__, "--note", str(note), *arguments]
    try:
        # The order of a set's items, and so its bytes, depends on the hashes of texts.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment)
        status, errors = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        status, errors = -signal.SIGKILL, "it did not end by itself"
    if status != 0:
        (number,) = struct.unpack("<Q", note.read_bytes())
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise Died(f"{how} at body {number}:\n{errors[-4000:]}")
    return json.loads(done.stdout)


def test_any_bytes_are_a_value_or_an_error_that_names_it(tmp_path: Path) -> None:
    counts = in_a_process(tmp_path, "--first", "0", "--count", str(SAME_EACH_TIME))
    assert counts["read"] == SAME_EACH_TIME
    # A quarter of the bodies is honest. If there were nothing but values, or none, the changes would change
    # nothing, or all of it.
    assert SAME_EACH_TIME // 5 < counts["values"] < SAME_EACH_TIME * 4 // 5, counts


def test_new_bytes_are_too(tmp_path: Path) -> None:
    seconds = os.environ.get("TENSORPOST_FUZZ_SECONDS", "5")
    first = os.environ.get("TENSORPOST_FUZZ_BODY") or str(secrets.randbits(62))
    counts = in_a_process(tmp_path, "--first", first, "--seconds", seconds, patience=float(seconds) + 300)
    assert counts["read"] > 0 or float(seconds) <= 0


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("abort", "SIGABRT at body 77"),
        ("raise", "body 77, read as"),
        ("memory", "bytes took"),
        ("nameless", "it names nothing"),
    ],
)
def test_a_decoder_that_keeps_no_promise_is_found(tmp_path: Path, fault: str, told: str) -> None:
    """Without this, the tests above would pass with a harness that sees nothing."""
    with pytest.raises(Died, match=told):
        in_a_process(tmp_path, "--first", "77", "--count", "1", "--fault", fault)


@contextlib.contextmanager
def faulty(fault: str | None) -> Iterator[None]:
    """Puts a decoder in place that does what no decoder may."""
    right = tp.decode

    def wrong(of: Any, body: bytes, tensors: list[tp.Tensor]) -> Any:
        if not body and not tensors and sys._getframe(1).f_code is names.__code__:
            return right(of, body, tensors)
        match fault:
            case "abort":
                os.abort()
            case "raise":
                raise RuntimeError("no DecodeError")
            case "memory":
                bytearray(DECODED_PER_BYTE * len(body) + 2 * DECODED_BASE)
                return right(of, body, tensors)
            case _:
                raise tp.DecodeError("no")

    if fault is not None:
        tp.decode = wrong  # type: ignore[assignment]
    try:
        yield
    finally:
        tp.decode = right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--note")
    parser.add_argument("--fault")
    options = parser.parse_args()
    note = None
    if options.note is not None:
        with open(options.note, "r+b") as file:
            note = mmap.mmap(file.fileno(), 8)
    with faulty(options.fault):
        print(json.dumps(run(options.first, options.count, options.seconds, note)))


if __name__ == "__main__":
    main()
