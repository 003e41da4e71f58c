"""Types of gRPC's stubs and servicers: what protoc says of a service's methods, as a .pyi file.

A servicer's method that answers with a stream writes to its context and returns nothing, or is a
generator where the service is blocking.
"""

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodDescriptorProto


class GrpcTypes:
    """The text of one schema's _pb2_grpc.pyi."""

    def __init__(self, file: FileDescriptorProto, *, blocking: bool) -> None:
        """blocking: called from threads, not awaited."""
        self._file = file
        self._blocking = blocking

    def text(self) -> str:
        """The file."""
        return "\n".join([*self._head(), *self._services()]) + "\n"

    def _head(self) -> Iterator[str]:
        package, _, module = self._file.name.removesuffix(".proto").rpartition("/")
        yield f'"""Types of the stubs and servicers of {self._file.name}; see tools/proto.py."""'
        yield ""
        yield "from collections.abc import AsyncIterator, Awaitable, Iterator"
        yield ""
        yield "import grpc"
        yield "import grpc.aio"
        yield ""
        yield f"from {package.replace('/', '.')} import {module}_pb2 as wire"

    def _services(self) -> Iterator[str]:
        grpc = "grpc" if self._blocking else "grpc.aio"
        for service in self._file.service:
            yield f"\nclass {service.name}Stub:"
            yield f"    def __init__(self, channel: {grpc}.Channel) -> None: ..."
            for method in service.method:
                kind = f"{grpc}.{_kind(method)}MultiCallable"
                yield f"    {method.name}: {kind}[{self._pair(method)}]"
            yield f"\nclass {service.name}Servicer:"
            for method in service.method:
                takes, gives = self._takes(method), self._gives(method)
                yield f"    def {method.name}(self, {takes}, /) -> {gives}: ..."
            yield f"\ndef add_{service.name}Servicer_to_server("
            yield f"    servicer: {service.name}Servicer, server: {grpc}.Server"
            yield ") -> None: ..."

    def _class(self, name: str) -> str:
        """A message of the schema itself, by its full name."""
        package = f".{self._file.package}."
        assert name.startswith(package), f"{name} is of another schema"
        return f"wire.{name.removeprefix(package)}"

    def _pair(self, method: MethodDescriptorProto) -> str:
        return f"{self._class(method.input_type)}, {self._class(method.output_type)}"

    def _takes(self, method: MethodDescriptorProto) -> str:
        request = self._class(method.input_type)
        if method.client_streaming:
            stream = "Iterator" if self._blocking else "AsyncIterator"
            request = f"{stream}[{request}]"
        if self._blocking:
            return f"request: {request}, context: grpc.ServicerContext"
        return f"request: {request}, context: grpc.aio.ServicerContext[{self._pair(method)}]"

    def _gives(self, method: MethodDescriptorProto) -> str:
        reply = self._class(method.output_type)
        if self._blocking:
            return f"Iterator[{reply}]" if method.server_streaming else reply
        return "Awaitable[None]" if method.server_streaming else f"Awaitable[{reply}]"


def _kind(method: MethodDescriptorProto) -> str:
    asked = "Stream" if method.client_streaming else "Unary"
    answered = "Stream" if method.server_streaming else "Unary"
    return asked + answered
