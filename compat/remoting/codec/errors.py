"""What can be wrong with bytes that a client sent."""


class BadFrame(Exception):
    """Bytes that are no frame of the protocol: the connection they came over has to end."""


class BadRequest(Exception):
    """A whole frame whose fields or body cannot be used: it is answered with an error."""


__all__ = ["BadFrame", "BadRequest"]
