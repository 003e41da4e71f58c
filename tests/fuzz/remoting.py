"""Frames of the remoting protocol for the fuzzer: of nobody, and of a user who signs.

What that user sends is damaged before it is signed, so that it comes to what serves it.
"""

import json
import random
from dataclasses import replace

import duolog

from duolog_server.compat.remoting.codec.command import ONEWAY, Command, Serialization
from duolog_server.compat.remoting.codec.signatures import signed
from duolog_server.compat.remoting.relay import RELAYED
from tests.compat.remoting.guarding.asked import TABLE, Places

USER, SECRET = "signer", "of a user who signs"
RESOURCES = (
    "Topic:T",
    "Topic:DefaultCluster_REPLY_TOPIC",
    "Group:g",
    "Group:g2",
    "Cluster:DefaultCluster",
)
TEXTS = (
    "", "0", "1", "-1", "2147483648", "9223372036854775807", "1e9", "true", "null", "T", "g", "U",
    "%RETRY%g", "%DLQ%g", "DUOLOG_SYS_METADATA", "RMQ_SYS_TRANS_HALF_TOPIC", "{}", "[[[[", "\0",
    "\u20ac" * 30, "x" * 5000, "KEYS\x01k\x02DELAY\x013\x02", "TRAN_MSG\x01true\x02",
    "\x01\x02\x01",
)  # fmt: skip
FLAGS = (0, 0, 0, 0, ONEWAY, RELAYED, ONEWAY | RELAYED, -1 & ~1)


def requests() -> list[Command]:
    """One of each kind that a node serves."""
    return [row.ask(Places()) for row in TABLE.values()]


def beginnings() -> list[bytes]:
    """Frames of nobody, in both forms."""
    return [
        replace(one, opaque=7, serialization=form).frame()
        for one in requests()
        for form in _forms(one)
    ]


def _forms(request: Command) -> tuple[Serialization, ...]:
    """The headers that a request's code fits into: RocketMQ's binary one has 16 bits for it."""
    return tuple(Serialization) if request.code < 1 << 15 else (Serialization.JSON,)


async def begin(root: duolog.Client) -> None:
    """Make the user, with the rights that its requests need, and their topic."""
    await root.admin.create_topic("T", 2)
    await root.access.create_user(USER, SECRET, signs=True)
    entries = [
        {"resource": one, "actions": ["All"], "decision": "Allow", "sourceIps": []}
        for one in RESOURCES
    ]
    rights = {"policies": [{"policyType": "Custom", "entries": entries}]}
    await root.access.set_rights(USER, json.dumps(rights))


def signed_frames(chance: random.Random, known: list[Command]) -> bytes:
    """Some requests of the user, rightly signed; at times the last one is a stranger's."""
    made = [_damaged(chance, chance.choice(known)) for _ in range(chance.randrange(1, 6))]
    names = [USER] * len(made)
    if chance.random() < 0.1:
        names[-1] = "stranger"  # a wrong signature of the user itself would lock it out
    return b"".join(
        signed(one, name, SECRET).frame() for one, name in zip(made, names, strict=True)
    )


def _damaged(chance: random.Random, request: Command) -> Command:
    fields = dict(request.fields)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        name = chance.choice([*fields, "none"])
        if chance.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = chance.choice(TEXTS)
    body = bytearray(request.body)
    for _ in range(chance.choice((0, 0, 1, 4)) if body else 0):
        body[chance.randrange(len(body))] = chance.randrange(256)
    if body and chance.random() < 0.1:
        del body[chance.randrange(len(body)) :]
    return replace(
        request,
        opaque=chance.randrange(100),
        fields=fields,
        body=bytes(body),
        flag=chance.choice(FLAGS),
        version=chance.choice((0, 393, 409, 455)),
        serialization=chance.choice(_forms(request)),
    )


__all__ = ["begin", "beginnings", "requests", "signed_frames"]
