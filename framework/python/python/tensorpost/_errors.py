"""What can go wrong. Each message names the field and what to do."""


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
