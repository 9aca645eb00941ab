"""Pipelines that are written in Python: sources, stages and sinks in processes of their own, and the items
between them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import _stage, _worker
from ._actor import Restart
from ._compile import interface_of, plan_of
from ._errors import DeadlineError, NodeError, PipelineError, SchemaError
from ._message import info_of
from ._native import Address, End, Feed, Running, check_pipeline, describe_pipeline, differences, run_pipeline
from ._node import Node, Signals, command

_SLICE = 0.05


@dataclass(frozen=True)
class StageReport:
    """The work of a stage, all replicas together."""

    stage: str
    label: str
    replicas: int
    items_in: int
    items_out: int
    errors: int
    retries: int
    skipped: int
    dropped: int
    resent: int
    rate: float
    """Items a second."""
    p50_us: float
    """Half of its calls took no longer."""
    p99_us: float
    busy: float
    """Seconds in its calls."""
    waiting: float
    """Seconds in which it waited for room at the next stages."""
    at_least: bool
    """Whether its counts may be too low, because a replica died."""


@dataclass(frozen=True)
class Failure:
    """An item on which a stage failed."""

    stage: str
    item: int | None
    """The item, counted from 0 at its source."""
    why: str
    """The exception, with its traceback."""
    attempts: int


@dataclass(frozen=True)
class Lost:
    """An item that was lost by a death."""

    stage: str
    item: int
    why: str


@dataclass(frozen=True)
class Death:
    """A replica that died."""

    stage: str
    replica: int
    why: str
    restarted: bool


@dataclass(frozen=True)
class Report:
    """The report of a pipeline: :meth:`Pipeline.run` returns it. As text it is a table."""

    pipeline: str
    seconds: float
    cancelled: bool
    stages: dict[str, StageReport]
    failures: list[Failure]
    lost: list[Lost]
    lost_count: int
    deaths: list[Death]
    text: str = dataclasses.field(repr=False)

    def __getitem__(self, stage: str) -> StageReport:
        return self.stages[stage]

    def __str__(self) -> str:
        return self.text

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost."""
        return self.lost_count == 0


def _report(text: str, told: str) -> Report:
    read = json.loads(told)
    names = [field.name for field in dataclasses.fields(StageReport)]
    stages = {stage["stage"]: StageReport(**{name: stage[name] for name in names}) for stage in read["stages"]}

    def item(one: dict[str, Any]) -> Any:
        return None if one["id"] is None else one["id"]["number"]

    return Report(
        read["pipeline"],
        read["seconds"],
        read["cancelled"],
        stages,
        [Failure(one["stage"], item(one), one["why"], one["attempts"]) for one in read["failures"]],
        [Lost(one["stage"], item(one), one["why"]) for one in read["lost"]],
        read["lost_count"],
        [Death(one["stage"], one["replica"], one["why"], one["restarted"]) for one in read["deaths"]],
        text,
    )


@dataclass(frozen=True)
class Description:
    """The description of a pipeline. As text it has a line for each stage."""

    text: str
    mermaid: str
    """A flow chart for https://mermaid.js.org."""
    dot: str
    """A graph for Graphviz."""

    def __str__(self) -> str:
        return self.text


