"""Actors: their messages, their failures, their restarts, and the reports of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import actors_of_python as app
import tensorpost as tp

PATIENCE = 60.0
VALUES = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def node() -> Iterator[tp.Node]:
    with tp.Node(deadline=PATIENCE, console=False) as node:
        yield node


def statistics(node: tp.Node, **options: object) -> tuple[tp.Address, tp.Channel[app.Scale]]:
    sink, scaled = node.channel(app.Scale)
    return node.spawn(app.Statistics, sink, kwargs={"by": 3.0}, **options), scaled


def test_messages_go_both_ways_with_tensors_in_them(node: tp.Node) -> None:
    address, scaled = statistics(node, name="statistics")
    assert address.ask(app.Mean(VALUES), timeout=PATIENCE) == 1.5
    address.send(app.Scale(1, VALUES), timeout=PATIENCE)
    answer = scaled.recv(timeout=PATIENCE)
    assert answer.id == 2
    assert np.from_dlpack(answer.values).tolist() == [0, 3, 6, 9]
    # A received tensor is passed on as it is.
    address.send(answer, timeout=PATIENCE)
    assert np.from_dlpack(scaled.recv(timeout=PATIENCE).values).tolist() == [0, 9, 18, 27]
    assert node.lookup("statistics") == address
    with pytest.raises(tp.NodeError, match="nobody"):
        node.lookup("nobody")


def test_the_array_of_a_sent_tensor_is_the_senders_again(node: tp.Node) -> None:
    sink, scaled = node.channel(app.Scale)
    values = VALUES.copy()
    sink.send(app.Scale(1, values), timeout=PATIENCE)
    values[:] = 7
    assert np.from_dlpack(scaled.recv(timeout=PATIENCE).values).tolist() == VALUES.tolist()


def test_what_was_sent_is_let_go_of_by_the_sender_or_soon_by_itself(node: tp.Node) -> None:
    gone: list[int] = []

    class Noted(np.ndarray):  # type: ignore[type-arg]
        def __del__(self) -> None:
            gone.append(threading.get_ident())

    sink, scaled = node.channel(app.Scale)
    for _ in range(2):
        for number in range(50):
            sink.send(app.Scale(number, VALUES.copy().view(Noted)), timeout=PATIENCE)
        for number in range(50):
            assert scaled.recv(timeout=PATIENCE).id == number
    # No other thread took the interpreter for it while messages came.
    assert threading.get_ident() in gone
    # No more messages come.
    until = time.monotonic() + PATIENCE
    while len(gone) < 100:
        assert time.monotonic() < until, len(gone)
        time.sleep(0.001)  # the arrays tell nobody else
    time.sleep(0.01)
    assert len(gone) == 100


def test_an_exception_ends_a_life_with_its_traceback(node: tp.Node) -> None:
    address, _ = statistics(node, restart=tp.on_failure(1).backoff(0.01, 0.1))
    watch = node.watch(address)
    with pytest.raises(tp.AskError, match="its handler Statistics.crash of Crash raised ValueError: as told$"):
        # The handler would reply None, and fails.
        address.ask(app.Crash("as told"), timeout=PATIENCE)
    down = watch.recv(timeout=PATIENCE)
    assert down is not None and down.kind == "down" and down.will_restart and down.reason is not None
    assert "its handler Statistics.crash of Crash raised ValueError: as told\n" in down.reason and "Traceback" in down.reason
    assert "actors_of_python.py" in down.reason and "_worker.py" not in down.reason
    up = watch.recv(timeout=PATIENCE)
    assert up is not None and (up.kind, up.incarnation) == ("up", 1)
    assert address.ask(app.Where(), timeout=PATIENCE).split()[1] == "1"
    address.send(app.Crash("again"), timeout=PATIENCE)
    assert [event.kind for event in watch] == ["gave_up"]
    with pytest.raises(tp.SendError) as error:
        address.send(app.Kill(), timeout=PATIENCE)
    assert "again" in str(error.value) and not error.value.retryable
    (ends,) = (worker.ends for worker in node.restarts() if any("as told" in end for end in worker.ends))
    assert len(ends) == 2


@pytest.mark.parametrize("actor", [app.Fails, app.AwaitedFails, app.MixedFails])
def test_a_failure_that_is_hard_to_tell_is_told(actor: type) -> None:
    with tp.Node(deadline=PATIENCE, console=False) as node:
        for how, told in [
            ("untold", "raised Untold: its text cannot be had, because its `__str__` raised ValueError$"),
            ("no utf-8", r"raised OSError: \\udcff.txt$"),
            ("an error of the package", "no reply to Crash: it raised TypeError outside of its handlers: "),
            ("nothing that tells", "the actor has ended$"),
        ]:
            address = node.spawn(actor)

            async def run(address: tp.Address = address, how: str = how) -> list[object]:
                others = [] if actor is app.Fails else [app.Gate(), app.Gate()]
                asks = [address.ask_async(message, timeout=PATIENCE) for message in [*others, app.Crash(how)]]
                return await asyncio.gather(*asks, return_exceptions=True)

            *others, failed = asyncio.run(run())
            assert isinstance(failed, tp.AskError) and re.search(told, str(failed)), failed
            assert all(isinstance(other, tp.AskError) for other in others), others
            if how == "an error of the package":
                assert all("it raised TypeError outside of its handlers: " in str(other) for other in others), others
            with pytest.raises((tp.SendError, tp.AskError)):
                address.ask(app.Crash("too late"), timeout=PATIENCE)
        began = time.monotonic()
        ended = node.shutdown()
        assert ended is not None and ended.drained, ended
        assert time.monotonic() - began < PATIENCE / 2


@pytest.mark.parametrize("actor", [app.Replies, app.AwaitedReplies])
def test_a_reply_that_cannot_be_sent_costs_its_asker_the_reply_and_nobody_else(
    node: tp.Node, actor: type, capfd: pytest.CaptureFixture[str]
) -> None:
    address = node.spawn(actor)
    for how in ("array", "text"):
        with pytest.raises(tp.AskError, match="the reply could not be sent: EncodeError: .*(does not give itself by DLPack|a str is no tensor)"):
            address.ask(app.Reply(how), timeout=PATIENCE)
        address.send(app.Reply(how), timeout=PATIENCE)
    # It is the same life.
    assert address.ask(app.Reply("good"), timeout=PATIENCE).numpy().tolist() == [5]
    assert f"the reply of {actor.__name__}.reply was not sent: EncodeError: " in capfd.readouterr().err


def test_what_waits_behind_a_failure_is_told(node: tp.Node, tmp_path: Path) -> None:
    async def run(address: tp.Address) -> list[object]:
        asks = [address.ask_async(app.Crash(str(number)), timeout=PATIENCE) for number in range(3)]
        return await asyncio.gather(*asks, return_exceptions=True)

    address, _ = statistics(node, restart=tp.on_failure(9).backoff(0.001, 0.001))
    failed = asyncio.run(run(address))
    assert all(isinstance(error, tp.AskError) for error in failed), failed
    for _ in failed:
        # A life that is about to end may have taken the message, and the ask then fails.
        with contextlib.suppress(tp.AskError):
            address.ask(app.Mean(VALUES), timeout=PATIENCE)
    assert address.ask(app.Mean(VALUES), timeout=PATIENCE) == 1.5


def test_a_worker_that_is_killed_in_a_handler_comes_back(node: tp.Node) -> None:
    address, _ = statistics(node, restart=tp.on_failure(1))
    watch = node.watch(address)
    first = address.ask(app.Where(), timeout=PATIENCE)
    with pytest.raises(tp.AskError):
        address.ask(app.Kill(), timeout=PATIENCE)
    down = watch.recv(timeout=PATIENCE)
    assert down is not None and down.reason is not None and "signal" in down.reason
    second = address.ask(app.Where(), timeout=PATIENCE)
    assert first.split()[2] != second.split()[2]


def test_two_actors_in_one_worker_have_lives_of_their_own(node: tp.Node) -> None:
    one, scaled = statistics(node, restart=tp.on_failure(2).backoff(0.01, 0.1))
    two, _ = statistics(node, beside=one, label="two", restart=tp.on_failure(2).backoff(0.01, 0.1))

    def where(address: tp.Address) -> list[str]:
        return address.ask(app.Where(), timeout=PATIENCE).split()

    (first, life, pid), (second, *_, same) = where(one), where(two)
    assert (first, life, second) == ("Statistics", "0", "two") and pid == same
    # Each actor has a thread: one asks the other, which answers meanwhile.
    assert one.ask(app.Pass(two), timeout=PATIENCE).split()[0] == "two"
    one.send(app.Scale(1, VALUES), timeout=PATIENCE)
    assert scaled.recv(timeout=PATIENCE).id == 2
    # The end of the process ends both.
    watches = [node.watch(one), node.watch(two)]
    os.kill(int(pid), signal.SIGKILL)
    for watch in watches:
        assert [watch.recv(timeout=PATIENCE).kind for _ in range(2)] == ["down", "up"]  # type: ignore[union-attr]
    again = where(one), where(two)
    assert again[0][2] == again[1][2] != pid and [one[1] for one in again] == ["1", "1"]
    with pytest.raises(tp.SpawnError, match="no such actor"):
        statistics(node, beside=scaled_address(node))
    with pytest.raises(tp.SpawnError, match="environment"):
        statistics(node, beside=one, environment={"A": "b"})


def scaled_address(node: tp.Node) -> tp.Address:
    return node.channel(app.Scale)[0]


def test_what_is_refused_harms_nobody(node: tp.Node) -> None:
    address, _ = statistics(node)
    # An address that comes in a message or in arguments names no types, and the actor itself refuses.
    with pytest.raises(tp.AskError, match=r"has no handler for a message with key [0-9a-f]{16}; it handles .*Mean"):
        node.spawn(app.Asker, address).ask(app.Count(), timeout=PATIENCE)
    with pytest.raises(tp.EncodeError, match="values"):
        address.ask(app.Mean(VALUES.astype(np.float64)), timeout=PATIENCE)
    assert address.ask(app.Mean(VALUES), timeout=PATIENCE) == 1.5


def test_messages_without_a_handler_are_not_sent(node: tp.Node) -> None:
    address, _ = statistics(node, name="handles no Unknown")
    sink, _scaled = node.channel(app.Scale)
    why = r"^Unknown was not sent to {}, which has no handler for Unknown with key [0-9a-f]{{16}}"
    for to, who in [
        (address, "actor#[0-9]+ `handles no Unknown`"),
        (node.lookup("handles no Unknown"), "actor#[0-9]+ `handles no Unknown`"),
        (statistics(node)[0], "actor#[0-9]+ `Statistics`"),
        (sink, "actor#[0-9]+"),
    ]:
        for send in (to.send, to.try_send, to.ask):
            with pytest.raises(tp.SendError, match=why.format(who)) as error:
                send(app.Unknown())
            assert not error.value.retryable
        for send_async in (to.send_async, to.ask_async):
            with pytest.raises(tp.SendError, match=why.format(who)):
                asyncio.run(send_async(app.Unknown()))
    assert node.lookup("handles no Unknown", app.Mean).ask(app.Mean(VALUES), timeout=PATIENCE) == 1.5
    with pytest.raises(tp.NodeError, match="^the actor `handles no Unknown` does not handle Unknown with key "):
        node.lookup("handles no Unknown", app.Unknown)
    with pytest.raises(tp.SchemaError, match="`int` is no message"):
        node.lookup("handles no Unknown", int)


@pytest.mark.parametrize("actor", [app.Counter, app.Doors])
def test_a_flood_of_refused_messages_is_a_line_a_second(actor: type, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with tp.Node(deadline=PATIENCE, console=False) as node:
        address = node.spawn(actor) if actor is app.Counter else node.spawn(actor, node.channel(app.Where)[0])
        sent = node.spawn(app.Flooder, address).ask(app.Flood(2000, 1.5, 30.0), timeout=PATIENCE)
    seconds = time.monotonic() - began
    lines = [line for line in capfd.readouterr().err.splitlines() if f"tensorpost: {actor.__name__}: " in line]
    assert 2 <= len(lines) <= seconds + 2, lines
    told = sum("a message was refused" in line for line in lines)
    left_out = [int(count) for line in lines for count in re.findall("([0-9]+) more like it w[a-z]+ left out", line)]
    assert sent >= 2000 and told + sum(left_out) == sent, (sent, lines)


def test_who_floods_an_actor_or_a_topic_is_given_up_and_nobody_else(node: tp.Node) -> None:
    for address in (node.spawn(app.Counter), node.topic(app.Scale, "scales")):
        sent = node.spawn(app.Flooder, address).ask(app.Flood(60_000, 0.0, 1.0), timeout=PATIENCE)
        assert 8_192 < sent < 60_000
    # The topic still takes what others publish.
    address.send(app.Scale(3, np.ones(1, np.float32)), timeout=PATIENCE)


def test_deadlines_and_full_mailboxes(node: tp.Node, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    address = node.spawn(app.Slow, str(gate), mailbox=1)
    with pytest.raises(tp.DeadlineError, match="Where .* no reply came before the deadline"):
        address.ask(app.Where(), timeout=0.05)
    with pytest.raises(TimeoutError):
        address.send(app.Seen("no room"), timeout=0.05)
    assert not address.try_send(app.Seen("no room"))
    with pytest.raises(tp.Error, match="timeout"):
        address.send(app.Seen("no room"), timeout=-1.0)
    gate.touch()
    assert address.ask(app.Where(), timeout=PATIENCE) == "at last"


def test_coroutines_handle_others_while_they_wait(node: tp.Node) -> None:
    other, _ = statistics(node, label="other")
    doors = node.spawn(app.Doors, other, restart=tp.on_failure(1))

    async def run() -> list[str]:
        waiting = [asyncio.ensure_future(doors.ask_async(app.Gate(), timeout=PATIENCE)) for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting[0]), 0.05)
        assert await doors.ask_async(app.Open(), timeout=PATIENCE) == "open"
        return await asyncio.gather(*waiting)

    assert {answer.split()[0] for answer in asyncio.run(run())} == {"other"}
    watch = node.watch(doors)
    with pytest.raises(tp.AskError):
        doors.ask(app.Crash("in a coroutine"), timeout=PATIENCE)
    down = watch.recv(timeout=PATIENCE)
    assert down is not None and down.reason is not None and "ValueError: in a coroutine" in down.reason
    assert doors.ask(app.Open(), timeout=PATIENCE) == "open"


def test_actors_know_each_other_by_addresses_in_messages(node: tp.Node) -> None:
    one, _ = statistics(node, label="one")
    two, _ = statistics(node, label="two")
    assert one.ask(app.Pass(two), timeout=PATIENCE).startswith("two 0 ")


def test_what_a_reply_waits_for_while_it_is_written_is_sent_before_it(node: tp.Node) -> None:
    other, _ = statistics(node, name="late's other")
    late = node.spawn(app.IsLate)
    for how in ("asks", "asks in a coroutine", "looks another up"):
        assert late.ask(app.Late(other, how), timeout=PATIENCE).numpy().tolist() == [0, 1, 2]


def test_an_actor_watches_another(node: tp.Node) -> None:
    other, _ = statistics(node, restart=tp.on_failure(1))
    sink, seen = node.channel(app.Seen)
    watcher = node.spawn(app.Watcher, other, sink)
    assert watcher.ask(app.Where(), timeout=PATIENCE) == "watching"
    other.send(app.Crash("for the watcher"), timeout=PATIENCE)
    assert [seen.recv(timeout=PATIENCE).what for _ in range(2)] == ["down", "up"]


def test_an_actor_starts_actors(node: tp.Node) -> None:
    sink, scaled = node.channel(app.Scale)
    parent = node.spawn(app.Parent, sink, environment={"OF_THE_PARENT": "yes"})
    first = node.lookup("first child")

    def life_and_process() -> list[str]:
        name, *rest = first.ask(app.Where(), timeout=PATIENCE).rsplit(maxsplit=2)
        assert name == "first child"
        # It has the interpreter and the environment of its parent's worker.
        assert b"OF_THE_PARENT=yes" in Path(f"/proc/{rest[1]}/environ").read_bytes()
        return rest

    life, process = life_and_process()
    parents = next(str(worker.pid) for worker in node.workers() if worker.name == "Parent")
    assert life == "0" and process not in (parents, str(os.getpid()))
    first.send(app.Scale(1, VALUES), timeout=PATIENCE)
    assert np.from_dlpack(scaled.recv(timeout=PATIENCE).values).tolist() == [0, 2, 4, 6]

    def bear(how: str) -> str:
        return parent.ask(app.Bear(how), timeout=PATIENCE)

    assert (bear("beside"), bear("here")) == (f"beside 0 {process}", f"here 0 {parents}")
    assert parent.ask(app.Gate(), timeout=PATIENCE) == "0"
    for how, told in [
        ("broken", "^SpawnError: .*OSError: no camera"),
        ("stranger", r"^SpawnError: beside=.* is not one that this actor's `spawn` has returned"),
        ("long", "^SpawnError: the request to start an actor has .* may have 65536"),
        ("no actor", "^NodeError: `Mean` is no actor"),
    ]:
        assert re.search(told, bear(how), re.DOTALL), bear(how)

    # The node supervises it, with and without its parent.
    os.kill(int(parents), signal.SIGKILL)
    assert life_and_process() == [life, process]
    with pytest.raises(tp.AskError):
        first.ask(app.Kill(), timeout=PATIENCE)
    life, again = life_and_process()
    assert life == "1" and again != process


SPAWNS = """
import sys
import tensorpost as tp

