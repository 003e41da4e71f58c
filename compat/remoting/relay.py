"""Requests that only the master serves, passed on to it by a node that is not the master.

A client asks for routes every 30 s. Until then it sends to the node that was the master, which
passes on what it gets: so a planned switch is no gap, and neither is a master that died, once its
node is back.

Rules: a request is passed on once, as its bit RELAYED says; its answer is that of the master. Every
request has a deadline; what waits has a bound. Nothing is tried again here: the client does that.
It is passed on in plain text, so what came by TLS is not passed on. The master sees the address of
this node: quotas of the client's are counted here.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from duolog import _errors as sdk
from duolog._background import Joint

from duolog_server.compat.remoting.answers import Held
from duolog_server.compat.remoting.batches import count_of
from duolog_server.compat.remoting.calling import Calling, connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import (
    HEADER_BYTES_MAX,
    LENGTHS_BYTES,
    NUMBER_MAX,
    BadRequest,
    Command,
)
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.core.throttle import Throttle, throttled
from duolog_server.node.identity.quotas.quotas import Who

RELAYED = 0x100  # a bit of a command's flag, beside RocketMQ's two
SECONDS = 3.0  # as long as clients wait; with the time that it takes to connect
HELD_BYTES_MAX = 64 << 20  # of requests whose answers have not come
UNSENT_BYTES_MAX = 8 << 20  # of requests that the master has not taken, then others are refused
_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
PASSED_ON = frozenset(
    (
        *_SENDS,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    )
)


class Relay:
    """Keeps a connection to the current master, and one to the master before it."""

    def __init__(self, master: Callable[[], str], throttle: Throttle, frame_bytes_max: int) -> None:
        """master: HOST:PORT of the master, empty if that is this node, or is not known.

        frame_bytes_max: longest frame that the master takes, without its first length, if that is
        less than RocketMQ's.
        """
        self._master = master
        self._throttle = throttle
        self._frame_bytes_max = min(frame_bytes_max, FRAME_BYTES_MAX)
        self._calling: Calling | None = None
        self._address = ""
        self._before: Calling | None = None
        self._connecting: Joint[str, Calling] = Joint()
        self._held = Held(HELD_BYTES_MAX, f"{HELD_BYTES_MAX} bytes wait for the master's answers")

    def takes(self, peer: Peer, request: Command) -> bool:
        """Whether to pass a request on."""
        if request.code not in PASSED_ON or request.flag & RELAYED or peer.is_encrypted:
            return False
        return bool(self._master())

    async def pass_on(self, peer: Peer, request: Command, waited: float = 0.0) -> Command:
        """The master's answer. Raises BadRequest, Busy, Throttled, Unavailable.

        waited: seconds for which the client has waited already.
        """
        address = self._master()
        if not address:
            raise sdk.Unavailable("the master is changing: try again")
        try:
            with self._held.request(request.size):
                self._check_quotas(peer, request)
                async with asyncio.timeout(SECONDS - waited):
                    return await self._answer(address, request)
        except OSError as error:  # TimeoutError is one
            reason = str(error) or f"no answer within {SECONDS:g} s"
            raise sdk.Unavailable(f"the master at {address} did not answer: {reason}") from None

    def _check_quotas(self, peer: Peer, request: Command) -> None:
        """Raise Throttled where the client's address is over a quota. Raises BadRequest."""
        if not self._throttle.on or request.code not in _SENDS:
            return
        count = count_of(request.body) if _is_batch(request) else 1
        wait = self._throttle.put(Who.at("", peer.host.address), "", request.size, count)
        if wait is not None:
            raise throttled(wait)

    async def _answer(self, address: str, request: Command) -> Command:
        calling = self._calling
        if calling is None or not calling.is_open or self._address != address:
            calling = await self._connecting.call(address, lambda: self._connected(address))
        if calling.unsent_bytes > UNSENT_BYTES_MAX:
            raise sdk.Busy(f"the master has not taken {UNSENT_BYTES_MAX} bytes of requests yet")
        marked = replace(request, flag=request.flag | RELAYED)
        self._check_size(marked)
        if request.is_oneway:
            calling.pass_on_oneway(marked)
            return request.answer(0)
        answer = await calling.pass_on(marked, SECONDS)
        return replace(answer, opaque=request.opaque, serialization=request.serialization)

    def _check_size(self, request: Command) -> None:
        """Raise BadRequest for what gets too long, as its header is written anew: the master would
        end the connection, and with it what others wait for.
        """
        header = len(replace(request, opaque=NUMBER_MAX).head()) - LENGTHS_BYTES
        frame = 4 + header + len(request.body)
        for what, size, most in (
            ("header", header, HEADER_BYTES_MAX),
            ("frame", frame, self._frame_bytes_max),
        ):
            if size > most:
                raise BadRequest(f"a {what} of {size} bytes for the master, the limit is {most}")

    async def _connected(self, address: str) -> Calling:
        try:
            calling = await connect(address)
        except OSError as error:
            raise sdk.Unavailable(f"the master at {address} cannot be reached: {error}") from None
        self._retire()
        self._calling, self._address = calling, address
        return calling

    def _retire(self) -> None:
        """Another master is called now. The answers of the one before may still come."""
        if self._before is not None:
            self._before.close()
        self._before, self._calling = self._calling, None
        if self._before is not None:
            asyncio.get_running_loop().call_later(SECONDS, self._before.close)

    async def stop(self) -> None:
        """Close the connections."""
        await self._connecting.stop()
        self._retire()
        self._retire()


def _is_batch(request: Command) -> bool:
    """Whether a send has many messages."""
    fields = request.fields
    is_marked = (fields.get("batch") or fields.get("m", "")).lower() == "true"
    return is_marked or request.code == RequestCode.SEND_BATCH_MESSAGE
