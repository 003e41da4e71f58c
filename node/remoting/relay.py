"""Requests that only the master serves, passed on to it by a node that is not the master.

A client asks for routes every 30 s. Until then it sends to the node that was the master, which
passes on what it gets: so a planned switch is no gap, and neither is a master that died, once its
node is back.

Rules: a request is passed on once, as its bit RELAYED says; its answer is that of the master. Every
request has a deadline; what waits has a bound. Nothing is tried again here: the client does that.
"""

from collections.abc import Callable
from dataclasses import replace

from duolog import _errors as sdk
from duolog._background import Joint
from duolog._frames import Budget, FrameError

from node.remoting.calling import Calling, connect
from node.remoting.codec.codes import RequestCode
from node.remoting.codec.command import Command

RELAYED = 0x100  # a bit of a command's flag, beside RocketMQ's two
SECONDS = 3.0  # as long as clients wait
HELD_BYTES_MAX = 64 << 20  # of bodies whose answers have not come
UNSENT_BYTES_MAX = 8 << 20  # before requests that have no answer are refused
PASSED_ON = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    )
)


class Relay:
    """Keeps a connection to the current master."""

    def __init__(self, master: Callable[[], str]) -> None:
        """master: HOST:PORT of the master, empty if that is this node, or is not known."""
        self._master = master
        self._calling: Calling | None = None
        self._address = ""
        self._connecting: Joint[str, Calling] = Joint()
        self._held = Budget(HELD_BYTES_MAX)

    def takes(self, request: Command) -> bool:
        """Whether to pass a request on."""
        passes = request.code in PASSED_ON and not request.flag & RELAYED
        return passes and bool(self._master())

    async def pass_on(self, request: Command) -> Command:
        """The master's answer. Raises Busy, Unavailable."""
        address = self._master()
        if not address:
            raise sdk.Unavailable("the master is changing: try again")
        try:
            self._held.take(len(request.body))
        except FrameError:
            raise sdk.Busy(f"{HELD_BYTES_MAX} bytes wait for the master's answers") from None
        try:
            return await self._answer(address, request)
        except OSError as error:  # TimeoutError is one
            reason = str(error) or f"no answer within {SECONDS:g} s"
            raise sdk.Unavailable(f"the master at {address} did not answer: {reason}") from None
        finally:
            self._held.give(len(request.body))

    async def _answer(self, address: str, request: Command) -> Command:
        calling = self._calling
        if calling is None or not calling.is_open or self._address != address:
            calling = await self._connecting.call(address, lambda: self._connected(address))
        marked = replace(request, flag=request.flag | RELAYED)
        if request.is_oneway:
            if calling.unsent_bytes > UNSENT_BYTES_MAX:
                raise sdk.Busy(f"{UNSENT_BYTES_MAX} bytes are not sent to the master yet")
            calling.pass_on_oneway(marked)
            return request.answer(0)
        answer = await calling.pass_on(marked, SECONDS)
        return replace(answer, opaque=request.opaque, serialization=request.serialization)

    async def _connected(self, address: str) -> Calling:
        self._close()
        try:
            calling = self._calling = await connect(address)
        except OSError as error:
            raise sdk.Unavailable(f"the master at {address} cannot be reached: {error}") from None
        self._address = address
        return calling

    async def stop(self) -> None:
        """Close the connection."""
        await self._connecting.stop()
        self._close()

    def _close(self) -> None:
        if self._calling is not None:
            self._calling.close()
            self._calling = None


__all__ = ["PASSED_ON", "RELAYED", "Relay"]
