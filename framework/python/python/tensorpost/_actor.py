"""Actors: the decorators, the data that they keep of a class, and the way in which messages go to it."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import sys
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, overload

from ._compile import interface_of, plan_of, reply_of
from ._errors import Error, NodeError, SchemaError, SpawnError, TensorError, UnhandledError
from ._message import info_of
from ._native import Address as _Address
from ._native import Mailbox, Plan
from ._native import Tensor as _Tensor
from ._published import Subscriber, question_of
from ._types import DTYPES, dtype_of, whole

_C = TypeVar("_C", bound=type)
_M = TypeVar("_M")
_F = TypeVar("_F", bound=Callable[..., Any])

ACTOR = "__tensorpost_actor__"
HANDLER = "__tensorpost_handler__"
WAY = "__tensorpost_way__"


def _way_of(message: type) -> tuple[Plan, int, Plan]:
    """Returns the plan of a message, its key, and the plan of its reply."""
    known: tuple[Plan, int, Plan] | None
    if (known := vars(message).get(WAY)) is None:
        key = interface_of(message)[1]
        known = plan_of(message), key, plan_of(reply_of(message))
        setattr(message, WAY, known)
    return known


def takes(found: _Address[Any], name: str, message: type | None) -> _Address[Any]:
    """Returns the address that was found under a name, if its actor is not known to refuse these messages."""
    if message is not None and not found._takes(key := _way_of(message)[1]):
        shown = message.__name__ if (known := info_of(message)) is None else known.name
        raise UnhandledError(
            f"the actor `{name}` does not handle {shown} with key {key:016x}; look it up for a type that it handles, or give its class a "
            "handler for this one"
        )
    return found


def keys_of(cls: type) -> list[int] | None:
    """Returns the keys of the messages that an actor's class handles. None if objects of the class may be of
    another one."""
    made_otherwise = getattr(cls, "__new__") is not object.__new__  # noqa: B009
    if made_otherwise or type(cls).__call__ is not type.__call__:
        return None
    return [_way_of(handler.message)[1] for handler in handlers_of(cls) if handler.plan is not None]


class _Told:
    """Passes a result from a Rust thread to the event loop of the coroutine that waits for it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def __call__(self, value: Any, error: BaseException | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.settle, value, error)
        except RuntimeError:
            pass  # the loop was closed, and nobody waits

    def settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)

    async def wait(self, driven: Any) -> Any:
        try:
            return await self.future
        finally:
            driven.cancel()


async def send_async(self: Any, message: Any, *, timeout: float | None = None) -> None:
    """As :meth:`send`, in a coroutine. The first attempt is made when it is first awaited."""
    told = _Told()
    await told.wait(self._begin_send(message, timeout, told))


async def ask_async(self: Any, message: Any, *, timeout: float | None = None) -> Any:
    """As :meth:`ask`, in a coroutine."""
    told = _Told()
    return await told.wait(self._begin_ask(message, timeout, told))


for _method in (send_async, ask_async):
    setattr(_Address, _method.__name__, _method)


@dataclass(frozen=True)
class Lifecycle:
    """An event of a watched actor: a handler with this annotation gets it, and ``node.watch`` gives it."""

    kind: str
    """``"down"``: a life of it has ended. ``"up"``: the next one takes messages. ``"gave_up"``: its restarts
    are used up."""
    actor: str
    """The actor, as :attr:`Address.actor` says it."""
    reason: str | None
    """Why a life ended, with the traceback where a handler raised."""
    will_restart: bool
    """Whether another life follows."""
    incarnation: int | None
    """The life that begins, for ``"up"``: 0 was the first."""


class Tensors(NamedTuple):
    """Counts of how tensors were sent: by an actor, :attr:`Env.tensors`, or by the program,
    :attr:`Node.tensors`."""

    forwarded: int
    """Received ones, passed on as they are."""
    without_copy: int
    """Those that lay in the process's own shared memory."""
    copied: int
    """Those on other memory."""
    copied_bytes: int
    """Bytes of the copies."""


