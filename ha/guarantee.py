"""The guarantee of a group's puts: how many replicas hold one, and how durably.

Rules: it is a fact of the group, in the registry, and not of the node that leads; a node whose own
settings ask for less goes by the group's, one whose settings ask for more keeps its own; only an
operator lowers it. It has a key of its own: nodes that do not know it neither read nor change it.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

SYNC, ASYNC = "SYNC_FLUSH", "ASYNC_FLUSH"
DURABLE, RECEIVED = "durable", "received"
REPLICAS, FLUSH, ACK = "in-sync-replicas", "flush-disk-type", "ack"
# A kill of the process; also a power cut; also the loss of a node; also a power cut of all of them.
DURABILITIES = ("process", "power", "replicas", "replicas+power")
OPTIONS = {REPLICAS: "ha.in_sync_replicas", FLUSH: "store.flush_disk_type", ACK: "ha.ack"}


class BadGuarantee(Exception):
    """No guarantee, or no setting of one; the text says why."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The conditions that a put waits for.

    in_sync_replicas: nodes that must hold it, the master included. sync_flush: it is on the
    master's disk; durable_acks: and on those of the slaves. by_operator: an operator set it, and
    masters do not raise it to what their own settings ask for.
    """

    in_sync_replicas: int = 1
    sync_flush: bool = False
    durable_acks: bool = False
    by_operator: bool = False

    @property
    def durability(self) -> str:
        """What an acknowledged put survives, in one word: see `DURABILITIES`."""
        replicas = self.in_sync_replicas > 1
        power = self.sync_flush and (self.durable_acks or not replicas)
        return "+".join(["replicas"] * replicas + ["power"] * power) or "process"

    def joined(self, other: "Guarantee | None") -> "Guarantee":
        """The stronger of both, setting by setting."""
        if other is None:
            return self
        return replace(
            self,
            in_sync_replicas=max(self.in_sync_replicas, other.in_sync_replicas),
            sync_flush=self.sync_flush or other.sync_flush,
            durable_acks=self.durable_acks or other.durable_acks,
        )

    def settings(self) -> dict[str, str]:
        """The settings by operators' names."""
        return {
            REPLICAS: str(self.in_sync_replicas),
            FLUSH: SYNC if self.sync_flush else ASYNC,
            ACK: DURABLE if self.durable_acks else RECEIVED,
        }

    def weaker_than(self, other: "Guarantee") -> list[str]:
        """The settings that ask for less than another guarantee does."""
        mine, stronger = self.settings(), self.joined(other).settings()
        return [name for name in mine if mine[name] != stronger[name]]

    def altered(self, name: str, value: str) -> "Guarantee":
        """Apply an operator's setting. Raises BadGuarantee."""
        match name:
            case _ if name == REPLICAS:
                if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= 1000):
                    raise BadGuarantee(f"{name} must be a number from 1, not {value!r}")
                return replace(self, in_sync_replicas=int(value), by_operator=True)
            case _ if name == FLUSH:  # both, as ha.ack = auto has it
                sync = _either(name, value, SYNC, ASYNC)
                return replace(self, sync_flush=sync, durable_acks=sync, by_operator=True)
            case _ if name == ACK:
                durable = _either(name, value, DURABLE, RECEIVED)
                return replace(self, durable_acks=durable, by_operator=True)
        raise BadGuarantee(f"a group has no setting {name!r}; it has {', '.join(OPTIONS)}")

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        value = {
            "inSyncReplicas": self.in_sync_replicas,
            "flushDiskType": SYNC if self.sync_flush else ASYNC,
            "ack": DURABLE if self.durable_acks else RECEIVED,
            "byOperator": self.by_operator,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Guarantee":
        """Raises BadGuarantee."""
        try:
            value: Any = json.loads(data)
            replicas = int(value["inSyncReplicas"])
            sync_flush = _either("flushDiskType", str(value["flushDiskType"]), SYNC, ASYNC)
            durable_acks = _either("ack", str(value["ack"]), DURABLE, RECEIVED)
            by_operator = bool(value["byOperator"])
        except (KeyError, TypeError, ValueError, RecursionError, BadGuarantee) as error:
            raise BadGuarantee(f"cannot read the group's guarantee: {error!r}") from None
        if replicas < 1:
            raise BadGuarantee(f"the group's guarantee asks for {replicas} replicas")
        return cls(replicas, sync_flush, durable_acks, by_operator)


def _either(name: str, value: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise BadGuarantee(f"{name} must be {yes} or {no}, not {value!r}")
    return value == yes
