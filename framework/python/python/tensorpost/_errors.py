"""What can go wrong. Each message names the field and what to do."""

from typing import Any


class Error(Exception):
    """The base of all errors of this package."""


class SchemaError(Error, TypeError):
    """An annotation that has no form on the wire."""


class EncodeError(Error, ValueError):
    """A value that is not what its annotation says. The message has the way to it, as in ``Frame.regions[2].label``."""


class DecodeError(Error, ValueError):
    """Bytes that are not what the type needs. The message has the way to the place."""


class TensorError(Error, BufferError):
    """An object that cannot be a tensor of this package, or a tensor that cannot be given in the way that was asked."""


class NodeError(Error):
    """A node, or what it was asked for, cannot be."""


class SpawnError(NodeError):
    """An actor could not be started. The message has what went wrong in the worker, with its traceback."""


class PipelineError(Error):
    """A pipeline that cannot run, or that failed."""

    def __init__(self, text: str, report: object = None) -> None:
        super().__init__(text)
        self.report: Any = report
        """What was done until then: a :class:`Report`, if it ran."""


class SendError(Error):
    """A message was not accepted by the actor's mailbox."""

    retryable = False
    """Whether the same message may be accepted later."""


class AskError(Error):
    """A message was accepted, and no reply will come: its handler raised, or its process ended."""

    retryable = False
    """Whether asking again makes sense."""


class DeadlineError(Error, TimeoutError):
    """It did not happen in time. What was asked for may still happen."""

    retryable = True
    """Whether trying again makes sense."""


class LoaderError(Error):
    """A loader was asked for something that cannot be, or a batch cannot be made. The message names the file, where one is broken."""
