"""Slaves of RocketMQ register with this node as their name server, and learn who their master is.

They register with all nodes of the group, every 30 s, so they find the next master by themselves.
Nothing is kept of them: they are in no route, and no client reads from them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import RegisterResponse
from duolog_server.compat.remoting.codec.registrations import (
    RegisterRequest,
    UnregisterBrokerRequest,
)
from duolog_server.compat.remoting.codec.routes import MASTER_ID
from duolog_server.compat.remoting.port.dispatcher import Begun, Handler, Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.compat.remoting.routes import Routes
from duolog_server.node.broker import Broker
from duolog_server.node.runtime.config import RocketmqSlavesSection

Serve = Callable[[Command], Begun]


@dataclass(frozen=True, slots=True)
class SlavesPort:
    """The port for RocketMQ's slaves. advertised: HOST:PORT, of this node."""

    section: RocketmqSlavesSection
    advertised: str

    def open_to_slaves(self, others: Handler, serve: Serve) -> Handler:
        """A handler that asks nothing of allowed addresses: brokers of RocketMQ do not sign."""

        def chosen(peer: Peer, request: Command) -> Begun:
            if self.section.allows(peer.host.address):
                return serve(request)
            return others(peer, request)

        return chosen


class Registration:
    """Answers them."""

    def __init__(self, broker: Broker, routes: Routes, port: SlavesPort) -> None:
        """Other nodes of the group are reached at their hosts, by the same ports."""
        self._broker = broker
        self._routes = routes
        self._port = port

    def register(self, peer: Peer, request: Command) -> Command:
        """REGISTER_BROKER. Raises BadRequest, Refused, NotMaster."""
        header = read_header(RegisterRequest, request.fields)
        self._check(peer, header)
        master = self._routes.master
        if not master:
            raise sdk.NotMaster(f"no node is known to be the master of {self._broker.group}")
        answer = RegisterResponse(self._copied_from(master), master)
        return request.answer(0, fields=write_header(answer))

    def unregister(self, peer: Peer, request: Command) -> Command:
        """UNREGISTER_BROKER: only answers, as nothing is kept. Raises BadRequest, Refused."""
        self._check(peer, read_header(UnregisterBrokerRequest, request.fields))
        return request.answer(0)

    def _copied_from(self, master: str) -> str:
        """HOST:PORT where the master whose remoting port that is serves slaves."""
        if not self._broker.replication.not_master():
            return self._port.advertised
        return f"{master.rpartition(':')[0]}:{self._port.advertised.rpartition(':')[2]}"

    def _check(self, peer: Peer, header: RegisterRequest | UnregisterBrokerRequest) -> None:
        if not self._port.section.allows(peer.host.address):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the address {peer.host.address} is not in rocketmq_slaves.allow",
            )
        if header.broker_name != self._broker.group:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this node's replica group is {self._broker.group!r}, the broker's name is "
                f"{header.broker_name[:200]!r}: set brokerName to the name of the group",
            )
        if header.broker_id == MASTER_ID:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the group {self._broker.group!r} has a master: only slaves may register, with "
                "brokerRole=SLAVE and a brokerId above 0",
            )
