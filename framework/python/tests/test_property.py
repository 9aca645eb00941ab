"""Schemas and values from seeds, made by both halves and compared. `TENSORPOST_RANDOM=n` takes n times as
many."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from conftest import Peer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from types_of_rust import MESSAGES, Circle, Expression, Figure, Function, Leaf, Loose, Named, Told, Way

import tensorpost as tp
from tensorpost._types import Length, Scalar

TIMES = int(os.environ.get("TENSORPOST_RANDOM", "1"))
DTYPES = {"u8": np.uint8, "i16": np.int16, "i64": np.int64, "f32": np.float32}


def zeros(outline: dict[str, Any]) -> Any:
    """Makes a tensor of that dtype and shape. numpy has no bf16, so PyTorch makes these."""
    if outline["dtype"] == "bf16":
        torch = pytest.importorskip("torch")
        return torch.zeros(outline["shape"], dtype=torch.bfloat16)
    return np.zeros(outline["shape"], DTYPES[outline["dtype"]])


@pytest.mark.parametrize("name", MESSAGES)
def test_values_of_rust_are_read_and_written_as_they_were(peer: Peer, name: str) -> None:
    cls = MESSAGES[name]
    for seed in range(150 * TIMES):
        made = peer.ask(make={"of": name, "seed": seed})
        assert made["error"] is None, (seed, made)
        assert (tp.schema(cls), tp.key(cls)) == (made["schema"], made["key"])
        body = bytes.fromhex(made["body"])
        if any(outline["dtype"] == "bf16" for outline in made["tensors"]):
            continue
        tensors = [tp.Tensor(zeros(outline)) for outline in made["tensors"]]
        value = tp.decode(cls, body, tensors)
        again, out = tp.encode(value)
        assert again == body, (seed, value)
        assert len(out) == len(tensors)
        assert [(one.dtype, list(one.shape)) for one in out] == [(one["dtype"], one["shape"]) for one in made["tensors"]]


INTEGERS = {f"{sign}{bits}": st.integers(*((-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if sign == "i" else (0, 2**bits - 1)))
            for sign in "ui" for bits in (8, 16, 32, 64)}  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SCALARS = {
    **INTEGERS,
    "f32": st.floats(width=32),
    "f64": st.floats(),
    "char": st.characters(exclude_categories=["Cs"]),
}


def values(of: Any, depth: int = 3) -> st.SearchStrategy[Any]:
    """Generates values of an annotation, with at most `depth` optional types inside each other."""
    extras: tuple[Any, ...] = ()
    if get_origin(of) is Annotated:
        of, *rest = get_args(of)
        extras = tuple(rest)
        for extra in extras:
            if isinstance(extra, Scalar):
                return SCALARS[extra.name]
            if isinstance(extra, Length):
                return st.lists(values(get_args(of)[0], depth), min_size=extra.items, max_size=extra.items)
            if isinstance(extra, tp.TensorSpec):
                shape = [2 if axis is None else axis for axis in extra.shape or (2,)]
                return st.just(np.zeros(shape, DTYPES[extra.dtype or "u8"]))
    if of is tp.Tensor:
        return st.just(np.zeros(3, np.uint8))
    plain = {bool: st.booleans(), str: TEXT, bytes: st.binary(max_size=300), float: st.floats(), type(None): st.none(), None: st.none()}
    if of in plain:
        return plain[of]
    origin, arguments = get_origin(of), get_args(of)
    if depth <= 0 and origin in (list, dict, set):
        return st.builds(origin)
    inner = [values(one, depth - 1) for one in arguments] if origin in (list, dict, set, tuple) else []
    if origin is list:
        return st.lists(inner[0], max_size=2)
    if origin is set:
        return st.sets(inner[0], max_size=2)
    if origin is dict:
        return st.dictionaries(*inner, max_size=2)
    if origin is tuple:
        return st.tuples(*inner)
    if arguments:
        some = [one for one in arguments if depth > 0 or one in (type(None), Leaf)] or list(arguments)
        return st.one_of(*(values(one, depth - 1) for one in some))
    if hasattr(of, "__members__"):
        return st.sampled_from(list(of))
    return objects(of, depth - 1)


def objects(cls: type, depth: int) -> st.SearchStrategy[Any]:
    if cls is tp.Duration:
        return st.builds(cls, INTEGERS["u64"], st.integers(0, 999_999_999))
    hints = get_type_hints(cls, include_extras=True)
    on_wire = [field.name for field in dataclasses.fields(cls) if not field.metadata.get("tensorpost", {}).get("skip")]
    return st.deferred(lambda: st.builds(cls, **{name: values(hints[name], depth) for name in on_wire}))


@pytest.mark.parametrize("name", MESSAGES)
def test_values_of_python_are_read_by_rust(peer: Peer, name: str) -> None:
    cls = MESSAGES[name]

    @settings(max_examples=100 * TIMES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=TIMES == 1)
    @given(values(cls))
    def each(value: Any) -> None:
        body, tensors = tp.encode(value)
        outlines = [{"dtype": tensor.dtype, "shape": tensor.shape} for tensor in tensors]
        answer = peer.ask(check={"of": name, "body": body.hex(), "tensors": outlines})
        assert answer["error"] is None, answer
        # A map in Rust is sorted, so bytes are compared if there is at most one key; when they are read
        # again, all values are the same.
        assert sorted(answer["same"]) == list(range(len(tensors)))
        mine, theirs = tp.decode(cls, body, tensors), bytes.fromhex(answer["body"])
        again = tp.decode(cls, theirs, [tensors[index] for index in answer["same"]])
        assert same(mine, again), (mine, again)
        assert same(value, again), (value, again)
        assert len(theirs) == len(body)

    each()


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, also with NaNs and tensors in them."""
    if isinstance(right, tp.Tensor):
        return tp.Tensor(left).shape == right.shape
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right) or left != left and right != right
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(one, right[key]) for key, one in left.items())
    if dataclasses.is_dataclass(left):
        names = [field.name for field in dataclasses.fields(left)]
        return type(left) is type(right) and all(same(getattr(left, name), getattr(right, name)) for name in names)
    return type(left) is type(right) and left == right


