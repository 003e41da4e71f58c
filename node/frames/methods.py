"""The methods of the native API by their numbers in frames."""

from collections.abc import Callable
from typing import Any, Protocol

from duolog._frames import NUMBERS

# No call: as a stream, it would wait for MORE, which comes behind requests that it does not take.
APPEND = NUMBERS["/duolog.v1.Messages/Append"]


class Handler(Protocol):
    """A method of a service, as the generated code registers it."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any]
    response_serializer: Callable[[Any], bytes]
    unary_unary: Any
    unary_stream: Any
    stream_stream: Any


class Methods:
    """Collects what `add_XServicer_to_server` registers."""

    def __init__(self) -> None:
        self.by_number: dict[int, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """They are registered by name as well."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """The methods of a service, but for those that have frames of their own."""
        for name, handler in handlers.items():
            number = NUMBERS[f"/{service}/{name}"]
            if number != APPEND:
                self.by_number[number] = handler


__all__ = ["Handler", "Methods"]
