"""Texts, keys and bytes that are kept in files. These tests read and write the bytes that Rust wrote, and the
tests in `framework/core/tests/tensors/portable.rs` read the bytes that were written here.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN
from types_of_rust import Add, Image, Job, Leaf, Newtype, OneLine, Scalars, Struct, Tree, Tuple, Unit

import tensorpost as tp

PIXELS = np.zeros((3, 2, 1), np.float32)
GRAY = np.zeros(2, np.uint8)

SCALARS = Scalars(
    integers=(1, 256, 65_536, 1 << 40, -1, -129, -40_000, -(1 << 40)),
    sizes=(5, -5),
    floats=[0.5, -0.0],
    single=1.5,
    truth=True,
    letter="ß",
    text='a "text"\n',
    nothing=None,
    other="200",
    patience=tp.Duration(1, 500_000_000),
)
JOB = Job(
    each_way=[Unit(), Newtype(3), Tuple(4, None), Struct({1: [True, False]})],
    tree=Tree(1, [Tree(2, []), Tree(3, [])]),
    told=OneLine("done"),
)


def golden(file: str) -> dict[str, str]:
    return json.loads((GOLDEN / f"{file}.json").read_text())


@pytest.mark.parametrize(("file", "value"), [("scalars", SCALARS), ("job", JOB)])
def test_what_rust_wrote_is_what_is_written_here(file: str, value: Any) -> None:
    kept = golden(file)
    assert tp.schema(type(value)) == kept["schema"]
    assert f"{tp.key(type(value)):016x}" == kept["key"]
    assert tp.encode(value) == (bytes.fromhex(kept["body"]), [])
    assert tp.decode(type(value), bytes.fromhex(kept["body"])) == value


def test_tensors_are_where_rust_finds_them() -> None:
    kept = golden("image")
    assert (tp.schema(Image), f"{tp.key(Image):016x}") == (kept["schema"], kept["key"])
    body, tensors = tp.encode(Image(300, PIXELS, {"a": [GRAY, GRAY], "b": []}))
    assert body.hex() == kept["body"]
    assert [tensor.shape for tensor in tensors] == [(3, 2, 1), (2,), (2,)]
    image = tp.decode(Image, body, tensors)
    assert (image.pixels, image.extras["a"][1]) == (tensors[0], tensors[2])


def test_what_was_written_here_is_what_it_was() -> None:
    """`TENSORPOST_WRITE_GOLDEN=1` writes the file; the Rust test must then be adapted to its content."""
    values = {
        "scalars": Scalars((255, 0, 1, 2, 3, -4, 5, -6), (7, 8), [1e300, 0.1], -0.25, False, "€", "", None, "77", tp.Duration(9, 1)),
        "job": Job(each_way=[Tuple(0, -128), Unit()], left_out=7, absent=8, tree=Tree(-1, []), told=OneLine("𝄞")),
        "image": Image(1, PIXELS, {"left": [], "right": [GRAY]}),
    }
    now = {
        name: {"schema": tp.schema(type(value)), "key": f"{tp.key(type(value)):016x}", "body": tp.encode(value)[0].hex()}
        for name, value in values.items()
    }
    path = GOLDEN / "from_python" / "written.json"
    if os.environ.get("TENSORPOST_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(now, indent=2, ensure_ascii=False) + "\n")
    assert json.loads(path.read_text()) == now


def test_a_class_that_holds_another_that_holds_it() -> None:
    assert tp.encode(Add(Leaf(1), Leaf(300)), Leaf | Add)[0].hex() == "81a341646482a46c65667481a44c65616601a5726967687481a44c656166cd012c"
