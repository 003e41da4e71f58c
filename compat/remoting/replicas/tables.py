"""The tables that RocketMQ's slaves copy every 10 s: topics, groups, committed offsets, delays.

Rules: a table is what the node writes to RocketMQ's file of that name; its dataVersion is made of
its contents, so that it changes with the table alone, and is the same on the next master; only a
master that has all that its group confirmed answers.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.store.metadata import Json, Snapshot
from duolog_server.store.metadatafiles import DELAYS, EXPORTS, GROUPS, OFFSETS, TOPICS, Export

VERSION_BITS = 53  # whole numbers that any reader of JSON takes
HEADER_ROOM = 1 << 10  # in a frame, beside the body
_FILES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS,
    RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS,
    RequestCode.GET_ALL_DELAY_OFFSET: DELAYS,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GROUPS,
}
TABLES: Mapping[int, Export] = {
    code: next(export for export in EXPORTS if export.path == path) for code, path in _FILES.items()
}


@dataclass(frozen=True, slots=True)
class _Written:
    rows: Json
    body: bytes


def version_of(rows: Json) -> Json:
    """The dataVersion of a table."""
    digest = blake2b(fastjson.dumps(rows), digest_size=8).digest()
    return {"counter": int.from_bytes(digest, "big") >> 64 - VERSION_BITS, "timestamp": 0}


class Tables:
    """Answers with them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._snapshot: Snapshot | None = None
        self._written: dict[int, _Written] = {}  # the newest answer, by code

    async def table(self, request: Command) -> Command:
        """GET_ALL_TOPIC_CONFIG and its like. Raises NotMaster, Refused."""
        await self._broker.log.caught_up()
        self._broker.admission.check_current()
        tables = self._broker.metadata.tables
        if self._snapshot is None or self._snapshot.changes != tables.changes:
            self._snapshot = tables.snapshot()
        rows = TABLES[request.code].rows(self._snapshot)
        loop, threads = asyncio.get_running_loop(), self._broker.log.threads
        body = await loop.run_in_executor(threads, self._body, request.code, rows)
        if len(body) > FRAME_BYTES_MAX - HEADER_ROOM:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{TABLES[request.code].path} has {len(body)} bytes, which no frame of RocketMQ "
                f"holds (at most {FRAME_BYTES_MAX})",
            )
        return request.answer(0, body=body)

    def _body(self, code: int, rows: Json) -> bytes:
        """Encode as JSON; the last one if unchanged. Runs in a thread."""
        known = self._written.get(code)
        if known is not None and known.rows == rows:
            return known.body
        version = version_of(rows)
        # RocketMQ 5 wants one with every table.
        body = fastjson.dumps({**TABLES[code].wrap(rows, version), "dataVersion": version})
        self._written[code] = _Written(rows, body)
        return body
