"""The MPS daemon that a node starts, replaced by a program that behaves as the daemon does: it starts,
answers and ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import actors_of_python as app
import tensorpost as tp

DAEMON = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/pid"
if [ "$1" = -f ]; then
    echo $$ >"$pid"
    trap "exit 0" TERM
    while :; do sleep 0.05; done
fi
read -r command
[ -e "$pid" ] || exit 1
if [ "$command" = quit ]; then kill "$(cat "$pid")"; fi
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(DAEMON)
    program.chmod(0o755)
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(folders))
    return folders


def test_workers_are_clients_of_a_daemon_that_lives_as_long_as_the_node(daemon: Path) -> None:
    with tp.Node(sharing="mps", console=False, deadline=60) as node:
        sink, _ = node.channel(app.Scale)
        node.spawn(app.Statistics, sink, 1.0)
        (folder,) = daemon.glob("tensorpost-mps-*")
        (worker,) = node.workers()
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
        assert f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode() in environment
        pid = int((folder / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists() and not folder.exists()


def test_where_there_is_no_daemon_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tp.NodeError, match="nvidia-cuda-mps-control"):
        tp.Node(sharing="mps", console=False)
    with pytest.raises(tp.NodeError, match="isolated.*mps.*auto"):
        tp.Node(sharing="sometimes", console=False)


def test_where_there_is_no_gpu_none_is_shared(daemon: Path) -> None:
    with tp.Node(sharing="auto", console=False):
        assert list(daemon.iterdir()) == []
