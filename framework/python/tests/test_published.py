"""Subscribers, with a Rust topic (in `peer/src/node.rs`, which `test_actors.py` runs), with a Python topic,
and with topics that lie."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import re
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import actors_of_python as app
import tensorpost as tp
from tensorpost._published import Subscriber, question_of


@tp.message
class Weights:
    step: tp.u64


class FakeTopic:
    """A topic that gives prescribed answers."""

    def __init__(self) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        self.asked: queue.Queue[Any] = queue.Queue()

    def ask(self, question: Any) -> Any:
        self.asked.put((question.than, question.life))
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        life, number, step = answer
        return tp._published.question_of(Weights).__tensorpost__.reply(life, number, None if step is None else Weights(step))


@pytest.fixture
def topic() -> FakeTopic:
    return FakeTopic()


def subscriber(topic: FakeTopic, over: threading.Event | None = None) -> Subscriber[Weights]:
    return Subscriber(Weights, "weights", lambda name: topic, (over or threading.Event()).is_set)  # type: ignore[arg-type, return-value]


def test_versions_come_in_order_and_a_reader_skips_what_it_had_no_time_for(topic: FakeTopic) -> None:
    weights = subscriber(topic)
    assert weights.latest() is None
    assert topic.asked.get(timeout=30) == (0, 0)
    topic.answers.put((7, 1, 10))
    assert weights.ready(timeout=30) == tp.Version(1, Weights(10))
    topic.answers.put((7, 2, 20))
    topic.answers.put((7, 5, 50))
    for _ in range(3):
        topic.asked.get(timeout=30)
    assert weights.latest() == tp.Version(5, Weights(50)), "the third question came when the version before was put"
    with pytest.raises(tp.DeadlineError, match="none after version 5"):
        weights.changed(timeout=0.01)


def test_an_older_version_and_one_that_fails_change_nothing(topic: FakeTopic, capfd: pytest.CaptureFixture[str]) -> None:
    weights = subscriber(topic)
    topic.answers.put((7, 5, 50))
    assert weights.ready(timeout=30).number == 5
    topic.answers.put((7, 5, 51))
    topic.answers.put(tp.AskError("it died"))
    topic.answers.put(tp.DecodeError("Newest.value: garbage"))
    topic.answers.put((8, 6, 60))
    assert weights.changed(timeout=30) == tp.Version(6, Weights(60))
    said = capfd.readouterr().err
    assert "gave version 5 after 5" in said and "cannot be read: Newest.value: garbage" in said
    # The subscriber goes on with the topic that it knew.
    asked = [topic.asked.get(timeout=30) for _ in range(6)]
    assert asked == [(0, 0), (5, 7), (5, 7), (5, 7), (5, 7), (6, 8)]


def test_a_number_after_which_no_topic_could_go_on_is_none(topic: FakeTopic) -> None:
    weights = subscriber(topic)
    for number in (2**64 - 1, 2**63 + 1):
        topic.answers.put((7, number, 1))
    topic.answers.put((8, 1, 2))
    assert weights.ready(timeout=30) == tp.Version(1, Weights(2))
    assert [topic.asked.get(timeout=30) for _ in range(3)] == [(0, 0)] * 3


def test_no_question_of_a_reader_takes_the_numbers_from_the_others() -> None:
    from tensorpost._topic import Topic

    for than in (2**64 - 1, 2**63, 2**62 + 1, 2**62, 41):
        topic = object.__new__(Topic)
        Topic.__init__(topic, "")
        topic.replace("first")
        topic.outnumber(than)
        assert topic.newest is not None and topic.last == topic.newest[0] <= 2**62 + 1
        before = topic.last
        topic.replace("second")
        assert topic.newest == (before + 1, "second")


def test_the_end_is_told_to_all_who_wait_and_what_there_was_stays(topic: FakeTopic) -> None:
    over = threading.Event()
    weights = subscriber(topic, over)
    topic.answers.put((7, 1, 10))
    assert weights.ready(timeout=30).number == 1
    over.set()
    topic.answers.put((7, 1, None))
    with pytest.raises(tp.TopicClosed, match="no more versions of `weights`"):
        weights.changed(timeout=30)
    assert weights.latest() == tp.Version(1, Weights(10))
    assert list(weights) == []
    with pytest.raises(tp.TopicClosed):
        asyncio.run(weights.changed_async())


def test_coroutines_hear_of_versions(topic: FakeTopic) -> None:
    weights = subscriber(topic)

    async def read() -> list[int]:
        numbers = []
        topic.answers.put((7, 1, 1))
        async for version in weights:
            numbers.append(version.number)
            if len(numbers) == 3:
                weights.close()
            else:
                topic.answers.put((7, version.number + 1, 0))
        with pytest.raises(asyncio.TimeoutError):
            # A wait that is cancelled leaves nothing behind.
            await asyncio.wait_for(subscriber(FakeTopic()).changed_async(), 0.01)
        return numbers

    assert asyncio.run(read()) == [1, 2, 3]
    assert weights._state.listeners == []


def test_who_has_let_go_of_it_keeps_no_version(topic: FakeTopic) -> None:
    weights = subscriber(topic)
    topic.answers.put((7, 1, 10))
    weights.ready(timeout=30)
    state = weights._state
    del weights
    gc.collect()
    assert state.newest is None and state.over
    topic.answers.put((7, 2, 20))


def test_what_cannot_be_published_is_refused() -> None:
    @tp.message(reply=bool)
    class Asked: ...

    with pytest.raises(tp.SchemaError, match="has a reply"):
        question_of(Asked)
    with pytest.raises(tp.SchemaError, match="is no message"):
        question_of(int)


def test_who_follows_what_is_no_topic_of_these_is_told_what_it_is() -> None:
    def waits_for(reader: Subscriber[Any], why: str) -> None:
        until = time.monotonic() + 60
        while True:
            with pytest.raises(tp.DeadlineError) as error:
                reader.ready(timeout=0.05)
            if re.search(why, str(error.value)):
                return
            assert time.monotonic() < until, error.value

    with tp.Node(deadline=60, console=False) as node:
        node.topic(app.Weights, "weights")
        counter = node.spawn(app.Counter, name="counter")
        assert tp.key(Weights) != tp.key(app.Weights)
        why = r"^nothing was published under `{0}` within 0.05 s: the actor `{0}` does not handle tensorpost::Newer<Weights> with key"
        other, none = node.subscribe(Weights, "weights"), node.subscribe(Weights, "counter")
        waits_for(other, why.format("weights"))
        waits_for(none, why.format("counter"))
        good = node.subscribe(app.Weights, "weights")
        waits_for(good, "its topic has no version yet")
        # It was not asked either.
        assert counter.ask(app.Count(), timeout=60) == 0


def test_a_topic_of_python_is_followed_into_its_next_life() -> None:
    def values(step: int) -> app.Weights:
        return app.Weights(step, np.full(4, step, np.float32))

    with tp.Node(deadline=60, console=False) as node:
        reader = node.subscribe(app.Weights, "weights")
        weights = node.topic(app.Weights, "weights", restart=tp.on_failure(1))
        with pytest.raises(tp.DeadlineError, match="no version yet|no topic of this name"):
            reader.ready(timeout=0.1)
        for step in range(1, 21):
            weights.send(values(step), timeout=60)
            seen = reader.changed(timeout=60)
            assert (seen.number, seen.value.step) == (step, step)
            assert seen.value.values.numpy().tolist() == [step] * 4
        # A late reader gets the newest version at once, on the same memory as all others.
        with node.subscribe(app.Weights, "weights") as late:
            assert late.ready(timeout=60).number == 20
        watch = node.watch(weights)
        (pid,) = (worker.pid for worker in node.workers() if worker.state == "Running")
        os.kill(pid, signal.SIGKILL)
        while (event := watch.recv(timeout=60)) is not None and event.kind != "up":
            pass
        # The topic has no version until one is published, and that has a higher number than the readers'
        # versions.
        assert reader.latest() == seen
        weights.send(values(100), timeout=60)
        after = reader.changed(timeout=60)
        assert after.number > 20 and after.value.step == 100
        with pytest.raises(tp.SpawnError, match="weights"):
            node.topic(app.Weights, "weights")
        with pytest.raises(tp.SchemaError, match="is no message"):
            node.topic(int, "numbers")
        # Open questions are answered, so the shutdown does not wait.
        ended = node.shutdown()
        assert ended is not None and ended.drained, ended
        with pytest.raises(tp.TopicClosed):
            reader.changed(timeout=60)