def asked(shape: int | Sequence[int], dtype: Any) -> tuple[list[int], str]:
    """Returns the shape and the name of the dtype for the arguments of :func:`empty`."""
    try:
        axes = [shape] if isinstance(shape, int) else list(shape)
    except TypeError:
        # A number of numpy is none of Python's.
        if (extent := whole(shape, 0, 2**63 - 1)) is None:
            raise TensorError(f"{shape!r} is no shape; give a number of elements, or the extents of the axes") from None
        axes = [extent]
    name = dtype_of(dtype)
    if name is None:
        raise TensorError(f"{dtype!r} is no dtype; say tp.f32, torch.float32, np.float32 or one of {', '.join(sorted(DTYPES))}")
    return axes, name


class Env:
    """The environment of an actor: its name, its address, its way to others. :func:`env` gives it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        """The actor's name, for people."""
        return self._mailbox.name

    @property
    def address(self) -> _Address[Any]:
        """The actor's own address, to send in messages."""
        return self._mailbox.own_address

    @property
    def incarnation(self) -> int:
        """The number of this life of the actor: 0 at first, and one more after each restart."""
        return self._mailbox.incarnation

    @property
    def is_stopping(self) -> bool:
        """Whether the node is shutting down: an actor that makes messages by itself stops making them
        then."""
        return self._mailbox.is_stopping

    @property
    def device(self) -> str:
        """The actor's device, as PyTorch names it: ``"cpu"`` or ``"cuda:0"``."""
        gpu = self._mailbox.gpu()
        return "cpu" if gpu is None else f"cuda:{gpu[0]}"

    @property
    def stream(self) -> int | None:
        """The actor's stream on its GPU, as a number that other libraries take:
        ``cupy.cuda.ExternalStream(tp.env().stream)``. PyTorch works on it in handlers. None on the host."""
        gpu = self._mailbox.gpu()
        return None if gpu is None else gpu[1]

    @property
    def tensors(self) -> Tensors:
        """Counts of how the actor's tensors were sent so far."""
        return Tensors(*self._mailbox.counts())

    @overload
    def lookup(self, name: str, *, timeout: float | None = ...) -> _Address[Any]: ...
    @overload
    def lookup(self, name: str, message: type[_M], *, timeout: float | None = ...) -> _Address[_M]: ...
    def lookup(self, name: str, message: type | None = None, *, timeout: float | None = None) -> _Address[Any]:
        """Returns the actor that was started or registered under ``name``. With ``message``, raises
        :class:`NodeError` if the actor is known not to handle messages of this type."""
        return takes(self._mailbox.lookup(name, timeout), name, message)

    def subscribe(self, message: type[_M], name: str) -> Subscriber[_M]:
        """Follows the values that are published under ``name``: the latest version of a value that a topic
        keeps, such as the Rust actor ``tensorpost::published::Topic``. The topic need not exist yet."""
        mailbox = self._mailbox
        mailbox.check_fork()
        question = question_of(message)
        return Subscriber(message, name, lambda name: takes(mailbox.lookup(name, None), name, question), lambda: mailbox.is_stopping)

    def register(self, name: str) -> None:
        """Registers this actor under one more name."""
        self._mailbox.register(name)

    def spawn(
        self,
        actor: type,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        label: str | None = None,
        mailbox: int = 128,
        restart: Restart | None = None,
        device: str | None = None,
        receive_on: str | None = None,
        beside: _Address[Any] | None = None,
        gpu_budget: int | float | None = None,
    ) -> _Address[Any]:
        """Starts an actor from this one, with the arguments of :meth:`Node.spawn`, and waits until it takes
        messages. The node supervises it, and it lives on when this actor ends. ::

            @tp.handler
            def square(self, square: Square) -> int:
                return tp.env().spawn(Worker).ask(square)

        A worker of its own ends with its last actor. It runs the interpreter of this actor's worker, in the
        same environment; the program alone names others. One process has at most 64 starts under way, and a
        request with its arguments at most 64 KiB.

        ``beside``: an address that this method has returned, or ``tp.env().address``: the actor gets a thread
        in that actor's worker.

        The wait blocks the actor. In a coroutine, ``await asyncio.to_thread(tp.env().spawn, Worker)`` lets it
        handle other messages meanwhile.

        Raises :class:`SpawnError` with the error in the worker, and its traceback.
        """
        from . import _spawn  # which imports this module

        if beside is not None and gpu_budget is not None:
            raise SpawnError("beside=: the worker is there already, with its budgets")
        order, given = _spawn.prepared(
            actor,
            args,
            kwargs,
            name=name,
            label=label,
            mailbox=mailbox,
            restart=restart,
            device=device,
            receive_on=receive_on,
            gpu_budget=gpu_budget,
        )
        return self._mailbox.spawn(*order, beside, given)

    def watch(self, address: _Address[Any]) -> None:
        """Watches another actor from now on: this actor's handler of :class:`Lifecycle` gets the events."""
        self._mailbox.watch(address)

    def link(self, address: _Address[Any]) -> None:
        """Makes this actor fail whenever the other one goes down for a failure."""
        self._mailbox.link(address)

    def __repr__(self) -> str:
        return f"Env({self.name}, {self.address!r})"


