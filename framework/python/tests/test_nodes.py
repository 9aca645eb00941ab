"""Two nodes in one program: addresses of one mean nothing, or other actors, in the other."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

import actors_of_python as app
import tensorpost as tp

PATIENCE = 60.0


@pytest.fixture
def nodes() -> Iterator[tuple[tp.Node, tp.Node]]:
    with tp.Node(deadline=PATIENCE, console=False) as one, tp.Node(deadline=PATIENCE, console=False) as other:
        yield one, other


def test_a_tensor_of_another_node_is_copied_where_it_is_sent(nodes: tuple[tp.Node, tp.Node]) -> None:
    one, other = nodes
    counter = other.spawn(app.Statistics, other.channel(app.Scale)[0], 1.0)
    values = one.empty(4, tp.f32)
    values.numpy()[:] = [1, 2, 3, 6]
    private = other.empty(4, tp.f32)
    private.numpy()[:] = 7
    assert counter.ask(app.Mean(values), timeout=PATIENCE) == 3
    assert private.numpy().tolist() == [7, 7, 7, 7]


def test_an_address_of_another_node_is_an_error(nodes: tuple[tp.Node, tp.Node]) -> None:
    one, other = nodes
    (sink, _), (theirs, seen) = one.channel(app.Scale), other.channel(app.Scale)
    assert sink.actor == theirs.actor and sink != theirs
    for start in (
        lambda: other.spawn(app.Statistics, sink, 1.0),
        lambda: other.spawn(app.Statistics, theirs, kwargs={"by": [sink]}),
        lambda: other.spawn(app.Counter, beside=sink),
    ):
        with pytest.raises(tp.SpawnError, match="of another node of this program"):
            start()
    relay, whose = other.channel(app.Pass)
    with pytest.raises(tp.EncodeError, match="the address in it is of node .*goes out by node"):
        relay.send(app.Pass(one.channel(app.Where)[0]), timeout=PATIENCE)
    with pytest.raises(tp.NodeError, match="the address is of node"):
        other.register("theirs", sink)
    relay.send(app.Pass(other.channel(app.Where)[0]), timeout=PATIENCE)
    assert whose.recv(timeout=PATIENCE).to.actor
    theirs.send(app.Scale(1, np.ones(1, np.float32)), timeout=PATIENCE)
    assert seen.recv(timeout=PATIENCE).id == 1


def test_the_next_node_takes_what_the_last_one_has_left() -> None:
    with tp.Node(deadline=PATIENCE, console=False) as last:
        kept = last.empty(2, tp.u64)
        kept.numpy()[:] = 11
    with tp.Node(deadline=PATIENCE, console=False) as node:
        sink, seen = node.channel(app.Bytes)
        sink.send(app.Bytes(kept), timeout=PATIENCE)
        assert seen.recv(timeout=PATIENCE).values.tobytes() == np.full(2, 11, np.uint64).tobytes()
    assert kept.tobytes() == np.from_dlpack(kept, copy=True).tobytes() == np.full(2, 11, np.uint64).tobytes()


def test_a_deadline_that_is_none_ends_no_node() -> None:
    with tp.Node(deadline=PATIENCE, console=False) as node:
        sink, seen = node.channel(app.Scale)
        for wrong in (float("nan"), -1.0):
            with pytest.raises(tp.NodeError, match="deadline is a number of seconds from 0 on, and not"):
                node.shutdown(wrong)
        assert node.workers() == []
        sink.send(app.Scale(1, np.ones(1, np.float32)), timeout=PATIENCE)
        assert seen.recv(timeout=PATIENCE).id == 1
        assert node.shutdown(float("inf")) is not None


def test_what_stays_in_its_process_says_so_to_a_pickle() -> None:
    with tp.Node(deadline=PATIENCE, console=False) as node:
        sink, seen = node.channel(app.Scale)
        for value, why in (
            (sink, "an address belongs to this process, .*send from this process"),
            (node.empty(1, tp.u8), "a tensor of tensorpost belongs to this process, .*send it in a message"),
            (seen, "a channel belongs to this process, .*receive in this process"),
            (node, "a node belongs to this process, .*start another"),
        ):
            for copied in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match=why):
                    copied(value)
        # As a loader does that gives an address to its workers.
        child = multiprocessing.get_context("spawn").Process(target=print, args=(sink,))
        with pytest.raises(TypeError, match="send from this process"):
            child.start()