@tp.message(reply=str)
class Who: ...

@tp.actor
class Child:
    def __init__(self, of):
        self.of = of

    @tp.handler
    def who(self, who: Who) -> str:
        return f"{self.of} {sys.argv[1]}"

@tp.actor
class Parent:
    @tp.handler
    def who(self, who: Who) -> str:
        return tp.env().spawn(Child, "of the parent,").ask(who, timeout=30)

if __name__ == "__main__":
    with tp.Node(console=False) as node:
        print(node.spawn(Parent).ask(Who(), timeout=60))
"""


def test_an_actor_of_a_script_starts_actors_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNS)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), "given"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (run.returncode, run.stdout) == (0, "of the parent, given\n"), run.stderr


def test_a_start_that_fails_says_why(node: tp.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tp.SpawnError, match=r"(?s)OSError: no camera.*Traceback.*actors_of_python.py"):
        node.spawn(app.Broken)
    with pytest.raises(tp.SpawnError, match=r"TypeError: .*unexpected keyword argument 'wrong'"):
        node.spawn(app.Broken, kwargs={"wrong": 1})
    with pytest.raises(tp.SpawnError, match=r"(?s)/bin/false|ended before it was ready"):
        node.spawn(app.Counter, interpreter="/bin/false")
    with pytest.raises(tp.SpawnError, match="/no/such/python"):
        node.spawn(app.Counter, interpreter="/no/such/python")
    with pytest.raises(tp.NodeError, match="no actor; give its class the decorator"):
        node.spawn(app.Mean)
    with pytest.raises(tp.NodeError, match="cannot be pickled"):
        node.spawn(app.Counter, lambda: None)
    with pytest.raises(tp.NodeError, match="tensor"):
        node.spawn(app.Counter, tp.Tensor(VALUES))

    # A module that this process can import, and a worker cannot.
    module = tmp_path / "gone_later.py"
    module.write_text("from actors_of_python import Counter\nimport tensorpost as tp\n@tp.actor\nclass Gone(Counter): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_later  # type: ignore[import-not-found]

    module.write_text("import a_module_that_is_not_there\n")
    with pytest.raises(tp.SpawnError, match=r"(?s)ModuleNotFoundError: No module named 'a_module_that_is_not_there'.*gone_later.py"):
        node.spawn(gone_later.Gone)


def test_classes_that_are_no_actors_are_refused() -> None:
    with pytest.raises(tp.SchemaError, match="has no handlers"):

        @tp.actor
        class Without: ...

    with pytest.raises(tp.SchemaError, match="say which message it handles"):

        @tp.actor
        class Untold:
            @tp.handler
            def handle(self, message): ...  # type: ignore[no-untyped-def]

    with pytest.raises(tp.SchemaError, match="handles Mean already"):

        @tp.actor
        class Twice:
            @tp.handler(app.Mean)
            def one(self, message: object) -> float: ...

            @tp.handler
            def two(self, message: app.Mean) -> float: ...

    namesake = tp.message(name="Kill")(type("Namesake", (), {"__module__": "elsewhere"}))
    with pytest.raises(tp.SchemaError, match=r"elsewhere.Namesake is the same message as actors_of_python.Kill, which `one` handles"):

        @tp.actor
        class Alike:
            @tp.handler(app.Kill)
            def one(self, message: object) -> None: ...

            @tp.handler(namesake)
            def two(self, message: object) -> None: ...

    with pytest.raises(tp.SchemaError, match="`int` is no message"):

        @tp.actor
        class Number:
            @tp.handler
            def handle(self, message: int) -> None: ...

    with pytest.raises(tp.Error, match="no actor runs on this thread"):
        tp.env()


def test_100_000_messages_and_flat_memory(node: tp.Node) -> None:
    counter = node.spawn(app.Counter, mailbox=256)
    message = app.Scale(0, tp.Tensor(np.ones(16, dtype=np.float32)))

    def pages() -> tuple[int, int]:
        own = int(Path("/proc/self/statm").read_text().split()[1])
        return own, int(counter.ask(app.Where(), timeout=PATIENCE))

    def send(count: int) -> None:
        for _ in range(count):
            counter.send(message, timeout=PATIENCE)

    send(20_000)
    before = pages()
    send(80_000)
    assert counter.ask(app.Count(), timeout=PATIENCE) == 100_000
    after = pages()
    # 8 MiB: less than a hundred bytes for each message.
    grown = [there - here for here, there in zip(before, after, strict=True)]
    assert max(grown) < 2048, f"pages: {before} before, {after} after"


PROGRAM = """
import os, sys
import numpy as np
import tensorpost as tp