_here = threading.local()


def env() -> Env:
    """Returns the :class:`Env` of the actor whose code runs on this thread: in ``__init__``, in a handler, or
    in functions that they call."""
    found: Env | None = getattr(_here, "env", None)
    if found is None:
        raise Error("no actor runs on this thread; call tp.env() in an actor's __init__ or handler")
    return found


def empty(shape: int | Sequence[int], dtype: Any) -> _Tensor:
    """Makes a tensor in the actor's own shared memory, on its device, with uninitialised elements. It is sent
    without a copy, and so is a slice of it. ::

        out = tp.empty((3, 480, 640), tp.f32)
        torch.mul(frame, 2, out=out.torch())
        sink.send(Scaled(out))

    It must not be written after it was sent. The program that has the node uses ``node.empty(..)``.
    """
    return env()._mailbox.empty(*asked(shape, dtype))


def enter(mailbox: Mailbox) -> None:
    """Begins an actor's thread."""
    _here.env = Env(mailbox)


@dataclass(frozen=True)
class Restart:
    """A restart policy for an actor: :func:`never`, :func:`on_failure`, :func:`always`."""

    kind: str
    budget: int = 0
    window: float | None = None
    delays: tuple[float, float] | None = None

    def within(self, seconds: float) -> Restart:
        """Counts only the restarts in the last ``seconds``. Without this, all count."""
        return dataclasses.replace(self, window=seconds)

    def backoff(self, first: float, most: float) -> Restart:
        """Waits ``first`` seconds before the first restart, twice as long before each further one, and never
        longer than ``most``; 0.01 and 5 unless said otherwise."""
        return dataclasses.replace(self, delays=(first, most))


def never() -> Restart:
    """Never restarts: an actor that ended is gone."""
    return Restart("never")


def on_failure(budget: int) -> Restart:
    """Restarts at most ``budget`` times, after failures: an exception in a handler, an exit of its process, a
    signal."""
    return Restart("failure", budget)


def always(budget: int) -> Restart:
    """Restarts at most ``budget`` times, also after the actor stopped by itself; not after the node's
    shutdown."""
    return Restart("always", budget)


@dataclass(frozen=True)
class Handler:
    """A method that takes messages of one type."""

    name: str
    message: type
    plan: Plan | None
    reply: Plan
    is_async: bool


@dataclass
class ActorInfo:
    """The data that the decorator keeps of a class."""

    restart: Restart | None
    names: dict[str, Any] | None


@overload
def handler(message: type, /) -> Callable[[_F], _F]: ...
@overload
def handler(method: _F, /) -> _F: ...
def handler(what: Any, /) -> Any:
    """Makes a method of an ``@tp.actor`` class the handler of a message: the type of its parameter's
    annotation, or of ``@tp.handler(Frame)``. The handler returns the reply, of the type that the message
    declares. It may be a coroutine; while that waits, the actor handles other messages."""

    def mark(method: Any, message: Any) -> Any:
        setattr(method, HANDLER, message)
        return method

    if isinstance(what, type):
        return lambda method: mark(method, what)
    if not inspect.isfunction(what):
        raise SchemaError("@tp.handler stands on a method, or names the message: @tp.handler(Frame)")
    return mark(what, None)


