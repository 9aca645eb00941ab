"""The errors of the package. Each message names the field and what to do."""

from typing import Any


class Error(Exception):
    """The base of all errors of this package."""


class SchemaError(Error, TypeError):
    """An annotation has no form on the wire."""


class EncodeError(Error, ValueError):
    """A value does not match its annotation. The message has the path to it, as in
    ``Frame.regions[2].label``."""


class DecodeError(Error, ValueError):
    """Bytes do not match the type. The message has the path to the place."""


class TensorError(Error, BufferError):
    """An object cannot be a tensor of this package, or a tensor cannot be exported as requested."""


class NodeError(Error):
    """A node cannot start, or cannot do what it was asked for."""


class UnhandledError(NodeError):
    """The actor with a name does not handle a message. Not public: programs see a :class:`NodeError`."""


class SpawnError(NodeError):
    """An actor could not be started. The message has the error in the worker, with its traceback."""


class PipelineError(Error):
    """A pipeline cannot run, or has failed."""

    def __init__(self, text: str, report: object = None) -> None:
        super().__init__(text)
        self.report: Any = report
        """The report until then: a :class:`Report`, if it ran."""


class SendError(Error):
    """A message was not accepted by the actor's mailbox."""

    retryable = False
    """Whether the same message may be accepted later."""


class AskError(Error):
    """A message was accepted, and no reply will come: its handler raised, or its process ended."""

    retryable = False
    """Whether asking again makes sense."""


class DeadlineError(Error, TimeoutError):
    """An operation did not finish in time. It may still happen."""

    retryable = True
    """Whether trying again makes sense."""


class LoaderError(Error):
    """A loader was asked for something that is not possible, or a batch cannot be made. The message names a
    broken file."""


_LONGEST = 8192


def plain(text: str) -> str:
    """Returns a text of another process for this one's output: one line that moves no cursor, and is cut."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}.. of {len(text)} characters"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
