"""Checks what nodes decide about callers against the log.

A node decides as the records that it has applied say, whatever it did before; a node that says no
has all that was acknowledged.
"""

from collections.abc import Iterable
from typing import Any

from duolog.wire import duolog_pb2 as wire

from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.rights.resources import Need
from sim.accesslog import AccessLog, Proof, Said, is_right
from sim.channels import Caller
from sim.confirmedtables import ConfirmedTables
from sim.node import Node
from sim.nodeusers import FIRST
from sim.quotawatch import QuotaWatch
from sim.witness import Violation


class AccessWatch:
    """Looks at each decision. proofs: what callers give, as its user was given it."""

    def __init__(self, tables: ConfirmedTables) -> None:
        self.log = AccessLog(tables.bodies)
        self.proofs: dict[str, Proof] = {}
        self.acknowledged = 0  # all records before it are
        self.admitted = self.denied = self.unknown = 0
        self._tables = tables
        self.quotas = QuotaWatch()
        self._failure = ""
        self._compared: dict[str, tuple[int, int]] = {}  # processes, and changes of their tables

    def acknowledge(self, end: int) -> None:
        """A change was answered as made."""
        self.acknowledged = max(self.acknowledged, end)

    def wrong(self, text: str) -> None:
        """Have the run fail after this event: no code of the node may catch it."""
        self._failure = self._failure or text

    def settled(self, node: Node) -> None:
        """After an event of a node. Raises Violation."""
        if self._failure:
            raise Violation(self._failure)
        if node.services is None:
            return
        state = node.boot, node.services.broker.metadata.tables.changes
        if self._compared.get(node.name) != state:
            self._compared[node.name] = state
            said = self.said(node)
            if said is not None:
                compare(node, said)

    def said(self, node: Node) -> Said | None:
        """What a node should go by; None where it may lack what it has applied."""
        if node.older or node.lost_disk or node.services is None:
            return None
        self._tables.read(node)
        applied = node.services.broker.metadata.tables.applied
        for other in node.peers.values() if applied > len(self.log) else ():
            if other.up and other.services is not None and not (other.older or other.lost_disk):
                self._tables.read(other)
        return self.log.at(applied)

    # -- decisions -----------------------------------------------------------------------------

    def recognised(self, node: Node, caller: Caller, principal: Principal) -> None:
        """A node took a caller for a user."""
        proof, said = self._proof(caller), self.said(node)
        hashed = principal.credentials.partition("#")[0]
        wrong = proof.word and not is_right(proof.word, hashed)
        if proof.era >= 0 and said is not None:  # a token is recognised at once
            wrong = not said.admits(proof)
        if principal.name != proof.name or wrong:
            self.wrong(f"{node.name} takes {caller}, who gives {proof}, for {principal}")

    def _proof(self, caller: Caller) -> Proof:
        return self.proofs.get(caller.authorization, Proof(caller.certificate))

    def unrecognised(self, node: Node, caller: Caller, before: Said | None) -> None:
        """A node took a caller for nobody. before: what it went by when the call came."""
        said = self.said(node)
        if said is None or before is None:
            return
        self.unknown += 1
        self._knows(node, f"does not know {caller}")
        proof = self._proof(caller)
        if before.admits(proof) and said.admits(proof):
            self.wrong(f"{node.name} does not know {caller}, who is {said.users[proof.name]}")

    def decided(
        self, node: Node, principal: Principal, needs: Iterable[Need], admitted: bool
    ) -> None:
        """A node let a call in, or did not."""
        said = self.said(node)
        if said is None:
            return
        if principal.name == FIRST and not said.users:
            return
        expected = said.proves(principal.name, principal.credentials) and all(
            said.allows(principal.name, need.resource.text, need.actions) for need in needs
        )
        if expected != admitted:
            self.wrong(
                f"{node.name} {'admits' if admitted else 'denies'} {principal} {list(needs)}: "
                f"{said.users.get(principal.name)}, {said.rights.get(principal.name)}"
            )
        if admitted:
            self.admitted += 1
        else:
            self.denied += 1
            self._knows(node, f"denies {principal}")

    def answered(self, node: Node, request: Any, reply: Any, came: float) -> None:
        """A node answers what its caller may do, or with messages."""
        principal, said = PRINCIPAL.get(), self.said(node)
        if principal is None or said is None or (principal.name == FIRST and not said.users):
            return
        if isinstance(request, wire.PullRequest):
            self.given(node, principal, request.topic)
        if not isinstance(request, wire.TestAccessRequest):
            return
        expected = said.allows(principal.name, request.resource, (request.action,))
        if reply.allowed != expected:
            self.wrong(f"{node.name} tells {principal}, {request}: {reply}, the log {expected}")

    def appended(
        self, node: Node, principal: Principal, request: wire.AppendRequest, reply: wire.AppendReply
    ) -> None:
        """A node answers a batch."""
        place = principal.name, principal.source, request.topic
        size, said = len(request.bodies) + len(request.properties), self.said(node)
        may = said is None or (
            said.proves(principal.name, principal.credentials)
            and said.allows(principal.name, f"Topic:{request.topic}", ("Pub",))
        )
        if reply.status == wire.PUT_OK and not may:
            self.wrong(f"{node.name} stores a batch of {principal} in {request.topic}")
        try:
            self.quotas.appended(
                node, said, place, (size, max(1, len(request.body_offsets) // 4 - 1)), reply
            )
        except Violation as violation:
            self.wrong(str(violation))

    def given(self, node: Node, principal: Principal, topic: str) -> None:
        """A node gives a caller messages."""
        said = self.said(node)
        if said is None:
            return
        known = said.proves(principal.name, principal.credentials)
        if not (known and said.allows(principal.name, f"Topic:{topic}", ("Sub",))):
            self.wrong(f"{node.name} gives {principal} messages of {topic}")

    def _knows(self, node: Node, what: str) -> None:
        assert node.services is not None, "it runs"
        applied = node.services.broker.metadata.tables.applied
        if applied < self.acknowledged and not _is_revoked(node):
            self.wrong(f"{node.name} {what} after {applied} changes of {self.acknowledged}")


def _is_revoked(node: Node) -> bool:
    """Whether etcd ended a lease early, and another node leads, which this one cannot know."""
    masters = [other.master for other in node.peers.values() if other.master is not None]
    newer = any(node.master is not None and m.epoch > node.master.epoch for m in masters)
    return newer and node.ghost.marks["lease_revoked"] > 0


def compare(node: Node, said: Said) -> None:
    """Whether a node has the rows that the log says. Raises Violation."""
    assert node.services is not None, "it runs"
    metadata = node.services.broker.metadata
    pairs = (
        ("users", metadata.access.users, said.users),
        ("rights", metadata.access.rights, said.rights),
        ("quotas", metadata.quotas, said.quotas),
    )
    for what, found, wanted in pairs:
        if found != wanted:
            raise Violation(
                f"{node.name} has {what} {found} after {metadata.tables.applied} changes, the log "
                f"says {wanted}"
            )
