"""Assignments by the node: queues of clients of RocketMQ 5 with `setClientRebalance(false)`."""

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.bodies import (
    POP,
    PULL,
    AssignmentQuery,
    QueueName,
    assigned,
    read_assignment_query,
)
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.members import Members
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.allocation import STRATEGIES, Deal, Wish
from duolog_server.node.service.groups import REQUEST_MODES

ANY_QUEUE = -1
# The others go by what clients know: their rooms, and the queues that they name.
_STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")


class Assignments:
    """Answers clients that ask for their queues, and how to read them.

    A slave answers by what it has copied: a client whose first question is refused assigns its
    queues itself, by PULL, for as long as it lives, also in a group that reads by POP. It asks
    again within 20 s.
    """

    def __init__(self, broker: Broker, members: Members) -> None:
        self._broker = broker
        self._core = broker.core
        self._members = members

    def query(self, request: Command) -> Command:
        """QUERY_ASSIGNMENT. Raises UnknownTopic, BadRequest, NotMaster."""
        wanted = read_assignment_query(request.body)
        topic = self._core.metadata.topics.get(wanted.topic)
        if topic is None and wanted.topic.startswith(RETRY_PREFIX):
            return request.answer(0, body=assigned(None, PULL))  # nothing was retried yet
        if topic is None:
            self._core.admission.known_topic(wanted.topic)
        mode = self._mode(wanted)
        queues = self._queues(wanted, mode)
        names = [QueueName(wanted.topic, self._broker.group, queue) for queue in queues or ()]
        return request.answer(0, body=assigned(None if queues is None else names, mode))

    def _mode(self, wanted: AssignmentQuery) -> str:
        row = self._core.metadata.tables.groups.get(wanted.group, {})
        return str(row.get(REQUEST_MODES, {}).get(wanted.topic, PULL))

    def _queues(self, wanted: AssignmentQuery, mode: str) -> list[int] | None:
        """A member's queues; None where its heartbeat is yet to come. Raises BadRequest."""
        ids = self._members.ids(wanted.group)
        if wanted.client_id not in ids:
            return None
        if mode == POP:
            return [ANY_QUEUE]  # all members share all queues
        tables = self._core.metadata.tables
        if wanted.broadcasting:
            return list(tables.readable("", wanted.topic))
        if wanted.strategy not in _STRATEGIES:
            raise sdk.BadRequest(
                f"the node assigns queues by {', '.join(_STRATEGIES)}, not by "
                f"{wanted.strategy[:80]!r}: let the client do it, with setClientRebalance(true)"
            )
        all_queues = [
            (wanted.topic, queue) for queue in tables.readable(wanted.group, wanted.topic)
        ]
        deal = Deal(all_queues, dict.fromkeys(ids, Wish()), self._broker.group)
        return [queue for _, queue in STRATEGIES[wanted.strategy](deal, wanted.client_id)]
