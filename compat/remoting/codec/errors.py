"""Errors in bytes that a client sent."""


class BadFrame(Exception):
    """Bytes that are not a frame of the protocol: their connection has to be closed."""


class BadRequest(Exception):
    """A whole frame whose fields or body cannot be used: it is answered with an error."""
