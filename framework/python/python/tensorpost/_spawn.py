"""The settings of an actor that is started: by the program, and by an actor."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from . import _actor, _native, _worker
from ._actor import Restart
from ._errors import NodeError
from ._native import Address
from ._types import whole

Budget = tuple[int | None, float | None]
Policy = tuple[str, int, float | None, tuple[float, float] | None]
Settings = tuple[
    str | None, str | None, int, Policy | None, str | None, str | None, int | None, float | None, list[int] | None
]
"""The settings as the native half takes them; :func:`settings` has their order."""


def budget_of(asked: int | float | None) -> Budget:
    """Reads the budget of a GPU's pool: bytes, or a share of the GPU."""
    if asked is None:
        return None, None
    if (count := whole(asked, 0, 2**63 - 1)) is not None:
        return count, None
    if isinstance(asked, float) and 0.0 < asked <= 1.0:
        return None, asked
    raise NodeError(f"gpu_budget={asked!r}: say bytes, as an int, or a share of the GPU, as a float above 0.0 and up to 1.0")


def settings(
    name: str | None,
    label: str | None,
    mailbox: int,
    policy: Restart | None,
    device: str | None,
    receive_on: str | None,
    gpu_budget: Budget,
    takes: list[int] | None,
) -> Settings:
    restart = None if policy is None else (policy.kind, policy.budget, policy.window, policy.delays)
    return name, label, mailbox, restart, device, receive_on, *gpu_budget, takes


def prepared(
    actor: type,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    *,
    name: str | None,
    label: str | None,
    mailbox: int,
    restart: Restart | None,
    device: str | None,
    receive_on: str | None,
    gpu_budget: int | float | None,
    knows_handlers: bool = True,
    met: list[Address[Any]] | None = None,
) -> tuple[tuple[str, bytes], Settings]:
    """Returns the order for an actor's worker, and the actor's settings. ``met`` gets the addresses in its
    arguments."""
    budget = budget_of(gpu_budget)
    info = _actor.info(actor)
    takes = _actor.keys_of(actor) if knows_handlers else None
    policy = restart if restart is not None else info.restart
    order = _worker.order_of(actor, args, dict(kwargs or {}), met=met)
    label = label or (None if name else actor.__name__)
    return order, settings(name, label, mailbox, policy, device, receive_on, budget, takes)


def _stays(what: str, remedy: str) -> Callable[[Any], NoReturn]:
    def refused(_: Any) -> NoReturn:
        raise TypeError(f"{what} belongs to this process, and is neither pickled nor copied; {remedy}")

    return refused


# `multiprocessing` and loaders of other libraries pickle what they give to the processes that they start.
for _kind, _what, _remedy in (
    (Address, "an address", "send from this process, or make the other process an actor, which takes addresses as arguments"),
    (_native.Tensor, "a tensor of tensorpost", "send it in a message, or give a copy: `np.from_dlpack(tensor, copy=True)`"),
    (_native.Node, "a node", "start another in the other process"),
    (_native.Channel, "a channel", "receive in this process"),
    (_native.Watch, "a watch", "receive in this process"),
):
    copyreg.pickle(_kind, _stays(_what, _remedy))