@overload
def actor(cls: _C, /) -> _C: ...
@overload
def actor(*, restart: Restart | None = ...) -> Callable[[_C], _C]: ...
def actor(cls: Any = None, /, *, restart: Restart | None = None) -> Any:
    """Makes a class an actor, which a node runs in a worker process of its own::

        @tp.actor
        class Detect:
            def __init__(self, sink: tp.Address[Boxes]):
                self.sink = sink

            @tp.handler
            def frame(self, frame: Frame) -> None:
                self.sink.send(Boxes(frame.id, detect(frame.pixels)))

    Its handlers run one after the other on a thread of the actor's own. If there is a method
    ``stopped(self)``, it is called at the actor's clean end. A method ``warmup(self)`` is called before its
    first message: use it for the loading that a GPU library does at its first call. An exception in a handler
    ends this life of the actor. ``restart`` is the policy if the spawn does not name one.
    """
    frame = sys._getframe(1)
    names = dict(frame.f_locals) if frame.f_locals is not frame.f_globals else None

    def decorate(cls: type) -> type:
        if not isinstance(cls, type):
            raise SchemaError(f"@tp.actor stands on a class, and not on {cls!r}")
        setattr(cls, ACTOR, ActorInfo(restart, names))
        try:
            handlers_of(cls)
        except NameError:
            pass  # what is defined below it is known when it is started
        return cls

    return decorate if cls is None else decorate(cls)


def info(cls: Any) -> ActorInfo:
    """Returns the data that the decorator keeps of an actor's class."""
    known = vars(cls).get(ACTOR) if isinstance(cls, type) else None
    if known is None:
        name = getattr(cls, "__qualname__", None) or repr(cls)
        raise NodeError(f"`{name}` is no actor; give its class the decorator @tp.actor")
    return typing.cast(ActorInfo, known)


def hints(cls: type, function: Any) -> dict[str, Any]:
    """Returns the annotations of a method."""
    names = {**(info(cls).names or {}), cls.__name__: cls}
    return typing.get_type_hints(function, localns=names, include_extras=True)


def handlers_of(cls: type) -> list[Handler]:
    """Returns the handlers of an actor's class, also those of its bases."""
    found: dict[type, Handler] = {}
    keys: dict[int, Handler] = {}
    for name, method in inspect.getmembers(cls, lambda member: hasattr(member, HANDLER)):
        where = f"{cls.__qualname__}.{name}"
        message = getattr(method, HANDLER) or _asked(cls, method, where)
        if message in found:
            raise SchemaError(f"{where}: `{found[message].name}` handles {message.__name__} already")
        if message is Lifecycle:
            plan, reply = None, plan_of(None)
        elif (described := info_of(message)) is None or described.is_variant:
            shown = getattr(message, "__name__", None) or repr(message)
            raise SchemaError(f"{where}: `{shown}` is no message; give it the decorator @tp.message")
        else:
            plan, key, reply = _way_of(message)
        found[message] = made = Handler(name, message, plan, reply, inspect.iscoroutinefunction(method))
        if plan is not None and (other := keys.setdefault(key, made)) is not made:
            one, two = (f"{of.__module__}.{of.__qualname__}" for of in (other.message, message))
            raise SchemaError(
                f"{where}: {two} is the same message as {one}, which `{other.name}` handles: they have one name and the same fields. Give "
                f'one of them another name, with @tp.message(name="..")'
            )
    if not found:
        raise SchemaError(f"{cls.__qualname__} has no handlers; give a method the decorator @tp.handler")
    return list(found.values())


def _asked(cls: type, method: Any, where: str) -> Any:
    parameters = list(inspect.signature(method).parameters.values())
    if len(parameters) != 2:
        raise SchemaError(f"{where}: a handler has two parameters, self and the message, and this one has {len(parameters)}")
    message = hints(cls, method).get(parameters[1].name)
    if message is None:
        raise SchemaError(f"{where}: say which message it handles: def {method.__name__}(self, {parameters[1].name}: Frame)")
    return message


