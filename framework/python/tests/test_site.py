"""Runs the programs in the pages of the repository's site, and compares its API page with the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorpost as tp

SITE = Path(__file__).parents[3] / "docs" / "site"
PROGRAM = re.compile(r"```python\n(.*?)```(?:\n\nIt prints:\n\n```text\n(.*?)```)?", re.DOTALL)
PROGRAMS = [
    pytest.param(program, printed, id=f"{path.relative_to(SITE)}-{number}")
    for path in sorted(SITE.rglob("*.md"))
    for number, (program, printed) in enumerate(PROGRAM.findall(path.read_text()))
]
# Elements and widths of numbers, which have no docs of their own.
ANNOTATIONS = {name for name in tp.__all__ if re.fullmatch(r"[iuf]\d+|bf16|f\de\w+|complex\d+|char", name)}


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_program_of_the_site_runs(program: str, printed: str, tmp_path: Path) -> None:
    if "import torch" in program or ".torch()" in program:
        pytest.importorskip("torch")
    assert printed, "a program in a page is followed by `It prints:` and a block of text"
    script = tmp_path / "script.py"
    script.write_text(program)
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout) == (0, printed), run.stderr


def test_there_are_programs() -> None:
    assert {param.id.split("-")[0] for param in PROGRAMS if param.id} >= {"start/python.md", "guides/weights.md"}


def test_the_api_page_has_all_names() -> None:
    shown = re.findall(r"^::: tensorpost\.(\w+)$", (SITE / "api" / "python.md").read_text(), re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert set(shown) == set(tp.__all__) - ANNOTATIONS - {"__version__"}


def test_the_pages_name_what_there_is() -> None:
    for path in SITE.rglob("*.md"):
        for name in re.findall(r"\btp\.(\w+)", path.read_text()):
            assert hasattr(tp, name), f"{path.relative_to(SITE)} names tp.{name}"
