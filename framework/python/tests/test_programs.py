"""The ways to start a program, the surroundings of its workers, and its end."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import types
import zipapp
from pathlib import Path
from typing import Any

import pytest

import tensorpost as tp
from tensorpost import _script, _worker

PATIENCE = 60
PACKAGE = str(Path(tp.__file__).parents[1])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PACKAGE, **more}


def run(*command: str, cwd: Path, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=PATIENCE, **how
    )


def start(*command: str, cwd: Path, **how: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | how
    return subprocess.Popen([sys.executable, *command], cwd=cwd, env=environment(), **pipes)


# Two actors, one of a module and one of the script, and a stage: all have objects of the script in their
# arguments.
ACTORS = """
import tensorpost as tp

@tp.message(reply=str)
class Who:
    n: tp.u32

@tp.message
class Number:
    n: tp.u32

@tp.actor
class Told:
    def __init__(self, config, *, how):
        self.config, self.how = config, how

    @tp.handler
    def who(self, who: Who) -> str:
        return f"{self.config.name} {self.how.name} {self.config.call(who.n)}"

@tp.stage
class Times:
    def __init__(self, config):
        self.config = config

    def process(self, number: Number) -> Number:
        return Number(self.config.call(number.n))
"""

PROGRAM = """
import enum, sys
from dataclasses import dataclass
from typing import Any, NamedTuple
import tensorpost as tp
from actors import Number, Times, Told, Who

class How(enum.Enum):
    FAST = 1

class Point(NamedTuple):
    x: int

def twice(n):
    return 2 * n

@dataclass
class Config:
    name: str
    point: Point
    call: Any

@tp.actor
class Own(Told): ...

def main():
    config = Config("x", Point(3), twice)
    with tp.Node(console=False) as node:
        answers = [node.spawn(cls, config, kwargs={"how": How.FAST}).ask(Who(4), timeout=60) for cls in (Told, Own)]
        numbers = []
        tp.Pipeline("p").source([Number(5)]).stage(Times, config).for_each(lambda number: numbers.append(number.n)).run(node)
    print(answers, numbers, sys.argv[1:])

if __name__ == "__main__":
    main()
"""
SAID = "['x FAST 8', 'x FAST 8'] [10] ['given']\n"


def folder_with(folder: Path) -> Path:
    lay_out(folder, ["app.py"], PROGRAM)
    return folder


def lay_out(folder: Path, command: list[str], program: str) -> None:
    """Writes a program, and the module of actors, where the interpreter looks for them."""
    is_package = command[:1] == ["-m"] and command[1].startswith("package")
    inside, main = folder, "app.py"
    if is_package:
        inside, main = folder / "package", "__main__.py" if command[1] == "package" else "run.py"
    elif "app.py" not in command:
        inside, main = folder / "folder", "__main__.py"
    inside.mkdir(exist_ok=True)
    # The script adds its own folder, because the interpreter does not look beside the script.
    first = f"import sys; sys.path.insert(0, {str(folder)!r})\n" if "-P" in command else ""
    (inside / main).write_text(first + program)
    ((folder if is_package else inside) / "actors.py").write_text(ACTORS)
    if command == ["app.pyz"]:
        zipapp.create_archive(inside, folder / "app.pyz")


def started_as(*commands: list[str]) -> pytest.MarkDecorator:
    """Starts a program in the ways that name it differently, and in these."""
    ways = [
        ["app.py"],
        ["-m", "cProfile", "-o", "/dev/null", "app.py"],
        ["-m", "pdb", "-c", "continue", "app.py"],
        ["folder"],
        ["app.pyz"],
        ["-m", "package"],
        ["-m", "package.run"],
        *commands,
    ]
    return pytest.mark.parametrize("command", ways, ids=lambda way: " ".join(way[:2]) if way[0] == "-m" else " ".join(way))


@started_as(["-P", "-u", "-O", "app.py"], ["-m", "trace", "--count", "-C", "counts", "--ignore-dir", "/", "app.py"])
def test_a_script_is_found_however_it_is_started(tmp_path: Path, command: list[str]) -> None:
    lay_out(tmp_path, command, PROGRAM)
    ran = run(*command, "given", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0 and SAID in ran.stdout, ran.stderr + ran.stdout


@pytest.mark.parametrize(
    ("command", "how", "said"),
    [
        (["-c", PROGRAM], {}, "is defined in the text of `python -c`"),
        (["-"], {"input": PROGRAM}, "is defined in a script on standard input"),
        (["/dev/stdin"], {"input": PROGRAM}, "which is no file that can be read once more"),
    ],
)
def test_a_script_that_no_worker_can_find_is_refused(tmp_path: Path, command: list[str], how: dict[str, Any], said: str) -> None:
    folder_with(tmp_path)
    ran = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment(PYTHONPATH=f"{PACKAGE}:{tmp_path}"), capture_output=True, text=True,
        timeout=PATIENCE, **how,
    )  # fmt: skip
    assert ran.returncode == 1 and said in ran.stderr and "define it in a module" in ran.stderr, ran.stderr


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    app, here = folder_with(tmp_path / "app"), tmp_path / "here"
    (here / "tensorpost").mkdir(parents=True)
    for name in ("types", "token", "inspect", "asyncio", "actors", "app", "tensorpost/__init__", "sitecustomize", "usercustomize"):
        (here / f"{name}.py").write_text("raise SystemExit('a file of the working directory was imported: ' + __file__)\n")
    ran = run(str(app / "app.py"), "given", cwd=here)
    assert ran.returncode == 0 and ran.stdout == SAID, ran.stderr + ran.stdout


CHANGES = """
import os, sys
sys.path.insert(0, "modules")
import tensorpost as tp
from away import A, Q

