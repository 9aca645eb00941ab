"""A sender that is ahead waits for the bytes that it has lent out, and not only for the mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import actors_of_python as app
import tensorpost as tp

PATIENCE = 60.0
BUDGET = 64 << 20
ELEMENTS = 1 << 20
"""The elements of a tensor of 4 MiB."""
MOST = BUDGET // 2 // (4 * ELEMENTS)
"""The number of tensors that may be out."""


@pytest.fixture
def node() -> Iterator[tp.Node]:
    with tp.Node(deadline=PATIENCE, console=False, host_budget=BUDGET) as node:
        yield node


def item(node: tp.Node, number: int) -> app.Scale:
    values = node.empty(ELEMENTS, tp.f32)
    values.numpy()[:] = number
    return app.Scale(number, values)


def fill(node: tp.Node, address: tp.Address) -> int:
    """Sends until there is no room, and returns how many messages were sent."""
    count = 0
    while address.try_send(item(node, count)):
        count += 1
        assert count <= 2 * MOST, "it is not bounded"
    return count


def keeper_of(node: tp.Node) -> tuple[tp.Address, tp.Address]:
    """Returns an actor that keeps its tensors, and a relay to it from another process: this process's own
    messages would wait behind those that already wait."""
    keeper = node.spawn(app.Keeper)
    return keeper, node.spawn(app.Relay, keeper)


def let_go(relay: tp.Address, count: int) -> list[int]:
    gone = relay.ask(app.LetGo(count), timeout=PATIENCE)
    assert relay.ask(app.Most(), timeout=PATIENCE) <= MOST
    return gone


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_fast_sender_is_bounded_by_bytes_and_loses_nothing(node: tp.Node) -> None:
    keeper, relay = keeper_of(node)
    assert fill(node, keeper) == MOST
    start = time.monotonic()
    with pytest.raises(tp.DeadlineError, match=rf"{BUDGET // 2} bytes of this process's tensors .* are out, of {BUDGET // 2} .*Held by") as error:
        keeper.send(item(node, MOST), timeout=0.2)
    assert error.value.retryable and 0.2 <= time.monotonic() - start < 30
    with alarm(0.2), pytest.raises(InterruptedError):
        keeper.send(item(node, MOST))
    last = 60
    failed = []

    def stream() -> None:
        try:
            for number in range(MOST, last):
                keeper.send(item(node, number))
        except BaseException as error:
            failed.append(error)

    sender = threading.Thread(target=stream)
    sender.start()
    gone = []
    until = time.monotonic() + PATIENCE
    while len(gone) < last:
        # While the sender waits, this thread goes on.
        gone += let_go(relay, 1)
        assert not failed and time.monotonic() < until, (failed, gone)
    sender.join()
    assert gone == list(range(last))
    assert node.tensors.copied == 0


def test_many_small_tensors_are_kept_and_the_limit_names_itself() -> None:
    with tp.Node(deadline=PATIENCE, console=False) as node:
        out, steps = node.channel(app.Scale)
        player = node.spawn(app.Player, out)
        said: list[str] = []
        asking = threading.Thread(target=lambda: said.append(player.ask(app.Play(40_000), timeout=PATIENCE)))
        asking.start()
        kept: list[app.Scale] = []
        with pytest.raises(tp.DeadlineError, match=r"32768 tensors of .*, of 32768 that one process may hold .*copies of small ones"):
            while True:
                kept.append(steps.recv(timeout=10))
        asking.join()
        assert len(kept) == 32_768 and kept[20_000].values.numpy()[0] == 20_000
        assert said[0].startswith("at 32768: ") and "32768 tensors of" in said[0] and ".copy()" in said[0], said
        kept.clear()
        assert player.ask(app.Play(3), timeout=PATIENCE) == "all were sent"


def test_coroutines_wait_for_it_in_their_order(node: tp.Node) -> None:
    keeper, relay = keeper_of(node)
    assert fill(node, keeper) == MOST
    last = MOST + 4

    async def run() -> list[int]:
        items = [item(node, number) for number in range(MOST, last)]
        sends = [asyncio.ensure_future(keeper.send_async(item, timeout=PATIENCE)) for item in items]
        del items
        gone: list[int] = []
        while len(gone) < last:
            assert all(not send.done() for send in sends[len(gone) :])
            gone += await relay.ask_async(app.LetGo(1), timeout=PATIENCE)
        await asyncio.gather(*sends)
        return gone

    assert asyncio.run(run()) == list(range(last))
    assert keeper.ask(app.Most(), timeout=PATIENCE) <= MOST


def test_the_end_of_a_receiver_frees_who_waits(node: tp.Node) -> None:
    dead, alive = node.spawn(app.Keeper), node.spawn(app.Keeper)
    assert fill(node, dead) == MOST
    assert not alive.try_send(item(node, 7)), "what is out is out, whoever has it"
    sender = threading.Thread(target=lambda: alive.send(item(node, 7), timeout=PATIENCE))
    sender.start()
    with pytest.raises(tp.AskError):
        dead.ask(app.Kill(), timeout=PATIENCE)
    sender.join(PATIENCE)
    assert not sender.is_alive()
    assert alive.ask(app.LetGo(1), timeout=PATIENCE) == [7]
    with pytest.raises(tp.SendError):
        dead.send(item(node, 8), timeout=PATIENCE)


def test_what_was_given_is_passed_on_and_a_large_tensor_goes(node: tp.Node) -> None:
    keeper, relay = keeper_of(node)
    large = node.empty(10 * ELEMENTS, tp.f32)
    large.numpy()[:] = 3
    keeper.send(app.Scale(3, large), timeout=PATIENCE)
    del large
    assert not keeper.try_send(item(node, 4)), "it is more than the bound by itself"
    assert keeper.ask(app.LetGo(1), timeout=PATIENCE) == [3]
    # The relay's own tensors are lent out up to its bound. Tensors that it passes on are not its own.
    assert relay.ask(app.Make(2 * MOST, ELEMENTS), timeout=PATIENCE) == MOST
    for number in range(MOST):
        relay.send(item(node, 100 + number), timeout=PATIENCE)
    assert relay.ask(app.Most(), timeout=PATIENCE) == 2 * MOST
    assert keeper.ask(app.LetGo(2 * MOST), timeout=PATIENCE) == [*range(MOST), *range(100, 100 + MOST)]
