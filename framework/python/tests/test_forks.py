"""Processes that fork: a child changes nothing of its parent's, gets an error if it tries, and can have its
own node.

Each program is a process of its own, because it forks with the threads of a node.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import dataclasses, gc, multiprocessing, os, signal, sys, time
import numpy as np
import tensorpost as tp

SAID = "this process was forked from one that has a node"
FORK = multiprocessing.get_context("fork")


@tp.message(reply=str)
class Keep:
    values: tp.Tensor[tp.u64]


@tp.message(reply=str)
class Do:
    what: str


@tp.message(reply=str)
class Look: ...


@tp.message(reply=tp.u64)
class Count:
    n: tp.u64


def task(queue):
    queue.put(os.getpid())


def square(n):
    return n * n


def forget(actor):
    actor.kept.clear()
    actor.view = None
    gc.collect()


def own():
    with tp.Node() as node:
        count = node.spawn(Counter)
        assert count.ask(Count(2), timeout=20) == 2


def ends(child):
    """The status with which a child has ended, or minus its signal; it has half a minute."""
    until = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def in_child(body):
    """Runs this in a child, which ends as a program does."""
    child = os.fork()
    if child == 0:
        body()
        sys.exit(0)
    assert (how := ends(child)) == 0, how


def refused(call, *args, **kwargs):
    try:
        got = call(*args, **kwargs)
    except tp.Error as error:
        assert SAID in str(error), error
    else:
        raise AssertionError(f"{call} gave {got!r}")


@tp.actor
class Counter:
    def __init__(self):
        self.n = 0

    @tp.handler
    def count(self, count: Count) -> int:
        self.n += count.n
        return self.n


@tp.actor
class Later:
    @tp.handler
    async def do(self, do: Do) -> str:
        child = os.fork()
        if child == 0:
            if do.what == "exit":
                sys.exit(4)
            return "the child returns"
        return str(ends(child))


@tp.message
class Number:
    n: tp.u64


@tp.stage
def doubled(number: Number) -> Number:
    child = os.fork()
    if child != 0:
        assert ends(child) == 0
    return Number(2 * number.n)


@tp.actor
class Keeper:
    def __init__(self):
        self.kept, self.view = [], None

    @tp.handler
    def keep(self, keep: Keep) -> str:
        self.kept.append(keep.values)
        self.view = keep.values.numpy()
        return "kept"

    @tp.handler
    def look(self, look: Look) -> str:
        return str(sorted(set(self.view.tolist())))

    @tp.handler
    def do(self, do: Do) -> str:
        if do.what == "mp":
            queue = FORK.Queue()
            child = FORK.Process(target=task, args=(queue,))
            child.start()
            queue.get(timeout=20)
            child.join(20)
            return str(child.exitcode)
        if do.what == "mp forget":
            child = FORK.Process(target=forget, args=(self,))
            child.start()
            child.join(20)
            return str(child.exitcode)
        if do.what == "mp own":
            child = FORK.Process(target=own)
            child.start()
            child.join(60)
            return str(child.exitcode)
        if do.what == "pool":
            with FORK.Pool(2) as pool:
                return str(pool.map(square, range(5)))
        child = os.fork()
        if child == 0:
            if do.what == "forget":
                forget(self)
                os._exit(0)
            if do.what == "exit":
                sys.exit(3)
            if do.what == "raise":
                raise ValueError("as told")
            if do.what == "return":
                return "the child returns"
            if do.what == "crash":
                os.abort()
            if do.what == "calls":
                refused(tp.empty, 4, tp.u64)
                refused(tp.env().address.send, Do("none"))
                refused(tp.env().lookup, "nobody")
                refused(tp.env().spawn, Counter)
                refused(tp.env().subscribe, Number, "nobody")
                assert sorted(set(self.view.tolist())) == [7]
                return "done"
            os._exit(9)
        return str(ends(child))
'''


def play(tmp_path: Path, program: str, name: str = "program.py") -> str:
    """Runs the program as a script, and returns what it has printed."""
    script = tmp_path / name
    script.write_text(PROGRAM + "\n\nif __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in program.strip().splitlines()))
    run = subprocess.run(
        [sys.executable, str(script)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=os.environ
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_children_of_a_handler_end_nothing_of_the_workers(tmp_path: Path) -> None:
    text = play(
        tmp_path,
        """
with tp.Node() as node:
    keeper = node.spawn(Keeper)
    mine = node.empty(1 << 16, tp.u64)
    mine.numpy()[:] = 7
    keeper.ask(Keep(mine), timeout=20)
    del mine
    gc.collect()
    worker = node.workers()[0].pid
    whats = ["mp", "mp forget", "pool", "forget", "exit", "raise", "return", "crash", "calls", "mp own"]
    for what in whats:
        print(what, "->", keeper.ask(Do(what), timeout=90))
        others = [node.empty(1 << 16, tp.u64) for _ in range(64)]
        for other in others:
            other.numpy()[:] = 666
        assert keeper.ask(Look(), timeout=20) == "[7]", what
        del other, others
    assert node.workers()[0].pid == worker and node.restarts() == []
