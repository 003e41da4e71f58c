"""Final checks of users, rights and quotas: the log, the tables of all nodes, and their gates."""

from duolog_server.node.identity.rights.resources import Action, Kind, Need, Resource
from sim.accesscalls import TOPICS
from sim.accessclients import AccessClients
from sim.accesslog import Said
from sim.accesswatch import compare
from sim.credentials import USERS
from sim.node import Node
from sim.witness import Violation


def final(nodes: list[Node], clients: AccessClients) -> None:
    """All nodes have everything, and decide alike. Raises Violation."""
    log = clients.watch.log
    clients.history.check(log.changes())
    said = log.at(len(log))
    for node in nodes:
        compare(node, said)
        _same_decisions(node, said)


def _same_decisions(node: Node, said: Said) -> None:
    assert node.services is not None, "it runs"
    assert node.services.access is not None, "it has users"
    gate = node.services.access.gate
    for name in USERS:
        for topic in TOPICS:
            for action in ("Pub", "Sub"):
                resource = f"Topic:{topic}"
                found = gate.decision(name, _need(topic, action), "").allowed
                if found != said.allows(name, resource, (action,)):
                    raise Violation(f"{node.name}: {name} may {action} {topic}: {found}")


def _need(topic: str, action: str) -> Need:
    return Need(Resource(Kind.TOPIC, topic), frozenset((Action(action),)))