if __name__ == "__main__":
    with tp.Node(console=False) as node:
        a = node.spawn(A)
        first = a.ask(Q(False), timeout=60)
        os.chdir("/")
        print(first, node.spawn(A).ask(Q(False), timeout=60))
        try:
            a.ask(Q(True), timeout=60)
        except tp.AskError:
            print(a.ask(Q(False), timeout=60))
"""

AWAY = """
import os
import tensorpost as tp

@tp.message(reply=str)
class Q:
    die: bool

@tp.actor(restart=tp.on_failure(3).backoff(0.001, 0.001))
class A:
    @tp.handler
    def q(self, m: Q) -> str:
        if m.die:
            os._exit(3)
        return os.path.basename(os.getcwd())
"""


def test_a_relative_path_is_what_it_was_when_the_program_goes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "away.py").write_text(AWAY)
    (tmp_path / "app.py").write_text(CHANGES)
    ran = run("app.py", cwd=tmp_path)
    # In each of its lives, an actor is in the directory where the program was when it started the actor.
    assert ran.stdout == f"{tmp_path.name} \n{tmp_path.name}\n", ran.stderr + ran.stdout


POOLS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import tensorpost as tp

@tp.message(reply=list[tp.u32])
class Work:
    how: str

def square(x):
    return x * x

@tp.actor
class Pools:
    @tp.handler
    def work(self, work: Work) -> list[int]:
        context = multiprocessing.get_context(work.how)
        with context.Pool(1) as pool, ProcessPoolExecutor(1, context) as executor:
            return pool.map(square, [1, 2]) + list(executor.map(square, [3]))

@tp.message(reply=str)
class Default: ...

@tp.actor
class Start:
    @tp.handler
    def start(self, _: Default) -> str:
        return multiprocessing.get_start_method()

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    with tp.Node(console=False) as node:
        pools = node.spawn(Pools)
        for how in sys.argv[1:]:
            print(how, pools.ask(Work(how), timeout=60), flush=True)
        print(node.spawn(Start).ask(Default(), timeout=60))
"""


# The processes of a pool that are no forks load the program's main module.
@started_as()
def test_actors_have_pools_and_executors_of_each_kind(tmp_path: Path, command: list[str]) -> None:
    lay_out(tmp_path, command, POOLS)
    kinds = ["spawn", "forkserver", *(["fork"] if command == ["app.py"] else [])]
    ran = run(*command, *kinds, cwd=tmp_path, stdin=subprocess.DEVNULL)
    # pdb writes lines of its own behind these.
    said = [*(f"{kind} [1, 4, 9]" for kind in kinds), "forkserver"]
    assert ran.returncode == 0 and ran.stdout.splitlines()[: len(said)] == said, ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr, ran.stderr


