"""Tests the program in the README, and that the package is documented."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import tensorpost as tp
from loader_files import PHOTOGRAPHS


def test_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    program, *_ = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    names = vars(module)
    exec(program, names)
    frame = names["frame"]
    assert frame.how == names["Blurred"](0.5)
    assert np.from_dlpack(frame.pixels).shape == (3, 2, 2)
    assert tp.differences(names["Frame"], tp.schema(names["Frame"])) == []


def test_the_actors_of_the_readme_run(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    script = tmp_path / "script.py"
    script.write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[1])
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["1.0", "Scaled(values=Tensor(f32, shape=[4], host))"]


def test_the_program_of_the_repositorys_readme_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(program.splitlines()) <= 20
    script = tmp_path / "script.py"
    script.write_text(program)
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == (0, "1.0\n"), run.stderr


def test_the_tensors_of_the_readme_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    script = tmp_path / "script.py"
    script.write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[4])
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout == " ".join(["tensor([0.5000, 0.5000, 0.5000, 0.5000])"] * 2) + "\n"


def test_the_loader_of_the_readme_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = (program for program in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "tp.Loader(" in program)
    for photograph in PHOTOGRAPHS:
        (tmp_path / "train" / photograph.stem).mkdir(parents=True)
        (tmp_path / "train" / photograph.stem / photograph.name).symlink_to(photograph)
    script = tmp_path / "script.py"
    script.write_text(program.replace("labels): ...", "labels): print(tuple(pixels.shape), sorted(labels.tolist()))"))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "(5, 3, 224, 224) [0, 1, 2, 3, 4]\n" * 2


def test_all_is_documented() -> None:
    assert tp.__version__ == version("tensorpost")
    for name in tp.__all__:
        thing = getattr(tp, name)
        if isinstance(thing, type) or callable(thing) and not hasattr(thing, "__metadata__"):
            assert thing.__doc__, name
    for name in ("dtype", "shape", "strides", "tobytes", "torch", "numpy", "writable", "__dlpack__", "__dlpack_device__"):
        assert getattr(tp.Tensor, name).__doc__, name


def test_the_pipeline_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    script = tmp_path / "script.py"
    script.write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[3])
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "0 [1. 1. 1. 1.]" and lines[99] == "99 [-98. -98. -98. -98.]" and "invert" in "\n".join(lines[100:])
