"""A broker of RocketMQ as far as a follower sees one, written by hand: HA port and calls."""

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from duolog_server.compat.hawire.frames import HEAD
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.signatures import access_key_of, is_signed
from tests.compat.remoting.served import Served
from tests.support import SMALL, open_store, options, put_ok

SEGMENT = SMALL.mapped_file_size_commit_log
OFFSET = struct.Struct(">q")
TOPIC_ROW = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


def written(path: Path, count: int, *, first: int = 0) -> bytes:
    """The bytes of a log with so many records in queue T/0, from the beginning on."""
    store = open_store(path, options(enabled_append_prop_crc=False))  # as 4.9 writes them
    for number in range(first, first + count):
        put_ok(store, [b"%d-" % number + b"x" * (number * 37 % 900)])
    end = store.max_offset
    store.shutdown()
    files = sorted((path / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


def copied(path: Path, end: int) -> bytes:
    """The bytes of a copy, up to an offset."""
    files = sorted(file for file in (path / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


def _tables() -> dict[int, bytes]:
    version = {"counter": 1, "timestamp": 1}
    row = json.dumps(TOPIC_ROW)
    return {
        RequestCode.GET_ALL_TOPIC_CONFIG: (
            f'{{"dataVersion":{json.dumps(version)},"topicConfigTable":{{"T":{row}}}}}'.encode()
        ),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
            b'{"dataVersion":{"counter":1,"timestamp":1},'
            b'"subscriptionGroupTable":{"g":{"groupName":"g","consumeEnable":true}}}'
        ),
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@g":{0:7,1:0}}}',
        RequestCode.GET_ALL_DELAY_OFFSET: b"",
    }


def _settings() -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerRole": "ASYNC_MASTER",
        "slaveReadEnable": "false",
        "brokerPermission": "6",
        "mappedFileSizeCommitLog": str(SEGMENT),
    }


@dataclass
class HandMaster:
    """Its log begins at `first`. asked: offsets by which connections began; reports: the last.

    called: codes of calls. secrets: of those who may call it, by access key; empty: anybody may.
    """

    log: bytes
    first: int = 0
    frame_bytes: int = 32 << 10
    settings: dict[str, str] = field(default_factory=_settings)
    tables: dict[int, bytes] = field(default_factory=_tables)
    queue_ends: dict[str, int] = field(default_factory=dict)  # by TOPIC-QUEUE, of deleted records
    asked: list[int] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    called: list[int] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    address: str = ""
    ha: str = ""
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    pause: float = 0.0  # between frames
    putting_ms: int = 0
    _links: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.log)

    async def grow(self, more: bytes) -> None:
        """Append to the log, and send it."""
        self.log += more
        async with self.grown:
            self.grown.notify_all()

    def drop(self) -> None:
        """Close all connections of slaves."""
        for writer in self._links:
            writer.transport.abort()
        self._links.clear()

    async def slave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the HA port."""
        self._links.append(writer)
        try:
            at = OFFSET.unpack(await reader.readexactly(8))[0]
            self.asked.append(at)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(writer, at))
                while word := await reader.read(8):
                    self.reports.append(OFFSET.unpack(word)[0])
                sending.cancel()
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, at: int) -> None:
        while True:
            size = min(self.frame_bytes, SEGMENT - at % SEGMENT, max(0, self.end - at))
            data = self.log[at - self.first : at - self.first + size]
            writer.write(HEAD.pack(at, size) + data)  # without bytes: a sign of life
            await writer.drain()
            at += size
            if not size:
                async with self.grown:
                    await self.grown.wait()
            await asyncio.sleep(self.pause)

    def take(self, transport: asyncio.Transport, request: Command) -> None:
        transport.write(self.answer(request).frame())

    def answer(self, request: Command) -> Command:
        """Answer a call."""
        self.called.append(request.code)
        if request.code in self.refused:
            return request.answer(1, "not today")
        secret = self.secrets.get(access_key_of(request), "")
        if self.secrets and not (secret and is_signed(request, secret.encode())):
            return request.answer(1, "AclException: Check signature failed")  # as 4.9 says it
        if request.code == RequestCode.UPDATE_BROKER_CONFIG:
            rows = (line.partition("=") for line in request.body.decode().splitlines())
            self.settings.update({key: value for key, _, value in rows})
            return request.answer(0)
        if request.code == RequestCode.GET_MAX_OFFSET:
            place = f"{request.fields['topic']}-{request.fields['queueId']}"
            return request.answer(0, fields={"offset": str(self.queue_ends.get(place, 0))})
        modes = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        if request.code == modes and modes not in self.tables:  # as RocketMQ 4
            return request.answer(3, f" request type {modes} not supported")
        return request.answer(0, body=self._body(request.code))

    def _body(self, code: int) -> bytes:
        if code == RequestCode.GET_BROKER_CONFIG:
            rows = {**self.settings, "haListenPort": self.ha.rpartition(":")[2]}
            return "".join(f"{key}={value}\n" for key, value in rows.items()).encode()
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMinOffset": str(self.first), "commitLogMaxOffset": str(self.end)}
            more = {"brokerVersionDesc": "V4_9_7", "pageCacheLockTimeMills": str(self.putting_ms)}
            return json.dumps({"table": {**table, **more}}).encode()
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return (
                f'{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{0:"{self.address}"}}}}}}}}'
            ).encode()
        return self.tables[code]


def _address(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def serving(
    master: HandMaster, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HandMaster]:
    """Let it be reached. tls: of calls."""
    loop = asyncio.get_running_loop()
    calls = await loop.create_server(lambda: Served(master.take, []), "127.0.0.1", 0, ssl=tls)
    slaves = await asyncio.start_server(master.slave, "127.0.0.1", 0)
    master.address, master.ha = _address(calls), _address(slaves)
    try:
        yield master
    finally:
        master.drop()
        calls.close()
        slaves.close()
