"""A node in this process: it starts actors in worker processes, and talks to them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar, overload

from . import _actor, _native, _worker
from ._actor import Lifecycle, Restart, Tensors
from ._compile import interface_of, plan_of
from ._errors import Error, NodeError, SpawnError
from ._native import Address, Tensor
from ._native import Channel as _Channel
from ._native import Node as _Node
from ._native import Watch as _Watch
from ._published import Subscriber, question_of
from ._spawn import budget_of, prepared, settings

_M = TypeVar("_M")


class Worker(NamedTuple):
    """A worker process, as :meth:`Node.workers` lists it."""

    name: str
    pid: int
    state: str


class Restarted(NamedTuple):
    """A worker that was restarted, or whose actor was: :meth:`Node.restarts`."""

    worker: str
    restarts: int
    ends: list[str]
    """Why each of its lives ended, with tracebacks."""


class Shutdown(NamedTuple):
    """The result of a shutdown."""

    drained: bool
    """Whether every message that was under way was handled."""
    report: str

    def __str__(self) -> str:
        return self.report


class Channel(Generic[_M]):
    """A mailbox in this process that the program itself reads: :meth:`Node.channel`."""

    def __init__(self, native: _Channel, message: type[_M]) -> None:
        self._native, self._message = native, message

    def recv(self, *, timeout: float | None = None) -> _M:
        """Waits for the next message. Raises :class:`DeadlineError` if none comes within ``timeout``
        seconds."""
        return self._native.recv(timeout)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[_M]:
        while True:
            yield self.recv()

    def _discard(self) -> None:
        with contextlib.suppress(Error):
            while True:
                self._native.discard()

    def close(self) -> None:
        """Takes no more messages: senders are told that there is no such actor."""
        self._native.close()

    def __repr__(self) -> str:
        return f"Channel[{self._message.__name__}]"


class Watch:
    """The events of one actor: :meth:`Node.watch`. An iteration ends after the last event."""

    def __init__(self, native: _Watch) -> None:
        self._native = native

    def recv(self, *, timeout: float | None = None) -> Lifecycle | None:
        """Waits for the next event; None after the last one. Raises :class:`DeadlineError` if none comes
        within ``timeout`` seconds."""
        event = self._native.recv(timeout)
        return None if event is None else Lifecycle(*event)

    def __iter__(self) -> Iterator[Lifecycle]:
        while (event := self.recv()) is not None:
            yield event


class Signals:
    """Takes Ctrl-C and SIGTERM in this block, also for the first process of a container, which would ignore
    SIGTERM. While a pipeline starts and runs, nothing is raised: an exception between two lines would leave
    the pipeline standing. Handlers of the program's own stay."""

    def __init__(self) -> None:
        self.count = 0
        self._last: int = signal.SIGINT
        self._told: Callable[[int], object] | None = None
        self._raises = False
        self._before: dict[int, Any] = {}

    def came(self) -> bool:
        return self.count > 0

    def tell(self, told: Callable[[int], object]) -> None:
        """From now on ``told`` gets the number of signals so far, and at once if some came before."""
        self._told = told
        if self.count:
            told(self.count)

    def raise_from_now(self) -> None:
        """Lets a signal raise :class:`KeyboardInterrupt` again."""
        self._raises = True

    def _hear(self, number: int, _: object) -> None:
        self.count, self._last = self.count + 1, number
        if self._raises:
            raise KeyboardInterrupt
        if self._told is not None:
            self._told(self.count)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                # `getsignal` returns None for a handler that is not Python's.
                if signal.getsignal(number) is default:
                    self._before[number] = default
                    signal.signal(number, self._hear)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, default in self._before.items():
            signal.signal(number, default)
        if isinstance(error, KeyboardInterrupt) and self._last == signal.SIGTERM:
            # The exit status of a program that ends by SIGTERM; `with` blocks around this are left in order.
            raise SystemExit(128 + signal.SIGTERM) from None