class Flow:
    """Items of one class, on their way from the stages that make them to the stage that is written down next.
    Each flow is taken once; for several receivers there is :meth:`broadcast`."""

    def __init__(self, pipeline: Pipeline, number: int, item: type) -> None:
        self._pipeline, self._number, self._item = pipeline, number, item

    def stage(
        self,
        stage: Any,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        replicas: int = 1,
        device: str | None = None,
        ordered: bool = False,
        restart: Restart | None = None,
        mailbox: int | None = None,
        on_error: str = "fail",
        retries: int = 0,
        to: str = "turns",
        drop: str | None = None,
        interpreter: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Flow:
        """Sends the items to a stage, in a worker of its own. ``args`` and ``kwargs`` are its arguments,
        which are pickled.

        ``name``: its name in reports; its own name unless said otherwise.
        ``replicas``: how many run side by side. ``ordered`` restores the order of their items behind them.
        ``device``: where it works: ``"host"``, ``"cuda:0"``, ``"best"``.
        ``restart``: what happens when its process ends: see :func:`on_failure`. Without one the pipeline
        fails.
        ``mailbox``: how many items wait in front of it.
        ``on_error``: the effect of an exception: ``"fail"`` the pipeline, or ``"skip"`` the item.
        ``retries``: attempts before that.
        ``to``: the replica that takes an item: they take ``"turns"``, the ``"least_loaded"`` one, or
        ``"all"``.
        ``drop``: the item that is dropped when more than ``mailbox`` items wait: the ``"oldest"`` or the
        ``"newest"``.
        ``interpreter``, ``environment``: those of its workers.
        """
        form = _stage.form_of(stage)
        if form.makes is None:
            raise SchemaError(f"`{form.name}` makes nothing, so nothing comes behind it; end the flow in it with .sink(..)")
        self._takes(form)
        options = dict(
            replicas=replicas, device=device, ordered=ordered, restart=restart, mailbox=mailbox, on_error=(on_error, retries), to=to, drop=drop
        )
        step = self._pipeline._step("stage", name, form, args, kwargs, interpreter, environment, inputs=[self._number], **options)
        return Flow(self._pipeline, self._pipeline._flow(step), form.makes)

    def sink(
        self,
        sink: Any,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        replicas: int = 1,
        device: str | None = None,
        restart: Restart | None = None,
        mailbox: int | None = None,
        on_error: str = "fail",
        retries: int = 0,
        to: str = "turns",
        drop: str | None = None,
        interpreter: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Ends the flow in a stage that makes nothing, in a worker of its own. See :meth:`stage`."""
        form = _stage.form_of(sink)
        if form.makes is not None:
            raise SchemaError(f"`{form.name}` makes {form.makes.__name__}, and nothing would take it; put it into .stage(..)")
        self._takes(form)
        options = dict(replicas=replicas, device=device, restart=restart, mailbox=mailbox, on_error=(on_error, retries), to=to, drop=drop)
        self._pipeline._step("sink", name, form, args, kwargs, interpreter, environment, inputs=[self._number], **options)
        return self._pipeline

    def for_each(self, call: Callable[[Any], object], *, name: str = "for_each") -> Pipeline:
        """Ends the flow in this program: ``call`` is called with each item, on a thread of its own. An
        exception there ends the pipeline, and :meth:`Pipeline.run` raises it."""
        self._pipeline._step("for_each", name, None, (), None, None, None, inputs=[self._number])
        self._pipeline._calls.append((call, self._item))
        return self._pipeline

    def merge(self, *others: Flow) -> Flow:
        """Merges flows of one class into one, with the items of all as they come."""
        for other in others:
            _same(other._item, self._item, "a merged flow has")
        step = self._pipeline._step("merge", "merge", None, (), None, None, None, inputs=[flow._number for flow in (self, *others)])
        return Flow(self._pipeline, self._pipeline._flow(step), self._item)

    def broadcast(self, count: int) -> list[Flow]:
        """Sends every item to ``count`` flows. The tensors in it are not copied."""
        step = self._pipeline._step("broadcast", "broadcast", None, (), None, None, None, inputs=[self._number], branches=count)
        return [Flow(self._pipeline, self._pipeline._flow(step), self._item) for _ in range(count)]

    def _takes(self, form: _stage.Form) -> None:
        if form.takes is None:
            raise SchemaError(f"`{form.name}` is a source, and takes nothing; begin a pipeline with it: .source({form.of.__name__})")
        _same(form.takes, self._item, f"`{form.name}` takes")

    def __repr__(self) -> str:
        return f"Flow[{self._item.__name__}]"


def _same(taken: type, made: type, what: str) -> None:
    if taken is made:
        return
    here, there = interface_of(taken)[0], interface_of(made)[0]
    if here == there:
        return
    lines = "\n".join(differences(here, there, "it", "the stage before"))
    raise SchemaError(f"{what} {taken.__name__}, and the stage before makes {made.__name__}" + (f":\n{lines}" if lines else ""))


class Pipeline:
    """A pipeline: its stages, and the items that flow between them. Write it down from its sources to its
    ends, and then run it::

        @tp.stage
        def invert(frame: Frame) -> Frame:
            return Frame(frame.id, 1 - frame.pixels.torch())

        if __name__ == "__main__":
            report = (tp.Pipeline("inverted").source(frames)
                .stage(invert, replicas=2, ordered=True)
                .for_each(lambda frame: print(frame.id))
                .run())
            print(report)

    ``at_least_once``: items are sent again after a death; at most so many items of each source are under way
    then.
    """

    def __init__(self, name: str, *, at_least_once: int | None = None) -> None:
        self._name, self._at_least_once = name, at_least_once
        self._steps: list[dict[str, Any]] = []
        self._flows = 0
        self._calls: list[tuple[Callable[[Any], object], type]] = []
        self._met: list[Address[Any]] = []
        self._feeds: list[tuple[Iterable[Any], type]] = []

    def source(
        self,
        source: Any,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        of: type | None = None,
        name: str | None = None,
        replicas: int = 1,
        device: str | None = None,
        restart: Restart | None = None,
        on_error: str = "fail",
        interpreter: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Flow:
        """Begins the pipeline with a source. It is a ``@tp.stage`` that takes nothing, in a worker of its
        own, or anything that this program can iterate over, whose items are sent from here. There may be
        several sources.

        ``of``: the class of the items of an iterable; without it the first item is taken now. Options: see
        :meth:`Flow.stage`.
        """
        if hasattr(source, _stage.STAGE):
            form = _stage.form_of(source)
            if form.takes is not None or form.makes is None:
                raise SchemaError(f"`{form.name}` takes {'nothing' if form.takes is None else form.takes.__name__}, and is no source")
            options = dict(replicas=replicas, device=device, restart=restart, on_error=(on_error, 0))
            step = self._step("source", name, form, args, kwargs, interpreter, environment, inputs=[], **options)
            return Flow(self, self._flow(step), form.makes)
        if args or kwargs or replicas != 1 or restart is not None:
            raise SchemaError("what this program iterates over has no arguments, replicas and restarts; make a source of it with @tp.stage")
        items, item = _items(source, of)
        step = self._step("feed", name or "source", None, (), None, None, None, inputs=[])
        self._feeds.append((items, item))
        return Flow(self, self._flow(step), item)

    def check(self) -> None:
        """Raises :class:`PipelineError` with all mistakes of the pipeline. :meth:`run` does this first."""
        check_pipeline(*self._written())

    def describe(self) -> Description:
        """Describes the pipeline, also while it is not complete."""
        return Description(*describe_pipeline(*self._written()))

    def run(self, node: Node | None = None) -> Report:
        """Runs the pipeline to its end, on a node of its own or on an existing one. Each iterable of this
        program is used up. On a node of its own, workers share a GPU by MPS if several use one GPU and a
        daemon can be had.

        After Ctrl-C or SIGTERM the sources stop, items that they have made are finished, and the report says
        ``cancelled``; a second signal ends everything at once. Raises :class:`PipelineError`, with the
        report, if the pipeline fails, and the exceptions of ``for_each`` and of iterables.
        """
        self.check()
        with Signals() as signals:
            if node is not None:
                return self._run_on(node, signals)
            on_gpus = sum(step["replicas"] for step in self._steps if step["device"] not in (None, "host", "cpu"))
            with Node(console=False, sharing="auto" if on_gpus > 1 else None) as own:
                return self._run_on(own, signals)

    def _run_on(self, node: Node, signals: Signals) -> Report:
        for address in self._met:
            node._native.owns(address)
        plans = [plan_of(item) for _, item in self._calls]
        try:
            running, feeds, channels = run_pipeline(node._native, *self._written(), plans, signals.came)
            return _Followed(self, running, feeds, channels).end(signals)
        finally:
            signals.raise_from_now()

    def _written(self) -> tuple[str, list[str], list[dict[str, Any]], int | None]:
        return self._name, command(), self._steps, self._at_least_once

    def _flow(self, _: dict[str, Any]) -> int:
        self._flows += 1
        return self._flows - 1

    def _step(
        self,
        kind: str,
        name: str | None,
        form: _stage.Form | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        interpreter: str | os.PathLike[str] | None,
        environment: Mapping[str, str] | None,
        **options: Any,
    ) -> dict[str, Any]:
        if _worker.is_worker:
            raise NodeError('a worker runs no pipeline; put the program under `if __name__ == "__main__":`')
        made = None
        if form is not None:
            made = (*_worker.order_of(form.of, args, dict(kwargs or {}), met=self._met), *_stage.schemas_of(form))
        policy = options.pop("restart", None)
        step = {
            "kind": kind,
            "name": self._named(name or (form.of.__name__ if form is not None else kind)),
            "made": made,
            "interpreter": None if interpreter is None else command(interpreter),
            "environment": list((environment or {}).items()),
            "replicas": 1,
            "device": None,
            "ordered": False,
            "restart": None if policy is None else (policy.kind, policy.budget, policy.window, policy.delays),
            "mailbox": None,
            "on_error": ("fail", 0),
            "to": "turns",
            "drop": None,
            "branches": 0,
            **options,
        }
        self._steps.append(step)
        return step

    def _named(self, name: str) -> str:
        taken = {step["name"] for step in self._steps}
        numbered = (name if count == 1 else f"{name} {count}" for count in range(1, len(taken) + 2))
        return next(one for one in numbered if one not in taken)

    def __repr__(self) -> str:
        return f"Pipeline({self._name})"


def _items(source: Any, of: type | None) -> tuple[Iterable[Any], type]:
    """Returns the iterable of a source, and the class of its items."""
    if not hasattr(source, "__iter__"):
        raise SchemaError(f"{source!r} is no source: it is no @tp.stage, and cannot be iterated over")
    if of is None:
        items = iter(source)
        first = next(items, None)
        if first is None:
            raise SchemaError("the source is empty, and so says nothing of its items; say their class: .source(.., of=Frame)")
        source, of = _and(first, items), type(first)
    described = info_of(of)
    if described is None or described.is_variant:
        raise SchemaError(f"the source gives {of.__name__}, which is no message; give it the decorator @tp.message")
    return source, of


def _and(first: Any, items: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from items


class _Followed:
    """A running pipeline, and this program's part in it."""

    def __init__(self, pipeline: Pipeline, running: Running, feeds: list[Feed], channels: list[End]) -> None:
        self.running, self.ended = running, threading.Event()
        self.feeds, self.stopped = feeds, threading.Event()
        self.raised: list[BaseException] = []
        given = zip(feeds, pipeline._feeds, strict=True)
        calls = zip(channels, pipeline._calls, strict=True)
        self.sending = [self.thread("feed", self.send, feed, *items) for feed, items in given]
        self.calling = [self.thread("for_each", self.call, channel, call) for channel, (call, _) in calls]

    def thread(self, name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=f"tensorpost-{name}", daemon=True)
        thread.start()
        return thread

    def send(self, feed: Feed, items: Iterable[Any], item: type) -> None:
        try:
            plan = plan_of(item)
            for one in items:
                if self.stopped.is_set() or not feed.send(plan, one):
                    break
        except BaseException as error:
            # The items that it gave before are finished.
            self.raised.append(error)
        finally:
            with contextlib.suppress(Exception):
                feed.end()

    def call(self, channel: End, call: Callable[[Any], object]) -> None:
        failed = False
        while True:
            try:
                item = channel.recv(_SLICE)
            except DeadlineError:
                if self.ended.is_set():
                    return
                continue
            except BaseException as error:
                if not self.ended.is_set():
                    self.fail(error)
                return
            if not failed:
                try:
                    call(item)
                except BaseException as error:
                    # Items that still come are under way, and are taken so that the pipeline can end.
                    failed = True
                    self.fail(error)
            del item

    def fail(self, error: BaseException) -> None:
        self.raised.append(error)
        self.stop()

    def stop(self) -> None:
        self.stopped.set()
        self.running.cancel()

    def interrupt(self, times: int) -> None:
        self.stop()
        if times > 1:
            self.running.kill()

    def end(self, signals: Signals) -> Report:
        signals.tell(self.interrupt)
        interrupted = 0
        while True:
            try:
                told = self.running.wait(None)
                break
            except KeyboardInterrupt:
                # A handler of the program's own raised it.
                interrupted += 1
                self.interrupt(interrupted)
        signals.raise_from_now()
        self.ended.set()
        for thread in self.calling:
            thread.join()
        assert told is not None
        why, said = told
        report = None if said is None else _report(*said)
        if self.raised:
            raise self.raised[0]
        if why is not None:
            raise PipelineError(why, report)
        assert report is not None
        return report