@tp.message
class Work:
    path: str
    after: str

@tp.message
class Begun: ...

@tp.actor
class Worker:
    def __init__(self, sink: tp.Address[Begun]):
        self.sink = sink

    @tp.handler
    def work(self, work: Work) -> None:
        import time
        self.sink.send(Begun())
        while not os.path.exists(work.after):
            time.sleep(0.005)
        with open(work.path, "a") as file:
            file.write("x")

if __name__ == "__main__":
    with tp.Node(deadline=60, console=False) as node:
        sink, begun = node.channel(Begun)
        worker = node.spawn(Worker, sink)
        for _ in range(5):
            worker.send(Work(sys.argv[1], sys.argv[2]))
        begun.recv(timeout=60)
        print("begun", flush=True)
        while True:
            begun.recv()
"""


def test_ctrl_c_lets_a_script_finish_what_is_under_way(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    done, gate = tmp_path / "done", tmp_path / "gate"
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(done), str(gate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert script.stdout is not None
    try:
        assert script.stdout.readline() == "begun\n"
        script.send_signal(signal.SIGINT)
        gate.touch()
        _, errors = script.communicate(timeout=PATIENCE)
    finally:
        script.kill()
    assert "KeyboardInterrupt" in errors and script.returncode in (1, 130, -signal.SIGINT), errors
    assert done.read_text() == "xxxxx", errors


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    # The worker loads the script again, but starts no node, and so no other worker.
    (tmp_path / "script.py").write_text(PROGRAM.partition("if __name__")[0] + "tp.Node(console=False).spawn(Worker, None)\n")
    for command in ([str(tmp_path / "script.py")], ["-m", "script"]):
        run = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert run.returncode == 1 and "SpawnError" in run.stderr, run.stderr
        assert 'a worker starts no node; put the program under `if __name__ == "__main__":`' in run.stderr, run.stderr
        assert "a loader for an actor in a process of its own, with `multiprocessing`" in run.stderr, run.stderr


def test_a_worker_by_hand_says_what_it_is() -> None:
    run = subprocess.run([sys.executable, "-m", "tensorpost.worker"], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 64 and "started by a node" in run.stderr


def test_the_demonstration_runs() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tensorpost.demo", "--pictures", "2", "--size", "16"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == 0, run.stderr
    assert len(re.findall("as it must be", run.stdout)) == 2


def test_a_host_tensor_is_waited_for_however_it_is_looked_at() -> None:
    program = os.environ.get("TENSORPOST_PEER")
    if not program:
        pytest.skip("TENSORPOST_PEER names no program: scripts/python/test builds it")
    run = subprocess.run(
        [program, "pending", sys.executable, str(Path(__file__).parent)], capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert run.returncode == 0, run.stderr + run.stdout
    assert run.stdout.splitlines() == ["numpy", "bytes", "copy", "bytes of a busy process"]


def test_a_program_in_rust_starts_actors_of_python() -> None:
    program = os.environ.get("TENSORPOST_PEER")
    if not program:
        pytest.skip("TENSORPOST_PEER names no program: scripts/python/test builds it")
    run = subprocess.run(
        [program, "node", sys.executable, str(Path(__file__).parent)], capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert run.returncode == 0, run.stderr + run.stdout
    assert run.stdout.split() == ["asked", "sent", "restarted", "refused", "reported", "queued", "published", "followed", "drained"]


def test_a_signal_that_comes_while_a_worker_starts_is_left_to_the_node(node: tp.Node, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        f"open({str(tmp_path / 'pid.part')!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'pid.part')!r}, {str(tmp_path / 'pid')!r})\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.005)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    began: list[tp.Address] = []
    starting = threading.Thread(target=lambda: began.append(node.spawn(app.Counter, environment={"PYTHONPATH": path})))
    starting.start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until
        os.sched_yield()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(int((tmp_path / "pid").read_text()), number)
    (tmp_path / "go").touch()
    starting.join()
    assert began[0].ask(app.Count(), timeout=PATIENCE) == 0