def command(interpreter: str | os.PathLike[str] | None = None) -> list[str]:
    """Returns an interpreter with its switches: this one, if no other is named."""
    if interpreter is not None:
        return [os.fspath(interpreter)]
    # As `multiprocessing` does, and one switch that it leaves out.
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    return [sys.executable or "python3", *subprocess._args_from_interpreter_flags(), *unbuffered]  # type: ignore[attr-defined]


def _seconds(deadline: float) -> float:
    """Returns the deadline of a shutdown, if it is one."""
    if not deadline >= 0:
        raise NodeError(f"deadline is a number of seconds from 0 on, and not {deadline}")
    return deadline


_running: weakref.WeakSet[Node] = weakref.WeakSet()
# A forked child does not end the nodes of its parent.
os.register_at_fork(after_in_child=_running.clear)


class Node:
    """A node: this process, and the worker processes that it starts. Use it with ``with``: at the end of the
    block everything under way is finished and the workers end, also after Ctrl-C. A second Ctrl-C ends them
    at once. ::

        if __name__ == "__main__":
            with tp.Node() as node:
                sink, boxes = node.channel(Boxes)
                detect = node.spawn(Detect, sink, restart=tp.on_failure(5))
                detect.send(Frame(1, pixels))
                print(boxes.recv())

    A worker loads the module of its actor anew; of a script it runs everything that is not under
    ``if __name__ == "__main__"``.

    ``host_budget``: bytes of host memory that each process may take for tensors.
    ``gpu_budget``: the memory of each GPU that each process may take for tensors that are sent, received and
    kept for others: bytes as an ``int``, or a share of the GPU as a ``float``; 0.25 unless said otherwise.
    PyTorch may allocate more in an actor: that memory is the actor's own, and tensors in it are copied when
    they are sent.
    ``sharing``: how workers share a GPU. ``"isolated"``, the default: in time slices. ``"mps"``: as clients
    of an MPS daemon that the node starts and stops; kernels overlap, and the death of one worker takes the
    others on its GPU with it. ``"auto"``: MPS if it is available.
    ``start_deadline``: seconds that a worker may take until it is ready; 30 unless said otherwise.
    ``worker_log``: the log filter of workers, in the form of ``RUST_LOG``. Their log goes to stderr.
    ``hang_limit``: seconds without movement after which the log reports a hang.
    ``trace``: a file to which a trace of the run is written.
    ``console``: whether the command ``tensorpost`` may look into it.
    ``deadline``: seconds that the end of the block waits for messages under way.
    """

    def __init__(
        self,
        *,
        host_budget: int | None = None,
        gpu_budget: int | float | None = None,
        sharing: str | None = None,
        start_deadline: float | None = None,
        worker_log: str | None = None,
        hang_limit: float | None = None,
        trace: str | os.PathLike[str] | None = None,
        console: bool = True,
        deadline: float = 10.0,
    ) -> None:
        if _worker.is_worker:
            raise NodeError(
                'a worker starts no node; put the program under `if __name__ == "__main__":`, and start a node or a loader for an actor in '
                "a process of its own, with `multiprocessing`"
            )
        self._deadline = _seconds(deadline)
        gpu_bytes, gpu_share = budget_of(gpu_budget)
        self._native = _Node(
            host_budget=host_budget,
            sharing=sharing,
            interpreter=sys.executable or "python3",
            start_deadline=start_deadline,
            worker_log=worker_log,
            hang_limit=hang_limit,
            trace=None if trace is None else os.fspath(trace),
            console=console,
            gpu_budget=gpu_bytes,
            gpu_share=gpu_share,
        )
        self._channels: weakref.WeakSet[Channel[Any]] = weakref.WeakSet()
        self._is_ending = threading.Event()
        _running.add(self)

    def spawn(
        self,
        actor: type,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        label: str | None = None,
        mailbox: int = 128,
        restart: Restart | None = None,
        interpreter: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        device: str | None = None,
        receive_on: str | None = None,
        beside: Address[Any] | None = None,
        gpu_budget: int | float | None = None,
    ) -> Address[Any]:
        """Starts an actor in a worker of its own, as ``actor(*args, **kwargs)`` there, and waits until it
        takes messages. The arguments are pickled. They may hold addresses; send tensors in messages.

        ``name``: a name to look it up by.
        ``label``: its name for people; its name or its class unless said otherwise.
        ``mailbox``: how many messages each sending process may have unhandled there.
        ``restart``: see :func:`on_failure`.
        ``interpreter``: the interpreter of the worker; this one unless said otherwise.
        ``environment``: more variables for the worker.
        ``device``: where it works: ``"host"``, the default, ``"cuda:0"``, or a GPU's UUID.
        ``receive_on``: the device to which the tensors of its messages are brought before a handler sees
        them; its own device unless said otherwise.
        ``beside``: an actor of this node, in whose worker this one gets a thread, instead of a worker of its
        own. They share its interpreter, which runs the Python code of one of them at a time, and they end
        together.
        ``gpu_budget``: as for :class:`Node`, for its worker alone.

        Raises :class:`SpawnError` with the error in the worker, and its traceback.
        """
        if beside is not None and (interpreter is not None or environment or gpu_budget is not None):
            raise SpawnError("beside=: the worker is there already, with its interpreter, its environment and its budgets")
        met: list[Address[Any]] = []
        order, given = prepared(
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
            # Under another interpreter or environment the class may have other handlers.
            knows_handlers=interpreter is None and not environment,
            met=met,
        )
        for address in met:
            self._native.owns(address)
        return self._native.spawn(*order, command(interpreter), list((environment or {}).items()), beside, given)

    def topic(
        self,
        message: type[_M],
        name: str,
        *,
        device: str | None = None,
        restart: Restart | None = None,
        mailbox: int = 16,
        environment: Mapping[str, str] | None = None,
    ) -> Address[_M]:
        """Starts a topic in a worker of its own, which loads neither the program nor its libraries: it keeps
        the latest version of a value, and readers in Python and Rust follow it under ``name``: see
        :meth:`subscribe`. A value that is sent to the address is published. ::

            weights = node.topic(Weights, "weights")
            for step in range(1000):
                ...
                weights.send(Weights(step, tensors))

        ``device``: brings the tensors of its versions to this device, ``"host"`` or ``"cuda:0"``; unless said
        otherwise they stay where their publisher has made them.
        ``restart``: the restart policy. If the topic dies, the published value is gone; readers go on with
        values that are published to its next life.
        ``mailbox``: as for :meth:`spawn`. Each subscriber keeps a place of its process's.

        A version keeps its memory until the next one has come, and while a reader has it. If it takes more
        than a quarter of its publisher's budget, the next publish waits for ever, or until its ``timeout``;
        where ``device`` has moved it, it may take half of the topic's budget. Give :class:`Node` a larger
        ``host_budget`` or ``gpu_budget``.

        Raises :class:`SpawnError`, also if ``name`` is taken.
        """
        key, question = (interface_of(taken)[1] for taken in (message, question_of(message)))
        return self._native.topic(
            (message.__name__, plan_of(message).schema(), key),
            question,
            (sys.executable or "python3", os.fspath(_native.__file__)),
            list((environment or {}).items()),
            settings(name, None, mailbox, restart, device, device, (None, None), [key, question]),
        )

    def spawn_demo(self, next: Address[Any]) -> Address[Any]:
        """Starts the Rust actor of ``python -m tensorpost.demo``: it inverts a picture, and sends it to
        ``next``."""
        return self._native.spawn_demo(sys.executable, next)

    def channel(self, message: type[_M]) -> tuple[Address[_M], Channel[_M]]:
        """Makes a mailbox in this process, for messages of one type. Its address can be given to actors."""
        address, native = self._native.channel(plan_of(message), interface_of(message)[1])
        channel = Channel(native, message)
        self._channels.add(channel)
        return address, channel

    def empty(self, shape: int | Sequence[int], dtype: Any) -> Tensor:
        """Makes a tensor in this process's own shared memory, with uninitialised elements: see
        :func:`tensorpost.empty`."""
        return self._native.empty(*_actor.asked(shape, dtype))

    @property
    def tensors(self) -> Tensors:
        """Counts of how tensors were sent from this process so far."""
        return Tensors(*self._native.counts())

    def watch(self, address: Address[Any]) -> Watch:
        """Watches an actor: reports when a life of it ends, when the next one takes messages, and when there
        will be no other."""
        return Watch(self._native.watch(address))

    @overload
    def lookup(self, name: str, *, timeout: float | None = ...) -> Address[Any]: ...
    @overload
    def lookup(self, name: str, message: type[_M], *, timeout: float | None = ...) -> Address[_M]: ...
    def lookup(self, name: str, message: type | None = None, *, timeout: float | None = None) -> Address[Any]:
        """Returns the actor that was started or registered under ``name``. With ``message``, raises
        :class:`NodeError` if the actor is known not to handle messages of this type."""
        return _actor.takes(self._native.lookup(name, timeout), name, message)

    def subscribe(self, message: type[_M], name: str) -> Subscriber[_M]:
        """Follows the values that are published under ``name``: the latest version of a value that a topic
        keeps, such as the Rust actor ``tensorpost::published::Topic``. The topic need not exist yet."""
        native = self._native
        native.check()
        question = question_of(message)

        def lookup(name: str) -> Address[Any]:
            return _actor.takes(native.lookup(name, None), name, question)

        return Subscriber(message, name, lookup, self._is_ending.is_set)

    def register(self, name: str, address: Address[Any]) -> None:
        """Registers an actor under one more name."""
        self._native.register(name, address)

    def workers(self) -> list[Worker]:
        """Returns all workers, also those that have ended and whose place is not used again yet."""
        return [Worker(*worker) for worker in self._native.workers()]

    def restarts(self) -> list[Restarted]:
        """Returns the workers that were restarted, and why."""
        return [Restarted(*worker) for worker in self._native.restarts()]

    def run(self) -> None:
        """Waits for Ctrl-C, for SIGTERM, or for a shutdown that ``tensorpost stop`` began, and then shuts
        down. A second signal ends it at once. If the program has its own handler for SIGTERM, that stays. On
        another thread than the main one, this waits for no signal."""
        with Signals() as signals:
            signals.raise_from_now()
            with contextlib.suppress(KeyboardInterrupt):
                self._native.until_stopping(None)
            self.shutdown()

    def shutdown(self, deadline: float | None = None) -> Shutdown | None:
        """Lets everything under way finish, stops the actors, and then the workers. Workers that have not
        ended after ``deadline`` seconds are killed, and named in the report. Returns None if the node was
        shut down before. Ctrl-C meanwhile kills the remaining workers at once.

        Messages that still come to a :class:`Channel`, and that no other thread receives, are dropped, so
        that actors under way find room there.
        """
        deadline = self._deadline if deadline is None else _seconds(deadline)
        if not self._native.is_inherited:
            self._let_end()
        ended = self._native.shutdown(deadline)
        return None if ended is None else Shutdown(*ended)

    def _let_end(self) -> None:
        self._is_ending.set()
        for channel in self._channels:
            # While the interpreter is ending, no thread can be started; senders then wait until the deadline.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=channel._discard, name="tp-discard", daemon=True).start()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A forked child that leaves the block ends nothing of its parent's.
        if not self._native.is_inherited:
            self.shutdown()

    def __repr__(self) -> str:
        return f"Node(pid {os.getpid()})"


@atexit.register
def _end() -> None:
    """Shuts down the nodes that the program has not shut down."""
    for node in list(_running):
        node.shutdown()
