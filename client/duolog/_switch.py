"""A planned switch of the master: ordered once, however often its answer is lost."""

import asyncio

import grpc

from duolog._connection import Connection
from duolog._errors import (
    BadRequest,
    Busy,
    Fatal,
    NotMaster,
    ResultUnknown,
    Retryable,
    Unavailable,
    error_of,
)
from duolog.wire import duolog_pb2 as wire


class Switch:
    """One order. It names the epoch that it ends: a repeat of it ends no later one."""

    def __init__(self, connection: Connection, node: str, epoch: int) -> None:
        """node: the next master, empty for any. epoch: to end; 0: the one that is found."""
        self._connection = connection
        self._node = node
        self._epoch = epoch
        self._given = epoch > 0
        self._old = ""  # master of the epoch, where it is known
        self._maybe_done = False  # by a try whose answer was lost

    async def order(self, timeout: float) -> None:
        """Give the order, again where an answer was lost, for so many seconds.

        Raises BadRequest, ResultUnknown, or a Retryable where it surely was not carried out.
        """
        try:
            await self._connection.call(self._try, timeout)
        except Retryable as error:
            if not self._maybe_done:
                raise
            raise ResultUnknown(
                f"{error}; the switch away from epoch {self._epoch} may or may not "
                "happen: `cluster status` shows it"
            ) from None

    async def _try(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if not self._epoch:
                await self._find_epoch(deadline - loop.time())
            before = self._maybe_done
            reply = await self._ask(deadline - loop.time())
            if not reply.over:
                return
            if before or self._given:
                self._judge(reply, before)
                return
            # The node that was asked for the epoch knew an old one: nothing was done yet.
            self._maybe_done, self._epoch, self._old = False, reply.epoch, reply.master

    async def _find_epoch(self, seconds: float) -> None:
        route: wire.RouteReply = await self._connection.admin.Route(
            wire.RouteRequest(), timeout=seconds
        )
        for group in route.groups:
            if group.group == route.group:
                self._epoch, self._old = group.epoch, group.master

    async def _ask(self, seconds: float) -> wire.FailoverReply:
        before, self._maybe_done = self._maybe_done, True
        request = wire.FailoverRequest(node=self._node, epoch=self._epoch)
        try:
            reply: wire.FailoverReply = await self._connection.admin.Failover(
                request, timeout=max(0.001, seconds)
            )
            return reply
        except grpc.RpcError as failure:
            error = error_of(failure)
            if isinstance(error, NotMaster | Fatal | Busy):
                self._maybe_done = before  # this try surely changed nothing
                raise
            if not self._epoch:  # a repeat could end another epoch
                raise ResultUnknown(str(error)) from None
            if isinstance(error, ResultUnknown):
                raise Unavailable(str(error)) from None  # ask again
            raise

    def _judge(self, reply: wire.FailoverReply, maybe_done: bool) -> None:
        """The epoch was over already: by a try whose answer was lost, or by something else."""
        if reply.master == self._node if self._node else reply.master != self._old:
            return
        now = f"epoch {self._epoch} is over: {reply.master} leads epoch {reply.epoch}"
        if maybe_done:
            raise ResultUnknown(f"{now}; the switch may or may not have happened in between")
        raise BadRequest(f"{now}, and nothing was done")
