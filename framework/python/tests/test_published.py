"""Subscribers, with a Rust topic (in `peer/src/node.rs`, which `test_actors.py` runs), with a Python topic,
and with topics that lie."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import random
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_fuzz import value_of
from test_programs import run
from types_of_rust import Everything, Job, Scalars

import actors_of_python as app
import tensorpost as tp
from tensorpost._actor import WAY
from tensorpost._compile import plan_of
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
    topic.answers.put(tp.DecodeError("Newest.value: garbage\n\x1b[2J\u202e" + "x" * 100_000))
    topic.answers.put((8, 6, 60))
    assert weights.changed(timeout=30) == tp.Version(6, Weights(60))
    said = capfd.readouterr().err
    assert "gave version 5 after 5" in said and "cannot be read: Newest.value: garbage\\n\\x1b[2J\\u202ex" in said
    assert len(said) < 10_000
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


def test_a_topic_that_lies_again_and_again_is_asked_less_and_less_often(topic: FakeTopic) -> None:
    weights = subscriber(topic)
    began = time.monotonic()
    for number in range(1, 9):
        topic.answers.put((7, number, number))
        topic.answers.put((7, number, number) if number % 2 else tp.DecodeError("garbage"))
    topic.answers.put((7, 9, 9))
    version = weights.ready(timeout=30)
    while version.number < 9:
        version = weights.changed(timeout=30)
    assert time.monotonic() - began > 0.4


def test_no_question_of_a_reader_takes_the_numbers_from_the_others() -> None:
    with tp.Node(deadline=60, console=False) as node:
        topic = node.topic(Weights, "weights")
        topic.ask(Weights(1), timeout=60)
        last = 1
        # A reader claims that it has these versions of a topic before this one.
        for than in (41, 2**62, 2**62 + 1, 2**63, 2**64 - 1):
            newest = topic.ask(question_of(Weights)(than, 1), timeout=60)
            last = last if than > 2**62 else than + 1
            assert (newest.number, newest.value) == (last, Weights(1))
        topic.ask(Weights(2), timeout=60)
        newest = topic.ask(question_of(Weights)(0, 0), timeout=60)
        assert (newest.number, newest.value) == (last + 1, Weights(2))


def forged(**fields: Any) -> Any:
    """Makes a class whose values go out under the key of `app.Weights`."""
    made = tp.message(type("Forged", (), {"__annotations__": fields, "__module__": __name__}))
    setattr(made, WAY, (plan_of(made), tp.key(app.Weights), plan_of(None)))
    return made


def test_a_malformed_value_is_refused_and_the_last_version_stays() -> None:
    good, one = np.zeros(4, np.float32), forged(step=tp.u64, values=tp.Tensor)
    with tp.Node(deadline=60, console=False) as node:
        reader = node.subscribe(app.Weights, "weights")
        topic = node.topic(app.Weights, "weights")
        topic.ask(app.Weights(1, good), timeout=60)
        for malformed, why in (
            (forged(step=str, values=tp.Tensor)("one", good), r"Weights\.step: it must be an integer and is a str"),
            (forged(step=tp.u64)(2), r"Weights: the field `values` is missing"),
            (one(2, np.zeros(3, np.float32)), r"Weights\.values: "),
            (one(2, np.zeros(4, np.int32)), r"Weights\.values: "),
        ):
            with pytest.raises(tp.AskError, match=f"Weights is malformed: {why}"):
                topic.ask(malformed, timeout=60)
        assert reader.ready(timeout=60).number == 1
        topic.ask(one(2, good), timeout=60)
        assert reader.changed(timeout=60).number == 2


@tp.message
class Block:
    data: tp.Tensor


def test_a_version_that_finds_no_room_beside_the_last_one_says_what_is_out() -> None:
    big = np.zeros(20 << 20, np.uint8)
    with tp.Node(deadline=60, console=False, host_budget=64 << 20) as node:
        topic = node.topic(Block, "blocks")
        topic.ask(Block(big), timeout=60)
        # The topic keeps it until the next has come, and a quarter of the budget is half of what may be out.
        out = rf"{big.nbytes} bytes of this process's tensors .* are out, of {32 << 20} .*Held by"
        with pytest.raises(tp.DeadlineError, match=out):
            topic.send(Block(big), timeout=0.1)
        with pytest.raises(tp.DeadlineError, match=out):
            asyncio.run(topic.send_async(Block(big), timeout=0.1))
        topic.ask(Block(np.zeros(1, np.uint8)), timeout=60)


@tp.message
class Text:
    data: bytes


def test_what_a_topic_could_not_give_out_it_does_not_take() -> None:
    deep: Any = tp.u8
    for _ in range(130):
        deep = list[deep]
    with tp.Node(deadline=60, console=False) as node:
        with pytest.raises(tp.SpawnError, match="the form of Deep cannot be read: .*flatten"):
            node.topic(tp.message(type("Deep", (), {"__annotations__": {"deep": deep}, "__module__": __name__})), "deep")
        topic = node.topic(Text, "text")
        # It fits into a message, and not into the reply to a reader.
        with pytest.raises(tp.AskError, match="may have 67108864"):
            topic.ask(Text(bytes((64 << 20) - 16)), timeout=60)


@tp.message
class AllForms:
    """Types of all forms."""

    scalars: Scalars
    job: Job
    everything: Everything


def test_a_topic_takes_values_of_every_form() -> None:
    rng = random.Random(7)
    with tp.Node(deadline=60, console=False) as node:
        topic, reader = node.topic(AllForms, "forms"), node.subscribe(AllForms, "forms")
        for number in range(1, 33):
            topic.ask(value_of(AllForms, rng), timeout=60)
            # The reader has read it by its classes.
            assert reader.changed(timeout=60).number == number


PROGRAM = """
import json, os, pathlib, re
import numpy as np
import tensorpost as tp

pathlib.Path(f"loaded.{os.getpid()}").touch()

@tp.message
class Weights:
    step: tp.u64
    layer: tp.Tensor[tp.f32]

@tp.message(reply=tp.u32)
class Who: ...

@tp.actor
class Actor:
    @tp.handler
    def who(self, who: Who) -> int:
        return os.getpid()

def look_at(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(re.search(rf"^{name}:\\s+(\\d+) kB", status, re.MULTILINE)[1]) for name in ("VmRSS", "RssAnon")}
    return {"pid": pid, "maps": pathlib.Path(f"/proc/{pid}/maps").read_text(), **kib}

def main():
    with tp.Node(console=False) as node:
        topic = node.topic(Weights, "weights")
        (pid,) = (worker.pid for worker in node.workers() if worker.name == "weights")
        topic.ask(Weights(1, np.ones(4, np.float32)), timeout=60)
        assert node.subscribe(Weights, "weights").ready(timeout=60).value.step == 1
        actor = node.spawn(Actor).ask(Who(), timeout=60)
        print(json.dumps({"program": os.getpid(), "topic": look_at(pid), "actor": look_at(actor)}))

if __name__ == "__main__":
    main()"""


def test_a_topic_loads_neither_the_script_nor_its_libraries(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    done = run("app.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    topic, actor = seen["topic"], seen["actor"]
    assert {int(path.suffix[1:]) for path in tmp_path.glob("loaded.*")} == {seen["program"], actor["pid"]}
    for library in ("numpy", "libtorch"):
        assert library not in topic["maps"]
    assert "numpy" in actor["maps"] and "_native" in topic["maps"]
    # Without the files that it shares with others it has less than half.
    assert topic["VmRSS"] < 64 << 10 and 2 * topic["RssAnon"] < actor["RssAnon"], (topic, actor)


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