def class_of(fields: list[dict[str, Any]], name: str) -> type:
    body = {"__annotations__": {field["name"]: annotation(field["type"]) for field in fields}}
    return types.new_class(name, (), {}, lambda namespace: namespace.update(body))


def variant_of(variant: dict[str, Any]) -> type:
    name, body = variant["name"], variant["body"]
    if body == "unit":
        return tp.variant(types.new_class(name))
    ((kind, held),) = body.items()
    if kind == "struct":
        return tp.variant(tuple=False)(class_of(held, name))
    held = [held] if kind == "newtype" else held
    fields = [{"name": f"_{index}", "type": one} for index, one in enumerate(held)]
    return tp.variant(tuple=True)(class_of(fields, name))


def annotation(schema: Any) -> Any:
    """Returns the annotation that has this schema."""
    plain = {"nil": None, "bool": bool, "str": str, "bytes": bytes, "f64": float}
    if isinstance(schema, str):
        return plain[schema] if schema in plain else getattr(tp, schema)
    ((kind, of),) = schema.items()
    if kind == "enum":
        classes = tuple(variant_of(variant) for variant in of["variants"])
        union: Any = classes[0]
        for cls in classes[1:]:
            union |= cls
        return union if of["repr"] == "external" else Annotated[union, tp.Tagged(*of["repr"]["adjacent"])]
    if kind == "struct":
        return tp.message(tuple=False)(class_of(of, "Inner"))
    if kind == "tuple":
        return tuple[*map(annotation, of)] if of else tuple[()]
    if kind == "map":
        return dict[annotation(of[0]), annotation(of[1])]  # type: ignore[misc]
    if kind == "array":
        return tp.Array[annotation(of[0]), of[1]]  # type: ignore[misc]
    if kind == "option":
        # Python has no option of an option, and `None | None` is None.
        inner = annotation(of)
        return Skip if inner is None or is_option(of) else inner | None
    return {"list": list, "set": set}[kind][annotation(of)]  # type: ignore[index]


class Skip:
    """A type that Python cannot express."""


def is_option(schema: Any) -> bool:
    return isinstance(schema, dict) and "option" in schema


def has_no_words(schema: Any) -> bool:
    text = json.dumps(schema, separators=(",", ":"))
    return '{"option":"nil"}' in text or '{"option":{"option":' in text


def test_types_that_nobody_knows(peer: Peer) -> None:
    compared = 0
    for seed in range(600 * TIMES):
        made = peer.ask(invent={"seed": seed})
        assert made["error"] is None, (seed, made)
        schema = json.loads(made["schema"])
        if has_no_words(schema):
            continue
        cls = tp.message(name=schema["message"], tuple=False)(class_of(schema["body"]["struct"], "Invented"))
        assert (tp.schema(cls), tp.key(cls)) == (made["schema"], made["key"]), seed
        body = bytes.fromhex(made["body"])
        value = tp.decode(cls, body)
        assert tp.encode(value) == (body, []), (seed, value)
        # Cut short or with one byte changed, it must be a value or an error.
        for at in range(min(len(body), 40)):
            for bad in (body[:at], body[:at] + bytes([body[at] ^ (1 << seed % 8)]) + body[at + 1 :]):
                try:
                    tp.decode(cls, bad)
                except tp.DecodeError:
                    pass
        compared += 1
    assert compared > 400 * TIMES


def test_texts_are_canonical(peer: Peer) -> None:
    for cls in (*MESSAGES.values(), Circle, Function):
        text = tp.schema(cls)
        answer = peer.ask(text={"text": text})
        assert (answer["schema"], answer["key"]) == (text, tp.key(cls))


def test_unions_alone_have_schemas_too() -> None:
    assert tp.schema(Told).startswith('{"enum":{"repr":{"adjacent":["kind","what"]}')
    assert tp.schema(Figure).startswith('{"enum":{"repr":{"internal":"figure"}')
    assert tp.schema(Loose).startswith('{"enum":{"repr":"untagged"')
    assert tp.schema(Expression).startswith('{"recursive":{"enum":{"repr":"external"')
    assert tp.schema(list[Way]).startswith('{"list":{"enum":')
    assert tp.schema(Named) == '{"enum":{"repr":"external","variants":[{"name":"Named","body":{"struct":[' \
        '{"name":"name","type":"str"},{"name":"tensor","type":{"tensor":{}}}]}}]}}'  # fmt: skip