# ---- How it ends

SERVICE = """
import contextlib, glob, os, signal, sys, threading, time
import tensorpost as tp

@tp.message(reply=tp.u32)
class Slow:
    n: tp.u32

@tp.message
class Item:
    n: tp.u32

@tp.actor
class A:
    told = False

    @tp.handler
    def slow(self, m: Slow) -> int:
        while not os.path.exists("go"):
            time.sleep(0.005)
            if m.n == 0 and tp.env().is_stopping and not self.told:
                self.told = True
                print("stopping")
        return m.n

    def stopped(self):
        print("stopped cleanly")

@tp.stage
def wait(item: Item) -> Item:
    while not os.path.exists("go"):
        time.sleep(0.005)
    return item

def items():
    for n in range(10**9):
        yield Item(n)

def service():
    with tp.Node(console=False, deadline=60) as node:
        a = node.spawn(A)
        answers = []
        ask = lambda n: answers.append(a.ask(Slow(n), timeout=60))
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        def ready():
            while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # until it waits in `run`
                time.sleep(0.001)
            print("ready", os.getpid(), *(worker.pid for worker in node.workers()), flush=True)
        threading.Thread(target=ready).start()
        node.run()
        for thread in threads:
            thread.join()
        print("answered", sorted(answers))

def children():
    for task in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            yield from open(task).read().split()

def pipeline(node=None):
    had = []
    def take(item):
        if not had:
            print("ready", os.getpid(), *children(), flush=True)
        had.append(item.n)
    open("go", "w").close()
    report = tp.Pipeline("p").source(items()).stage(wait, name="wait").for_each(take).run(node)
    print("cancelled" if report.cancelled else "ended", had == list(range(len(had))), report["wait"].items_out == len(had))

def on_a_node():
    with tp.Node(console=False, deadline=60) as node:
        pipeline(node)

if __name__ == "__main__":
    {"service": service, "pipeline": pipeline, "pipeline on a node": on_a_node}[sys.argv[1]]()
"""


def pids_of(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line.startswith("ready "), line + program.stdout.read()
    return [int(pid) for pid in line.split()[1:]]


def signal_all(program: subprocess.Popen[str], number: signal.Signals, as_a_group: bool) -> None:
    """Sends a signal to each process of a program once: a second one would end the program at once."""
    pids = pids_of(program)
    assert len(pids) > 1
    if as_a_group:
        os.killpg(program.pid, number)
        return
    # Workers first: they must ignore it.
    for pid in pids[1:]:
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, number)
    os.kill(pids[0], number)


