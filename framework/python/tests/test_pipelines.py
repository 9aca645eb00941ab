"""Pipelines that are written in Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stages_of_python as app
import tensorpost as tp


def samples(count: int) -> Iterator[app.Sample]:
    for number in range(count):
        yield app.Sample(number, np.full(4, number, np.float32))


def test_what_the_program_iterates_over_comes_back_in_order_through_replicas() -> None:
    seen: list[tuple[int, float]] = []
    report = (
        tp.Pipeline("order")
        .source(samples(100))
        .stage(app.double, replicas=2, ordered=True)
        .stage(app.total, kwargs={"by": 0.5})
        .for_each(lambda sum: seen.append((sum.id, sum.sum)))
        .run()
    )
    assert seen == [(number, number * 4.0) for number in range(100)]
    assert [report[stage].items_in for stage in ("double", "total", "for_each")] == [100, 100, 100]
    assert report.is_complete and not report.cancelled and "double" in str(report)


def test_a_source_and_a_sink_of_their_own_and_several_ways(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    pipeline = tp.Pipeline("ways", at_least_once=16)
    first, second = pipeline.source(app.samples, 20).broadcast(2)
    sums = first.stage(app.total).merge(second.stage(app.total, 2.0, name="twice"))
    report = sums.sink(app.Collect, str(path)).run()
    # 4 * (0 + .. + 19), once and twice.
    assert float(path.read_text()) == 3 * 760
    assert report["Collect"].items_in == 40 and report["samples"].items_out == 20


def test_a_pipeline_on_a_node_that_is_there(tmp_path: Path) -> None:
    seen: list[str] = []
    with tp.Node(console=False) as node:
        for _ in range(2):
            path = tmp_path / "several"
            tp.Pipeline("there").source(samples(9)).stage(app.Several, str(path)).for_each(lambda sum: seen.append(sum.who)).run(node)
            assert path.read_text() == "9 0"
    assert seen.count("first") == 12 and seen.count("finish") == 2


def test_what_fits_nothing_is_said_where_it_is_written() -> None:
    flow = tp.Pipeline("wrong").source(samples(1))
    with pytest.raises(tp.SchemaError, match="`wrong` takes Other, and the stage before makes Sample"):
        flow.stage(app.wrong)
    with pytest.raises(tp.SchemaError, match="`undecorated` is no stage; give it the decorator @tp.stage"):
        flow.stage(app.undecorated)
    with pytest.raises(tp.SchemaError, match="`Collect` makes nothing"):
        flow.stage(app.Collect, "x")
    with pytest.raises(tp.SchemaError, match="`samples` is a source, and takes nothing"):
        flow.stage(app.samples, 1)
    with pytest.raises(tp.SchemaError, match="`total` takes Sample, and is no source"):
        tp.Pipeline("wrong").source(app.total)
    with pytest.raises(tp.SchemaError, match="is empty"):
        tp.Pipeline("wrong").source([])
    with pytest.raises(tp.SchemaError, match="the source gives int, which is no message"):
        tp.Pipeline("wrong").source([1])
    with pytest.raises(tp.SchemaError, match="Asked has a reply"):

        @tp.stage
        def answers(asked: app.Asked) -> app.Sum: ...

    with pytest.raises(tp.SchemaError, match="no method `process`"):

        @tp.stage
        class Empty: ...


def test_mistakes_and_descriptions() -> None:
    pipeline = tp.Pipeline("mistakes")
    flow = pipeline.source(samples(1)).stage(app.total, replicas=0, name="sums")
    with pytest.raises(tp.PipelineError, match="(?s)nothing takes the results of stage `sums`.*replicas = 0|replicas = 0.*nothing takes"):
        pipeline.check()
    with pytest.raises(tp.PipelineError, match="takes a flow that another step has taken"):
        flow.for_each(print)
        flow.for_each(print, name="again")
        pipeline.check()
    good = tp.Pipeline("good")
    good.source(samples(1)).stage(app.total, replicas=2, ordered=True).for_each(print)
    described = good.describe()
    assert "source source (Feed) -> total\n" in str(described), described.text
    assert "2 replicas, order restored" in str(described)
    assert described.mermaid.startswith("flowchart LR") and described.dot.startswith("digraph")
    with pytest.raises(tp.PipelineError, match="cannot run on `cuda:4096`"):
        tp.Pipeline("nowhere").source(samples(1)).stage(app.total, device="cuda:4096").for_each(print).run()


def test_an_exception_is_an_error_of_its_stage_with_the_traceback() -> None:
    with pytest.raises(tp.PipelineError, match="(?s)`picky` raised ValueError: not 3\nTraceback.*stages_of_python.py") as error:
        tp.Pipeline("fails").source(samples(40)).stage(app.picky).for_each(lambda _: None).run()
    assert isinstance(error.value.report, tp.Report) and error.value.report["picky"].errors == 1
    seen: list[int] = []
    pipeline = tp.Pipeline("skips").source(samples(40)).stage(app.picky, on_error="skip", retries=1)
    report = pipeline.for_each(lambda sum: seen.append(sum.id)).run()
    assert seen == [number for number in range(40) if number % 10 != 3]
    assert (report["picky"].skipped, report["picky"].retries) == (4, 4)
    assert [failure.item for failure in report.failures if failure.attempts == 2] == [3, 13, 23, 33]
    with pytest.raises(tp.PipelineError, match="(?s)did not start.*RuntimeError: it cannot be made"):
        tp.Pipeline("unmade").source(samples(1)).stage(app.Unmade).for_each(print).run()


def test_a_stage_that_dies_is_made_again() -> None:
    seen: set[int] = set()
    pipeline = tp.Pipeline("dies", at_least_once=8).source(samples(60)).stage(app.Mortal, "kill", restart=tp.on_failure(2))
    report = pipeline.for_each(lambda sum: seen.add(sum.id)).run()
    assert seen == set(range(60))
    (death,) = report.deaths
    assert (death.stage, death.restarted) == ("Mortal", True) and "SIGKILL" in death.why


def test_what_the_program_itself_raises_ends_the_pipeline() -> None:
    def broken() -> Iterator[app.Sample]:
        yield from samples(5)
        raise LookupError("no more")

    seen: list[int] = []
    with pytest.raises(LookupError, match="no more"):
        tp.Pipeline("broken").source(broken()).stage(app.total).for_each(lambda sum: seen.append(sum.id)).run()
    assert seen == list(range(5))

    def refuse(sum: app.Sum) -> None:
        raise KeyError(sum.id)

    with pytest.raises(KeyError, match="0"):
        tp.Pipeline("refuses").source(samples(1000)).stage(app.total).for_each(refuse).run()


def endless() -> Iterator[app.Sample]:
    while True:
        yield from samples(100)


def test_ctrl_c_drains() -> None:
    seen: list[int] = []
    enough = threading.Event()

    def see(sum: app.Sum) -> None:
        seen.append(sum.id)
        if len(seen) == 50 and not enough.is_set():
            enough.set()
            os.kill(os.getpid(), signal.SIGINT)

    report = tp.Pipeline("stops").source(endless()).stage(app.total).for_each(see).run()
    assert report.cancelled and report.is_complete
    assert report["total"].items_in == len(seen) >= 50
    assert seen == [number % 100 for number in range(len(seen))]


def test_a_script_is_a_pipelines_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('''
import numpy as np
import tensorpost as tp

@tp.message
class Frame:
    id: tp.u64
    pixels: tp.Tensor[tp.f32]

@tp.stage
def invert(frame: Frame) -> Frame:
    return Frame(frame.id, 1 - frame.pixels.numpy())

if __name__ == "__main__":
    frames = [Frame(number, np.full(2, number, np.float32)) for number in range(3)]
    tp.Pipeline("inverted").source(frames).stage(invert).for_each(lambda f: print(f.id, f.pixels.numpy())).run()
''')
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "0 [1. 1.]\n1 [0. 0.]\n2 [-1. -1.]\n"
