"""A program that sends stored messages again while limits are lowered, as an operator may.

Rule: what names its original and is a copy of it is stored, whatever limits clients have; what is
none is not stored.
"""

import random

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.store.errors import BadMessage
from sim.ghost import Ghost
from sim.node import Node
from sim.servicecalls import REFUSED, Calls, Sender
from sim.servicehistory import COPIES, TOPIC, Sent
from sim.stage import Stage
from sim.witness import Violation

PRODUCER = b"resends---"
REFUSALS = (wire.MESSAGE_ILLEGAL, wire.MESSAGE_TOO_LARGE, wire.PROPERTIES_SIZE_EXCEEDED)


class Resends:
    """The program, and what it knows of the messages that others sent."""

    def __init__(self, cluster: Stage, calls: Calls, chance: random.Random) -> None:
        self._ghost: Ghost = cluster.ghost
        self._calls = calls
        self._chance = chance
        self._sender = Sender(cluster, calls, PRODUCER)
        self.originals: list[tuple[bytes, int, int]] = []  # body, queue id, queue offset

    async def send(self, copies: list[Sent]) -> None:
        """Send one of them again, or another message that says it is one."""
        if not self.originals:
            return
        body, queue_id, offset = self._chance.choice(self.originals)
        false = self._chance.random() < 0.2
        sent = Sent(body + b"!" * false)
        copies.append(sent)
        place = wire.QueueOffset(topic=TOPIC, queue_id=queue_id, offset=offset)

        def fields(node: Node) -> dict[str, object]:
            return {"copied_from": place}

        try:
            reply = await self._sender.attempt(sent, COPIES, 0, fields)
        except (BadMessage, sdk.BadRequest) as error:
            self._refused(sent, false, str(error))
        except REFUSED:
            pass
        else:
            if reply.status in REFUSALS:
                self._refused(sent, false, reply.reason)
            sent.outcome = "ok" if reply.status == wire.PUT_OK else "refused"
            if sent.outcome == "ok" and false:
                raise Violation(f"{body!r} was taken for a copy of {TOPIC}/{queue_id} {offset}")

    def _refused(self, sent: Sent, false: bool, why: str) -> None:
        sent.outcome = "refused"
        marks = self._ghost.marks
        if not (false or marks["older_copy_led"] or marks["segment_lost"]):
            raise Violation(f"a copy of {sent.body!r} is refused: {why}")
