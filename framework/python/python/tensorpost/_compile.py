"""Compiles annotations to plans: lists of nodes by which the native half describes, writes and reads
values."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import sys
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

from ._errors import SchemaError
from ._message import MARK, OPTIONS, Info, info_of
from ._native import Address, Plan, Tensor
from ._types import ForGood, Length, Owned, Scalar, Tagged, TensorSpec, Untagged

_PLAIN = {bool: "bool", float: "f64", str: "str", bytes: "bytes", type(None): "nil"}
_LISTS = (list, collections.abc.Sequence)
_MAPS = (dict, collections.abc.Mapping)
_SETS = (set, frozenset, collections.abc.Set)


class _Compiler:
    """A walk through a type. Each class and union has one node, so that it may hold itself."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.named: dict[Any, int] = {}

    def add(self, *node: Any) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def compile(self, of: Any, where: str) -> int:
        extras: tuple[Any, ...] = ()
        if get_origin(of) is Annotated:
            of, *rest = get_args(of)
            extras = tuple(rest)
        for extra in extras:
            if isinstance(extra, Scalar):
                if extra.tensors_only:
                    raise SchemaError(f"{where}: there are tensors of {extra.name}, and no fields; say tp.f32")
                return self.add(extra.name)
        if of in _PLAIN_KEYS and of is not Tensor:
            return self.add(_PLAIN[of])
        if of is None:
            return self.add("nil")
        if of is Tensor or of is Owned:
            owned = of is Owned or any(isinstance(extra, ForGood) for extra in extras)
            spec = next((extra for extra in extras if isinstance(extra, TensorSpec)), TensorSpec())
            return self.add("tensor", spec.dtype, None if spec.shape is None else list(spec.shape), spec.device, owned)
        if of is int:
            raise SchemaError(f"{where}: `int` has no width; say which one it has in Rust: tp.u8 to tp.u64, tp.i8 to tp.i64")
        if (info := info_of(of)) is not None:
            return self.union((of,), extras, where) if info.is_variant else self.struct(of, info)
        if isinstance(of, type) and issubclass(of, enum.Enum):
            return self.members(of, where)
        return self.generic(of, extras, where)

    def generic(self, of: Any, extras: tuple[Any, ...], where: str) -> int:
        origin, arguments = get_origin(of), get_args(of)
        if origin is Union or origin is types.UnionType:
            return self.choice(arguments, extras, where)
        if origin in _LISTS and len(arguments) == 1:
            length = next((extra for extra in extras if isinstance(extra, Length)), None)
            inner = self.compile(arguments[0], f"{where}[]")
            return self.add("list", inner) if length is None else self.add("array", inner, length.items)
        if origin in _SETS and len(arguments) == 1:
            return self.add("set", self.compile(arguments[0], f"{where}[]"))
        if origin in _MAPS and len(arguments) == 2:
            return self.add("map", *(self.compile(inner, f"{where}[]") for inner in arguments))
        if origin is Address and len(arguments) == 1:
            return self.address(arguments[0], where)
        if of is Address:
            raise SchemaError(f"{where}: say which messages go to the address, as in tp.Address[Frame]")
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is ...:
                raise SchemaError(f"{where}: a tuple of any length is a list on the wire; say list[..]")
            return self.add("tuple", [self.compile(inner, f"{where}.{i}") for i, inner in enumerate(arguments)])
        if of in (list, dict, set, frozenset, tuple):
            raise SchemaError(f"{where}: say what is in the {of.__name__}, as in list[tp.u8] or dict[str, tp.Tensor]")
        name = getattr(of, "__name__", None) or repr(of)
        raise SchemaError(
            f"{where}: `{name}` has no form on the wire; give a class of yours the decorator @tp.message, and for others "
            "use tp.u8 to tp.i64, tp.f32, float, bool, str, tp.char, bytes, None, list, dict, set, tuple, tp.Array, "
            "`| None`, an enum.Enum, a union of @tp.variant classes, or tp.Tensor"
        )

    def address(self, message: Any, where: str) -> int:
        info = info_of(message)
        if info is None or info.is_variant:
            name = getattr(message, "__name__", None) or repr(message)
            raise SchemaError(f"{where}: an address is for a message, and `{name}` is none; give it the decorator @tp.message")
        return self.add("address", info.name, self.compile(message, where), self.compile(reply_of(message), where))

    def choice(self, arguments: tuple[Any, ...], extras: tuple[Any, ...], where: str) -> int:
        some = tuple(one for one in arguments if one is not type(None))
        if len(some) < len(arguments):
            # The slot first: the inner type may hold this one again.
            inner = self.compile(some[0], where) if len(some) == 1 and not extras else None
            if inner is None:
                inner = self.compile(Annotated[some[0], *extras], where) if len(some) == 1 else self.union(some, extras, where)
            return self.add("option", inner)
        return self.union(some, extras, where)

    def union(self, classes: tuple[Any, ...], extras: tuple[Any, ...], where: str) -> int:
        told = next((extra for extra in extras if isinstance(extra, Tagged | Untagged)), None)
        key = (classes, told)
        if (known := self.named.get(key)) is not None:
            return known
        for cls in classes:
            info = info_of(cls)
            if info is None or not info.is_variant:
                name = getattr(cls, "__name__", None) or repr(cls)
                raise SchemaError(f"{where}: the members of a union must be classes with @tp.variant, and `{name}` is none")
        self.named[key] = at = self.add()
        variants = [self.class_of(cls, info_of(cls)) for cls in classes]
        names = [name for _, name, *_ in variants]
        if len(set(names)) < len(names):
            raise SchemaError(f"{where}: two variants have one name: {', '.join(names)}")
        repr_: list[str | None] = []
        if isinstance(told, Tagged):
            repr_ = [told.tag] if told.content is None else [told.tag, told.content]
            if told.content is None:
                self.can_be_tagged(variants, told.tag, where)
        elif told is not None:
            repr_ = [None]
        self.nodes[at] = ("enum", repr_, variants)
        return at

    def can_be_tagged(self, variants: list[Any], tag: str, where: str) -> None:
        """Checks that a variant is a map, so that its tag can be among the keys."""
        for _, name, style, fields, _ in variants:
            held = self.nodes[fields[0][2]] if style == "newtype" else None
            if held == ():
                continue  # It is being described itself, and so has names.
            if style == "tuple" or held is not None and not (held[0] == "struct" and held[1][2] == "struct"):
                raise SchemaError(
                    f"{where}: the variant {name} has no names for what it holds, and so no place for the tag {tag!r}; "
                    "let it hold a @tp.message class, or give Tagged a second name"
                )
            names = [field[0] for field in (held[1][3] if held else fields)]
            if tag in names:
                raise SchemaError(f"{where}: the variant {name} has a field of the tag's name {tag!r}")

    def members(self, of: type[enum.Enum], where: str) -> int:
        names = [member.value if isinstance(member.value, str) else member.name for member in of]
        if not names:
            raise SchemaError(f"{where}: the enum {of.__name__} has no members")
        return self.add("members", list(zip(names, of, strict=True)))

    def struct(self, cls: type, info: Info) -> int:
        if (known := self.named.get(cls)) is not None:
            return known
        self.named[cls] = at = self.add()
        self.nodes[at] = ("struct", self.class_of(cls, info))
        return at

    def class_of(self, cls: type, info: Info | None) -> tuple[type, str, str, list[Any], bool]:
        assert info is not None
        hints = hints_of(cls, info)
        fields = [self.field(cls, field, hints) for field in dataclasses.fields(cls) if not _options(field).get("skip")]
        names = [name for name, *_ in fields]
        if len(set(names)) < len(names):
            raise SchemaError(f"{cls.__name__}: two fields have one name on the wire: {', '.join(names)}")
        style = info.style or ("struct" if fields else "unit")
        if style == "tuple" and len(fields) == 1:
            style = "newtype"
        return cls, info.name, style, fields, _is_plain(cls)

    def field(self, cls: type, field: dataclasses.Field[Any], hints: dict[str, Any]) -> tuple[Any, ...]:
        options, where = _options(field), f"{cls.__name__}.{field.name}"
        if not field.init:
            raise SchemaError(f"{where}: a field with init=False cannot be set when a message is read; say skip=True")
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        has_default = made is not dataclasses.MISSING
        optional = options.get("optional")
        omitted = (made,) if options.get("omit_default") else None
        name = options.get("name") or field.name
        return name, field.name, self.compile(hints[field.name], where), has_default if optional is None else optional, omitted


