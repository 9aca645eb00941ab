"""Errors: each names the field and the remedy."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import numpy as np
import pytest
from types_of_rust import Figure, Loose, Tree, Way

import tensorpost as tp


@tp.message
class Region:
    label: str
    boxes: list[tuple[tp.u8, tp.i8]]


@tp.message(reply=bool)
class Frame:
    regions: dict[str, Region]
    pixels: tp.Tensor[tp.f32, 3, ...]
    gain: tp.f32 = 1.0
    raw: bytes = b""


def frame(**changed: Any) -> Frame:
    return Frame(**{"regions": {"a": Region("x", [])}, "pixels": np.zeros((3, 1), np.float32), **changed})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (frame(pixels=np.zeros((3, 1))), r"^Frame.pixels: its dtype must be f32 and is f64; convert it first"),
        (frame(pixels=np.zeros((2, 1), np.float32)), r"^Frame.pixels: its shape must be \[3, _\] and is \[2, 1\]; reshape"),
        (frame(pixels=None), r"^Frame.pixels: a NoneType is no tensor"),
        (frame(regions={"a": Region(1, [])}), r"^Frame.regions\['a'\].label: it must be a str and is of type int$"),  # type: ignore[arg-type]
        (frame(regions={1: Region("", [])}), r"^Frame.regions\[1\]: it must be a str"),
        (frame(regions={"a": {"label": "x"}}), r"^Frame.regions\['a'\]: it must be a Region and is of type dict$"),
        (frame(regions={"a": Region("", [(1, 2), (256, 0)])}), r"^Frame.regions\['a'\].boxes\[1\]\[0\]: 256 does not fit u8$"),
        (frame(regions={"a": Region("", [(1, -129)])}), r"boxes\[0\]\[1\]: -129 does not fit i8$"),
        (frame(regions={"a": Region("", [(1, 2, 3)])}), r"boxes\[0\]: it must be a tuple of 2 items and has 3$"),  # type: ignore[list-item]
        (frame(regions={"a": Region("", [(True, 2)])}), r"boxes\[0\]\[0\]: it must be an int and is of type bool$"),
        (frame(regions={"a": Region("", [(1.0, 2)])}), r"boxes\[0\]\[0\]: it must be an int and is of type float$"),  # type: ignore[list-item]
        (frame(regions={"a": Region("", [(np.array([1]), 2)])}), r"boxes\[0\]\[0\]: it must be an int and is of type numpy.ndarray$"),  # type: ignore[list-item]
        (frame(regions={"a": Region("", [(10**5000, 2)])}), r"boxes\[0\]\[0\]: so long a number does not fit u8$"),
        (frame(regions=[]), r"^Frame.regions: it must be a dict"),
        (frame(gain=1e300), r"^Frame.gain: 1e300 does not fit f32$|^Frame.gain: 10+ does not fit f32$"),
        (frame(gain=10**400), r"^Frame.gain: it is too large for a float$"),
        (frame(gain="1"), r"^Frame.gain: it must be a float and is of type str$"),
        (frame(raw="text"), r"^Frame.raw: it must be bytes and is of type str$"),
        (frame(regions={"a": Region("\ud800", [])}), r"^Frame.regions\['a'\].label: "),
    ],
)
def test_values(value: Frame, why: str) -> None:
    with pytest.raises(tp.EncodeError, match=why):
        tp.encode(value)


@tp.message
class Kinds:
    truth: bool = False
    whole: tp.i32 = 0
    broken: tp.f64 = 0.0
    text: str = ""
    raw: bytes = b""


def test_scalars_of_numpy_are_taken_alike() -> None:
    def there_and_back(value: Kinds) -> Kinds:
        return tp.decode(Kinds, *tp.encode(value))

    for truth in (np.float32(3) > 2, np.bool_(True), np.array(True)):
        assert there_and_back(Kinds(truth=truth)) == Kinds(True)
    for whole in (np.uint8(7), np.int64(7), np.array(7)):
        assert there_and_back(Kinds(whole=whole)) == Kinds(whole=7)
    for broken in (np.float16(0.5), np.float32(0.5), np.float64(0.5), np.array(0.5)):
        assert there_and_back(Kinds(broken=broken)) == Kinds(broken=0.5)
    assert there_and_back(Kinds(text=np.str_("x"), raw=np.bytes_(b"y"))) == Kinds(text="x", raw=b"y")
    # A bool is not a number.
    for field, value in [("whole", np.True_), ("broken", np.False_), ("whole", np.array(True)), ("broken", np.array(True))]:
        with pytest.raises(tp.EncodeError, match=f"^Kinds.{field}: it must be an? (int|float) and is of type numpy"):
            tp.encode(Kinds(**{field: value}))
    for truth in (np.int8(1), np.array([True]), np.array(1), "yes", 1):
        with pytest.raises(tp.EncodeError, match="^Kinds.truth: it must be a bool and is of type (numpy.|str|int)"):
            tp.encode(Kinds(truth=truth))  # type: ignore[arg-type]


def test_a_class_of_another_module_is_told_from_its_namesake() -> None:
    other = type("Region", (), {"__module__": "elsewhere"})
    with pytest.raises(tp.EncodeError, match=r"it must be a Region and is of type elsewhere.Region$"):
        tp.encode(frame(regions={"a": other()}))


def test_causes_are_kept() -> None:
    with pytest.raises(tp.EncodeError) as caught:
        tp.encode(frame(pixels=[]))
    assert isinstance(caught.value.__cause__, tp.TensorError)

    class Stubborn:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tp.encode(frame(pixels=Stubborn()))


def test_what_holds_itself() -> None:
    tree = Tree(1, [])
    tree.children.append(tree)
    with pytest.raises(tp.EncodeError, match="nested too deep, or holds itself"):
        tp.encode(tree)
    deep = Tree(0, [])
    for value in range(40):
        deep = Tree(value, [deep])
    with pytest.raises(tp.EncodeError, match="nested deeper than 64 containers"):
        tp.encode(deep)


def test_too_much() -> None:
    few = tp.Tensor(np.zeros(1, np.uint8))
    with pytest.raises(tp.EncodeError, match="can hold 512 tensors"):
        tp.encode([few] * 513, list[tp.Tensor])
    with pytest.raises(tp.EncodeError, match="put the data into a tensor"):
        tp.encode(bytes(65 << 20), bytes)


@pytest.mark.parametrize(
    ("of", "body", "why"),
    [
        (Frame, "80", r"^Frame: the field `regions` is missing$"),
        (Frame, "", r"^Frame: the body is empty$"),
        (Frame, "8080", r"follow the value"),
        (Frame, "91", r"ends in the middle"),
        (Frame, "c0", r"^Frame: it must be the fields of Frame and is nil$"),
        (Region, "82a56c6162656c01a5626f78657390", r"^Region.label: it must be a str and is an integer$"),
        (Region, "82a56c6162656ca0a5626f78657391920105", None),
        (Region, "82a56c6162656ca0a5626f7865739192cd010005", r"^Region.boxes\[0\]\[0\]: 256 does not fit u8$"),
        (Region, "82a56c6162656ca0a56c6162656ca0", r"the field `label` is there twice"),
        (Region, "83a56c6162656ca0a178c0a5626f78657390", None),
        (Region, "92a090", None),
        (Tree, "91" * 65 + "c0", r"nested deeper than 64"),
        (Way, "a3666f6f", r"`foo` is none of the variants Unit, Newtype, Tuple, a struct"),
        (Way, "a74e657774797065", r"the variant `Newtype` has content, and it is missing"),
        (Figure, "80", r"the field `figure` is missing"),
        (Loose, "a178", r"it fits none of Named, Both, Number, Nothing"),
        (list[tp.Tensor], "9181a72474656e736f7200", r"names tensor 0 but came with 0"),
        (list[tp.Tensor], "9181a4747970650a", r"it must be a tensor of the message and is a map"),
        (str, "a1ff", r"no UTF-8"),
        (tp.char, "a26162", r"one character and has 2"),
        (set[tp.u8], "920101", None),
    ],
)
def test_bytes(of: Any, body: str, why: str | None) -> None:
    if why is None:
        tp.decode(of, bytes.fromhex(body))
        return
    with pytest.raises(tp.DecodeError, match=why):
        tp.decode(of, bytes.fromhex(body))


def test_tensors_that_came_are_checked() -> None:
    body, _ = tp.encode(frame())
    with pytest.raises(tp.DecodeError, match="^Frame.pixels: its dtype must be f32 and is u8"):
        tp.decode(Frame, body, [np.zeros((3, 1), np.uint8)])
    with pytest.raises(tp.DecodeError, match="^Frame.pixels: a str is no tensor"):
        tp.decode(Frame, body, ["x"])


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (int, "`int` has no width; say which one it has in Rust"),
        (list, "say what is in the list"),
        (list[int], r"\[\]: `int` has no width"),
        (tuple[tp.u8, ...], r"say list\[\.\.\]"),
        (tp.bf16, "there are tensors of bf16"),
        (datetime.timedelta, "`timedelta` has no form on the wire"),
        (str | tp.u8, "must be classes with @tp.variant, and `str` is none"),
        (object, "`object` has no form on the wire; give a class of yours the decorator @tp.message"),
    ],
)
def test_annotations(of: Any, why: str) -> None:
    with pytest.raises(tp.SchemaError, match=why):

        @tp.message
        class Bad:
            field: of  # type: ignore[valid-type]

    with pytest.raises(tp.SchemaError, match=why):
        tp.schema(of)


def test_classes() -> None:
    with pytest.raises(tp.SchemaError, match="two fields have one name"):

        @tp.message
        class Twice:
            one: tp.u8 = tp.field(name="other")
            other: tp.u8

    with pytest.raises(tp.SchemaError, match="needs a default"):
        tp.field(skip=True)
    with pytest.raises(tp.SchemaError, match="is no message; give it the decorator"):
        tp.key(object)
    with pytest.raises(tp.SchemaError, match="Tensor"):
        tp.Tensor["f32", "x"]
    with pytest.raises(tp.SchemaError, match="is no dtype"):
        tp.TensorSpec(dtype="f8")

    @tp.variant(tuple=True)
    class Plain:
        value: tp.u8

    with pytest.raises(tp.SchemaError, match="no place for the tag 'kind'"):
        tp.schema(Annotated[Plain, tp.Tagged("kind")])

    @tp.message
    class Later:
        value: Undefined  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(tp.SchemaError, match="name `Undefined`, which is not defined"):
        tp.schema(Later)


def test_differences_are_shown_as_a_handshake_shows_them() -> None:
    this = Frame

    def other() -> type:
        @tp.message(reply=tp.u8)
        class Frame:
            regions: dict[str, Region]
            pixels: tp.Tensor[tp.f16, 3, ...]
            gain: tp.f32

        return Frame

    that = other()
    lines = tp.differences(this, that, names=("the node", "the worker"))
    assert lines == [
        f"message `Frame` has key {tp.key(this):016x} in the node and {tp.key(that):016x} in the worker:",
        "  pixels: the node has tensor of f32, shape [3, _], the worker has tensor of f16, shape [3, _]",
        "  gain: the node has an optional field, the worker has a field",
        "  raw: the node has bytes, the worker has none",
        "  (reply): the node has bool, the worker has u8",
    ]
    assert tp.differences(this, tp.schema(this)) == []
    with pytest.raises(tp.SchemaError, match="other names"):
        tp.differences(this, Region)


def test_untagged_unions_do_not_try_for_ever() -> None:
    """Each level tries each variant: without a bound, some hundred bytes would take years."""

    @tp.variant(tuple=True)
    class A:
        inner: "Option"

    @tp.variant(tuple=True)
    class B:
        inner: "Option"

    Option = Annotated[A | B | None, tp.Untagged()]
    globals()["Option"] = Option
    with pytest.raises(tp.DecodeError):
        tp.decode(Option, b"\x01")


def test_messages_are_dataclasses() -> None:
    assert repr(frame().regions) == "{'a': Region(label='x', boxes=[])}"
    assert Region("a", []) == Region("a", []) != Region("b", [])
    match Region("a", []):
        case Region(label):
            assert label == "a"
    assert tp.Duration(1, 500_000_000).total_seconds() == 1.5
