"""Python threads read for their process while they wait, if there are enough cores; with
`TENSORPOST_LOOK=always` they always do."""

from __future__ import annotations

import threading

import actors_in_order as app
import pytest

import tensorpost as tp

MANY = 3_000


@pytest.mark.parametrize("look", ["always", "never"])
def test_what_each_sends_comes_once_and_in_order(monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    monkeypatch.setenv("TENSORPOST_LOOK", look)
    with tp.Node(console=False) as node:
        sink = node.spawn(app.Sink)
        # One sender is in the sink's own worker, whose messages take another path, and two are in workers of
        # their own.
        senders = [node.spawn(app.Sender, sink, beside=sink), node.spawn(app.Sender, sink), node.spawn(app.Sender, sink)]
        sums: list[int | None] = [None] * len(senders)

        def ask(at: int) -> None:
            sums[at] = senders[at].ask(app.SendAll(at, MANY), timeout=300)

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(senders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [sum(3 * (number % 100) for number in range(0, MANY, 7))] * len(senders)
        assert sink.ask(app.Counts(), timeout=60)[: len(senders) + 1] == [MANY] * len(senders) + [0]


def test_what_is_no_choice_is_as_if_nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOST_LOOK", "perhaps")
    with tp.Node(console=False) as node:
        assert node.spawn(app.Sink).ask(app.Counts(), timeout=60) == [0] * 8