_PLAIN_KEYS = frozenset(_PLAIN)


def _is_plain(cls: type) -> bool:
    """Whether an object can be made by setting its fields alone: its methods for that are those of
    dataclasses."""
    made: Any = getattr(cls, "__init__")  # noqa: B009
    return (
        not hasattr(cls, "__post_init__")
        and getattr(getattr(made, "__code__", None), "co_filename", None) == "<string>"
        and cls.__new__ is object.__new__
        and cls.__setattr__ is object.__setattr__
        and "__init__" in vars(cls)
        and not any(_options(field).get("skip") for field in dataclasses.fields(cls))
    )


def _options(field: dataclasses.Field[Any]) -> dict[str, Any]:
    return field.metadata.get(OPTIONS) or {}


def hints_of(cls: type, info: Info) -> dict[str, Any]:
    """Returns the annotations of a class, with annotations that are text resolved."""
    names = {**(info.names or {}), cls.__name__: cls}
    return typing.get_type_hints(cls, localns=names, include_extras=True)


def _resolved(of: Any, cls: type, info: Info) -> Any:
    """Resolves a type that may be text, or contain text, as the class's module sees it."""
    names = {**vars(sys.modules.get(cls.__module__, types)), **(info.names or {}), cls.__name__: cls}
    holder = type("_", (), {"__annotations__": {"reply": of}})
    return typing.get_type_hints(holder, globalns=names, include_extras=True)["reply"]


