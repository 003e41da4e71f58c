"""Questions to clients on their telemetry streams, and the answers.

An answer is taken from the client that was asked, by a number that nobody else can know.
"""

import asyncio
import secrets

import grpc
from duolog import _errors as sdk
from duolog._nodechannel import uncancelled

from duolog_server.compat.grpc.relay.clients import Client
from duolog_server.compat.grpc.words.codes import OK, Refused
from duolog_server.compat.grpc.words.stubs import Code, service

QUESTIONS_MAX = 1000  # that wait for an answer
_UNREACHED = (grpc.RpcError, grpc.aio.BaseError, RuntimeError)
ANSWERS = ("thread_stack_trace", "verify_message_result")
QUESTIONS = ("print_thread_stack_trace_command", "verify_message_command")


def nonce_of(command: service.TelemetryCommand) -> str:
    """The number of a question, or of its answer; empty for other commands."""
    name = command.WhichOneof("command")
    return str(getattr(command, name).nonce) if name in (*QUESTIONS, *ANSWERS) else ""


class Questions:
    """Questions to clients that wait for an answer."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Client, asyncio.Future[service.TelemetryCommand]]] = {}

    async def ask(
        self, client: Client, command: service.TelemetryCommand, seconds: float
    ) -> service.TelemetryCommand:
        """The answer of a client. The number of the command is set here.

        Raises Refused (NOT_FOUND without a stream, REQUEST_TIMEOUT), NoPermission where the user of
        the client may not have it, Busy.
        """
        if len(self._open) >= QUESTIONS_MAX:
            raise sdk.Busy(f"{QUESTIONS_MAX} clients have been asked and have not answered yet")
        nonce = secrets.token_hex(16)
        name = command.WhichOneof("command")
        assert name in QUESTIONS, "a question"
        getattr(command, name).nonce = nonce
        command.status.CopyFrom(OK)  # Python's client takes no command without it
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[service.TelemetryCommand] = loop.create_future()
        self._open[nonce] = client, answer
        try:
            async with asyncio.timeout(seconds):
                await _tell(client, command)
                return await answer
        except TimeoutError:
            raise Refused(
                Code.REQUEST_TIMEOUT,
                f"client {client.client_id} did not answer within {seconds:.1f} s; not all clients "
                "answer this",
            ) from None
        finally:
            del self._open[nonce]

    def answered(self, client: Client, command: service.TelemetryCommand) -> None:
        """Take a client's answer to any question."""
        known = self._open.get(nonce_of(command))
        if known is not None and known[0].client_id == client.client_id and not known[1].done():
            known[1].set_result(command)


async def _tell(client: Client, command: service.TelemetryCommand) -> None:
    """Write on the newest stream that takes it."""
    for stream in reversed(client.streams):
        try:
            await uncancelled(stream.write(command))
            return
        except _UNREACHED:
            continue
    raise Refused(Code.NOT_FOUND, f"client {client.client_id} has no telemetry stream")