to_all = pytest.mark.parametrize(
    ("number", "as_a_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGINT, True)],
)


@to_all
def test_a_signal_to_all_processes_lets_a_service_finish(tmp_path: Path, number: signal.Signals, as_a_group: bool) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    program = start("app.py", "service", cwd=tmp_path, start_new_session=True)
    try:
        signal_all(program, number, as_a_group)
        (tmp_path / "go").touch()
        said, _ = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 0 and "answered [0, 1, 2]" in said and "stopped cleanly" in said, said
    assert "ended:" not in said and "Traceback" not in said, said


@pytest.mark.parametrize("kind", ["pipeline", "pipeline on a node"])
@to_all
def test_a_signal_to_all_processes_lets_a_pipeline_finish(
    tmp_path: Path, kind: str, number: signal.Signals, as_a_group: bool
) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    program = start("app.py", kind, cwd=tmp_path, start_new_session=True)
    try:
        signal_all(program, number, as_a_group)
        said, _ = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 0 and said == "cancelled True True\n", said


def test_the_first_process_of_a_container_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine gives no namespaces of processes")
    command = [*alone, sys.executable, "app.py", "service"]
    program = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert pids_of(program)[0] == 1
        (first,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        (tmp_path / "go").touch()
        said, _ = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 0 and "answered [0, 1, 2]" in said, said


def test_a_second_signal_ends_a_service_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    program = start("app.py", "service", cwd=tmp_path)
    assert program.stdout is not None
    try:
        node = pids_of(program)[0]
        os.kill(node, signal.SIGTERM)
        assert program.stdout.readline() == "stopping\n"
        os.kill(node, signal.SIGTERM)
        program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 128 + signal.SIGTERM


LAST_WORDS = """
import os, signal, sys
import tensorpost as tp

@tp.message
class Go: ...

@tp.actor
class A:
    @tp.handler
    def go(self, _: Go) -> None:
        print("last words", end=sys.argv[1])
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with tp.Node(console=False) as node:
        a = node.spawn(A)
        try:
            a.ask(Go(), timeout=60)
        except tp.AskError as error:
            print("said", "signal: 9" in str(error))
"""


@pytest.mark.parametrize(("switches", "end"), [([], "\n"), (["-u"], "")])
def test_what_a_killed_worker_has_printed_is_there(tmp_path: Path, switches: list[str], end: str) -> None:
    (tmp_path / "app.py").write_text(LAST_WORDS)
    ran = run(*switches, "app.py", end, cwd=tmp_path)
    assert ran.stdout == f"last words{end}said True\n", ran.stdout + ran.stderr
    # The log goes to a file here, and has no colours.
    assert "ERROR" in ran.stderr and "\x1b" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_deadline_that_is_none_is_refused_at_once(seconds: float) -> None:
    with pytest.raises(tp.Error, match="is a number of seconds from 0 on, and not"):
        tp.Node(console=False, deadline=seconds)


def test_infinity_is_no_deadline() -> None:
    endless = float("inf")
    with tp.Node(console=False, deadline=endless, start_deadline=endless, hang_limit=endless) as node:
        address, channel = node.channel(tp.Duration)
        address.send(tp.Duration(1), timeout=endless)
        assert channel.recv(timeout=endless).secs == 1


# What a worker gets of a script: arguments by value, and globals that are what they are in the program.
VALUES = """
import sys
import tensorpost as tp

FACTOR = 10
TABLE = {"a": [1, 2]}
ASKED = len(sys.stdin.read())

@tp.message
class Number:
    n: tp.u32

def scaled(n):
    return FACTOR * n + len(TABLE)

@tp.stage
class Add:
    def __init__(self, more):
        self.more = more

    def process(self, number: Number) -> Number:
        return Number(scaled(number.n) + self.more)

@tp.stage
def asks(number: Number) -> Number:
    return Number(number.n + ASKED)

def run(*stage, on=None):
    seen = []
    flow = tp.Pipeline("values").source([Number(n) for n in range(3)]).stage(*stage)
    ended = flow.for_each(lambda number: seen.append(number.n))
    ended.run() if on is None else ended.run(on)
    return seen

if __name__ == "__main__":
    for epoch in (1, 2, 3):
        print(run(Add, 100 * epoch))
        @tp.stage
        def captures(number: Number) -> Number:
            return Number(number.n + epoch)
    with tp.Node() as node, tp.Node() as other:
        print(run(Add, 1, on=node), run(Add, 2, on=other), run(Add, 3))
    for stage in (asks, captures):
        try:
            print(run(stage))
        except (tp.NodeError, tp.PipelineError) as error:
            print(str(error).partition("Traceback")[0].splitlines()[0])
"""


def test_a_worker_has_the_values_of_the_program_or_says_so(tmp_path: Path) -> None:
    (tmp_path / "values.py").write_text(VALUES)
    ended = run("values.py", cwd=tmp_path, input="seven..")
    lines = ended.stdout.splitlines()
    assert lines[:4] == [
        "[101, 111, 121]",
        "[201, 211, 221]",
        "[301, 311, 321]",
        "[2, 12, 22] [3, 13, 23] [4, 14, 24]",
    ], ended.stdout + ended.stderr
    refused, captured = lines[4:]
    assert "reads the global `ASKED`, which is 0 in its worker and 7 in the program" in refused, refused
    assert "pass `ASKED` as an argument" in refused, refused
    assert "`captures` is not there when a worker loads the script" in captured, captured


# A script's code that reads more than plain globals. Loaded twice, it is the program's and a worker's.
READS = """
import datetime
import numpy as np
import settings

WEIGHTS = np.full(3, LINES)
BEGUN = datetime.datetime(2026, 1, 1, microsecond=LINES)
KINDS = {"b", "a"}
EVEN = np.arange(4)
OPAQUE = object()
NAMED = NAME
LONG = "x" * 5000 + str(LINES)
AROUND = []
AROUND.append(AROUND)
once, again = (lambda n, by=LINES: n), (lambda n, by=-LINES: n)

class Zone(datetime.tzinfo): ...

ZONED = BEGUN.replace(tzinfo=Zone())

class Limits:
    most = LINES

class ByClass:
    def process(self, n):
        return n + Limits.most

def by_default(n, more=LINES):
    return n + more

def by_keyword(n, *, more=LINES):
    return n + more

def by_array(n):
    return n + WEIGHTS.sum()

def by_clock(n):
    return BEGUN

def by_helper(n):
    return (lambda: by_clock(n))()

def by_module(n):
    return n + settings.FACTOR

def by_long_text(n):
    return LONG

def agrees(n, more=2):
    return n + EVEN.sum() + len(KINDS) + settings.BASE + hash(OPAQUE) + LINES_OF_ALL

def may_differ(n):
    return NAMED, AROUND, ZONED, once(n), again(n), settings.made_when_asked
"""


def test_a_value_that_a_worker_would_read_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 'def __getattr__(name): raise (RuntimeError if name == "made_when_asked" else AttributeError)(name)'
    (tmp_path / "settings.py").write_text(f"FACTOR, BASE = 1, 100\n{made}\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = importlib.import_module("settings")

    def loaded(lines: int) -> types.ModuleType:
        module = types.ModuleType("script")
        vars(module).update(LINES=lines, LINES_OF_ALL=7, NAME="__main__" if lines else "__mp_main__")
        exec(READS, vars(module))
        return module

    program, worker = loaded(7), loaded(0)
    cases: dict[str, str | list[str]] = {
        "agrees": ["EVEN", "KINDS", "LINES_OF_ALL", "agrees(more)", "settings.BASE"],
        "may_differ": ["NAMED"],
        "ByClass": "`Limits.most`, which is 0 in its worker and 7 in the program",
        "by_default": "`by_default(more)`, which is 0",
        "by_keyword": "`by_keyword(more)`, which is 0",
        "by_array": "the global `WEIGHTS`, which is [0, 0, 0] in its worker and [7, 7, 7]",
        "by_clock": "the global `BEGUN`",
        "by_helper": "the global `BEGUN`",
        "by_module": "`settings.FACTOR`, which is 1 in its worker and 3 in the program",
        "by_long_text": "the global `LONG`",
    }
    for name, what in cases.items():
        monkeypatch.setattr(_script, "_compared", {})
        # The program has set it, and the worker imports the module anew.
        monkeypatch.setattr(settings, "FACTOR", 3)
        told = _script.reads(getattr(program, name), vars(program))
        monkeypatch.setattr(settings, "FACTOR", 1)
        if isinstance(what, list):
            assert sorted(told) == what
            _script.compare(getattr(worker, name), told, vars(worker))
            continue
        with pytest.raises(tp.NodeError, match=re.escape(what)):
            _script.compare(getattr(worker, name), told, vars(worker))


def test_of_two_stages_of_one_name_a_worker_would_find_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("alike")
    monkeypatch.setitem(sys.modules, "alike", module)
    exec("kept = []\nfor one in (1, 2):\n  def again(n, more=one): ...\n  kept.append(again)", vars(module))
    first, second = module.kept
    assert _worker.place_of(second) == "alike:again"
    with pytest.raises(tp.NodeError, match="`again` is the name of something else by now"):
        _worker.place_of(first)


ONCE = """
import os
import tensorpost as tp

os.remove("once")

@tp.message
class Number:
    n: tp.u32

@tp.actor
class Idle:
    @tp.handler
    def number(self, number: Number) -> None: ...

if __name__ == "__main__":
    tp.Node(console=False).spawn(Idle)
"""


def test_a_script_that_runs_only_once_is_told_where_to_do_so(tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    (tmp_path / "script.py").write_text(ONCE)
    ended = run("script.py", cwd=tmp_path)
    assert ended.returncode == 1 and "FileNotFoundError" in ended.stderr, ended.stderr
    assert 'put what runs once under `if __name__ == "__main__":`' in ended.stderr, ended.stderr