def plan_of(of: Any) -> Plan:
    """Returns the plan of a type; the plan of a class is made once."""
    known: Plan | None = vars(of).get(MARK + "plan") if info_of(of) is not None else None
    if known is not None:
        return known
    if isinstance(of, str):
        raise SchemaError(f"{of!r} is text; give the type itself")
    name = getattr(of, "__name__", None) or str(of).replace("typing.", "")
    if get_origin(of) is not None:
        name = "value"
    compiler = _Compiler()
    try:
        root = compiler.compile(of, name)
    except NameError as error:
        raise SchemaError(f"{name}: the annotations name `{error.name}`, which is not defined") from error
    plan = Plan(name, [tuple(node) for node in compiler.nodes], root)
    if info_of(of) is not None:
        setattr(of, MARK + "plan", plan)
    return plan


def interface_of(cls: Any) -> tuple[str, int]:
    """Returns the canonical text of a message, and its key."""
    info = info_of(cls)
    if info is None or info.is_variant:
        name = getattr(cls, "__name__", None) or repr(cls)
        raise SchemaError(f"`{name}` is no message; give it the decorator @tp.message")
    known: tuple[str, int] | None
    if (known := vars(cls).get(MARK + "interface")) is None:
        known = plan_of(cls).interface(info.name, plan_of(reply_of(cls)))
        setattr(cls, MARK + "interface", known)
    return known


def reply_of(cls: Any) -> Any:
    """Returns the type of a message's reply."""
    info = info_of(cls)
    if info is None or info.reply is None:
        return type(None)
    return _resolved(info.reply, cls, info)


class _Arguments:
    """The arguments of an actor, by their names."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def arguments_plan(of: Any, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> Plan:
    """Returns the plan by which the arguments of a class or a function from a Rust program are read."""
    compiler = _Compiler()
    at, fields = compiler.add(), []
    suffix = ".__init__" if isinstance(of, type) else ""
    for parameter in parameters:
        where = f"{of.__qualname__}{suffix}({parameter.name})"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SchemaError(f"{where}: what comes from a program in Rust has a name and a type each")
        if parameter.name not in hints:
            raise SchemaError(f"{where}: say its type, as in {parameter.name}: tp.u32")
        node = compiler.compile(hints[parameter.name], where)
        fields.append((parameter.name, parameter.name, node, parameter.default is not parameter.empty, None))
    compiler.nodes[at] = ("struct", (_Arguments, of.__name__, "struct", fields, False))
    return Plan(f"{of.__name__}{suffix}", [tuple(node) for node in compiler.nodes], at)


def check(cls: type) -> None:
    """Raises the errors of a class at once, as far as all names in it are defined."""
    try:
        info = info_of(cls)
        if info is not None and info.is_variant:
            _Compiler().compile(cls, cls.__name__)
        else:
            plan_of(cls)
    except NameError:
        pass
    except SchemaError as error:
        if not isinstance(error.__cause__, NameError):
            raise