print("ended")
""",
    )
    assert text.splitlines() == [
        "mp -> 0",
        "mp forget -> 0",
        "pool -> [0, 1, 4, 9, 16]",
        "forget -> 0",
        "exit -> 3",
        "raise -> 1",
        "return -> 0",
        "crash -> -6",
        "calls -> 0",
        "mp own -> 0",
        "ended",
    ]


def test_children_of_async_handlers_and_of_stages_end_nothing(tmp_path: Path) -> None:
    play(
        tmp_path,
        """
seen = []
with tp.Node() as node:
    later = node.spawn(Later)
    assert [later.ask(Do(what), timeout=40) for what in ("exit", "return", "exit")] == ["4", "0", "4"]
    report = tp.Pipeline("forks").source(Number(n) for n in range(4)).stage(doubled).for_each(seen.append).run(node)
    assert report.is_complete and [number.n for number in seen] == [0, 2, 4, 6]
    assert node.restarts() == []
""",
    )


def test_a_child_of_the_program_calls_everything_and_is_told_why_not(tmp_path: Path) -> None:
    play(
        tmp_path,
        """
with tp.Node(deadline=5) as node:
    keeper, count = node.spawn(Keeper), node.spawn(Counter)
    mine = node.empty(1 << 16, tp.u64)
    mine.numpy()[:] = 7
    keeper.ask(Keep(mine), timeout=20)
    address, channel = node.channel(Count)
    address.send(Count(5))
    watch = node.watch(count)

    def calls():
        global node, mine, channel, watch
        refused(count.send, Count(100), timeout=5)
        refused(count.try_send, Count(100))
        refused(count.ask, Count(100), timeout=5)
        refused(keeper.ask, Keep(mine), timeout=5)
        refused(keeper.ask, Keep(np.zeros(1 << 16, np.uint64)), timeout=5)
        refused(channel.recv, timeout=5)
        refused(watch.recv, timeout=5)
        for call in (node.workers, node.restarts, node.shutdown, lambda: node.spawn(Counter), lambda: node.channel(Count)):
            refused(call)
        refused(node.lookup, "nobody", timeout=5)
        refused(node.subscribe, Number, "nobody")
        refused(node.empty, 4, tp.u64)
        assert set(mine.numpy().tolist()) == {7} and mine.tobytes()[:8] == (7).to_bytes(8, "little")
        del node, mine, channel, watch
        gc.collect()

    in_child(calls)
    child = os.fork()
    if child == 0:
        mine.numpy()[:] = 666
        os._exit(0)
    assert ends(child) == -signal.SIGSEGV, "it has written its parent's array"
    assert set(mine.numpy().tolist()) == {7}
    for how in (os._exit, sys.exit):
        in_child(lambda: how(0))
    with FORK.Pool(2) as pool:
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
    assert channel.recv(timeout=20).n == 5
    assert [count.ask(Count(1), timeout=20) for _ in range(300)] == list(range(1, 301))
    del mine
    gc.collect()
    for other in [node.empty(1 << 16, tp.u64) for _ in range(64)]:
        other.numpy()[:] = 666
    assert keeper.ask(Look(), timeout=20) == "[7]"
""",
    )


def test_a_child_that_leaves_the_block_ends_no_node(tmp_path: Path) -> None:
    text = play(
        tmp_path,
        """
child = None
with tp.Node() as node:
    count = node.spawn(Counter)
    if (child := os.fork()) != 0:
        assert ends(child) == 0
        print("the program has", count.ask(Count(2), timeout=20), flush=True)
print("out of the block", flush=True)
""",
    )
    assert sorted(text.splitlines()) == ["out of the block", "out of the block", "the program has 2"]


def test_the_program_gets_its_own_answers_and_no_childs(tmp_path: Path) -> None:
    play(
        tmp_path,
        """
with tp.Node() as node:
    counts = node.spawn(Counter)
    counts.ask(Count(0), timeout=20)
    for n in range(1, 6):
        child = os.fork()
        if child == 0:
            try:
                counts.ask(Count(1000), timeout=5)
            except tp.SendError:
                os._exit(0)
            os._exit(1)
        assert counts.ask(Count(1), timeout=20) == n
        assert ends(child) == 0
""",
    )


def test_a_child_has_a_node_and_a_loader_of_its_own(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}" / "one.png")
    play(
        tmp_path,
        """
def load():
    files = [f"{n}/one.png" for n in range(4)]
    with tp.Loader(files, batch=2, transforms=[tp.Resize(8, 8)], workers=1) as loader:
        assert len(list(loader)) == 2

own()
in_child(own)
with tp.Node() as node:
    count = node.spawn(Counter)
    in_child(load)
    in_child(lambda: in_child(own))
    assert count.ask(Count(2), timeout=20) == 2
""",
    )


def test_a_dataset_whose_forked_workers_send_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    play(
        tmp_path,
        """
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.count.send(Count(1), timeout=5)
        return index

with tp.Node() as node:
    count = node.spawn(Counter)
    try:
        list(DataLoader(Numbers(count), batch_size=10, num_workers=2, multiprocessing_context="fork"))
    except Exception as error:
        assert SAID in str(error), error
    else:
        raise AssertionError("nobody was told")
    assert count.ask(Count(3), timeout=20) == 3
""",
    )
